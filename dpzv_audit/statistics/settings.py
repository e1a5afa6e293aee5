"""What every estimator is asked with and what it is: settings, the registry's entry, and the check of scores."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from ..findings import ClaimKind, EmpiricalBound
from .assumptions import GAUSSIAN_ASSUMPTION, gaussian_assumption
from .binomial import Floats
from .families import GAUSSIAN, CurveFamily, epsilon_delta_family


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """What a bound is asked for: `delta` and `confidence` in (0, 1), and the seed that draws the pilot.

    `exactly_gaussian` says that the scores are Gaussian with one variance by construction of the mechanism, on the word
    of a user, or of the tool's own game (`built`);
    `family` is the family of trade-off curves that the mechanism is known to have; `coin_flips` says that a fair
    coin a canary, flipped apart from all others, decided which of the two files its score is in. `pilot` is as for
    `fixed_test`.
    """

    delta: float
    confidence: float = 0.95
    exactly_gaussian: bool = False
    built: bool = False
    family: CurveFamily = GAUSSIAN
    coin_flips: bool = False
    seed: int = 0
    pilot: tuple[Floats, Floats] | None = None

    @property
    def error(self) -> float:
        """The chance of a bound above the truth that may be spent."""
        return 1.0 - self.confidence

    def assumption(self, family: CurveFamily, inside: Floats, outside: Floats) -> str:
        """Return what an epsilon from a theta of `family` rests on; "" for nothing but what is vouched for."""
        if family.claim_kind == "epsilon-delta":
            return ""
        if family.name != GAUSSIAN.name:
            return f"the view's trade-off curve is of the family '{family.name}'"
        if not self.exactly_gaussian:
            return GAUSSIAN_ASSUMPTION
        return gaussian_assumption(inside, outside, vouched=not self.built)


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What an estimator found by the words `rule` and at so many `looks`, in as many `directions` unless given.

    `proved` >= 0 is a parameter of `family` (None: an epsilon of any mechanism), `provable` the largest that as many
    scores could prove; `assumes` follows from the family unless given.
    """

    proved: float = 0.0
    provable: float = 0.0
    rule: str
    looks: int = 0
    family: CurveFamily | None = None
    directions: int | None = None
    assumes: str | None = None


@dataclass(frozen=True)
class Estimator:
    """A way to a lower bound: its function, the kind of claim it speaks about, and a line on what it is.

    `refutes` is False for an estimator that informs only: it has no p-value.
    """

    function: Callable[[Floats, Floats, AuditSettings], Proof]
    claim_kind: ClaimKind
    summary: str
    refutes: bool = True

    def bound(self, name: str, inside: Floats, outside: Floats, settings: AuditSettings) -> EmpiricalBound:
        """Return what the estimator, called `name`, proves from (n,) and (m,) finite scores."""
        found = self.function(inside, outside, settings)
        family = found.family or epsilon_delta_family(settings.delta)
        assumes = settings.assumption(family, inside, outside) if found.assumes is None else found.assumes
        return EmpiricalBound(
            name=name,
            epsilon_lower=family.proves(found.proved, settings.delta),
            delta=settings.delta,
            confidence=settings.confidence,
            claim_kind=family.claim_kind,
            assumes=assumes,
            mu_lower=found.proved if family.name == GAUSSIAN.name else None,
            threshold_rule=found.rule,
            directions=found.looks if found.directions is None else found.directions,
            looks=found.looks,
            n_in=inside.size,
            n_out=outside.size,
            ceiling=family.proves(found.provable, settings.delta),
        )


def check_scores(name: str, scores: ArrayLike) -> Floats:
    """Return `scores` as a new (n,) float64 array, n >= 1, all finite.

    Raises `InputError` naming `name` and, for a number that is not finite, its row counted from 1.
    """
    try:
        array = np.asarray(scores)
    except ValueError as error:
        raise InputError(f"{name} is ragged, must be one list of numbers") from error
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}, must be one-dimensional")
    if array.size == 0:
        raise InputError(f"{name} is empty, must hold at least one score")
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name} holds values of type {array.dtype}, must be real numbers")
    with np.errstate(over="ignore"):  # what overflows on the way from a wider type is reported as infinite
        values = array.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        row = int(wrong[0])
        raise InputError(f"{name}: row {row + 1} is {values[row]}, must be a finite number")
    return values
