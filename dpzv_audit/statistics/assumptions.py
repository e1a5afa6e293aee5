"""Tests of what a bound assumes of the scores: normality, and that rows do not depend on their neighbours.

Normality: Anderson-Darling on each side and on the pooled residuals, the kurtosis of the residuals, the F test of equal
variances. Sources: Stephens, "Tests based on EDF statistics", in D'Agostino and Stephens, Goodness-of-Fit Techniques
(1986), section 4.8.5 (mean and variance both estimated) and table 4.9 for the p-value; Anscombe and Glynn, Biometrika
70 (1983) for the law of the kurtosis.

Order: scores of one world are exchangeable, so an estimator that reads pairs in order may read them in any order that
does not depend on them, and files that are sorted or drift do no harm. Scores that depend on each other are another
matter: no order mends them. The test is the serial correlation of ranks (Wald and Wolfowitz, Annals of Mathematical
Statistics 14, 1943), with its exact variance over permutations.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, log_ndtr, ndtr

from ..base.errors import InputError
from ..base.findings import CONTRADICTED
from ..base.rounding import p_equals
from ..base.seeds import Purpose, stream
from .binomial import Floats
from .thresholds import PLACES, Scores, merged, rounding_of

LEAST_SCORES = 8
"""Fewest scores for which the published p-values of the Anderson-Darling test hold."""
GAUSSIAN_ASSUMPTION = "the view is exactly Gaussian"
VOUCHED_SCORES = 500
"""Fewest scores on a side with which a user's word that a view is Gaussian is taken."""
VOUCHED_LEVEL = 0.05
"""P-value below which that word is not taken.

Of 200 pairs of samples with 500 scores a side, 97% of logistic ones are objected to and all Laplace ones; at 100 it is
40%. A true word is not taken one time in twenty, which costs power and no claim its truth.
"""
BUILT_LEVEL = 1e-3
"""The same where the tool's own game makes the view Gaussian: what may object is a mistake in the code."""


def unit_of(*sides: Floats) -> float:
    """Return the size of the largest score, 1 where all are 0: in such units squares stay floats."""
    return max(float(np.max(np.abs(side))) for side in sides) or 1.0


def _two_sided(z: float) -> float:
    return float(min(1.0, 2.0 * ndtr(-abs(z))))


def _standardised(scores: Floats) -> Floats | None:
    """Return the sorted scores with mean 0 and sample variance 1; None where they do not vary."""
    scaled = scores / unit_of(scores)
    if float(scaled.min()) == float(scaled.max()):
        return None
    centred = scaled - scaled.mean()
    return np.sort(centred / centred.std(ddof=1))


def tail_of_statistic(a: float) -> float:
    """Return the p-value of A* (the statistic A squared, adjusted for the sample size), source table 4.9."""
    if a < 0.2:
        p = 1.0 - np.exp(-13.436 + 101.14 * a - 223.73 * a**2)
    elif a < 0.34:
        p = 1.0 - np.exp(-8.318 + 42.796 * a - 59.938 * a**2)
    elif a < 0.6:
        p = np.exp(0.9177 - 4.279 * a - 1.38 * a**2)
    else:
        # The published quadratic turns upwards far out, where p is nil anyway: hold it at A* = 13 (1e-30).
        a = min(a, 13.0)
        p = np.exp(1.2937 - 5.709 * a + 0.0186 * a**2)
    return float(np.clip(p, 0.0, 1.0))


def anderson_darling_p_value(scores: Floats) -> float:
    """Return the p-value of normality with mean and variance estimated, for (n,) finite scores, n >= 8.

    Simulated with 40,000 Gaussian samples a size (n = 8, 20, 200), p falls below 0.1, 0.05 and 0.01 at rates
    within 8% of these, and below 1e-3 at 0.7e-3 to 0.9e-3. Scores that do not vary give 0.
    """
    z = _standardised(scores)
    if z is None:
        return 0.0
    n = z.size
    odd = 2.0 * np.arange(1, n + 1) - 1.0
    statistic = -n - float(np.sum(odd * (log_ndtr(z) + log_ndtr(-z[::-1])))) / n
    return tail_of_statistic(statistic * (1.0 + 0.75 / n + 2.25 / n**2))


def equal_variance_p_value(first: Floats, second: Floats) -> float:
    """Return the two-sided p-value of equal variances (F test, exact for Gaussian samples), sizes >= 2."""
    scale = unit_of(first, second)
    v1 = float(np.var(first / scale, ddof=1))
    v2 = float(np.var(second / scale, ddof=1))
    if v1 == v2:
        return 1.0
    d1 = first.size - 1.0
    d2 = second.size - 1.0
    share = d1 * v1 / (d1 * v1 + d2 * v2)
    below = float(betainc(d1 / 2.0, d2 / 2.0, share))
    above = float(betainc(d2 / 2.0, d1 / 2.0, 1.0 - share))
    return min(1.0, 2.0 * min(below, above))


def kurtosis_p_value(scores: Floats) -> float:
    """Return the two-sided p-value of the kurtosis of (n,) scores, n >= 20: of tails unlike Gaussian ones.

    Source: Anscombe and Glynn, section 2. Scores that do not vary give 0.
    """
    z = _standardised(scores)
    if z is None:
        return 0.0
    n = float(z.size)
    kurtosis = float(np.mean(z**4)) / float(np.mean(z**2)) ** 2
    mean = 3.0 * (n - 1.0) / (n + 1.0)
    variance = 24.0 * n * (n - 2.0) * (n - 3.0) / ((n + 1.0) ** 2 * (n + 3.0) * (n + 5.0))
    x = (kurtosis - mean) / np.sqrt(variance)
    spread = np.sqrt(6.0 * (n + 3.0) * (n + 5.0) / (n * (n - 2.0) * (n - 3.0)))
    skewness = 6.0 * (n**2 - 5.0 * n + 2.0) / ((n + 7.0) * (n + 9.0)) * spread
    a = 6.0 + 8.0 / skewness * (2.0 / skewness + np.sqrt(1.0 + 4.0 / skewness**2))
    ratio = (1.0 - 2.0 / a) / (1.0 + x * np.sqrt(2.0 / (a - 4.0)))
    deviate = (1.0 - 2.0 / (9.0 * a) - np.cbrt(ratio)) / np.sqrt(2.0 / (9.0 * a))
    return _two_sided(deviate)


def residuals(inside: Floats, outside: Floats) -> Floats:
    """Return the (n + m,) scores of both sides less their side's mean, all of one variance where the sides are."""
    scale = unit_of(inside, outside)
    centred = []
    for side in (inside / scale, outside / scale):
        centred.append((side - side.mean()) * np.sqrt(side.size / (side.size - 1.0)))
    return np.concatenate(centred)


def normality_p_value(inside: Floats, outside: Floats) -> float:
    """Return a p-value of "both samples are Gaussian with one variance" for (n,) and (m,) scores, n, m >= 8.

    Joined by Bonferroni, half of the level on the kurtosis of the pooled residuals, an eighth each on Anderson-Darling
    on either side and on the residuals, and on the F test between the sides. A side is tested by itself so that
    opposite skews cannot hide in a pooled sample. Accuracy: see `anderson_darling_p_value`; the F test is exact.
    Raises `InputError` when a side has fewer than 8 scores.
    """
    for name, scores in (("in_scores", inside), ("out_scores", outside)):
        if scores.size < LEAST_SCORES:
            raise InputError(f"{name} has {scores.size} scores, a test of normality needs at least {LEAST_SCORES}")
    pooled = residuals(inside, outside)
    p_values = [anderson_darling_p_value(scores) for scores in (inside, outside, pooled)]
    p = 8.0 * min(*p_values, equal_variance_p_value(inside, outside))
    if pooled.size >= 20:
        p = min(p, 2.0 * kurtosis_p_value(pooled))
    return min(1.0, p)


def gaussian_assumption(inside: Floats, outside: Floats, *, vouched: bool) -> str:
    """Return what an epsilon from mu rests on, or "" where the view is said to be Gaussian and no test objects.

    `vouched`: by a user, whose word needs more scores and a test that objects more readily; else by construction.
    """
    least, level = (VOUCHED_SCORES, VOUCHED_LEVEL) if vouched else (LEAST_SCORES, BUILT_LEVEL)
    inside, outside = inside.astype(np.float64), outside.astype(np.float64)
    infinite = sum(int(np.count_nonzero(np.isinf(side))) for side in (inside, outside))
    if infinite:
        return f"{GAUSSIAN_ASSUMPTION} ({CONTRADICTED}: {infinite} of them are infinite)"
    if min(inside.size, outside.size) < least:
        return f"{GAUSSIAN_ASSUMPTION} (too few scores to test it: {least} a side are needed)"
    p = normality_p_value(inside, outside)
    if p >= level:
        return ""
    return f"{GAUSSIAN_ASSUMPTION} ({CONTRADICTED}: {p_equals(p)})"


Places = NDArray[np.intp]

LEVEL = 1e-3
"""Chance, at most, that independent scores are said not to look so."""
_EACH = 1e-4
"""Level of each of three tests: the normal law is off by a factor of 3 at most, for 50 scores of two values."""
LEAST_ROWS = 50
"""Fewest scores for which that is so."""


def orders(n_in: int, n_out: int, seed: int, *key: int) -> tuple[Places, Places]:
    """Return a random order of (n_in,) and one of (n_out,) rows, apart from each other, from (`seed`, `key`)."""
    inside, outside = (
        stream(seed, Purpose.SPLIT, side, *key).permutation(n) for side, n in enumerate((n_in, n_out), start=1)
    )
    return inside, outside


def permuted(in_scores: Floats, out_scores: Floats, seed: int) -> tuple[Floats, Floats]:
    """Return (n,) and (m,) scores, each side in a random order of its own."""
    inside, outside = orders(in_scores.size, out_scores.size, seed)
    return in_scores[inside], out_scores[outside]


def _ranks(scores: Floats) -> Floats:
    """Return ranks with mean 0, those of equal scores averaged."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - 0.5 * (counts - 1.0))[place]
    return np.asarray(ranks - ranks.mean())


def lag_correlation(scores: Floats) -> tuple[float, float]:
    """Return (correlation of neighbouring ranks, its two-sided p-value) of (n,) scores; (0, 1) where there is no test.

    None is made of fewer than 50 scores, nor of scores that do not vary.
    """
    n = scores.size
    ranks = _ranks(scores)
    s2 = float(np.sum(ranks**2))
    s4 = float(np.sum(ranks**4))
    if n < LEAST_ROWS or s2 == 0.0:
        return 0.0, 1.0
    products = float(ranks[:-1] @ ranks[1:])
    # Moments over all orders of numbers that sum to 0: pairs of products share both, one or no number.
    mean = -s2 / n
    both_shared = (s2**2 - s4) / n
    one_shared = 2.0 * (2.0 * s4 - s2**2) / (n * (n - 1.0))
    none_shared = (3.0 * s2**2 - 6.0 * s4) / (n * (n - 1.0))
    variance = both_shared + one_shared + none_shared - mean**2
    if not variance > 0.0:
        return 0.0, 1.0
    return products / s2, _two_sided((products - mean) / math.sqrt(variance))


def row_correlation(inside: Floats, outside: Floats) -> tuple[float, float]:
    """Return (rank correlation of row i of both sides, its two-sided p-value); (0, 1) for sides of different sizes."""
    n = inside.size
    if n != outside.size or n < LEAST_ROWS:
        return 0.0, 1.0
    first = _ranks(inside)
    second = _ranks(outside)
    size = math.sqrt(float(first @ first) * float(second @ second))
    if size == 0.0:
        return 0.0, 1.0
    correlation = float(first @ second) / size
    return correlation, _two_sided(correlation * math.sqrt(n - 1.0))


_LEAST_SHARED = 8
_SHARED = 0.25
"""Independent scores share at most 0.19 of the numbers that each side has once, on whatever grid they lie."""


def same_scores(inside: Scores, outside: Scores, called: str = "sides") -> str:
    """Return a line where both sides are one and the same list, in whatever order; "" where they are not.

    Few values in another order are not: chance makes them too.
    `called` is what the two sides are: "sides" or "files".
    """
    if np.array_equal(inside, outside):
        return f"the two {called} hold the same scores"
    if 2 * np.unique(inside).size > inside.size and np.array_equal(np.sort(inside), np.sort(outside)):
        return f"the two {called} hold the same scores, in another order"
    return ""


def remarks(inside: Scores, outside: Scores, called: str = "sides") -> list[str]:
    """Return a line each on scores that both sides share and on different scores that count as one.

    `called` is what the two sides are: "sides" or "files".
    """
    sentences = []
    once, other = (
        values[counts == 1] for values, counts in (np.unique(side, return_counts=True) for side in (inside, outside))
    )
    shared = np.intersect1d(once, other, assume_unique=True).size
    fewer = min(inside.size, outside.size)
    if same := same_scores(inside, outside, called):
        sentences.append(same)
    elif shared >= max(_LEAST_SHARED, _SHARED * fewer):
        sentences.append(f"{shared:,} of the {fewer:,} scores of one side are the same numbers in the two {called}")
    count = merged(inside, outside)
    if count:
        sentences.append(
            f"{count:,} of the different scores lie within {2 * PLACES:.0f} units in the last place of "
            f"{rounding_of(inside, outside)} of the next one, as rounding may make them: those may count as one"
        )
    return sentences


def dependence(inside: Floats, outside: Floats) -> str:
    """Return a line on scores that do not look independent in the order given, "" where they do.

    Three tests share `LEVEL`: of neighbouring rows on each side, and of row i of one side with row i of the other.
    """
    neighbours = []
    for name, scores in (("in", inside), ("out", outside)):
        correlation, p = lag_correlation(scores)
        if p < _EACH:
            neighbours.append(f"{correlation:.2f} ({name})")
    if neighbours:
        return (
            "the scores do not look independent: neighbouring rows have a rank correlation of "
            f"{' and '.join(neighbours)}. Every bound here needs independent runs; files that were sorted look so "
            "too, so write scores in the order of their runs"
        )
    correlation, p = row_correlation(inside, outside)
    if p >= _EACH:
        return ""
    return (
        "the scores do not look independent: the same rows of both sides have a rank correlation of "
        f"{correlation:.2f}. Only the estimator clopper-pearson allows sides that depend on each other"
    )
