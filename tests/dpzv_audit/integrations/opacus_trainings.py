"""Small trainings with Opacus that tests audit, and the scores of their runs."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

opacus = pytest.importorskip("dpzv_audit.integrations.opacus")


def records(count, width=6):
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, width, generator=generator), torch.arange(count) % 2)


def deep():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


def training(count=20, **given):
    options = {"model": lambda: nn.Linear(6, 2), "data": records(count), "max_grad_norm": 0.5, "batch_size": 64}
    options["noise_multiplier"] = None if "target_epsilon" in given else 1.0
    return opacus.OpacusTraining(**{**options, **given})


def scores(subject, runs, first=0):
    """Scores of the worlds without and with the canary."""
    every = range(first, first + runs)
    return tuple(np.array([subject.run(w, np.random.default_rng((w, k))) for k in every]) for w in (0, 1))
