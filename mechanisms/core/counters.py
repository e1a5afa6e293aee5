"""Random words by their number, drawn on the device that needs them, and the signs and normals made of them.

Word i follows from a key and i alone, so a stretch is drawn again in any order, and nothing of it is kept. All devices
give the same words and signs; normals agree to the last digits of a device's logarithm, sine and cosine.

Public words are those of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, figure 15): mix(start + (i + 1) gamma), where
the key holds `start` and an odd `gamma` of their own for each direction. It is quick and no cipher: who sees words may
find their key, and from it these words alone. Words of secret bits are SHAKE-256's own (`core.secret`), which show
nothing of each other; so are those on which a bound leans. They come from the host and cost ten times as much.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.seeds import Purpose

from .secret import Origin, SecretBits, generator

PIECE = 2**18
"""Numbers of a piece: their order among its words is part of what a seed means."""
# Words of a piece: of signs; of normals' pairs; and of these for their lengths, as many as for their angles.
_SIGNS, _PAIRS, _HALF = PIECE // 64, PIECE // 2, PIECE // 4


def on_device(drawn: np.ndarray, device: str, dtype: torch.dtype | None = None) -> Tensor:
    """Return numbers that were drawn on this machine as a tensor on `device`, without waiting for a GPU."""
    tensor = torch.from_numpy(drawn).to(dtype)
    if torch.device(device).type == "cuda":
        # From other memory the copy would wait for all that the GPU has to do.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class Words(Protocol):
    """Uniform words of 64 bits by their number."""

    def at(self, first: int, count: int, pieces: int, stride: int) -> Tensor:
        """Return words first + p stride + j for p below `pieces` and j below `count`, int64 (pieces, count)."""


class SplitMix:
    """Words of SplitMix64 from `start` by `gamma`, an odd number, both in [0, 2^64)."""

    def __init__(self, start: int, gamma: int, device: str = "cpu") -> None:
        self._start = start
        self._gamma = gamma
        self._device = device
        self._steps = torch.empty(0, dtype=torch.int64)

    @classmethod
    def of(cls, origin: Origin, purpose: Purpose, *place: int, device: str = "cpu") -> "SplitMix":
        """Return the words whose key is that of (purpose, place)."""
        start, gamma = generator(origin, purpose, *place).integers(0, 2**64, 2, dtype="uint64").tolist()
        gamma |= 1
        # A gamma with few changes from bit to bit mixes badly (the paper's `mixGamma`).
        if (gamma ^ (gamma >> 1)).bit_count() < 24:
            gamma ^= 0xAAAAAAAAAAAAAAAA
        return cls(start, gamma, device)

    def at(self, first: int, count: int, pieces: int, stride: int) -> Tensor:
        """See `Words.at`."""
        if len(self._steps) != count:
            self._steps = torch.arange(1, count + 1, device=self._device).mul_(_signed(self._gamma))
        starts = torch.arange(pieces, device=self._device).mul_(_signed(stride * self._gamma))
        words = self._steps + starts.add_(_signed(self._start + first * self._gamma)).unsqueeze(1)
        for shift, factor in _MIX:
            words ^= (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)  # zeros come in, not the sign
            if factor:
                words *= factor
        return words


@dataclass(frozen=True)
class SecretWords:
    """Words of secret bits, from the stretches (`purpose`, `place`, first word of a piece)."""

    bits: SecretBits
    purpose: Purpose
    place: tuple[int, ...]
    device: str = "cpu"

    def at(self, first: int, count: int, pieces: int, stride: int) -> Tensor:
        """See `Words.at`; a piece's words are the first of its stretch, so `first` and `stride` name stretches."""
        places = range(first, first + pieces * stride, stride)
        rows = [self.bits.words(count, self.purpose, *self.place, place).astype("int64") for place in places]
        return on_device(np.stack(rows), self.device)


def words_of(origin: Origin, purpose: Purpose, *place: int, device: str = "cpu") -> Words:
    """Return the words of (purpose, place): of secret bits, or by the key that follows from a seed."""
    if isinstance(origin, SecretBits):
        return SecretWords(origin, purpose, place, device)
    return SplitMix.of(origin, purpose, *place, device=device)


def signs(words: Words, piece: int, pieces: int = 1) -> Tensor:
    """Return numbers of `pieces` pieces from number `piece` on, each 1 or -1: one bit each, float32 (pieces, PIECE)."""
    bits = words.at(piece * _SIGNS, _SIGNS, pieces, _SIGNS).view(torch.int32).unsqueeze(1)
    planes = bits << torch.arange(32, dtype=torch.int32, device=bits.device).unsqueeze(1)
    # The sign of 1.0 in single precision is its first bit.
    return planes.bitwise_and_(-(2**31)).bitwise_or_(0x3F800000).view(torch.float32).flatten(1)


def squares(words: Words, piece: int, pieces: int = 1) -> Tensor:
    """Return the squared lengths of the pairs that `normals` returns, float32 (pieces, PIECE / 2)."""
    bits = words.at(piece * _PAIRS, _HALF, pieces, _PAIRS).view(torch.int32)
    return bits.bitwise_and_(2**31 - 1).to(torch.float32).add_(0.5).mul_(2.0**-31).log_().mul_(-2.0)


def normals(words: Words, piece: int, pieces: int = 1) -> Tensor:
    """Return numbers of `pieces` pieces from number `piece` on, standard normal in float32, (pieces, PIECE).

    By Box and Muller (1958) from 31 bits for a pair's length and 32 for its angle: none is longer than 6.67. The two of
    a pair lie half a piece apart.
    """
    lengths = squares(words, piece, pieces).sqrt_()
    bits = words.at(piece * _PAIRS + _HALF, _HALF, pieces, _PAIRS).view(torch.int32)
    angles = bits.to(torch.float32).mul_(math.pi / 2**31)
    drawn = lengths.new_empty(pieces, 2, PIECE // 2)
    torch.cos(angles, out=drawn[:, 0]).mul_(lengths)
    torch.sin(angles, out=drawn[:, 1]).mul_(lengths)
    return drawn.flatten(1)


def _signed(word: int) -> int:
    """Return the last 64 bits of `word` as a signed number."""
    return (word + (1 << 63)) % (1 << 64) - (1 << 63)


# Shifts and factors of SplitMix64, from its left to its right.
_MIX = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)), (31, 0))
