"""Noise of Opacus that shows whether a gradient lies under it: dpzv-audit audit mechanism opacus_noise:subject"""

import math

import accounted
import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from torch import nn

NOISE, WIDTH = 10.0, 4096


class Step:
    """A step on one record, which the other world has not got: all that is released there is noise.

    torch.normal makes sixteen numbers at a time from sixteen uniform ones, each a multiple of 2^-24. Numbers i and
    i + 8 are r cos(t) and r sin(t), t = 2 pi u with u one of the uniform numbers. The score is how far the u of
    released pairs are from such multiples, on average.
    """

    def __init__(self, secure_mode=False):
        self.secure_mode = secure_mode

    def run(self, world, rng):
        """Take the step with the record or without it, and return the score of what is released."""
        weight = nn.Parameter(torch.zeros(WIDTH))
        optimizer = DPOptimizer(
            torch.optim.SGD([weight], lr=1.0),
            noise_multiplier=NOISE,
            max_grad_norm=1.0,
            expected_batch_size=1,
            generator=torch.Generator().manual_seed(int(rng.integers(2**62))),
            secure_mode=self.secure_mode,
        )
        weight.grad_sample = torch.ones(world, WIDTH)  # the gradients of the records there are; the clip takes them
        optimizer.step()
        cosines, sines = np.moveaxis(weight.grad.double().numpy().reshape(-1, 2, 8), 1, 0)
        multiples = np.arctan2(sines, cosines) / (2 * math.pi) * 2**24
        return float(np.abs(multiples - np.round(multiples)).mean())

    def claimed(self, delta):
        """Return what the accountant says of the step."""
        return accounted.epsilon(NOISE, delta)


def subject():
    """The optimiser as PrivacyEngine makes it."""
    return Step()


def sum_of_four():
    """The same with the noise of secure_mode, each number of which is made of four."""
    return Step(secure_mode=True)
