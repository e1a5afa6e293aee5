"""What every estimator is asked with and what it is: settings, the registry's entry, and the check of scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.errors import InputError
from ..base.findings import ClaimKind, EmpiricalBound
from .assumptions import GAUSSIAN_ASSUMPTION, gaussian_assumption
from .binomial import Floats
from .families import GAUSSIAN, CurveFamily, epsilon_delta_family
from .thresholds import Scores


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

    `refutes` is False for an estimator that informs only: it has no p-value. With fewer than `least_a_side` scores on
    a side, the estimator tests nothing.
    """

    function: Callable[[Floats, Floats, AuditSettings], Proof]
    claim_kind: ClaimKind
    summary: str
    refutes: bool = True
    least_a_side: int = 1

    def bound(self, name: str, inside: Floats, outside: Floats, settings: AuditSettings) -> EmpiricalBound:
        """Return what the estimator, called `name`, proves from (n,) and (m,) finite scores."""
        proof = self.function(inside, outside, settings)
        family = proof.family or epsilon_delta_family(settings.delta)
        assumes = settings.assumption(family, inside, outside) if proof.assumes is None else proof.assumes
        return EmpiricalBound(
            name=name,
            epsilon_lower=family.proves(proof.proved, settings.delta),
            delta=settings.delta,
            confidence=settings.confidence,
            claim_kind=family.claim_kind,
            assumes=assumes,
            mu_lower=proof.proved if family.name == GAUSSIAN.name else None,
            threshold_rule=proof.rule,
            directions=proof.looks if proof.directions is None else proof.directions,
            looks=proof.looks,
            n_in=inside.size,
            n_out=outside.size,
            ceiling=family.proves(proof.provable, settings.delta),
        )


MOST_WHOLE = 2**53
"""Every whole number up to it is a double."""


def check_scores(name: str, scores: ArrayLike) -> Scores:
    """Return `scores` as a new (n,) array, n >= 1, of floats of 16, 32 or 64 bits or of whole numbers; none is NaN.

    Infinities have their place in the order. Wider floats become doubles.

    Raises:
        InputError: no list of real numbers, or a number that is NaN or that no double holds: it names `name` and the
            row, counted from 1.
    """
    try:
        array = np.asarray(scores)
    except ValueError as error:
        raise InputError(f"{name} is ragged; use one list of numbers") from error
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}; use one dimension")
    if array.size == 0:
        raise InputError(f"{name} is empty; use at least one score")
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name} holds values of type {array.dtype}; use real numbers")
    if not isinstance(scores, np.ndarray) and array.dtype.kind == "f":
        # A list that mixes floats with whole numbers has lost the last digits of the latter by now.
        for row, value in enumerate(scores if isinstance(scores, list | tuple) else (), start=1):
            if isinstance(value, int | np.integer) and int(float(value)) != int(value):
                raise _too_fine(name, row, int(value))
    wrong = np.flatnonzero(np.isnan(array))
    if wrong.size:
        raise InputError(f"{name}: row {wrong[0] + 1} is nan; use a number")
    with np.errstate(over="ignore"):
        doubles = array.astype(np.float64)
    if array.dtype.kind != "f":
        lost = not_held(array)
        if lost.size:
            raise _too_fine(name, int(lost[0]) + 1, array[lost[0]])
        return array.astype(array.dtype.newbyteorder("="))
    if array.dtype.itemsize <= doubles.dtype.itemsize:
        return array.astype(array.dtype.newbyteorder("="))
    beyond = np.flatnonzero(np.isfinite(array) & ~np.isfinite(doubles))
    fine = np.flatnonzero((np.abs(array) > MOST_WHOLE) & (array == np.rint(array)) & (array != doubles))
    if beyond.size or fine.size:
        row = int(min([*beyond[:1], *fine[:1]]))
        raise _too_fine(name, row + 1, array[row])
    if np.unique(doubles).size < np.unique(array).size:
        raise InputError(
            f"{name}: scores of type {array.dtype} differ by less than doubles can, take differences first"
        )
    return doubles


def not_held(array: NDArray[Any]) -> NDArray[np.intp]:
    """Return the places, in row-major order, of whole numbers in an array of integers that no double holds exactly."""
    doubles = array.astype(np.float64)
    with np.errstate(invalid="ignore"):
        back = doubles.astype(array.dtype)
    # The double next to the largest whole number of 64 bits is past it.
    beyond = (array.dtype.itemsize == 8) & (doubles >= np.iinfo(array.dtype).max)
    return np.flatnonzero((back != array) | beyond)


def _too_fine(name: str, row: int, value: object) -> InputError:
    cure = "subtract one number from all scores of both sides, or write floats"
    return InputError(f"{name}: row {row} is {value!s}, which no double holds exactly: {cure}")
