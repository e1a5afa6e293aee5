"""Lower bounds on epsilon from the scores of a distinguishing game, each valid at its stated confidence.

`clopper-pearson`: the inequality FNR >= 1 - delta - e^epsilon FPR and its mirror (Kairouz, Oh and Viswanath,
ICML 2015, theorem 2.1) at exact binomial limits of the two rates. `gaussian`: mu >= Phi^-1(1 - FPR) -
Phi^-1(FNR) for a mu-Gaussian-DP view (Dong, Roth and Su, JRSS B 2022, definition 2.6) at the same limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from dpzv_audit.auditing.binomial import upper_limit
from dpzv_audit.auditing.normality import LEAST_SCORES, normality_p_value
from dpzv_audit.auditing.thresholds import (
    LEAST_A_SIDE,
    Objective,
    Rule,
    choose_rule,
    rate_limits,
    split_pilot,
)
from dpzv_audit.errors import InputError, check_count, check_probability, unknown_name
from dpzv_audit.evidence import ClaimKind, EmpiricalBound

Scores = NDArray[np.float64]

GAUSSIAN_ASSUMPTION = "the view is exactly Gaussian"
NORMALITY_LEVEL = 1e-3
"""Below this p-value of `normality_p_value` the word of the user that a view is Gaussian is not taken."""

_CLOPPER_PEARSON_SHARES = (0.5, 0.7, 0.8, 0.9)
_GAUSSIAN_SHARES = (0.5,)


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """What a bound is asked for: `delta` and `confidence` in (0, 1), and the seed that draws the pilot.

    `exactly_gaussian` says that the scores are Gaussian with one variance by construction of the mechanism.
    """

    delta: float
    confidence: float = 0.95
    exactly_gaussian: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Estimator:
    """A way to a lower bound: its function, the kind of claim it can refute, and a line on what it is."""

    function: Callable[[Scores, Scores, AuditSettings], EmpiricalBound]
    claim_kind: ClaimKind
    summary: str


def _epsilon_objective(delta: float) -> Objective:
    """Return (strict, other) -> log((1 - delta - other) / strict), the epsilon that two such limits prove."""

    def objective(strict: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
        room = 1.0 - delta - np.asarray(other, dtype=np.float64)
        positive = room > 0.0
        log_ratio = np.log(np.where(positive, room, 1.0)) - np.log(strict)
        return np.asarray(np.where(positive, log_ratio, -np.inf), dtype=np.float64)

    return objective


def _mu_objective(strict: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Phi^-1(1 - strict) - Phi^-1(other), the mu that two such limits prove."""
    return np.asarray(-ndtri(strict) - ndtri(other), dtype=np.float64)


def _largest_provable(n_in: int, n_out: int, error: float, objective: Objective, shares: Sequence[float]) -> float:
    """Return the value at no error in `n_in` + `n_out` scores, at the best share and tail."""
    spent = np.asarray(shares, dtype=np.float64)
    sizes = ((n_out, n_in), (n_in, n_out))
    values = [
        objective(upper_limit(0, strict, error * spent), upper_limit(0, other, error * (1.0 - spent)))
        for strict, other in sizes
    ]
    return max(0.0, float(np.max(values)))


def _in_words(rule: Rule, error: float, pilots: tuple[int, int], rest: tuple[int, int]) -> str:
    """Return what `rule` is, how it came about and how its error is spent, as one sentence."""
    how = "a Gaussian fit of" if rule.fitted else "the scores of"
    tail = "false positives" if rule.strict_on_fpr else "false negatives"
    return (
        f"'in' when the score is {'above' if rule.in_is_high else 'below'} {rule.threshold:.6g}, chosen "
        f"with direction and tail by {how} a random pilot of {pilots[0]} + {pilots[1]} scores (in + out) and "
        f"tested once on the other {rest[0]} + {rest[1]}; few {tail}, on whose limit "
        f"{error * rule.share:.3g} of the error {error:.3g} is spent; "
        "a score equal to the threshold counts as an error"
    )


@dataclass(frozen=True)
class _Outcome:
    """What one honest threshold proved: `value` and `ceiling` on the objective's scale, both >= 0."""

    value: float
    ceiling: float
    words: str
    looks: int


def _one_threshold(
    in_scores: Scores,
    out_scores: Scores,
    settings: AuditSettings,
    objective: Objective,
    shares: tuple[float, ...],
) -> _Outcome:
    """Choose a rule on a pilot, test it once on the rest and return what the two rate limits prove."""
    if min(in_scores.size, out_scores.size) < LEAST_A_SIDE:
        words = f"none: fewer than {LEAST_A_SIDE} scores on a side leave nothing to test after a pilot"
        return _Outcome(0.0, 0.0, words, 0)
    error = 1.0 - settings.confidence
    pilot_in, rest_in = split_pilot(in_scores, settings.seed)
    pilot_out, rest_out = split_pilot(out_scores, settings.seed)
    rule = choose_rule(
        pilot_in,
        pilot_out,
        n_in=rest_in.size,
        n_out=rest_out.size,
        error=error,
        objective=objective,
        shares=shares,
    )
    strict, other = rate_limits(rest_in, rest_out, rule, error)
    value = float(objective(np.asarray(strict), np.asarray(other)))
    return _Outcome(
        max(0.0, value),
        _largest_provable(rest_in.size, rest_out.size, error, objective, shares),
        _in_words(rule, error, (pilot_in.size, pilot_out.size), (rest_in.size, rest_out.size)),
        1,
    )


def clopper_pearson(in_scores: Scores, out_scores: Scores, settings: AuditSettings) -> EmpiricalBound:
    """Return a lower bound on epsilon, valid for every mechanism, from (n,) and (m,) finite scores."""
    outcome = _one_threshold(
        in_scores, out_scores, settings, _epsilon_objective(settings.delta), _CLOPPER_PEARSON_SHARES
    )
    return EmpiricalBound(
        name="clopper-pearson",
        epsilon_lower=outcome.value,
        delta=settings.delta,
        confidence=settings.confidence,
        claim_kind="epsilon-delta",
        assumes="",
        mu_lower=None,
        threshold_rule=outcome.words,
        directions=outcome.looks,
        looks=outcome.looks,
        n_in=in_scores.size,
        n_out=out_scores.size,
        ceiling=outcome.ceiling,
    )


def _gaussian_assumption(in_scores: Scores, out_scores: Scores, settings: AuditSettings) -> str:
    """Return what an epsilon from mu rests on, or "" where the user vouches for it and no test objects."""
    if not settings.exactly_gaussian:
        return GAUSSIAN_ASSUMPTION
    if min(in_scores.size, out_scores.size) < LEAST_SCORES:
        return f"{GAUSSIAN_ASSUMPTION} (too few scores to test it: {LEAST_SCORES} a side are needed)"
    p = normality_p_value(in_scores, out_scores)
    return "" if p >= NORMALITY_LEVEL else f"{GAUSSIAN_ASSUMPTION} (the scores contradict it: p = {p:.1e})"


def _epsilon_of(mu: float, delta: float) -> float:
    """Return the epsilon of mu-Gaussian-DP at `delta`; 0 where nothing is proved about mu."""
    if mu <= 0.0:
        return 0.0
    # The root finder behind it is the heaviest import here, so it waits until a mu has been proved.
    from dpzv_audit.accounting.gaussian import epsilon_from_mu

    return float(epsilon_from_mu(mu, delta))


def gaussian(in_scores: Scores, out_scores: Scores, settings: AuditSettings) -> EmpiricalBound:
    """Return a lower bound on mu from (n,) and (m,) finite scores, and the epsilon it stands for at delta.

    `mu_lower` refutes a claim of mu-Gaussian-DP whatever the mechanism. The epsilon holds only for a view
    that is exactly Gaussian; `assumes` says so unless `exactly_gaussian` is set and a test of normality
    does not object at 1e-3.
    """
    outcome = _one_threshold(in_scores, out_scores, settings, _mu_objective, _GAUSSIAN_SHARES)
    return EmpiricalBound(
        name="gaussian",
        epsilon_lower=_epsilon_of(outcome.value, settings.delta),
        delta=settings.delta,
        confidence=settings.confidence,
        claim_kind="trade-off",
        assumes=_gaussian_assumption(in_scores, out_scores, settings),
        mu_lower=outcome.value,
        threshold_rule=outcome.words,
        directions=outcome.looks,
        looks=outcome.looks,
        n_in=in_scores.size,
        n_out=out_scores.size,
        ceiling=_epsilon_of(outcome.ceiling, settings.delta),
    )


ESTIMATORS: dict[str, Estimator] = {
    "clopper-pearson": Estimator(
        clopper_pearson,
        "epsilon-delta",
        "exact binomial limits on the two error rates; valid for every mechanism",
    ),
    "gaussian": Estimator(
        gaussian, "trade-off", "bounds mu of Gaussian DP; an epsilon only where the view is exactly Gaussian"
    ),
}
DEFAULT_ESTIMATORS = ("clopper-pearson", "gaussian")


def can_refute(bound: EmpiricalBound) -> bool:
    """Return whether `bound` can refute a claim of (epsilon, delta): it speaks of one, or assumes nothing."""
    return bound.claim_kind == "epsilon-delta" or bound.assumes == ""


def check_scores(name: str, scores: ArrayLike) -> Scores:
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


def audit_scores(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    estimators: Sequence[str] = DEFAULT_ESTIMATORS,
    exactly_gaussian: bool = False,
    seed: int = 0,
) -> tuple[EmpiricalBound, ...]:
    """Return a lower bound on epsilon from each estimator, in the order asked for.

    Args:
        in_scores: (n,) scores of an attack on runs *with* the canary, independent of each other.
        out_scores: (m,) scores on runs without it. Either side may be the higher one; scores of one kind
            of game and one attack, fixed before these runs.
        delta: the delta of (epsilon, delta), in (0, 1).
        confidence: chance, in (0, 1), that any *one* bound is at most the true epsilon.
        estimators: names from `ESTIMATORS`.
        exactly_gaussian: the scores are Gaussian with one variance by construction of the mechanism; lets the
            bound of `gaussian` refute an (epsilon, delta) claim if a test of normality does not object.
        seed: draws the pilot (stream `Purpose.SPLIT`). Fix it first: the best of several seeds is no bound.

    Raises:
        InputError: empty, many-dimensional or infinite scores, a number out of range, an unknown name.
    """
    settings = AuditSettings(
        delta=check_probability("delta", delta),
        confidence=check_probability("confidence", confidence),
        exactly_gaussian=exactly_gaussian,
        seed=check_count("seed", seed, least=0),
    )
    for name in estimators:
        if name not in ESTIMATORS:
            raise unknown_name("estimator", name, ESTIMATORS)
    inside, outside = check_scores("in_scores", in_scores), check_scores("out_scores", out_scores)
    return tuple(ESTIMATORS[name].function(inside, outside, settings) for name in estimators)
