"""The parts of every method: messages, replicas of models, random streams, noise, and the loop that trains."""
