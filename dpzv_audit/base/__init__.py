"""The ground floor, which imports nothing of ours: errors, files, seeds, limits, printed numbers, the executor."""
