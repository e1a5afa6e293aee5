"""Trials that are drawn in blocks of fixed size from streams of their own, whatever pairs are asked for at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.games.storage import Arrays
from dpzv_audit.seeds import Purpose, stream

Floats = NDArray[np.float64]
_BLOCK = 1024


def in_blocks(draw: Callable[[int], Arrays], first: int, last: int, size: int) -> Arrays:
    """Return pairs `first` to `last` (exclusive) of the blocks of `size` pairs that `draw(number)` returns."""
    parts = []
    for block in range(first // size, -(-last // size)):
        cut = slice(max(first - block * size, 0), min(last - block * size, size))
        parts.append({name: values[cut] for name, values in draw(block).items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Draw(Protocol):
    """Runs a mechanism `n` times in one world, and scores the views where it knows how."""

    def __call__(self, generator: np.random.Generator, n: int, sign: float) -> Floats:
        """Return scores (n,), or views (n, d) to which a score must be fitted; `sign` is 1 in "in" and -1 in "out"."""


@dataclass(frozen=True)
class DrawnTrials:
    """Trials of a mechanism written in numpy (see `engine.Trials`).

    `draw` is a function of a module (so that it pickles); `number` keeps the streams of different mechanisms apart.
    """

    draw: Draw
    number: int
    seed: int
    exactly_gaussian: bool = False

    kind = "residuals"

    def facts(self) -> dict[str, object]:
        """See `engine.Trials.facts`."""
        return {"trials": "planted", "number": self.number, "seed": self.seed}

    def __call__(self, first: int, last: int) -> Arrays:
        """Run pairs `first` to `last`: arrays of scores, or of `features` where the mechanism answers with views."""
        return in_blocks(self._block, first, last, _BLOCK)

    def _block(self, number: int) -> Arrays:
        generator = stream(self.seed, Purpose.SIMULATION, self.number, number)
        inside = self.draw(generator, _BLOCK, 1.0)
        what = "scores" if inside.ndim == 1 else "features"
        return {f"in_{what}": inside, f"out_{what}": self.draw(generator, _BLOCK, -1.0)}
