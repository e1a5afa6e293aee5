"""Exact confidence intervals for a proportion (Clopper and Pearson, Biometrika 1934)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from dpzv_audit.errors import InputError, check_probability
from dpzv_audit.findings import Interval


def clopper_pearson(
    successes: ArrayLike, n: ArrayLike, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the exact two-sided interval (low, high) of a binomial proportion, elementwise.

    It covers the true proportion with probability at least `confidence` for independent trials, each side
    erring with probability at most (1 - confidence) / 2.

    Args:
        successes: whole numbers in [0, n], of any shape.
        n: numbers of trials, at least 1, broadcast against `successes`.
        confidence: strictly between 0 and 1.

    Returns:
        Two arrays of the broadcast shape (of shape () for scalars), in [0, 1].

    Raises:
        InputError: a count that is not a whole number in its range, or a confidence outside (0, 1).
    """
    check_probability("confidence", confidence)
    hits, trials = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(n, np.float64))
    if not np.all((trials >= 1) & (trials == np.floor(trials)) & np.isfinite(trials)):
        raise InputError("must be a whole number of at least 1", "n", n)
    if not np.all((hits >= 0) & (hits <= trials) & (hits == np.floor(hits))):
        raise InputError(f"must be a whole number from 0 to n = {n!r}", "successes", successes)
    tail = (1.0 - confidence) / 2.0
    # The beta quantile is undefined at the ends, where the limit is 0 or 1 by definition.
    low = np.where(hits == 0, 0.0, betaincinv(np.maximum(hits, 1.0), trials - hits + 1.0, tail))
    high = np.where(hits == trials, 1.0, betaincinv(hits + 1.0, np.maximum(trials - hits, 1.0), 1.0 - tail))
    return low, high


def proportion(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Return the observed proportion of `n` independent trials with its interval by `clopper_pearson`."""
    low, high = clopper_pearson(successes, n, confidence)
    return Interval(value=successes / n, low=float(low), high=float(high), n=int(n), confidence=confidence)
