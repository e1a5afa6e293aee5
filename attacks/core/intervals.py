"""Intervals of what attacks measure: by the records of the trainings that were made, and over further trainings.

By records: a training's records are taken as drawn one by one from all that it might have had, given the trained model
and whatever else they share. Over trainings: the mean of a bounded number over independent trainings, of any law, by
betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024, section 4).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import stdtrit, xlogy

from dpzv_audit.errors import InputError, NotFinite, check_probability
from dpzv_audit.findings import LEAST_TRAININGS, Interval, OverTrainings
from dpzv_audit.intervals import clopper_pearson, proportion

_FRACTIONS = np.sin(0.5 * np.pi * (np.arange(64) + 0.5) / 64) ** 2
"""Fractions of what may be lost that are bet, equally likely: the arcsine law."""
_LEAST_MEAN = 1e-9


def bets(values: NDArray[np.float64], mean: float) -> tuple[float, float]:
    """Return the log wealth of bets that independent `values` (n,) in [0, 1] have a larger, and a smaller, mean.

    A bet of the fraction f of what may be lost multiplies the wealth by 1 + f (x / mean - 1), or by
    1 + f ((1 - x) / (1 - mean) - 1). The wealth is the average over f of the arcsine law, so that no f need be chosen
    and the order of the values plays no part. Where the values' means have the average `mean` its expectation is at
    most 1, whatever their laws (Waudby-Smith and Ramdas 2024; equal means are the worst case).
    """
    return _wealth(values, mean), _wealth(1.0 - values, 1.0 - mean)


def _wealth(values: NDArray[np.float64], mean: float) -> float:
    """Return the log wealth of bets on a larger mean."""
    if mean <= 0.0:
        return np.inf if (values > 0.0).any() else 0.0
    growth = np.log1p(_FRACTIONS[:, None] * (values / mean - 1.0)).sum(1)
    most = float(growth.max())
    return most + float(np.log(np.exp(growth - most).mean()))


def betting_limits(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval for the mean of independent `values` (n,) in [0, 1] of any laws; it covers at any n.

    Raises:
        InputError: values outside [0, 1], none of them, or a confidence outside (0, 1).
    """
    check_probability("confidence", confidence)
    x, goal = _bounded(values), float(np.log(2.0 / (1.0 - confidence)))
    return _lower_limit(x, goal), 1.0 - _lower_limit(1.0 - x, goal)


def _lower_limit(values: NDArray[np.float64], goal: float) -> float:
    """Return the mean at which the bets on a larger one reach `goal`; 0 where they never do.

    Their wealth falls from an assumed mean of 0 to the observed one, where it is 1 at most.
    """
    mean = float(values.mean())
    if mean <= _LEAST_MEAN or _wealth(values, _LEAST_MEAN) < goal:
        return 0.0
    return float(brentq(lambda assumed: _wealth(values, assumed) - goal, _LEAST_MEAN, mean, xtol=1e-12))


def over_trainings(values: ArrayLike, confidence: float = 0.95, *, least: float = 0.0) -> OverTrainings:
    """Return how `values` (K,) in [`least`, 1], one per training, differ, and an interval for the mean over others.

    The interval is by `betting_limits`; fewer than `LEAST_TRAININGS` have none.
    """
    x = np.clip(np.asarray(values, np.float64), least, 1.0)
    if x.ndim != 1 or x.size == 0:
        raise InputError(f"values has shape {x.shape}, must be (trainings,) with one at least")
    found = OverTrainings(count=x.size, least=float(x.min()), most=float(x.max()))
    if x.size < LEAST_TRAININGS:
        return found
    low, high = (least + (1.0 - least) * end for end in betting_limits((x - least) / (1.0 - least), confidence))
    return replace(found, low=low, high=high)


def rate_interval(correct: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the share of right guesses of `correct`, booleans (trainings, records).

    By records it is Clopper-Pearson's interval, exact for records that err independently; that trainings have rates of
    their own makes it no less so (Hoeffding, Ann. Math. Stat. 1956). What guesses of one training share (a batch's
    noise, say) is taken as given. Of one record per training the interval is about further trainings already.

    Raises:
        InputError: a shape, value or confidence other than these.
    """
    outcomes = np.asarray(correct, dtype=np.float64)
    if outcomes.ndim != 2 or outcomes.size == 0:
        raise InputError(f"correct has shape {outcomes.shape}, must be (trainings, records) with one of each at least")
    if not np.all((outcomes == 0) | (outcomes == 1)):
        raise InputError("correct holds a value other than 0 and 1, must say for each guess whether it was right")
    exact = proportion(int(outcomes.sum()), outcomes.size, confidence)
    if outcomes.shape[1] == 1:
        return exact
    return replace(exact, over_trainings=over_trainings(outcomes.mean(1), confidence))


def counts_interval(hits: ArrayLike, sizes: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the mean over trainings of the rates `hits` / `sizes` (K,), whole numbers; sizes may differ.

    By records it is Clopper-Pearson's interval of as many records as the trainings have where all have equally many,
    and of K times the fewest that one has where they differ (the count rounded outwards).
    """
    right, of = np.asarray(hits, np.float64), np.asarray(sizes, np.float64)
    rates = right / of
    n = int(of.sum()) if np.ptp(of) == 0 else int(of.size * of.min())
    mean = float(rates.mean())
    low = float(clopper_pearson(np.floor(mean * n + 1e-9), n, confidence)[0])
    high = float(clopper_pearson(min(n, np.ceil(mean * n - 1e-9)), n, confidence)[1])
    over = over_trainings(rates, confidence)
    return Interval(value=mean, low=low, high=high, n=int(of.sum()), confidence=confidence, over_trainings=over)


def shared_rate(correct: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the share of right guesses of `correct`, booleans (trainings, records), all of the same records.

    By records as `counts_interval`, of one training's records: more trainings on the same records make it no narrower.

    Raises:
        InputError: a shape or confidence other than these.
    """
    outcomes = np.asarray(correct, np.float64)
    if outcomes.ndim != 2 or outcomes.size == 0:
        raise InputError(f"correct has shape {outcomes.shape}, must be (trainings, records) with one of each at least")
    trainings, records = outcomes.shape
    right = int(outcomes.sum())
    low = float(clopper_pearson(right // trainings, records, confidence)[0])
    high = float(clopper_pearson(-(-right // trainings), records, confidence)[1])
    over = over_trainings(outcomes.mean(1), confidence)
    return Interval(
        value=right / outcomes.size, low=low, high=high, n=records, confidence=confidence, over_trainings=over
    )


def areas_interval(areas: ArrayLike, fewer: int, n: int, confidence: float = 0.95) -> Interval:
    """Return the mean of areas under ROC curves (K,), one for each training.

    `fewer` is how many records of the rarer kind every training has at least, `n` how many records there are in all.
    By records: an area is a U-statistic, an average over matchings of `fewer` independent comparisons each, so that
    Chernoff's bound for so many holds for it (Hoeffding, JASA 1963, section 5), whatever the scores' laws.
    """
    check_probability("confidence", confidence)
    x = _bounded(areas)
    mean, goal = float(x.mean()), float(np.log(2.0 / (1.0 - confidence))) / (x.size * fewer)
    low, high = (_chernoff(mean, goal, end) for end in (0.0, 1.0))
    over = over_trainings(x, confidence)
    return Interval(value=mean, low=low, high=high, n=n, confidence=confidence, over_trainings=over)


def _chernoff(mean: float, goal: float, end: float) -> float:
    """Return the rate towards `end` whose relative entropy from `mean` reaches `goal`; `end` where none does."""

    def beyond(rate: float) -> float:
        entropy = xlogy(mean, mean) - xlogy(mean, rate) + xlogy(1 - mean, 1 - mean) - xlogy(1 - mean, 1 - rate)
        return float(entropy) - goal

    last = abs(end - _LEAST_MEAN)
    if abs(mean - end) <= _LEAST_MEAN or beyond(last) < 0.0:
        return end
    return float(brentq(beyond, *sorted((mean, last)), xtol=1e-12))


def cosine_interval(cosines: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the mean of `cosines` (trainings, batches) in [-1, 1], with an interval by `betting_limits` over batches.

    That trainings have means of their own makes it cover no less.
    """
    found = np.asarray(cosines, np.float64)
    if np.isnan(found).any():
        raise NotFinite("cosines holds one that is no number; every one must be")
    if found.ndim != 2 or found.size == 0 or not np.all(np.abs(found) <= 1.0 + 1e-12):
        raise InputError(f"cosines has shape {found.shape}, must be (trainings, batches) in [-1, 1]")
    found = np.clip(found, -1.0, 1.0)
    low, high = (2.0 * end - 1.0 for end in betting_limits(0.5 * (found.ravel() + 1.0), confidence))
    over = over_trainings(found.mean(1), confidence, least=-1.0)
    return Interval(
        value=float(found.mean()), low=low, high=high, n=found.size, confidence=confidence, over_trainings=over
    )


def _bounded(values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, np.float64)
    if x.ndim != 1 or x.size == 0 or not np.all((x >= -1e-12) & (x <= 1.0 + 1e-12)):
        raise InputError(f"values is {values!r:.80}, must hold at least one proportion")
    return np.clip(x, 0.0, 1.0)


def rates_difference(
    first: Interval, second: Interval, by_training: tuple[ArrayLike, ArrayLike], confidence: float = 0.95
) -> Interval:
    """Return the rate `first` less `second`, in [-1, 1], both counted over the same trainings' records.

    By records: Clopper-Pearson's limits of either rate, each with half of the error (Bonferroni), so that it covers
    however the two depend on each other. `over_trainings` is about the differences of `by_training`, two rates (K,)
    of each training.

    Raises:
        InputError: rates of different shapes, or a confidence outside (0, 1).
    """
    check_probability("confidence", confidence)
    ours, theirs = (np.asarray(rates, np.float64) for rates in by_training)
    if ours.shape != theirs.shape or ours.ndim != 1 or ours.size == 0:
        raise InputError(f"rates have shapes {ours.shape} and {theirs.shape}, must be one (trainings,)")
    (low, high), (least, most) = (_counted(rate, 0.5 * (1.0 + confidence)) for rate in (first, second))
    return Interval(
        value=first.value - second.value,
        low=low - most,
        high=high - least,
        n=min(first.n, second.n),
        confidence=confidence,
        over_trainings=over_trainings(ours - theirs, confidence, least=-1.0),
    )


def _counted(rate: Interval, confidence: float) -> tuple[float, float]:
    """Return Clopper-Pearson's limits of `rate` at another confidence, its count rounded outwards."""
    hits = rate.value * rate.n
    low = float(clopper_pearson(max(0.0, np.floor(hits + 1e-6)), rate.n, confidence)[0])
    return low, float(clopper_pearson(min(rate.n, np.ceil(hits - 1e-6)), rate.n, confidence)[1])


def t_interval(values: ArrayLike, n: int, confidence: float = 0.95) -> Interval:
    """Return the mean of real `values` (clusters,), two or more, with Student's t interval, in their own unit.

    `n` is how many records they stand on. `InputError` for fewer values, `NotFinite` for one that is no number.
    """
    check_probability("confidence", confidence)
    found = np.asarray(values, np.float64)
    if found.ndim != 1 or found.size < 2:
        raise InputError(f"values has shape {found.shape}, must be (clusters,), two at least")
    if not np.isfinite(found).all():
        raise NotFinite("values holds a number that is not finite; every one must be")
    mean, half = float(found.mean()), _half_width(found, confidence)
    return Interval(value=mean, low=mean - half, high=mean + half, n=n, confidence=confidence)


def _half_width(values: NDArray[np.float64], confidence: float) -> float:
    """Half the width of Student's t interval for the mean of `values` (n,), n at least 2."""
    quantile = float(stdtrit(values.size - 1, (1.0 + confidence) / 2.0))
    return quantile * float(values.std(ddof=1)) / float(np.sqrt(values.size))
