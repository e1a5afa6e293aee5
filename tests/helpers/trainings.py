"""Trainings of a user's own: what they send of one round, and what they state of it."""

import numpy as np

RELEASE = {
    "channel": "gradient",
    "clip": 1.0,
    "clip_scope": "record",
    "sigma": 2.0,
    "batch_size": 64,
    "rounds": 1,
    "sampler": "shuffled",
    "server_update": "frozen",
}


def send(task, record, rows, *, ids=None, number=0, client=1):
    """Record that a client sent its features of some records, or of all, and was sent a row about each."""
    ids = np.arange(task.records) if ids is None else ids
    record.sent(number, client, 0, "embeddings", task.features[client - 1][ids], ids)
    record.sent(number, 0, client, "gradient", rows, ids)
