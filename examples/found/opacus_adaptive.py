"""A clip of Opacus that tells the number of records: dpzv-audit audit mechanism opacus_adaptive:subject"""

import logging

import accounted
import numpy as np
import torch
from opacus.optimizers import AdaClipDPOptimizer
from torch import nn

NOISE, STEPS, RECORDS = 40.0, 60, 2

logging.getLogger("opacus").setLevel(logging.ERROR)


class FixedDivisor(AdaClipDPOptimizer):
    """The same rule, with the number of records that is expected as the divisor of the count."""

    def update_max_grad_norm(self):
        """Update the clip."""
        self.sample_size = self.expected_batch_size
        super().update_max_grad_norm()


class Steps:
    """Whole batches of two records, or of one in the other world, whose gradients are zero: only the clip is watched.

    The count of gradients below the clip gets noise and is then divided by the exact number of records, so that the
    size of that noise in the clip's changes from step to step tells the number.
    """

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def run(self, world, rng):
        """Take the steps and return how little the clip's changes vary."""
        torch.manual_seed(int(rng.integers(2**62)))
        weight = nn.Parameter(torch.zeros(1))
        optimizer = self.optimizer(
            torch.optim.SGD([weight], lr=1.0),
            noise_multiplier=NOISE,
            target_unclipped_quantile=0.5,
            clipbound_learning_rate=0.01,
            max_clipbound=1e9,
            min_clipbound=1e-9,
            unclipped_num_std=NOISE,
            max_grad_norm=1.0,
            expected_batch_size=RECORDS,
        )
        clips = [0.0]
        for _ in range(STEPS):
            optimizer.zero_grad()
            weight.grad_sample = torch.zeros(RECORDS - 1 + world, 1)
            optimizer.step()
            clips.append(float(optimizer.max_grad_norm.log()))
        return -float(np.log(np.std(np.diff(clips))))

    def claimed(self, delta):
        """Return what the accountant says of so many whole batches."""
        return accounted.epsilon(NOISE, delta, steps=STEPS)


def subject():
    """The optimiser that PrivacyEngine makes with clipping="adaptive"."""
    return Steps(AdaClipDPOptimizer)


def fixed_divisor():
    """The same with a divisor that follows from nobody's data."""
    return Steps(FixedDivisor)
