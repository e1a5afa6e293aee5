"""Batches in the loader's own order, accounted as Poisson samples: dpzv-audit audit mechanism opacus_order:subject"""

import logging
import warnings

import accounted
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NOISE, RECORDS = 1.0, 1000

logging.getLogger("opacus").setLevel(logging.ERROR)


class Epoch:
    """An epoch in batches of one, whose first record has a gradient, or none in the other world; no other has one.

    The step of its batch is the first. What comes after it does not depend on the record and is left out here.
    """

    def __init__(self, amplified):
        self.amplified = amplified

    def run(self, world, rng):
        """Take the first step of an epoch and return its gradient."""
        torch.manual_seed(int(rng.integers(2**62)))
        features = torch.zeros(RECORDS, 1)
        features[0] = 10.0 * world
        model = nn.Linear(1, 1, bias=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, optimizer, loader = PrivacyEngine().make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                data_loader=DataLoader(TensorDataset(features), batch_size=1),
                noise_multiplier=NOISE,
                max_grad_norm=1.0,
                poisson_sampling=False,
            )
            (batch,) = next(iter(loader))
            model(batch).mean().backward()
        optimizer.step()
        return float(optimizer.params[0].grad)

    def claimed(self, delta):
        """Return what the engine's accountant says of the epoch, or what holds for one step without sampling."""
        return accounted.epsilon(NOISE, delta, rate=1 / RECORDS, steps=RECORDS) if self.amplified else self.right(delta)

    def right(self, delta):
        """Return the epsilon of a record that is in one batch, which everybody knows."""
        return accounted.epsilon(NOISE, delta)


def subject():
    """A training as it is accounted."""
    return Epoch(amplified=True)


def not_amplified():
    """The same training, accounted as what it is."""
    return Epoch(amplified=False)
