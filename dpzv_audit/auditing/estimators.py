"""The registry of estimators and `audit_scores`: lower bounds on epsilon, each valid at its stated confidence."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from dpzv_audit.auditing.one_threshold import clopper_pearson, gaussian
from dpzv_audit.auditing.settings import AuditSettings, Estimator, check_scores
from dpzv_audit.errors import check_count, check_probability, unknown_name
from dpzv_audit.evidence import EmpiricalBound

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
    """Return whether `bound` can refute a claim of (epsilon, delta): whether its epsilon assumes nothing."""
    return bound.assumes == ""


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
