"""The order of scores: a seeded permutation of each side, and a test of whether rows depend on their neighbours.

Scores of one world are exchangeable, so an estimator that reads pairs in order may read them in any order that does not
depend on them, and files that are sorted or drift do no harm. Scores that depend on each other are another matter: no
order mends them. The test is the serial correlation of ranks (Wald and Wolfowitz, Annals of Mathematical Statistics 14,
1943), with its exact variance over permutations.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dpzv_audit.seeds import Purpose, stream

Scores = NDArray[np.float64]
Places = NDArray[np.intp]

LEVEL = 1e-3
"""Chance, at most, that independent scores are said not to look so."""
_EACH = 1e-4
"""Level of each of three tests: the normal law is off by a factor of 3 at most, for 50 scores of two values."""
LEAST_SCORES = 50
"""Fewest scores for which that is so."""


def orders(n_in: int, n_out: int, seed: int, *key: int) -> tuple[Places, Places]:
    """Return a random order of (n_in,) and one of (n_out,) rows, apart from each other, from (`seed`, `key`)."""
    inside, outside = (
        stream(seed, Purpose.SPLIT, side, *key).permutation(n) for side, n in enumerate((n_in, n_out), start=1)
    )
    return inside, outside


def permuted(in_scores: Scores, out_scores: Scores, seed: int) -> tuple[Scores, Scores]:
    """Return (n,) and (m,) scores, each side in a random order of its own."""
    inside, outside = orders(in_scores.size, out_scores.size, seed)
    return in_scores[inside], out_scores[outside]


def _ranks(scores: Scores) -> Scores:
    """Return ranks with mean 0, those of equal scores averaged."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - 0.5 * (counts - 1.0))[place]
    return np.asarray(ranks - ranks.mean(), dtype=np.float64)


def lag_correlation(scores: Scores) -> tuple[float, float]:
    """Return (correlation of neighbouring ranks, its two-sided p-value) of (n,) scores; (0, 1) where there is no test.

    None is made of fewer than 50 scores, nor of scores that do not vary.
    """
    n = scores.size
    ranks = _ranks(scores)
    s2, s4 = float(np.sum(ranks**2)), float(np.sum(ranks**4))
    if n < LEAST_SCORES or s2 == 0.0:
        return 0.0, 1.0
    found = float(ranks[:-1] @ ranks[1:])
    # Moments over all orders of numbers that sum to 0: pairs of products share both, one or no number.
    mean = -s2 / n
    both = (s2**2 - s4) / n
    one = 2.0 * (2.0 * s4 - s2**2) / (n * (n - 1.0))
    none = (3.0 * s2**2 - 6.0 * s4) / (n * (n - 1.0))
    variance = both + one + none - mean**2
    if not variance > 0.0:
        return 0.0, 1.0
    z = (found - mean) / math.sqrt(variance)
    return found / s2, float(min(1.0, 2.0 * ndtr(-abs(z))))


def row_correlation(in_scores: Scores, out_scores: Scores) -> tuple[float, float]:
    """Return (rank correlation of row i of both sides, its two-sided p-value); (0, 1) for sides of different sizes."""
    n = in_scores.size
    if n != out_scores.size or n < LEAST_SCORES:
        return 0.0, 1.0
    first, second = _ranks(in_scores), _ranks(out_scores)
    size = math.sqrt(float(first @ first) * float(second @ second))
    if size == 0.0:
        return 0.0, 1.0
    correlation = float(first @ second) / size
    return correlation, float(min(1.0, 2.0 * ndtr(-abs(correlation) * math.sqrt(n - 1.0))))


def dependence(in_scores: Scores, out_scores: Scores) -> str:
    """Return a line on scores that do not look independent in the order given, "" where they do.

    Three tests share `LEVEL`: of neighbouring rows on each side, and of row i of one side with row i of the other.
    """
    neighbours = []
    for name, scores in (("in", in_scores), ("out", out_scores)):
        correlation, p = lag_correlation(scores)
        if p < _EACH:
            neighbours.append(f"{correlation:.2f} ({name})")
    if neighbours:
        return (
            "the scores do not look independent: neighbouring rows have a rank correlation of "
            f"{' and '.join(neighbours)}. Every bound here needs independent runs; files that were sorted look so "
            "too, so write scores in the order of their runs"
        )
    correlation, p = row_correlation(in_scores, out_scores)
    if p >= _EACH:
        return ""
    return (
        "the scores do not look independent: the same rows of both sides have a rank correlation of "
        f"{correlation:.2f}. Of the estimators, clopper-pearson alone allows sides that depend on each other"
    )
