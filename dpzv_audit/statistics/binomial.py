"""Exact inference from binomial counts: limits for one rate, and a test of "FNR >= f_theta(FPR)" from both counts.

Limits come from the Beta quantile (Clopper and Pearson, Biometrika 26, 1934). The statistic of the test is the theta
whose curve goes through the two rates seen; so large a theta is seen when the counts (A, B), independent binomials,
fall below that curve. The p-value is the largest chance of that over the unknown false positive rate a with the false
negative rate at f_theta(a), the smallest allowed: an unconditional test (Barnard, Biometrika 34, 1947), with a confined
to a confidence interval whose error is added (Berger and Boos, JASA 89, 1994).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betainccinv, betaincinv, ndtri

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]


def upper_limit(successes: ArrayLike, n: ArrayLike, error: ArrayLike) -> Floats:
    """Return the one-sided upper limit of a proportion: it is below the truth with probability <= `error`.

    `successes` in [0, n], `n` >= 1 and `error` in (0, 1) broadcast; the result has their common shape and
    lies in (0, 1]. Counts need not be whole: planning a test asks for the limit at an expected count. It is 1 where the
    quantile of so small an error (1e-150, say) is not found, which is an upper limit all the same.
    """
    k, size, level = np.broadcast_arrays(successes, n, error)
    full = k >= size
    # The placeholder for full cells keeps the second shape parameter of the Beta distribution above 0.
    limit = betainccinv(k + 1.0, np.where(full, 1.0, size - k), level)
    return np.where(full | np.isnan(limit), 1.0, limit)


def lower_limit(successes: ArrayLike, n: ArrayLike, error: ArrayLike) -> Floats:
    """Return the one-sided lower limit of a proportion: it is above the truth with probability <= `error`.

    Arguments as for `upper_limit`; the result lies in [0, 1), and is 0 where the quantile is not found.
    """
    k, size, level = np.broadcast_arrays(successes, n, error)
    empty = k <= 0.0
    limit = betaincinv(np.where(empty, 1.0, k), size - k + 1.0, level)
    return np.where(empty | np.isnan(limit), 0.0, limit)


CONFINED = 0.05
"""Share of the error that goes to confining the unknown false positive rate."""
_COARSE = 25
_FINE = 9
# So many peaks of the first search are looked at more closely, if they reach half of the largest.
_PEAKS = 3
_LEAST_PEAK = 0.5
_BLOCKS = 192
_SPREAD = 6.0
LEAST_P = 1e-300
"""Below it no error is solved for: no verdict needs more."""
_SAFETY = 1.02
"""What the search for the largest chance may miss, as a factor: less than 2% was missed in any of its tests."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a rule did: `false_positives` of `n_out` scores and `false_negatives` of `n_in`."""

    false_positives: int = 0
    n_out: int
    false_negatives: int = 0
    n_in: int
    strict_on_fpr: bool = True
    """Whether the rule makes fewer false positives than false negatives, as far as its pilot says."""
    share: float = 0.5
    """Of the error, on the strict rate, where a limit on each rate is taken."""

    @property
    def rates(self) -> tuple[float, float]:
        """Both error rates with half an error more, which a curve can go through whatever was counted."""
        return (self.false_positives + 0.5) / (self.n_out + 1.0), (self.false_negatives + 0.5) / (self.n_in + 1.0)

    @property
    def exchanged(self) -> "Counts":
        """The counts of the same rule where the worlds change names."""
        return replace(
            self,
            false_positives=self.false_negatives,
            n_out=self.n_in,
            false_negatives=self.false_positives,
            n_in=self.n_out,
            strict_on_fpr=not self.strict_on_fpr,
        )


def _cdf(count: Floats, n: float, p: Floats) -> Floats:
    """Return P(Binomial(n, p) <= count) for whole counts, 0 below 0 and 1 from n up."""
    k = np.clip(count, 0.0, n - 1.0)
    inside = betainc(n - k, k + 1.0, 1.0 - p)
    return np.where(count < 0.0, 0.0, np.where(count >= n, 1.0, inside))


def chance_below(alpha: Floats, beta: Floats, counts: Counts, seen: Curve, *, spread: float = _SPREAD) -> Floats:
    """Return P((B + 1/2)/(n_in + 1) <= seen((A + 1/2)/(n_out + 1))) for (k,) true rates; never less than it is.

    The values of A are taken in at most 192 blocks over `spread` standard deviations to either side, each with the room
    for B of its smallest value: exact where A spreads over fewer, else larger by a shift of A by a block at most, at a
    spread of 6 a 16th of its deviation. What lies further out counts in full.
    """
    n = float(counts.n_out)
    m = float(counts.n_in)
    reach = spread * np.sqrt(n * alpha * (1.0 - alpha)) + spread
    first = np.floor(np.maximum(n * alpha - reach, 0.0))
    last = np.ceil(np.minimum(n * alpha + reach, n))
    step = np.maximum(1.0, np.ceil((last - first + 1.0) / _BLOCKS))
    starts = first[:, None] + step[:, None] * np.arange(np.max((last - first) // step) + 1.0)
    # What lies below the first block is counted with A = 0, what lies above the last one with the last.
    below = _cdf(starts - 1.0, n, alpha[:, None])
    mass = np.concatenate([below[:, :1], np.diff(below, axis=1, append=1.0)], axis=1)
    smallest = np.concatenate([np.zeros((alpha.size, 1)), np.minimum(starts, n)], axis=1)
    limit = seen(((smallest + 0.5) / (n + 1.0)).ravel()).reshape(smallest.shape)
    room = np.floor((m + 1.0) * limit - 0.5 + 1e-9 * (m + 1.0))
    return np.asarray(np.minimum(1.0, np.sum(mass * _cdf(room, m, beta[:, None]), axis=1)))


def p_value(null: Curve, counts: Counts, seen: Curve, error: float) -> float:
    """Return the p-value of "FNR >= null(FPR)" to be held against `error`.

    `seen` is the curve through `counts.rates`. The false positive rate is searched over its interval at 25 points, then
    three times at 9 around each peak; the test compares with a search over thousands.
    """
    confined = CONFINED * error
    low = float(lower_limit(counts.false_positives, counts.n_out, confined / 2.0))
    high = float(upper_limit(counts.false_positives, counts.n_out, confined / 2.0))
    spread = max(_SPREAD, -float(ndtri(max(1e-5 * error, LEAST_P))))

    def chances(angles: Floats) -> Floats:
        alpha = np.sin(angles) ** 2
        return chance_below(alpha, null(alpha), counts, seen, spread=spread)

    # On the arcsine scale a count spreads the same everywhere.
    angles = np.linspace(math.asin(math.sqrt(low)), math.asin(math.sqrt(high)), _COARSE)
    chance = chances(angles)
    largest = float(chance.max())
    # A curve with a corner has a peak on either side of it.
    peaks = np.flatnonzero((chance >= np.append(chance[1:], 0.0)) & (chance >= np.append(0.0, chance[:-1])))
    for peak in peaks[np.argsort(chance[peaks])[-_PEAKS:]]:
        if chance[peak] >= _LEAST_PEAK * largest:
            largest = max(largest, _refined(chances, angles, int(peak)))
    return min(1.0, _SAFETY * largest + confined)


def _refined(chances: Callable[[Floats], Floats], angles: Floats, best: int) -> float:
    """Return the largest chance between the neighbours of `angles[best]`, by three searches at 9 points."""
    largest = 0.0
    for _ in range(3):
        angles = np.linspace(angles[max(best - 1, 0)], angles[min(best + 1, angles.size - 1)], _FINE)
        chance = chances(angles)
        best = int(np.argmax(chance))
        largest = max(largest, float(chance[best]))
    return largest
