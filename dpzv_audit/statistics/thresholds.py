"""Where to cut the scores: a pilot picks threshold, direction, tail and split of the error.

The scores of one world are exchangeable, so a random pilot is fair, and whatever is chosen on it leaves the
limits computed from the other scores valid: a bad choice costs power, never coverage.

Rules depend on the order of the pilot's scores alone. A cut lies between two neighbours of the pilot that differ by
more than rounding may have told apart, and each part ends at a score of the pilot. So every strictly increasing map of
the scores leaves all counts as they are, and one huge score, or an infinite one, moves no other.

Rates at the cuts are counts, or a smooth curve through the ranks: two normal laws after an unknown increasing map, the
binormal curve (Pepe, The Statistical Evaluation of Medical Tests, 2003, section 4.4).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from ..base.seeds import Purpose, stream
from .binomial import Counts, Floats, upper_limit

Scores = NDArray[Any]
"""(n,) scores in the type they were written in: floats of 16, 32 or 64 bits, or whole numbers. None is NaN."""
Objective = Callable[[Floats, Floats], Floats]
"""From upper limits on (the strict rate, the other rate) to the bound they prove, `-inf` for none."""

LEAST_A_SIDE = 8
"""Fewest scores on a side for which a pilot is taken: below this no bound at 95% would exceed 0.4."""
_MOST_CANDIDATES = 200
_TIE = 1e-9
PLACES = 2.0
"""Units in the last place by which rounding may have moved a score: two scores are one within twice as many."""
_DENSE = 16.0
"""Times as wide as rounding explains is a run of close scores that a cut may part."""
_DEVIATES = np.linspace(-12.0, 12.0, 1201)
_MISFIT = 1.2
"""Of ranks that follow the smooth curve, about 5% miss it by more on average."""
_TAIL = 0.02
"""Share of the ranks, at either end, whose fit is not looked at."""
_SURE = 85.0
"""Up to so many scores a side the smooth curve and the counts have an equal say in a plan; of more the curve has."""
_TURNS = 12
_CLEARLY = 2.6
"""Standard errors from which on spreads differ: by chance one time in a hundred."""
_FEW = 20
_WORST = -9.0
"""Where promises are averaged, no worse one counts."""


@dataclass(frozen=True)
class Rule:
    """A test of "which world?" with the way its error is spent; fixed before the scores it is applied to.

    Its *sure* answer is "in" when `strict_on_fpr`, else "out". A score gets it from `threshold` on: upwards where it is
    `upper`, else downwards. All others get the other answer. The *strict* rate, the one the bound divides by, is that
    of wrong sure answers: the false positive rate when `strict_on_fpr`, else the false negative rate. `share` of the
    error goes to its limit and the rest to the other's.
    """

    threshold: float
    in_is_high: bool
    strict_on_fpr: bool
    share: float
    fitted: bool
    """True: chosen by a smooth curve through the pilot's ranks. False: by its counts alone."""

    @property
    def upper(self) -> bool:
        """Whether the sure answer is that of high scores."""
        return self.in_is_high == self.strict_on_fpr

    def sure(self, scores: Scores) -> NDArray[np.bool_]:
        """Return which of (n,) scores get the sure answer."""
        exact = scores.astype(np.float64)  # else the threshold would be rounded to the type of the scores
        return exact >= self.threshold if self.upper else exact <= self.threshold

    @property
    def words(self) -> str:
        """The sure answer and the scores that get it."""
        answer = "in" if self.strict_on_fpr else "out"
        return f"'{answer}' when the score is at {'least' if self.upper else 'most'} {self.threshold:.6g}"


Errors = dict[bool, tuple[Floats, Floats]]
"""(False positive rates, false negative rates) at the cuts: of "in" for the upper part under True, else the lower."""


@dataclass(frozen=True)
class Rates:
    """Cuts between neighbouring scores of a pilot, and the error rates at them.

    A cut k parts the scores from `above[k]` up from those from `below[k]` down; a score between them lies in neither
    part. `counted` are the pilot's own rates, (count + 1/2) / (n + 1); `errors` are the same, or those of the smooth
    curve where the ranks follow it. That curve has a weight of `trust` in a plan, 0 where they do not follow it.
    """

    above: Floats
    below: Floats
    errors: Errors
    counted: Errors
    trust: float

    def edge(self, cut: int, *, upper: bool) -> float:
        """Return where the upper or the lower part ends at a cut."""
        return float((self.above if upper else self.below)[cut])


def pilot_size(n: int) -> int:
    """Return how many of `n` scores of one side (n >= 8) go to the pilot.

    10% up to 100 scores, then 100, then 5%; but 5 where 10% is less than that, and never more than a quarter.
    """
    share = max(math.ceil(0.05 * n), min(100, math.ceil(0.1 * n)))
    return min(max(share, 5), n // 4)


def split_pilot(scores: Scores, seed: int) -> tuple[Scores, Scores]:
    """Return (pilot, rest) of (n,) scores, n >= 8, drawn at random from `seed`.

    Two sides of one size give the same places to their pilots, so that where row i of both files came from
    one pair of runs, no pair has a half in the pilot and a half outside.
    """
    order = stream(seed, Purpose.SPLIT).permutation(scores.size)
    size = pilot_size(scores.size)
    return scores[order[:size]], scores[np.sort(order[size:])]


def rounding_of(*sides: Scores) -> np.dtype[Any]:
    """Return the type whose last places rounding may have changed: the coarsest of floats, int64 for whole numbers."""
    whole = all(side.dtype.kind in "iu" or _are_whole(side) for side in sides)
    if whole:
        return np.dtype(np.int64)
    return min((side.dtype for side in sides if side.dtype.kind == "f"), key=lambda kind: kind.itemsize)


def _are_whole(scores: Scores) -> bool:
    finite = scores[np.isfinite(scores)].astype(np.float64)
    return bool(np.all(finite == np.rint(finite)) and np.all(np.abs(finite) <= 2.0**53))


def _room(scores: Floats, rounding: np.dtype[Any]) -> Floats:
    """Return by how much rounding in the type `rounding` may have moved each of (k,) scores; nothing moves infinity."""
    if rounding.kind != "f":
        return np.zeros_like(scores)
    with np.errstate(over="ignore", invalid="ignore"):
        places = np.spacing(np.abs(scores.astype(rounding))).astype(np.float64)
    return PLACES * np.where(np.isfinite(places), places, 0.0)


def _parted(scores: Floats, room: Floats) -> NDArray[np.bool_]:
    """Return which neighbours of (k,) sorted distinct scores differ by more than both may have been moved."""
    with np.errstate(over="ignore"):
        return np.asarray(np.diff(scores) > room[:-1] + room[1:])


def merged(*sides: Scores) -> int:
    """Return how many neighbouring values of the scores differ, but by no more than rounding explains."""
    values = np.unique(np.concatenate([side.astype(np.float64) for side in sides]))
    return int(np.count_nonzero(~_parted(values, _room(values, rounding_of(*sides)))))


def _dense(values: Floats, room: Floats, apart: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which neighbours of sorted scores lie within a run of close ones that is wider than rounding explains."""
    first = np.flatnonzero(np.append(True, apart))
    last = np.append(first[1:], values.size) - 1
    with np.errstate(over="ignore", invalid="ignore"):
        wide = values[last] - values[first] > _DENSE * np.maximum(room[first], room[last])
    return np.repeat(wide & (last > first), last - first + 1)[:-1] & ~apart


def _cuts(values: Floats, rounding: np.dtype[Any]) -> tuple[Floats, Floats]:
    """Return the ends (k,) of the upper and of the lower parts at the cuts between (m,) sorted distinct scores.

    Scores that rounding may have told apart are one score. So many of them in a row are a dense file of a coarse type
    instead, such as half-precision floats: there each score is what it is.
    """
    room = _room(values, rounding)
    apart = _parted(values, room)
    dense = _dense(values, room, apart)
    room = np.where(np.append(False, dense) | np.append(dense, False), 0.0, room)
    cuts = np.flatnonzero(apart | dense)
    if cuts.size == 0:
        return values[-1:] + room[-1:], values[:1] - room[:1]
    if cuts.size > _MOST_CANDIDATES:
        cuts = cuts[np.unique(np.linspace(0, cuts.size - 1, _MOST_CANDIDATES).round().astype(np.intp))]
    return values[cuts + 1] - room[cuts + 1], values[cuts] + room[cuts]


@dataclass(frozen=True)
class _Binormal:
    """N(`mu`, `spread`^2) for "in", of which a `share` of all scores is, against N(0, 1), after an increasing map."""

    mu: float
    spread: float
    share: float

    def deviates(self, pooled: Floats) -> tuple[Floats, Floats]:
        """Return the normal deviates in "in" and in "out" of the points below which so large shares of all lie."""
        points = _DEVIATES + 0.5 * self.mu  # half-way between the means, so that sides may change places
        mixed = self.share * ndtr((points - self.mu) / self.spread) + (1.0 - self.share) * ndtr(points)
        of_out = np.asarray(np.interp(pooled, mixed, points), dtype=np.float64)
        of_in: Floats = (of_out - self.mu) / self.spread
        return of_in, of_out


def _fitted(in_below: Floats, out_below: Floats, share: float, level: float) -> _Binormal:
    """Return the curve through the shares of either world below each cut; of one spread unless theirs differ clearly.

    mu follows from the area under the curve, both from the deviates that they imply, in turns, where the logarithm of
    the spreads' ratio exceeds `level`.
    """
    x, y = (np.concatenate([[0.0], side, [1.0]]) for side in (out_below, in_below))
    area = float(np.sum(0.5 * (y[1:] + y[:-1]) * np.diff(x)))
    plain = curve = _Binormal(math.sqrt(2.0) * float(ndtri(1.0 - area)), 1.0, share)
    pooled = share * y + (1.0 - share) * x
    middle = 0.5 * (pooled[1:] + pooled[:-1])
    for _ in range(_TURNS):
        _, at = curve.deviates(middle)
        (mean_in, spread_in), (mean_out, spread_out) = (_moments(at, np.diff(side)) for side in (y, x))
        if not (spread_in > 0.0 and spread_out > 0.0):
            return plain
        curve = _Binormal((mean_in - mean_out) / spread_out, spread_in / spread_out, share)
    return curve if abs(math.log(curve.spread)) > level else plain


def _moments(at: Floats, weights: Floats) -> tuple[float, float]:
    mean = float(weights @ at)
    return mean, math.sqrt(float(weights @ (at - mean) ** 2))


def _deviates(in_below: Floats, out_below: Floats, n_in: int, n_out: int) -> tuple[Floats, Floats] | None:
    """Return the normal deviates of the shares of "in" and of "out" below each cut; None where no smooth curve fits.

    None fits ranks that do not follow it, nor those of pilots that a cut parts wholly: their mu has no upper end. Of a
    few scores that is chance.
    """
    apart = np.abs(in_below - out_below) > 1.0 - 0.75 / (n_in + 1.0) - 0.75 / (n_out + 1.0)
    if apart.any() and min(n_in, n_out) >= _FEW:
        return None
    share = n_in / (n_in + n_out)
    clearly = _CLEARLY * math.sqrt(0.5 / (n_in - 1.0) + 0.5 / (n_out - 1.0))
    curve = _fitted(in_below, out_below, share, clearly)
    pooled = share * in_below + (1.0 - share) * out_below
    of_in, of_out = curve.deviates(pooled)
    # Given all ranks, which of them are "in" are coins of known odds whose sum is known: their sums are a bridge.
    ends = np.concatenate([[0.0], pooled, [1.0]])
    at_in, at_out = curve.deviates(0.5 * (ends[1:] + ends[:-1]))
    odds = share / (1.0 - share) / curve.spread * np.exp(0.5 * (at_out**2 - at_in**2))
    coins = np.diff(ends) * (n_in + n_out) * odds / (1.0 + odds) ** 2
    sums = np.cumsum(coins)[:-1]
    total = float(coins.sum())
    inner = (sums > _TAIL * total) & (sums < (1.0 - _TAIL) * total)
    if not inner.any():
        return None
    spread = (sums * (total - sums) / total)[inner]
    missed = ((in_below - ndtr(of_in))[inner] * n_in) ** 2 / spread
    misfit = float(missed @ (0.5 * (coins[1:] + coins[:-1]))[inner]) / total
    return (of_in, of_out) if misfit <= _MISFIT else None


def candidate_rates(pilot_in: Scores, pilot_out: Scores) -> Rates:
    """Return candidate cuts with their rates, from (m,) and (k,) scores in the type they were written in, m, k >= 2."""
    rounding = rounding_of(pilot_in, pilot_out)
    pilot_in, pilot_out = pilot_in.astype(np.float64), pilot_out.astype(np.float64)
    above, below = _cuts(np.unique(np.concatenate([pilot_in, pilot_out])), rounding)

    def shares(side: Floats) -> tuple[Floats, Floats]:
        """Return the shares below and above each cut; scores on no side of it are an error either way."""
        ordered = np.sort(side)
        low = np.searchsorted(ordered, above, side="left").astype(np.float64)
        high = side.size - np.searchsorted(ordered, below, side="right").astype(np.float64)
        return (low + 0.5) / (side.size + 1.0), (high + 0.5) / (side.size + 1.0)

    (in_below, in_above), (out_below, out_above) = shares(pilot_in), shares(pilot_out)
    counted = {True: (out_above, in_below), False: (out_below, in_above)}
    smooth = _deviates(in_below, out_below, pilot_in.size, pilot_out.size)
    if smooth is None:
        return Rates(above, below, counted, counted, 0.0)
    of_in, of_out = smooth
    errors = {True: (ndtr(-of_out), ndtr(of_in)), False: (ndtr(of_out), ndtr(-of_in))}
    fewer = min(pilot_in.size, pilot_out.size)
    return Rates(above, below, errors, counted, 1.0 - 0.5 * min(1.0, _SURE / fewer) ** 2)


Promise = Callable[[Errors, int, int], Floats]
"""From error rates at the cuts and how many scores of "in" and of "out" are tested to what rules should prove."""


@dataclass(frozen=True)
class Pilot:
    """Scores of each side on which a rule is chosen for `n_in` + `n_out` further ones."""

    inside: Scores
    outside: Scores
    n_in: int
    n_out: int

    def worth(self, rates: Rates, promise: Promise) -> Floats:
        """Return what rules are worth: the mean of what counts and the smooth curve promise, by the trust in the curve.

        Counts of a pilot are as uncertain as so few scores are: they would promise much where they know little, so with
        them a rule is planned for as many scores as the pilot has. With the smooth curve it is planned for all scores;
        so it is with counts alone where the pilot is too small for them to promise anything.
        """
        counted = promise(rates.counted, self.inside.size, self.outside.size)
        if rates.trust == 0.0:
            return counted if counted.max() > 0.0 else promise(rates.counted, self.n_in, self.n_out)
        return (1.0 - rates.trust) * counted + rates.trust * promise(rates.errors, self.n_in, self.n_out)


_TAILS = ((True, True), (False, True), (True, False), (False, False))
"""Whether "in" is high, and whether the strict rate is that of false positives; of equal ways the first is taken."""


def choose_rule(pilot: Pilot, error: float, *, objective: Objective, shares: tuple[float, ...]) -> Rule:
    """Return the rule whose expected counts on further scores prove the largest `objective`.

    Searches cuts, both directions, both tails and the `shares` of `error` given to the strict rate.
    """
    rates = candidate_rates(pilot.inside, pilot.outside)
    spent = np.array(shares)[:, None]

    def promise(errors: Errors, n_in: int, n_out: int) -> Floats:
        promises = []
        for in_is_high, strict_on_fpr in _TAILS:
            fpr, fnr = errors[in_is_high]
            sides = ((fpr, n_out), (fnr, n_in))
            (strict, n_strict), (other, n_other) = sides if strict_on_fpr else sides[::-1]
            value = objective(
                upper_limit(n_strict * strict, n_strict, error * spent),
                upper_limit(n_other * other, n_other, error * (1.0 - spent)),
            )
            # What is worse than a coin proves nothing.
            promises.append(np.where(fpr + fnr < 1.0, np.maximum(value, _WORST), _WORST))
        return np.stack(promises)

    worth = pilot.worth(rates, promise)
    # Symmetrical worlds tie: the smallest strict rate decides, then the order of the ways, never the last digit.
    strict = np.stack([rates.errors[in_is_high][0 if on_fpr else 1] for in_is_high, on_fpr in _TAILS])[:, None]
    tied = np.where(worth >= worth.max() - _TIE, strict, np.inf)
    way, row, cut = np.unravel_index(int(np.argmax(tied <= tied.min() * (1.0 + _TIE))), worth.shape)
    in_is_high, strict_on_fpr = _TAILS[way]
    threshold = rates.edge(int(cut), upper=in_is_high == strict_on_fpr)
    return Rule(threshold, in_is_high, strict_on_fpr, shares[row], rates.trust > 0.0)


def error_counts(in_scores: Scores, out_scores: Scores, rule: Rule) -> Counts:
    """Return the errors of `rule` on (n,) and (m,) scores."""
    sure_in, sure_out = (int(np.count_nonzero(rule.sure(side))) for side in (in_scores, out_scores))
    wrong = (sure_out, in_scores.size - sure_in) if rule.strict_on_fpr else (out_scores.size - sure_out, sure_in)
    return Counts(
        false_positives=wrong[0],
        n_out=out_scores.size,
        false_negatives=wrong[1],
        n_in=in_scores.size,
        strict_on_fpr=rule.strict_on_fpr,
        share=rule.share,
    )
