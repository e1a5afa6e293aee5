"""The scalar channel's mechanism: clip each record's difference, average, add Gaussian noise (paper 001, eq. 8).

Noise comes from streams of the run's seed, so that an audit can be repeated, or from the operating system's generator,
which nobody can: whoever learns the seed can subtract noise of the first kind.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzv_audit.seeds import Purpose, stream

ClipRule = Literal["symmetric", "paper-one-sided"]
Entropy = Literal["seed", "os"]
_BLOCK = 256


def clip(differences: Tensor, threshold: float, rule: ClipRule = "symmetric") -> Tensor:
    """Clip per-record differences.

    `symmetric`: min(1, C/|x|) x, which lies in [-C, C]. `paper-one-sided`: min(x, C), as eq. 8 is printed; it is
    unbounded below, so the mean has no finite sensitivity. A difference that is not a number (infinite minus
    infinite loss) becomes 0: it must not reach the channel, where it would tell a record apart for certain.
    """
    differences = torch.nan_to_num(differences, nan=0.0, posinf=threshold, neginf=None)
    return differences.clamp(max=threshold) if rule == "paper-one-sided" else differences.clamp(-threshold, threshold)


def standard_normal(
    shape: tuple[int, ...], entropy: Entropy, *, seed: int, purpose: Purpose, key: tuple[int, ...]
) -> NDArray[np.float64]:
    """Independent N(0, 1) of `shape`: from the stream (seed, purpose, key), or of the operating system's entropy."""
    return stream(seed, purpose, *key).standard_normal(shape) if entropy == "seed" else system_normal(shape)


def system_normal(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Independent N(0, 1) by inversion: 52 bits of `os.urandom` a number, so that none is beyond 8.21 either way."""
    from scipy.special import ndtri

    words = np.frombuffer(os.urandom(8 * math.prod(shape)), dtype=np.uint64) >> np.uint64(12)
    # Halves between 0 and 2^52 are exact in float64: 0 and 1, whose quantiles are infinite, cannot come up.
    quantiles: NDArray[np.float64] = ndtri((words + 0.5) * 2.0**-52)
    return quantiles.reshape(shape)


class GaussianNoise:
    """N(0, std^2) for each replica from its own stream, which nothing else draws from; all zeros when `std` is 0."""

    def __init__(
        self,
        std: float,
        *,
        size: int | None = None,
        seed: int,
        replicas: Sequence[int],
        dtype: torch.dtype,
        device: str = "cpu",
        purpose: Purpose = Purpose.NOISE,
        entropy: Entropy = "seed",
    ) -> None:
        self.std = std
        self._entropy: Entropy = entropy
        self._seed = seed
        self._purpose = purpose
        self._replicas = tuple(replicas)
        self._dtype = dtype
        self._device = device
        self._shape = () if size is None else (size,)
        self._rounds = max(1, _BLOCK // max(size or 1, 1))
        self._zero = torch.zeros(len(self._replicas), *self._shape, dtype=dtype, device=device)
        self._block = 0
        self._ready: list[Tensor] = []

    def skip_to(self, rounds: int) -> None:
        """Go to where the noise of `rounds` rounds has been drawn."""
        self._block, used = divmod(rounds, self._rounds)
        self._ready = []
        for _ in range(used):
            self.next()

    def next(self) -> Tensor:
        """Noise of the next round, shape (K,), or (K, size) where a size was given."""
        if self.std == 0.0:
            return self._zero
        if not self._ready:
            shape = (self._rounds, *self._shape)
            draws = [
                self.std
                * standard_normal(shape, self._entropy, seed=self._seed, purpose=self._purpose, key=(k, self._block))
                for k in self._replicas
            ]
            stacked = torch.from_numpy(np.stack(draws, axis=1)).to(device=self._device, dtype=self._dtype)
            self._ready = list(stacked.unbind(0))[::-1]
            self._block += 1
        return self._ready.pop()
