"""Defences: what is done to labels, embeddings or gradients so that they tell less of labels."""
