"""Intervals of what attacks measure over trials or clusters: rates, cosines, means and their differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from dpzv_audit.errors import InputError, NotFinite, check_probability
from dpzv_audit.evidence import Interval
from dpzv_audit.intervals import clopper_pearson, proportion

_LEAST_P = 1e-15


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference `value` of two rates, in [-1, 1], with its interval [low, high] at `confidence`."""

    value: float
    low: float
    high: float
    confidence: float


def clustered_rate(correct: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the share of correct guesses, with an interval that allows any dependence within a cluster.

    Right when guesses within a cluster share something (the scalars of a batch, the trained model of a run)
    and clusters are independent: the interval is Student's t over cluster means, cut to [0, 1]. It is
    approximate: it needs cluster means that are roughly normal, so some ten clusters or many guesses in each.
    One cluster, and clusters that all have the same rate, have no spread to judge by: the interval is then
    Clopper-Pearson's with one trial a cluster (the count rounded outwards), right however strong the dependence.
    For independent guesses `dpzv_audit.intervals.proportion` is narrower and exact.

    Args:
        correct: (clusters, guesses a cluster) of 0 and 1 (or booleans).
        confidence: strictly between 0 and 1.

    Returns:
        Interval whose `n` counts guesses, not clusters.

    Raises:
        InputError: a shape, value or confidence other than these.
    """
    check_probability("confidence", confidence)
    outcomes = np.asarray(correct, dtype=np.float64)
    if outcomes.ndim != 2 or outcomes.size == 0:
        raise InputError(f"correct has shape {outcomes.shape}, must be (clusters, guesses) with one of each at least")
    if not np.all((outcomes == 0) | (outcomes == 1)):
        raise InputError("correct holds a value other than 0 and 1, must say for each guess whether it was right")
    return mean_interval(outcomes.mean(axis=1), outcomes.size, confidence)


def rate_interval(correct: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the share of right guesses of `correct`, booleans (trials, guesses), with the wider of two intervals.

    It is about the mean over trainings, of which each trial is one. Clopper-Pearson is exact for independent guesses;
    those of one trial may depend on each other, which `clustered_rate` allows for: by it one trial tells nothing of
    others, and trials that agree count as one guess each.
    """
    outcomes = np.asarray(correct)
    exact = proportion(int(outcomes.sum()), outcomes.size, confidence)
    clustered = clustered_rate(outcomes, confidence)
    return replace(exact, low=min(exact.low, clustered.low), high=max(exact.high, clustered.high))


def mean_interval(values: ArrayLike, n: int, confidence: float = 0.95) -> Interval:
    """Return the mean of proportions `values` (trials,), by independent trials, with Student's t interval in [0, 1].

    `n` is how many records they stand on. One trial, or trials that all agree, have no spread to judge by: the
    interval is then Clopper-Pearson's with one guess a trial (the count rounded outwards), which for one trial leaves
    almost nothing out.
    """
    check_probability("confidence", confidence)
    rates = np.asarray(values, np.float64)
    if rates.ndim != 1 or rates.size == 0 or not np.all((rates >= 0) & (rates <= 1)):
        raise InputError(f"values is {values!r}, must hold at least one proportion")
    mean = float(rates.mean())
    if np.ptp(rates) == 0:
        low, high = _without_spread(float(rates[0]), rates.size, confidence)
    else:
        half = _half_width(rates, confidence)
        low, high = max(0.0, mean - half), min(1.0, mean + half)
    return Interval(value=mean, low=low, high=high, n=n, confidence=confidence)


def accuracy_interval(correct: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the test accuracy of `correct`, booleans (trainings, records), all trainings on the same test records.

    Of one training it is Clopper-Pearson's interval, over test records, and about that one model alone. Of several it
    is about the mean over trainings and over records that might have been the test's: the half width is the root of the
    squares of both Student's t half widths, over means by training and over means by record (Howe, JASA 1974), and the
    interval no narrower than that over records which are each right or wrong. More trainings do not make it narrower
    than the records that they share allow. `n` counts records, not guesses.

    Raises:
        InputError: a shape or confidence other than these.
    """
    outcomes = np.asarray(correct, dtype=np.float64)
    if outcomes.ndim != 2 or outcomes.size == 0:
        raise InputError(f"correct has shape {outcomes.shape}, must be (trainings, records) with one of each at least")
    trainings, records = outcomes.shape
    right, rate = int(outcomes.sum()), float(outcomes.mean())
    # Counts of one training's records, rounded outwards.
    low = float(clopper_pearson(right // trainings, records, confidence)[0])
    high = float(clopper_pearson(-(-right // trainings), records, confidence)[1])
    if trainings > 1 and records > 1:
        half = float(np.hypot(_half_width(outcomes.mean(0), confidence), _half_width(outcomes.mean(1), confidence)))
        low, high = min(low, max(0.0, rate - half)), max(high, min(1.0, rate + half))
    return Interval(value=rate, low=low, high=high, n=records, confidence=confidence)


def difference_interval(first: ArrayLike, second: ArrayLike, confidence: float = 0.95) -> Difference:
    """Return the mean of `first - second`, rates (trials,) of the same independent trials, with Student's t interval.

    Pairs share their trial's luck, so that their differences say more than two intervals do. One trial, or differences
    that all agree, have no spread to judge by: the interval is then that of `mean_interval`, on the scale from -1 to 1.
    """
    check_probability("confidence", confidence)
    ours, theirs = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if ours.shape != theirs.shape or ours.ndim != 1 or ours.size == 0:
        raise InputError(f"rates have shapes {ours.shape} and {theirs.shape}, must be one (trials,)")
    differences = ours - theirs
    mean = float(differences.mean())
    if np.ptp(differences) == 0:
        low, high = (2.0 * end - 1.0 for end in _without_spread((mean + 1.0) / 2.0, differences.size, confidence))
    else:
        half = _half_width(differences, confidence)
        low, high = max(-1.0, mean - half), min(1.0, mean + half)
    return Difference(value=mean, low=low, high=high, confidence=confidence)


def cosine_interval(values: ArrayLike, n: int, confidence: float = 0.95) -> Interval:
    """Return the mean of `values` (clusters,) in [-1, 1] with Student's t interval; of one value all of [-1, 1].

    `n` is how many cosines they stand on.
    """
    check_probability("confidence", confidence)
    cosines = np.asarray(values, np.float64)
    if np.isnan(cosines).any():
        raise NotFinite("values holds a cosine that is no number; every one must be")
    if cosines.ndim != 1 or cosines.size == 0 or not np.all(np.abs(cosines) <= 1.0 + 1e-12):
        raise InputError(f"values is {values!r}, must hold at least one cosine")
    if cosines.size == 1:
        return Interval(value=float(np.clip(cosines[0], -1.0, 1.0)), low=-1.0, high=1.0, n=n, confidence=confidence)
    found = t_interval(cosines, n, confidence)
    value, low, high = (float(np.clip(v, -1.0, 1.0)) for v in (found.value, found.low, found.high))
    return replace(found, value=value, low=low, high=high)


def t_interval(values: ArrayLike, n: int, confidence: float = 0.95) -> Interval:
    """Return the mean of real `values` (clusters,), two or more, with Student's t interval, in their own unit.

    `n` is how many records they stand on.
    """
    check_probability("confidence", confidence)
    found = np.asarray(values, np.float64)
    if found.ndim != 1 or found.size < 2 or not np.isfinite(found).all():
        raise InputError(f"values has shape {found.shape}, must be (clusters,) of finite numbers, two at least")
    mean, half = float(found.mean()), _half_width(found, confidence)
    return Interval(value=mean, low=mean - half, high=mean + half, n=n, confidence=confidence)


def p_value(interval_at: Callable[[float], Interval], expected: float) -> float:
    """Return the smallest error at which the interval leaves `expected` out: the p-value of a test by that interval.

    Args:
        interval_at: The interval at a confidence; of two confidences the larger's holds the other's.
        expected: What is tested.

    Returns:
        A value in [1e-15, 1], to a relative 1e-3; 1e-15 stands for anything below.
    """

    def holds(error: float) -> bool:
        found = interval_at(1.0 - error)
        return found.low <= expected <= found.high

    low, high = np.log(_LEAST_P), 0.0
    if not holds(_LEAST_P):
        return _LEAST_P
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if holds(float(np.exp(middle))) else (low, middle)
    return float(np.exp(high))


def _without_spread(rate: float, clusters: int, confidence: float) -> tuple[float, float]:
    """Limits of the mean of variables in [0, 1] of which all `clusters` that were seen were `rate`.

    No variable with a mean outside comes out so with a probability above (1 - confidence) / 2 a side: of all with one
    mean, the likeliest to do so is the one that is 0 or 1 where it is not `rate`.
    """
    hits = rate * clusters
    low = float(clopper_pearson(np.floor(hits), clusters, confidence)[0])
    high = float(clopper_pearson(np.ceil(hits), clusters, confidence)[1])
    return low, high


def _half_width(values: NDArray[np.float64], confidence: float) -> float:
    """Half the width of Student's t interval for the mean of `values` (n,), n at least 2."""
    quantile = float(stdtrit(values.size - 1, (1.0 + confidence) / 2.0))
    return quantile * float(values.std(ddof=1)) / float(np.sqrt(values.size))
