"""What every method is built of: messages, replicas of models, random streams, noise, and the loop that trains."""
