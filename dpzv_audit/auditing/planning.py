"""What an audit has the power to see: the bound to expect of a known truth, and how its bound grows with the trials."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from dpzv_audit.auditing.binomial import upper_limit
from dpzv_audit.auditing.estimators import audit_scores
from dpzv_audit.auditing.one_threshold import CLOPPER_PEARSON_SHARES, epsilon_objective
from dpzv_audit.auditing.settings import check_scores
from dpzv_audit.auditing.thresholds import LEAST_A_SIDE, pilot_size
from dpzv_audit.errors import check_count, check_probability
from dpzv_audit.evidence import EmpiricalBound

_DEVIATES = np.linspace(-7.0, 7.0, 281)


def expected_bound(epsilon: float, *, n_in: int, n_out: int, delta: float, confidence: float = 0.95) -> float:
    """Return the bound that `clopper-pearson` shows where both rates come out as expected of a true `epsilon`.

    The view is taken to be Gaussian with exactly (`epsilon`, `delta`), and the best threshold, tail and share of the
    error as known: the bound of one audit scatters around a little less. 0 where the test sees nothing.
    Raises `InputError` for numbers out of range.
    """
    # The root finder behind it is a heavy import, so it waits until a plan is asked for.
    from dpzv_audit.accounting.gaussian import mu_from_epsilon

    check_count("n_in", n_in)
    check_count("n_out", n_out)
    check_probability("confidence", confidence)
    mu = mu_from_epsilon(epsilon, delta)
    if min(n_in, n_out) < LEAST_A_SIDE:
        return 0.0
    rest_in, rest_out = n_in - pilot_size(n_in), n_out - pilot_size(n_out)
    t = mu / 2.0 + _DEVIATES
    fpr, fnr = ndtr(-t), ndtr(t - mu)
    spent = (1.0 - confidence) * np.asarray(CLOPPER_PEARSON_SHARES)[:, None]
    rest = 1.0 - confidence - spent
    objective = epsilon_objective(delta)
    values: list[NDArray[np.float64]] = [
        objective(upper_limit(n_strict * strict, n_strict, spent), upper_limit(n_other * other, n_other, rest))
        for strict, n_strict, other, n_other in ((fpr, rest_out, fnr, rest_in), (fnr, rest_in, fpr, rest_out))
    ]
    return max(0.0, float(np.max(values)))


def epsilon_by_trials(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    estimators: Sequence[str] = ("clopper-pearson",),
    points: int = 12,
    seed: int = 0,
) -> tuple[tuple[int, tuple[EmpiricalBound, ...]], ...]:
    """Return (trials a side, bounds) for growing numbers of the scores in the order given, the last being all.

    Each bound stands for itself at `confidence`; all of them together hold only for the sequential estimators.
    `points` >= 1 numbers of trials in equal ratios from 16, or from all where there are fewer.
    Raises `InputError` as `audit_scores` does.
    """
    inside, outside = check_scores("in_scores", in_scores), check_scores("out_scores", out_scores)
    check_count("points", points)
    most = min(inside.size, outside.size)
    sizes = np.unique(np.rint(np.geomspace(min(16, most), most, points)).astype(np.intp)) if points > 1 else [most]
    return tuple(
        (
            int(n),
            audit_scores(inside[:n], outside[:n], delta=delta, confidence=confidence, estimators=estimators, seed=seed),
        )
        for n in sizes
    )
