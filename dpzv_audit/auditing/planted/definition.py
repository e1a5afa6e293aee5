"""What a planted mechanism is: trials in both worlds, the claim made for it, and the verdict that it must get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.accounting import Release
from dpzv_audit.auditing.games.real import RealTrials
from dpzv_audit.auditing.games.simulated import SimulatedTrials
from dpzv_audit.auditing.storage import Arrays
from dpzv_audit.evidence import AdversaryName, NeighbourRelation, Verdict
from dpzv_audit.seeds import Purpose, stream

Floats = NDArray[np.float64]
_BLOCK = 1024


class Draw(Protocol):
    """Runs a mechanism `n` times in each world, and scores the views where it knows how."""

    def __call__(self, generator: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        """Return (scores of "in", scores of "out"), each (n,), or views (n, d) to which a score must be fitted."""


@dataclass(frozen=True)
class DrawnTrials:
    """Trials of a mechanism written in numpy, drawn in blocks of fixed size from streams of their own.

    `draw` is a function of a module (so that it pickles); `number` keeps the streams of different mechanisms apart.
    """

    draw: Draw
    number: int
    seed: int
    exactly_gaussian: bool = False

    def facts(self) -> dict[str, Any]:
        """See `engine.Trials.facts`."""
        return {"trials": "planted", "number": self.number, "seed": self.seed}

    def __call__(self, first: int, last: int) -> Arrays:
        """Run pairs `first` to `last`: arrays of scores, or of `features` where the mechanism answers with views."""
        inside, outside = [], []
        for block in range(first // _BLOCK, -(-last // _BLOCK)):
            generator = stream(self.seed, Purpose.SIMULATION, self.number, block)
            cut = slice(max(first - block * _BLOCK, 0), min(last - block * _BLOCK, _BLOCK))
            scores_in, scores_out = self.draw(generator, _BLOCK)
            inside.append(scores_in[cut])
            outside.append(scores_out[cut])
        what = "scores" if inside[0].ndim == 1 else "features"
        return {f"in_{what}": np.concatenate(inside), f"out_{what}": np.concatenate(outside)}


AnyTrials = DrawnTrials | RealTrials | SimulatedTrials


@dataclass(frozen=True, kw_only=True)
class Case:
    """A mechanism that is there: the claim, what its maker accounts for, and the games that are played on it.

    `release` is what the configuration says is released: the upper bounds are of it. Games by name; they share the
    error of the verdict.
    """

    epsilon: float
    delta: float
    release: Release
    games: dict[str, AnyTrials]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A mechanism that is wrong on purpose, or right, and the verdicts that are right for it.

    `build` takes the seed. `runs` in each world suffice for the verdict at 95%; `score` says what the adversary, who
    has read the code, computes from its view.
    """

    name: str
    summary: str
    expected: tuple[Verdict, ...]
    adversary: AdversaryName
    neighbours: NeighbourRelation
    score: str
    runs: int
    build: Callable[[int], Case]
