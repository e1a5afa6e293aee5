"""The scalar channel's mechanism: clip each record's difference, average, add Gaussian noise (paper 001, eq. 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.seeds import Purpose, stream

ClipRule = Literal["symmetric", "paper-one-sided"]
_BLOCK = 256


def clip(differences: Tensor, threshold: float, rule: ClipRule = "symmetric") -> Tensor:
    """Clip per-record differences.

    `symmetric`: min(1, C/|x|) x, which lies in [-C, C]. `paper-one-sided`: min(x, C), as eq. 8 is printed; it is
    unbounded below, so the mean has no finite sensitivity. A difference that is not a number (infinite minus
    infinite loss) becomes 0: it must not reach the channel, where it would tell a record apart for certain.
    """
    differences = torch.nan_to_num(differences, nan=0.0, posinf=threshold, neginf=None)
    return differences.clamp(max=threshold) if rule == "paper-one-sided" else differences.clamp(-threshold, threshold)


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
    ) -> None:
        self.std = std
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
                stream(self._seed, self._purpose, k, self._block).normal(0.0, self.std, shape) for k in self._replicas
            ]
            stacked = torch.from_numpy(np.stack(draws, axis=1)).to(device=self._device, dtype=self._dtype)
            self._ready = list(stacked.unbind(0))[::-1]
            self._block += 1
        return self._ready.pop()
