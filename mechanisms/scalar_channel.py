"""The scalar channel: from per-record differences to the number that is released (paper 001, eqs. 7 and 8).

`grid` noise: each record's clipped difference is a whole number of steps g = C / 2^20, the sum is exact, and the noise
is a rounded Gaussian in steps; only the released sum is turned into a float. `float` noise: the mean of the clipped
differences and a Gaussian, both in the run's precision, whose low bits can prove a label.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mechanisms.config import DPZVConfig
from mechanisms.context import RunContext
from mechanisms.grid import SCALAR_BITS, Grid, nearest_steps
from mechanisms.noise import GaussianNoise, clip
from mechanisms.training_data import dtype_of


class ScalarChannel:
    """Clips, sums, noises and scales the scalars of K replicas; without noise (`sigma` 0) nothing is rounded."""

    def __init__(self, config: DPZVConfig, sigma: float, context: RunContext) -> None:
        """`sigma` is the standard deviation of the noise on the mean."""
        self._config = config
        self._dtype = dtype_of(config)
        whole = config.noise == "grid" and sigma > 0.0
        total = sigma * config.batch_size
        self.grid = Grid.fit(config.clip, total, bits=SCALAR_BITS) if whole else None
        """The grid of a record's difference; None where the channel computes in floating point."""
        self.noise = GaussianNoise(
            sigma if self.grid is None else self.grid.steps(total),
            origin=context.origin,
            rounded=whole,
            **context.streams(self._dtype if self.grid is None else torch.float64),
        )
        """Noise in the unit of `sums`, one draw a round."""

    def sums(self, differences: Tensor, scale: float, weights: Tensor | None) -> Tensor:
        """Return what noise is added to, (K,): whole numbers of steps in float64; without a grid the clipped mean.

        `differences` (K, B), which are changed in place, times `scale` are the delta_i; `weights` (K, B), 0 or 1, say
        which records count. On the grid one record moves its sum by at most 2^(bits + 1) where it is replaced.
        """
        config = self._config
        if self.grid is None:
            clipped = clip(differences.mul_(scale), config.clip, config.clip_rule)
            return (clipped if weights is None else clipped * weights).sum(1).mul_(1.0 / config.batch_size)
        steps = nearest_steps(differences, scale, self.grid, config.clip_rule)
        return (steps if weights is None else steps.mul_(weights)).sum(1, dtype=torch.float64)

    def scalars(self, sums: Tensor) -> Tensor:
        """Return noised sums (K,) as they are released: the mean, in the run's precision."""
        if self.grid is None:
            return sums
        return sums.mul(self.grid.step / self._config.batch_size).to(self._dtype)
