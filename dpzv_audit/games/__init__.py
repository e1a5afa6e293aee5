"""Distinguishing games as data: real trainings and simulated transcripts, and how their runs are scored."""
