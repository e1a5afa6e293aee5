"""The least private of a family of trade-off curves that a rule's errors rule out.

For each theta the hypothesis "FNR >= f_theta(FPR)" is tested exactly from both counts together
(`binomial.p_value`); the bound inverts the test. The statistic is the same for every theta, so its p-value
grows with theta and the theta that are ruled out are those below one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpzv_audit.statistics.binomial import LEAST_P, Counts, p_value, upper_limit
from dpzv_audit.statistics.families import CurveFamily
from dpzv_audit.statistics.thresholds import Rule, Scores, candidate_rates

Floats = NDArray[np.float64]

_COARSE, _FINE = 64, 33
_FIRST_STEP = 8
_TIE = 1e-9


def levels(family: CurveFamily, fpr: Floats, fnr: Floats) -> Floats:
    """Return for (k,) rates the theta whose curve goes through them, 0 for none.

    Without a closed form interpolated on 64 places of the lattice, then again on 33 around the largest of the k: the
    others may be off by 1%.
    """
    if family.through is not None:
        return family.through(fpr, fnr)
    found = _interpolated(family, fpr, fnr, np.linspace(0, family.steps, _COARSE))
    top = float(found.max())
    if top == 0.0:
        return found
    middle = math.log(top / family.least) / math.log(family.ratio)
    reach = family.steps / (_COARSE - 1.0)
    return _interpolated(family, fpr, fnr, middle + np.linspace(-reach, reach, _FINE), found)


def _interpolated(
    family: CurveFamily, fpr: Floats, fnr: Floats, lattice: Floats, otherwise: Floats | None = None
) -> Floats:
    """Return theta between two places of `lattice`, and `otherwise` (or 0 and the last) for rates outside all."""
    places = np.unique(np.clip(np.rint(lattice), 0, family.steps).astype(np.intp))
    thetas = np.array([family.at(int(place)) for place in places])
    table = np.stack([family.curve(fpr, float(theta)) for theta in thetas])
    last = np.sum(table > fnr, axis=0) - 1
    low, high = np.clip(last, 0, None), np.clip(last + 1, None, thetas.size - 1)
    columns = np.arange(fpr.size)
    above, below = table[low, columns], table[high, columns]
    gap = above - below
    share = np.where(gap > 0.0, np.clip((above - fnr) / np.where(gap > 0.0, gap, 1.0), 0.0, 1.0), 0.0)
    found = thetas[low] * (thetas[high] / thetas[low]) ** share
    if otherwise is None:
        return np.where(last < 0, 0.0, found)
    return np.where((last < 0) | (last == thetas.size - 1), otherwise, found)


def choose_cut(
    pilot_in: Scores, pilot_out: Scores, *, n_in: int, n_out: int, error: float, family: CurveFamily
) -> Rule:
    """Return the rule whose expected counts on `n_in` + `n_out` further scores promise the largest theta."""
    rates = candidate_rates(pilot_in, pilot_out)
    # Counts of so few scores are noisy far out: as a fit they would promise much where they know little.
    m_in, m_out = (n_in, n_out) if rates.fitted else (pilot_in.size, pilot_out.size)
    fpr, fnr = (np.stack(rate) for rate in zip(*(rates.errors(d) for d in (True, False)), strict=True))
    worth = np.stack([promised(family, m_out * a, m_out, m_in * b, m_in, error) for a, b in zip(fpr, fnr, strict=True)])
    # Symmetrical worlds tie exactly: the smallest false positive rate decides, not the last digit.
    tied = worth >= worth.max() * (1.0 - _TIE)
    side, place = np.unravel_index(int(np.argmin(np.where(tied, fpr, np.inf))), fpr.shape)
    return Rule(
        threshold=float(rates.threshold[place]),
        in_is_high=bool(side == 0),
        strict_on_fpr=bool(fpr[side, place] < fnr[side, place]),
        share=0.5,
        fitted=rates.fitted,
    )


def promised(
    family: CurveFamily, false_positives: Floats, n_out: int, false_negatives: Floats, n_in: int, error: float
) -> Floats:
    """Return about what the joint test will prove from (k,) counts: each limit errs as in a sum in quadrature."""
    each = float(ndtr(ndtri(error) / math.sqrt(2.0)))
    return levels(family, upper_limit(false_positives, n_out, each), upper_limit(false_negatives, n_in, each))


def largest_ruled_out(family: CurveFamily, counts: Counts, error: float) -> float:
    """Return the largest theta of the lattice whose curve `counts` rule out at `error`; 0 for none.

    Places are tested from the one that two separate limits point to, in growing steps until the answer is bracketed,
    then where a straight line in the normal deviate of p puts it, or half-way where that gains little.
    """
    fpr, fnr = (np.array([rate]) for rate in counts.rates)
    top = _last_above(family, fpr, fnr)
    if top < 0:
        return 0.0

    def excess(place: int) -> float:
        """Return the normal deviate of p less that of the error: at most 0 where theta is ruled out."""
        p = _p_value(family, family.at(place), family.at(top), counts, error)
        return float(ndtri(min(max(p, LEAST_P), 1.0 - 1e-15)) - ndtri(error))

    each = float(ndtr(ndtri(error) / math.sqrt(2.0)))
    guess = _last_above(
        family,
        upper_limit([counts.false_positives], counts.n_out, each),
        upper_limit([counts.false_negatives], counts.n_in, each),
    )
    low, high = -1, top + 1
    low_z, high_z = -np.inf, np.inf
    step = _FIRST_STEP
    while high - low > 1:
        guess = min(max(guess, low + 1), high - 1)
        width, z = high - low, excess(guess)
        if z <= 0.0:
            low, low_z = guess, z
        else:
            high, high_z = guess, z
        if np.isfinite(low_z) and np.isfinite(high_z):
            line = low + (high - low) * low_z / (low_z - high_z)
            # A step beyond the line brackets the answer from its other side.
            guess = round(line + (1 if z <= 0.0 else -1)) if high - low <= width // 2 else (low + high) // 2
        else:
            guess, step = (guess + step if z <= 0.0 else guess - step), 2 * step
    return family.at(low) if low >= 0 else 0.0


def p_value_of(family: CurveFamily, theta: float, counts: Counts) -> Callable[[float], float] | None:
    """Return error -> the p-value of "the curve is that of `theta` or a more private one", to be held against it.

    None where `counts` lie on the side of `theta` that speaks for it.
    """
    fpr, fnr = (np.array([rate]) for rate in counts.rates)
    top = _last_above(family, fpr, fnr)
    if top < 0 or theta > family.at(top):
        return None
    return lambda error: _p_value(family, theta, family.at(top), counts, error)


def _p_value(family: CurveFamily, theta: float, through: float, counts: Counts, error: float) -> float:
    return p_value(lambda alpha: family.curve(alpha, theta), counts, lambda alpha: family.curve(alpha, through), error)


def _last_above(family: CurveFamily, fpr: Floats, fnr: Floats) -> int:
    """Return the last place of the lattice whose curve lies above the one point (fpr, fnr); -1 for none."""
    low, high = -1, family.steps + 1
    while high - low > 1:
        middle = (low + high) // 2
        if float(family.curve(fpr, family.at(middle))[0]) >= float(fnr[0]):
            low = middle
        else:
            high = middle
    return low


@lru_cache(maxsize=256)
def largest_provable(family: CurveFamily, n_in: int, n_out: int, error: float) -> float:
    """Return the largest theta that `n_in` + `n_out` scores without any error rule out, whichever rate is confined."""
    none = Counts(false_positives=0, n_out=n_out, false_negatives=0, n_in=n_in)
    ways = (none, none.exchanged) if family.blow_up is not None and n_in != n_out else (none,)
    return max(largest_ruled_out(family, counts, error) for counts in ways)


def oriented(family: CurveFamily, counts: Counts, *, strict_on_fpr: bool) -> Counts:
    """Return `counts` with the worlds exchanged where that helps: for curves that are their own inverse.

    The test confines what it takes for the false positive rate, and of the two rates the rarer is known worse. Which
    is which follows from the rule, so from the pilot alone.
    """
    return counts.exchanged if family.blow_up is not None and strict_on_fpr else counts
