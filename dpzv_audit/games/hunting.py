"""Looks for the worlds and the score of a mechanism that tell most: on pilots, so that one alone is left to be tested.

A mechanism has variants where `variants()` says so: itself on other pairs of neighbouring data, by name, each with a
claim of its own. Those that answer with views have a score in every column. What is chosen is tested on fresh runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import AuditError, InputError
from ..seeds import Purpose, stream
from ..statistics.fixed import fixed_test
from .mechanism import MechanismTrials, mechanism_from

ALONE = "as it is"
"""Name of a mechanism without variants."""
_ERROR = 0.5
"""Error of a pilot's bound: it ranks, and proves nothing."""


@dataclass(frozen=True)
class Candidate:
    """A variant and a column of its views, None of a score; what a pilot proves of it, and what it claims itself.

    `gap` is the distance of the worlds' mean scores, in standard deviations.
    """

    variant: str
    column: int | None
    lower: float
    claimed: float | None
    gap: float

    @property
    def rank(self) -> tuple[float, float]:
        """By how much the pilot's bound exceeds the claim, then the gap."""
        return self.lower - (self.claimed or 0.0), self.gap


@dataclass(frozen=True)
class Hunted:
    """All candidates by what pilots say of them, the best first; and what ended the pilots of others, by variant."""

    candidates: list[Candidate]
    failures: dict[str, AuditError]


def variants_of(path: str, folder: Path | None = None) -> list[str]:
    """Return the names of a mechanism's variants; `InputError` where `variants()` gives none."""
    own = getattr(mechanism_from(path, folder), "variants", None)
    if not callable(own):
        return [ALONE]
    found = own()
    if not isinstance(found, Mapping) or not found:
        given = f"{type(found).__name__} of {len(found)}" if isinstance(found, Mapping) else type(found).__name__
        raise InputError(f"mechanism {path}: variants() gives {given}, must give mechanisms by name, one at least")
    return list(map(str, found))


def hunted(
    trials: MechanismTrials, *, runs: int, delta: float, epsilon: float | None, done: Callable[[int, str], None]
) -> Hunted:
    """Rank all candidates by pilots of `runs` runs in each world.

    A variant that fails is left out: not every training runs on every data set, an empty batch for one. Where all fail,
    what the first one failed with is raised. `done` hears how many variants are, and the name of the best so far.
    """
    found: list[Candidate] = []
    failures: dict[str, AuditError] = {}
    for number, name in enumerate(variants_of(trials.path, trials.folder), start=1):
        try:
            found += _piloted(trials, number, name, runs=runs, delta=delta, epsilon=epsilon)
        except AuditError as error:
            failures[name] = error
        found.sort(key=lambda one: one.rank, reverse=True)
        done(number, found[0].variant if found else "")
    if not found:
        raise next(iter(failures.values()))
    return Hunted(found, failures)


def _piloted(
    trials: MechanismTrials, number: int, name: str, *, runs: int, delta: float, epsilon: float | None
) -> list[Candidate]:
    """Return the candidates of the variant `name`, by its pilots."""
    one = trials.of_variant(name)
    claimed = one.claimed(delta) if epsilon is None else epsilon
    arrays, failure = one.played(0, runs, pilot_streams(trials.seed, number))
    if failure is not None:
        raise failure
    columns: list[int | None] = [None]
    if "in_features" in arrays:
        columns = list(range(arrays["in_features"].shape[1]))
    found: list[Candidate] = []
    for column in columns:
        inside, out = (_column(arrays, side, column) for side in ("in", "out"))
        found.append(Candidate(name, column, _lower(inside, out, delta), claimed, _gap(inside, out)))
    return found


def pilot_streams(seed: int, number: int) -> Callable[[int, int | None], np.random.Generator]:
    """Return the generators of the pilots of a variant, by its number; none is one of the runs that are tested."""
    return lambda world, run: stream(seed, Purpose.PILOT, number, world, run or 0)


def _column(arrays: Mapping[str, NDArray[Any]], side: str, column: int | None) -> NDArray[np.float64]:
    if column is None:
        return np.asarray(arrays[f"{side}_scores"], np.float64)
    return np.asarray(arrays[f"{side}_features"][:, column], np.float64)


def _lower(inside: NDArray[np.float64], out: NDArray[np.float64], delta: float) -> float:
    return fixed_test(inside, out, name="joint", delta=delta, design_error=_ERROR).epsilon_lower(_ERROR)


def _gap(inside: NDArray[np.float64], out: NDArray[np.float64]) -> float:
    spread = float(np.sqrt(0.5 * (inside.var() + out.var())))
    apart = abs(float(inside.mean() - out.mean()))
    return apart / spread if spread > 0 else float("inf") if apart > 0 else 0.0
