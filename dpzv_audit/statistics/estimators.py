"""The registry of estimators and `audit_scores`: lower bounds on epsilon, each valid at its stated confidence."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from numpy.typing import ArrayLike

from ..base.errors import check_count, check_names, check_probability
from ..base.findings import EmpiricalBound
from .assumptions import remarks
from .families import FAMILIES, GAUSSIAN, CurveFamily
from .fixed import bayes, fixed_bound
from .one_run import one_run, one_run_fdp
from .sequential import sequential, sequential_gaussian
from .settings import AuditSettings, Estimator, check_scores
from .thresholds import LEAST_A_SIDE

ESTIMATORS = {
    "joint": Estimator(
        partial(fixed_bound, "joint"),
        "epsilon-delta",
        "one exact test of both error rates; valid for every mechanism whose two sides are independent",
        least_a_side=LEAST_A_SIDE,
    ),
    "clopper-pearson": Estimator(
        partial(fixed_bound, "clopper-pearson"),
        "epsilon-delta",
        "exact binomial limits on the two error rates; valid for every mechanism, sides that depend on each other too",
        least_a_side=LEAST_A_SIDE,
    ),
    "bayes": Estimator(
        bayes,
        "epsilon-delta",
        "credible region of the two rates (Jeffreys prior); informs, refutes nothing",
        refutes=False,
        least_a_side=LEAST_A_SIDE,
    ),
    "gaussian": Estimator(
        partial(fixed_bound, "gaussian"),
        "trade-off",
        "bounds mu of Gaussian DP; an epsilon only where the view is exactly Gaussian",
        least_a_side=LEAST_A_SIDE,
    ),
    "curve": Estimator(
        partial(fixed_bound, "curve"),
        "trade-off",
        "fits the mechanism's own trade-off curve to both rates at once; only where it is known",
        least_a_side=LEAST_A_SIDE,
    ),
    "one-run": Estimator(
        one_run, "epsilon-delta", "guesses about coin-flip canaries, of one training or many; valid for every mechanism"
    ),
    "one-run-fdp": Estimator(
        one_run_fdp, "trade-off", "the same guesses against a trade-off curve; only where it is known"
    ),
    "sequential": Estimator(
        sequential, "epsilon-delta", "bets pair by pair, valid whenever it is looked at; valid for every mechanism"
    ),
    "sequential-gaussian": Estimator(
        sequential_gaussian,
        "trade-off",
        "likelihood ratio pair by pair against a claimed mu, valid whenever it is looked at; only for Gaussian views",
    ),
}
DEFAULT_ESTIMATORS = ("joint", "gaussian")


def may_refute(name: str, *, exactly_gaussian: bool) -> bool:
    """Return whether the estimator `name` may refute a claim of (epsilon, delta), before any score is seen.

    Those that may share the error of one verdict. A trade-off curve speaks of such a claim only by construction.
    """
    entry = ESTIMATORS[name]
    return entry.refutes and (entry.claim_kind == "epsilon-delta" or exactly_gaussian)


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
    built: bool = False,
    family: str | CurveFamily = GAUSSIAN,
    coin_flips: bool = False,
    seed: int = 0,
    pilot: tuple[ArrayLike, ArrayLike] | None = None,
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
            bound of `gaussian` rest on their means too, and refute an (epsilon, delta) claim, if a test of normality
            does not object. That takes 500 scores a side, and the refutation is one given Gaussian noise.
        built: it is the tool's own game that makes them Gaussian, so that the test needs fewer scores.
        family: the trade-off curves that `curve` and `one-run-fdp` fit: a name from `FAMILIES`, or a family such as
            `sampled_family` makes.
        coin_flips: the scores are of canaries of one training, and a fair coin a canary decided which side its score
            is on; for the one-run estimators, which otherwise flip coins of their own.
        seed: draws the pilot (stream `Purpose.SPLIT`). Fix it first: the best of several seeds is no bound.
        pilot: scores (k,) and (l,) of further runs of both worlds, at least 8 of each, on which estimators with a fixed
            number of scores choose their rule; they then test all scores.

    Raises:
        InputError: scores that are empty, many-dimensional, NaN or beyond what a double holds, a number out of range,
            an unknown name.
    """
    if isinstance(family, str):
        check_names("family", [family], FAMILIES)
        family = FAMILIES[family]
    settings = AuditSettings(
        delta=check_probability("delta", delta),
        confidence=check_probability("confidence", confidence),
        exactly_gaussian=exactly_gaussian and family is GAUSSIAN,
        built=built,
        family=family,
        coin_flips=coin_flips,
        seed=check_count("seed", seed, least=0),
        pilot=None if pilot is None else (check_scores("pilot", pilot[0]), check_scores("pilot", pilot[1])),
    )
    check_names("estimator", estimators, ESTIMATORS, "estimators")
    inside = check_scores("in_scores", in_scores)
    outside = check_scores("out_scores", out_scores)
    suffix = "".join(f"; {remark}" for remark in remarks(inside, outside))
    bounds = [ESTIMATORS[name].bound(name, inside, outside, settings) for name in estimators]
    return tuple(replace(bound, threshold_rule=bound.threshold_rule + suffix) for bound in bounds)
