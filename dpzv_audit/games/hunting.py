"""Searches the variants of a mechanism for the one whose pilots show most, so that only that one is tested.

A mechanism has variants where `variants()` says so: itself on other pairs of neighbouring data, by name, each with a
claim of its own. Pilots of each choose a score (see `games.fitting`), and the variant whose score certifies most beyond
its claim. An audit of that variant chooses the score anew, on at least as many pilots, and tests it on fresh runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from ..base.errors import AuditError, InputError
from .fitting import COLUMN, LEAST_FIT, WORDS, FittedScore, fit_score
from .mechanism import MechanismTrials, mechanism_from
from .scores import views_of

ALONE = "as it is"
"""Name of a mechanism without variants."""


@dataclass(frozen=True)
class Candidate:
    """A variant and the score that its pilots choose, and what the variant claims itself."""

    variant: str
    score: FittedScore
    claimed: float | None

    @property
    def lower(self) -> float:
        """The epsilon that held-out pilots certify."""
        return self.score.certified[self.score.kind]

    @property
    def rank(self) -> tuple[float, float]:
        """Epsilon that the pilots certify beyond the claim, then the gap between the worlds' mean scores."""
        return self.lower - (self.claimed or 0.0), self.score.gap


@dataclass(frozen=True)
class Hunted:
    """Variants ranked by their pilots, the best first, and errors that ended the pilots of others, by variant."""

    candidates: list[Candidate]
    failures: dict[str, AuditError]

    @property
    def scores(self) -> int:
        """Number of scores that were compared, over all variants."""
        return sum(len(candidate.score.certified) for candidate in self.candidates)


def variants_of(path: str, folder: Path | None = None) -> list[str]:
    """Return the names of a mechanism's variants; `InputError` where `variants()` gives none."""
    own = getattr(mechanism_from(path, folder), "variants", None)
    if not callable(own):
        return [ALONE]
    variants = own()
    if not isinstance(variants, Mapping) or not variants:
        shown = type(variants).__name__ + (f" of {len(variants)}" if isinstance(variants, Mapping) else "")
        raise InputError(f"mechanism {path}: variants() gives {shown}; return mechanisms by name, at least one")
    return list(map(str, variants))


def hunted(
    trials: MechanismTrials, *, runs: int, delta: float, epsilon: float | None, done: Callable[[int, str], None]
) -> Hunted:
    """Rank all variants by pilots of `runs` runs in each world.

    A variant that fails is left out: not every training runs on every data set, an empty batch for one. Where all fail,
    what the first one failed with is raised. `done` hears how many variants are, and the name of the best so far.
    """
    candidates = []
    failures = {}
    for number, name in enumerate(variants_of(trials.path, trials.folder), start=1):
        try:
            candidates.append(_piloted(trials.of_variant(name), name, runs=runs, delta=delta, epsilon=epsilon))
        except AuditError as error:
            failures[name] = error
        candidates.sort(key=attrgetter("rank"), reverse=True)
        done(number, candidates[0].variant if candidates else "")
    if not candidates:
        raise next(iter(failures.values()))
    return Hunted(candidates, failures)


def _piloted(trials: MechanismTrials, name: str, *, runs: int, delta: float, epsilon: float | None) -> Candidate:
    """Return the variant `name` with the score that its pilots choose; too few pilots choose a single number."""
    claimed = trials.claimed(delta) if epsilon is None else epsilon
    arrays, failure = trials.piloted(runs)
    if failure is not None:
        raise failure
    kinds = tuple(WORDS) if runs >= LEAST_FIT else (COLUMN,)
    score = fit_score(*views_of(arrays), kinds=kinds, delta=delta, own="in_features" not in arrays)
    return Candidate(name, score, claimed)
