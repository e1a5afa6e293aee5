"""Two worlds that differ in one record's label, and a client that makes the most of it: what tests of DPZV share."""

import numpy as np
import torch

SMALL = {"batch_size": 4, "epochs": 2, "embedding": 2, "hidden": 5, "dtype": "float64", "sigma": 0.0, "clip": 0.2}
"""Options of a small DPZV without noise."""


def two_worlds(dataset, record, other):
    """Labels (2, N) that differ at `record` alone."""
    labels = np.tile(dataset.train.labels, (2, 1))
    labels[1, record] = (labels[0, record] + other) % dataset.classes
    return labels


class Saturating:
    """Sends embeddings that raise the first logit for `record` by far more than the clip, and zeros for the others.

    Works where the server sums; every client does the same.
    """

    first_pass_repeats = 1

    def __init__(self, record, size=5.0):
        self.record, self.size = record, size

    def uploads(self, turn):
        plus = torch.zeros(*turn.batch.ids.shape, turn.shape[-1], dtype=turn.dtype)
        plus[..., 0] = self.size * (turn.batch.ids == self.record)
        return torch.stack((plus, -plus), 1)


def saturated(record, clients=3):
    return {m: Saturating(record) for m in range(1, clients + 1)}
