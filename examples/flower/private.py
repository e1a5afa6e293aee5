"""The training of federation.py with clipped and noised gradients, which alone move the server's model too."""

import torch
from federation import data  # noqa: F401  `data` is what it trains on
from federation import train as without_noise

CLIP = 1e-4
NOISE = 2.0
ROUNDS = 1
STEP = 2.0**-30
"""Clipped gradients and noise lie on a grid of this step, so that no low bits tell which gradient was sent."""


def train(task, record, seed):
    """Train with noise of `NOISE` times the clip on each patient's gradient."""
    return without_noise(task, record, seed, ROUNDS, protect)


def protect(gradients):
    """Clip each row to `CLIP` in norm, and add Gaussian noise."""
    norms = gradients.norm(dim=1, keepdim=True).clamp(min=CLIP)
    steps = torch.trunc(gradients * (CLIP / norms) / STEP)  # towards zero: a norm grows no larger
    noise = torch.round(NOISE * CLIP / STEP * torch.randn_like(gradients))
    return (steps + noise) * STEP


def releases(task):
    """State what is released: one noised row for each patient in each round."""
    return {
        "channel": "gradient",
        "clip": CLIP,
        "clip_scope": "record",
        "sigma": NOISE * CLIP,
        "noise": "grid",
        "batch_size": len(task.labels),
        "rounds": ROUNDS,
        "sampler": "shuffled",
        "server_update": "released",
        "own_rounds_only": False,  # one clip and one noise are over the parts of both clients
    }
