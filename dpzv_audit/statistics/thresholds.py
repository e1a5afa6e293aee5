"""Where to cut the scores: a pilot picks threshold, direction, tail and split of the error.

The scores of one world are exchangeable, so a random pilot is fair, and whatever is chosen on it leaves the
limits computed from the other scores valid: a bad choice costs power, never coverage.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr

from ..seeds import Purpose, stream
from .assumptions import LEAST_SCORES, anderson_darling_p_value, equal_variance_p_value, unit_of
from .binomial import Counts, Floats, upper_limit

Objective = Callable[[Floats, Floats], Floats]
"""From upper limits on (the strict rate, the other rate) to the bound they prove, `-inf` for none."""

LEAST_A_SIDE = 8
"""Fewest scores on a side for which a pilot is taken: below this no bound at 95% would exceed 0.4."""
_FIT_LEVEL = 0.01
_MOST_CANDIDATES = 200
_DEVIATES = np.linspace(-6.0, 6.0, 49)
_TIE = 1e-9


@dataclass(frozen=True)
class Rule:
    """A test of "which world?" with the way its error is spent; fixed before the scores it is applied to.

    It answers "in" where the score is above `threshold` (below it when `in_is_high` is False). The *strict*
    rate, the one the bound divides by, is the false positive rate when `strict_on_fpr`, else the false
    negative rate; `share` of the error goes to its limit and the rest to the other's.
    """

    threshold: float
    in_is_high: bool
    strict_on_fpr: bool
    share: float
    fitted: bool
    """True: chosen by a Gaussian fit of the pilot. False: chosen between the pilot's own scores."""


@dataclass(frozen=True)
class Rates:
    """Candidate thresholds (t,), and (false positive rates, false negative rates) at them of "in" where `in_is_high`.

    Under False of "in" below the threshold; a score equal to it is an error either way.
    """

    threshold: Floats
    errors: dict[bool, tuple[Floats, Floats]]
    fitted: bool


def pilot_size(n: int) -> int:
    """Return how many of `n` scores of one side (n >= 8) go to the pilot.

    10% up to 100 scores, then 100, then 5%; but 5 where 10% is less than that, and never more than a quarter.
    """
    share = max(math.ceil(0.05 * n), min(100, math.ceil(0.1 * n)))
    return min(max(share, 5), n // 4)


def split_pilot(scores: Floats, seed: int) -> tuple[Floats, Floats]:
    """Return (pilot, rest) of (n,) scores, n >= 8, drawn at random from `seed`.

    Two sides of one size give the same places to their pilots, so that where row i of both files came from
    one pair of runs, no pair has a half in the pilot and a half outside.
    """
    order = stream(seed, Purpose.SPLIT).permutation(scores.size)
    size = pilot_size(scores.size)
    return scores[order[:size]], scores[np.sort(order[size:])]


def _fitted_rates(pilot_in: Floats, pilot_out: Floats) -> Rates | None:
    """Return Gaussian rates on a grid of thresholds, or None where the pilot is not plausibly Gaussian."""
    for side in (pilot_in, pilot_out):
        if side.min() == side.max():
            return None
        if side.size >= LEAST_SCORES and anderson_darling_p_value(side) < _FIT_LEVEL:
            return None
    mean_in = float(pilot_in.mean())
    mean_out = float(pilot_out.mean())
    sd_in = float(pilot_in.std(ddof=1))
    sd_out = float(pilot_out.std(ddof=1))
    if equal_variance_p_value(pilot_in, pilot_out) >= _FIT_LEVEL:
        d_in = pilot_in.size - 1
        d_out = pilot_out.size - 1
        sd_in = sd_out = math.sqrt((d_in * sd_in**2 + d_out * sd_out**2) / (d_in + d_out))
    if not (sd_in > 0.0 and sd_out > 0.0):  # the spread is below what floating point resolves
        return None
    t = np.concatenate([mean_out + sd_out * _DEVIATES, mean_in + sd_in * _DEVIATES])
    z_in = (t - mean_in) / sd_in
    z_out = (t - mean_out) / sd_out
    return Rates(t, {True: (ndtr(-z_out), ndtr(z_in)), False: (ndtr(z_out), ndtr(-z_in))}, True)


def _counted_rates(pilot_in: Floats, pilot_out: Floats) -> Rates:
    """Return the pilot's own rates, (count + 1/2) / (n + 1), half-way between neighbouring scores."""
    values = np.unique(np.concatenate([pilot_in, pilot_out]))
    # Equal scores that rounding told apart are one score: a threshold among them would find only ties.
    gaps = np.diff(values)
    apart = gaps > _TIE * max(abs(float(values[0])), abs(float(values[-1])))
    t = (values[:-1] + 0.5 * gaps)[apart] if apart.any() else values[:1]
    if t.size > _MOST_CANDIDATES:
        t = t[np.unique(np.linspace(0, t.size - 1, _MOST_CANDIDATES).round().astype(np.intp))]

    def rates(side: Floats) -> tuple[Any, Any]:
        ordered = np.sort(side)
        below = np.searchsorted(ordered, t, side="right")
        above = side.size - np.searchsorted(ordered, t, side="left")
        return (below + 0.5) / (side.size + 1.0), (above + 0.5) / (side.size + 1.0)

    (in_below, in_above), (out_below, out_above) = rates(pilot_in), rates(pilot_out)
    return Rates(t, {True: (out_above, in_below), False: (out_below, in_above)}, False)


def candidate_rates(pilot_in: Floats, pilot_out: Floats) -> Rates:
    """Return candidate thresholds with their rates, from (m,) and (k,) finite scores, m, k >= 2.

    Gaussian rates (one variance unless an F test objects at 1%), or, when an Anderson-Darling test at 1% says that a
    pilot is not Gaussian, the pilot's own counts.
    """
    # Scaling first keeps squares of very large or very small scores within floating point.
    scale = unit_of(pilot_in, pilot_out)
    pilot_in = pilot_in / scale
    pilot_out = pilot_out / scale
    fit = _fitted_rates(pilot_in, pilot_out)
    found = _counted_rates(pilot_in, pilot_out) if fit is None else fit
    with np.errstate(over="ignore"):  # a threshold beyond the largest float is one that no score passes
        return replace(found, threshold=found.threshold * scale)


@dataclass(frozen=True)
class Pilot:
    """Scores of each side on which a rule is chosen for `n_in` + `n_out` further ones."""

    inside: Floats
    outside: Floats
    n_in: int
    n_out: int

    def candidates(self) -> tuple[Rates, int, int]:
        """Return candidates with their rates, and for how many scores of each side a rule is planned.

        Counts of a pilot are as uncertain as so few scores are: as a fit they would promise much where they know
        little, so without one the rule is planned for as many scores as the pilot has.
        """
        rates = candidate_rates(self.inside, self.outside)
        if rates.fitted:
            return (rates, self.n_in, self.n_out)
        return (rates, self.inside.size, self.outside.size)


def choose_rule(pilot: Pilot, error: float, *, objective: Objective, shares: tuple[float, ...]) -> Rule:
    """Return the rule whose expected counts on further scores prove the largest `objective`.

    Searches thresholds, both directions, both tails and the `shares` of `error` given to the strict rate.
    """
    rates, n_in, n_out = pilot.candidates()
    spent = np.array(shares)[:, None]
    most = -math.inf
    best = Rule(float(rates.threshold[0]), in_is_high=True, strict_on_fpr=True, share=shares[0], fitted=rates.fitted)
    for in_is_high in (True, False):
        fpr, fnr = rates.errors[in_is_high]
        kept = np.flatnonzero(fpr + fnr < 1.0)  # the rest is worse than a coin and proves nothing
        if kept.size == 0:
            continue
        fpr = fpr[kept]
        fnr = fnr[kept]
        sides = ((fpr, n_out), (fnr, n_in))
        for strict_on_fpr in (True, False):
            (strict, n_strict), (other, n_other) = sides if strict_on_fpr else sides[::-1]
            value = objective(
                upper_limit(n_strict * strict, n_strict, error * spent),
                upper_limit(n_other * other, n_other, error * (1.0 - spent)),
            )
            largest = float(value.max())
            if largest > most + _TIE:
                # Symmetrical worlds tie exactly: the smallest strict rate decides, not the last digit.
                tied = np.where(value >= largest - _TIE, strict, np.inf)
                row, column = np.unravel_index(int(np.argmin(tied)), value.shape)
                threshold = float(rates.threshold[kept[column]])
                most = largest
                best = Rule(threshold, in_is_high, strict_on_fpr, shares[row], rates.fitted)
    return best


def error_counts(in_scores: Floats, out_scores: Floats, rule: Rule) -> Counts:
    """Return the errors of `rule`; a score equal to the threshold is one."""
    sign = 1.0 if rule.in_is_high else -1.0
    return Counts(
        false_positives=int(np.count_nonzero(sign * out_scores >= sign * rule.threshold)),
        n_out=out_scores.size,
        false_negatives=int(np.count_nonzero(sign * in_scores <= sign * rule.threshold)),
        n_in=in_scores.size,
        strict_on_fpr=rule.strict_on_fpr,
        share=rule.share,
    )
