"""The scalar channel's mechanism: clip each record's difference, average, add Gaussian noise (paper 001, eq. 8).

Noise comes from streams of the run's seed, so that an audit can be repeated, or from secret bits, whose key comes from
the operating system: whoever learns the seed can subtract noise of the first kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzv_audit.seeds import Purpose, stream
from mechanisms.rounded import rounded_normal
from mechanisms.secret import SecretBits

ClipRule = Literal["symmetric", "paper-one-sided"]
NoiseKind = Literal["grid", "float"]
NoiseOrigin = SecretBits | int
"""What noise is drawn from: secret bits, or the streams of a seed."""
_BLOCK = 256


def clip(differences: Tensor, threshold: float, rule: ClipRule = "symmetric") -> Tensor:
    """Clip per-record differences.

    `symmetric`: min(1, C/|x|) x, which lies in [-C, C]. `paper-one-sided`: min(x, C), as eq. 8 is printed; it is
    unbounded below, so the mean has no finite sensitivity. A difference that is not a number (infinite minus
    infinite loss) becomes 0: it must not reach the channel, where it would tell a record apart for certain.
    """
    differences = torch.nan_to_num(differences, nan=0.0, posinf=threshold, neginf=None)
    return differences.clamp(max=threshold) if rule == "paper-one-sided" else differences.clamp(-threshold, threshold)


def gaussian(
    shape: tuple[int, ...],
    std: float,
    origin: NoiseOrigin,
    *,
    purpose: Purpose,
    key: tuple[int, ...],
    rounded: bool = False,
) -> NDArray[np.float64]:
    """Return independent N(0, std^2) of `shape` from (purpose, key): a stream of the seed, or secret bits.

    `rounded`: to the nearest whole number. From secret bits the law is then exact (`mechanisms.rounded`); from a seed,
    which protects nothing, numpy's normals are rounded, so that a simulation draws the same normals either way. No
    zero has a minus sign, so none is released: by it a sum of -0, which only some records make, would show.
    """
    if isinstance(origin, SecretBits):
        if rounded:
            return rounded_normal(shape, std, origin, purpose, *key) + 0.0
        return std * normal_of(origin.words(math.prod(shape), purpose, *key)).reshape(shape)
    draws = stream(origin, purpose, *key).standard_normal(shape)
    draws *= std
    if rounded:
        np.rint(draws, out=draws)
        draws += 0.0
    return draws


def normal_of(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return N(0, 1) by inversion of the upper 52 bits of each word, so that none is beyond 8.21 either way."""
    from scipy.special import ndtri

    # Halves between 0 and 2^52 are exact in float64: 0 and 1, whose quantiles are infinite, cannot come up.
    quantiles: NDArray[np.float64] = ndtri(((words >> np.uint64(12)) + 0.5) * 2.0**-52)
    return quantiles


class GaussianNoise:
    """N(0, std^2) for each replica from its own stream, which nothing else draws from; all zeros when `std` is 0.

    `rounded` gives whole numbers. Draws follow from `origin`, by default from `seed`; once the key of secret bits is
    renewed, all that is drawn follows from the new one.
    """

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
        origin: NoiseOrigin | None = None,
        rounded: bool = False,
    ) -> None:
        self.std = std
        self._origin: NoiseOrigin = seed if origin is None else origin
        self._key: bytes | None = None
        self._rounded = rounded
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
        if self._ready and self._key != self._present_key:
            self.skip_to(self._block * self._rounds - len(self._ready))
        if not self._ready:
            self._key = self._present_key
            shape = (self._rounds, *self._shape)
            draws = [
                gaussian(
                    shape,
                    self.std,
                    self._origin,
                    purpose=self._purpose,
                    key=(k, self._block),
                    rounded=self._rounded,
                )
                for k in self._replicas
            ]
            stacked = torch.from_numpy(np.stack(draws, axis=1)).to(device=self._device, dtype=self._dtype)
            self._ready = list(stacked.unbind(0))[::-1]
            self._block += 1
        return self._ready.pop()

    @property
    def _present_key(self) -> bytes | None:
        return self._origin.key if isinstance(self._origin, SecretBits) else None
