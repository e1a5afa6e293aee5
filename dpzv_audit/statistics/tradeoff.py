"""The empirical trade-off curve of scores with a band that holds the whole curve at once.

Each side's distribution function gets a simultaneous band from the exact Beta law of its order statistics
(David and Nagaraja, Order Statistics, 2003, section 2.1) at a fixed grid of ranks, with the error shared
evenly over ranks (Bonferroni): unlike the Dvoretzky-Kiefer-Wolfowitz band it is tight in the tails, where
epsilon is decided.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.errors import check_count, check_probability
from .binomial import Floats, lower_limit, upper_limit
from .settings import check_scores

_MOST_RANKS = 80


@dataclass(frozen=True, kw_only=True)
class EmpiricalTradeoff:
    """False negative rates at false positive rates, all of length `points` and in [0, 1].

    `empirical[j]` is the least empirical FNR of a threshold whose empirical FPR is at most `alpha[j]`. With
    probability at least `confidence` the same minimum over the *true* rates lies in
    [`empirical_low[j]`, `empirical_high[j]`] for every j.
    """

    alpha: list[float]
    empirical: list[float]
    empirical_low: list[float]
    empirical_high: list[float]
    confidence: float


def _rank_grid(n: int) -> NDArray[np.intp]:
    """Return increasing ranks in 1..n: all of them up to 80, then about 80, denser towards both ends."""
    if n <= _MOST_RANKS:
        return np.arange(1, n + 1)
    # Even steps of the arcsine scale, on which a proportion has the same spread everywhere; the first ranks
    # on either side are added because the tails carry the evidence.
    angles = np.linspace(0.0, np.pi / 2.0, _MOST_RANKS - 16)
    ranks = np.clip(np.rint(n * np.sin(angles) ** 2), 1, n).astype(np.intp)
    first = np.array([1, 2, 3, 5, 8, 13, 21, 34])
    return np.unique(np.concatenate([first, ranks, n + 1 - first]))


def _distribution_band(ordered: Floats, at: Floats, error: float) -> tuple[Floats, Floats]:
    """Return (low, high) of the distribution function of scores in order at points, jointly right at 1 - `error`.

    With U_(k) the k-th least of n uniform numbers, F(X_(k)) >= U_(k) and F just below X_(k) is
    at most U_(k), ties or not. No score is infinite: the function is known there.
    """
    n = ordered.size
    ranks = _rank_grid(n)
    tail = error / (2.0 * ranks.size)
    low = np.append(0.0, lower_limit(ranks, n, tail))
    high = np.append(upper_limit(ranks - 1, n, tail), 1.0)
    reached = np.searchsorted(ranks, np.searchsorted(ordered, at, side="right"), side="right")
    return np.where(at == np.inf, 1.0, low[reached]), np.where(at == -np.inf, 0.0, high[reached])


def _least_at(
    alpha: Floats, thresholds: Floats, fpr: Callable[[Floats], Floats], fnr: Callable[[Floats], Floats]
) -> list[float]:
    """Return for each alpha the least `fnr` among rising `thresholds` with `fpr` <= alpha.

    `fpr` falls with the threshold and `fnr` grows: the first threshold low enough is the best. It is found by
    bisection, so that rates are computed for a few of millions of thresholds.
    """
    first = np.zeros(alpha.size, dtype=np.intp)
    last = np.full(alpha.size, thresholds.size - 1)
    while (first < last).any():
        middle = (first + last) // 2
        enough = fpr(thresholds[middle]) <= alpha
        first = np.where(enough, first, np.minimum(middle + 1, last))
        last = np.where(enough, middle, last)
    return list(fnr(thresholds[first]).tolist())


def empirical_tradeoff(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    confidence: float = 0.95,
    points: int = 101,
    in_is_high: bool = True,
) -> EmpiricalTradeoff:
    """Return the trade-off curve of "in when the score is above t" over all t, at evenly spaced alphas.

    Args:
        in_scores: (n,) scores of the world with the canary.
        out_scores: (m,) scores of the world without it.
        confidence: chance that the whole band holds, in (0, 1); half of the error goes to each side.
        points: number of false positive rates from 0 to 1, at least 2.
        in_is_high: False reads small scores as "in".

    Raises:
        InputError: scores that `check_scores` refuses, or a number out of range.
    """
    check_probability("confidence", confidence)
    alpha = np.linspace(0.0, 1.0, check_count("points", points, least=2))
    sign = 1.0 if in_is_high else -1.0
    sides = check_scores("in_scores", in_scores), check_scores("out_scores", out_scores)
    if any(np.isinf(side).any() for side in sides):
        # The curve is one of ranks, which are finite where scores are not.
        values = np.unique(np.concatenate(sides))
        sides = np.searchsorted(values, sides[0]), np.searchsorted(values, sides[1])
    # Each a copy, which is put in order below.
    inside, outside = (sign * side for side in sides)
    del sides
    inside.sort()
    outside.sort()
    thresholds = np.concatenate([[-np.inf], inside, outside, [np.inf]])
    thresholds.sort()
    error = 0.5 * (1.0 - confidence)

    least = partial(_least_at, alpha, thresholds)

    def band(high: bool) -> list[float]:
        return least(
            lambda at: 1.0 - _distribution_band(outside, at, error)[not high],
            lambda at: _distribution_band(inside, at, error)[high],
        )

    return EmpiricalTradeoff(
        alpha=alpha.tolist(),
        empirical=least(
            lambda at: (outside.size - np.searchsorted(outside, at, side="right")) / outside.size,
            lambda at: np.searchsorted(inside, at, side="right") / inside.size,
        ),
        empirical_low=band(False),
        empirical_high=band(True),
        confidence=float(confidence),
    )
