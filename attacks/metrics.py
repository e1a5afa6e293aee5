"""How well an attack did: success with its interval, baselines of guessing, and the error of gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from dpzv_audit.errors import InputError, check_count, check_probability
from dpzv_audit.evidence import Interval
from dpzv_audit.intervals import clopper_pearson, proportion

_LEAST_P = 1e-15
LOW_RATES = (0.01, 0.001)
"""False positive rates at which true positive rates are reported."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference `value` of two rates, in [-1, 1], with its interval [low, high] at `confidence`."""

    value: float
    low: float
    high: float
    confidence: float


def success_rate(predicted: ArrayLike, truth: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the share of records whose label was predicted, with its exact (Clopper-Pearson) interval.

    Right when, given the truth, guesses are independent from record to record: exact gradients, one scalar a
    record, an attacker at chance. Guesses that share a batch's scalars or a trained model are dependent: the
    interval is then too narrow, use `clustered_rate`.

    Args:
        predicted: integer labels (records,), an array or a tensor in host memory.
        truth: integer labels (records,).
        confidence: strictly between 0 and 1.

    Raises:
        InputError: no records, shapes that differ, or a confidence outside (0, 1).
    """
    guesses, labels = np.asarray(predicted), np.asarray(truth)
    if guesses.shape != labels.shape or guesses.ndim != 1:
        raise InputError(f"predicted has shape {guesses.shape} and truth {labels.shape}, must be one (records,)")
    return proportion(int((guesses == labels).sum()), guesses.size, confidence)


def clustered_rate(correct: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the share of correct guesses, with an interval that allows any dependence within a cluster.

    Right when guesses within a cluster share something (the scalars of a batch, the trained model of a run)
    and clusters are independent: the interval is Student's t over cluster means, cut to [0, 1]. It is
    approximate: it needs cluster means that are roughly normal, so some ten clusters or many guesses in each.
    When all clusters have the same rate the t interval has no width and would claim certainty; the interval
    is then Clopper-Pearson's with one trial a cluster (the count rounded outwards), right however strong
    the dependence. For independent guesses `success_rate` is narrower and exact.

    Args:
        correct: (clusters, guesses a cluster) of 0 and 1 (or booleans), at least two clusters.
        confidence: strictly between 0 and 1.

    Returns:
        Interval whose `n` counts guesses, not clusters.

    Raises:
        InputError: a shape, value or confidence other than these.
    """
    check_probability("confidence", confidence)
    outcomes = np.asarray(correct, dtype=np.float64)
    if outcomes.ndim != 2 or outcomes.shape[0] < 2 or outcomes.shape[1] < 1:
        raise InputError(f"correct has shape {outcomes.shape}, must be (clusters, guesses) with 2 clusters or more")
    if not np.all((outcomes == 0) | (outcomes == 1)):
        raise InputError("correct holds a value other than 0 and 1, must say for each guess whether it was right")
    rates = outcomes.mean(axis=1)
    clusters, rate = rates.size, float(rates.mean())
    if np.ptp(rates) == 0:
        hits = rates[0] * clusters
        low = float(clopper_pearson(np.floor(hits), clusters, confidence)[0])
        high = float(clopper_pearson(np.ceil(hits), clusters, confidence)[1])
    else:
        quantile = float(stdtrit(clusters - 1, (1.0 + confidence) / 2.0))
        half_width = quantile * float(rates.std(ddof=1)) / float(np.sqrt(clusters))
        low, high = max(0.0, rate - half_width), min(1.0, rate + half_width)
    return Interval(value=rate, low=low, high=high, n=outcomes.size, confidence=confidence)


def rate_interval(correct: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the share of right guesses of `correct`, booleans (trials, guesses), with the wider of two intervals.

    Clopper-Pearson is exact for independent guesses; guesses of one trial may depend on each other, which the
    interval over trials allows for. The wider of the two is honest either way.
    """
    outcomes = np.asarray(correct)
    exact = proportion(int(outcomes.sum()), outcomes.size, confidence)
    if outcomes.shape[0] < 2 or np.ptp(outcomes.mean(1)) == 0:
        return exact
    clustered = clustered_rate(outcomes, confidence)
    return replace(exact, low=min(exact.low, clustered.low), high=max(exact.high, clustered.high))


def mean_interval(values: ArrayLike, n: int, confidence: float = 0.95) -> Interval:
    """Return the mean of proportions `values` (trials,), by independent trials, with Student's t interval in [0, 1].

    `n` is how many records they stand on. One trial, or trials that all agree, have no spread to judge by: the
    interval is then Hoeffding's for one trial of `n` independent records.
    """
    check_probability("confidence", confidence)
    rates = np.asarray(values, np.float64)
    if rates.ndim != 1 or rates.size == 0 or not np.all((rates >= 0) & (rates <= 1)):
        raise InputError(f"values is {values!r}, must hold at least one proportion")
    mean = float(rates.mean())
    if rates.size == 1 or np.ptp(rates) == 0:
        half = float(np.sqrt(np.log(2.0 / (1.0 - confidence)) / (2.0 * n)))
    else:
        half = float(stdtrit(rates.size - 1, (1.0 + confidence) / 2.0) * rates.std(ddof=1) / np.sqrt(rates.size))
    return Interval(value=mean, low=max(0.0, mean - half), high=min(1.0, mean + half), n=n, confidence=confidence)


def difference_interval(first: ArrayLike, second: ArrayLike, n: int, confidence: float = 0.95) -> Difference:
    """Return the mean of `first - second`, rates (trials,) of the same independent trials, with Student's t interval.

    Pairs share their trial's luck, so that their differences say more than two intervals do. `n` is the number of
    records of a trial. One trial, or differences that all agree, have no spread to judge by: the interval is then
    Hoeffding's for one trial, with half of the error to each rate.
    """
    check_probability("confidence", confidence)
    ours, theirs = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if ours.shape != theirs.shape or ours.ndim != 1 or ours.size == 0:
        raise InputError(f"rates have shapes {ours.shape} and {theirs.shape}, must be one (trials,)")
    differences = ours - theirs
    mean = float(differences.mean())
    if differences.size == 1 or np.ptp(differences) == 0:
        half = 2.0 * float(np.sqrt(np.log(4.0 / (1.0 - confidence)) / (2.0 * n)))
    else:
        quantile = float(stdtrit(differences.size - 1, (1.0 + confidence) / 2.0))
        half = quantile * float(differences.std(ddof=1)) / float(np.sqrt(differences.size))
    return Difference(value=mean, low=max(-1.0, mean - half), high=min(1.0, mean + half), confidence=confidence)


def cosine_interval(values: ArrayLike, n: int, confidence: float = 0.95) -> Interval:
    """Return the mean of `values` (clusters,) in [-1, 1] with Student's t interval; of one value all of [-1, 1].

    `n` is how many cosines they stand on.
    """
    check_probability("confidence", confidence)
    cosines = np.asarray(values, np.float64)
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
    mean, quantile = float(found.mean()), float(stdtrit(found.size - 1, (1.0 + confidence) / 2.0))
    half = quantile * float(found.std(ddof=1)) / float(np.sqrt(found.size))
    return Interval(value=mean, low=mean - half, high=mean + half, n=n, confidence=confidence)


def auc_interval(scores: ArrayLike, positive: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the area under the ROC curve, mean over trials, with an interval over trials.

    Args:
        scores: (trials, records), raw: the larger the likelier positive. Ties count half.
        positive: booleans (trials, records), both kinds in every trial.
        confidence: strictly between 0 and 1.

    For one trial the interval is Hoeffding's for a two-sample U-statistic, of the smaller kind's count.

    Raises:
        InputError: shapes that differ, a score that is not finite, or a trial with one kind only.
    """
    areas, fewest = trial_areas(scores, positive)
    found = mean_interval(areas, fewest, confidence)
    return replace(found, n=int(np.size(scores)))


def trial_areas(scores: ArrayLike, positive: ArrayLike) -> tuple[NDArray[np.float64], int]:
    """Return the area under the ROC curve of every trial and the fewest records of one kind in any.

    Arguments and errors as `auc_interval`.
    """
    from sklearn.metrics import roc_auc_score

    values, truth = np.asarray(scores, np.float64), np.asarray(positive, bool)
    if values.shape != truth.shape or values.ndim != 2:
        raise InputError(f"scores has shape {values.shape} and positive {truth.shape}, must be one (trials, records)")
    if not np.isfinite(values).all():
        raise InputError("scores holds a number that is not finite; every score must be")
    if not np.all(truth.any(1) & ~truth.all(1)):
        raise InputError("positive is the same for all records of a trial, must hold both kinds")
    areas = np.array([float(roc_auc_score(t, v)) for t, v in zip(truth, values, strict=True)])
    return areas, int(np.minimum(truth.sum(1), (~truth).sum(1)).min())


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


def low_rates(scores: NDArray[np.float64], members: NDArray[np.bool_], confidence: float) -> dict[str, Interval]:
    """True positive rates at low false positive rates, of `scores` and booleans `members` (trials, n).

    The threshold, one for all trials, is the smallest at which at most that share of non-members is called a member;
    ties count as such. Intervals allow for dependence within a trial. Where trials have different numbers of members
    their rates stand for them, one a trial.
    """
    outside = np.sort(scores[~members])[::-1]
    counts = members.sum(1)
    found = {}
    for rate in LOW_RATES:
        above = scores > outside[int(rate * outside.size)]
        if np.ptp(counts) == 0:
            interval = rate_interval(above[members].reshape(len(scores), -1), confidence)
        else:
            interval = mean_interval((above & members).sum(1) / counts, int(counts.sum()), confidence)
        found[f"true positive rate at {100 * rate:g}% false positives"] = interval
    return found


def majority_baseline(labels: ArrayLike, classes: int) -> float:
    """Return the success of always guessing the commonest of `labels`, integers (records,) < `classes`."""
    return float(_frequencies(labels, classes).max())


def prior_baseline(labels: ArrayLike, classes: int) -> float:
    """Return the expected success of guesses drawn from the distribution of `labels`: sum_k p_k^2."""
    return float((_frequencies(labels, classes) ** 2).sum())


def cosine_similarity(estimate: ArrayLike, truth: ArrayLike) -> NDArray[np.float64]:
    """Return the cosine, in [-1, 1] and of shape (...), between gradients (..., d) and their estimates.

    An estimate of zero norm has no direction; its cosine is 0, that of an estimate that knows nothing. A true
    gradient of zero norm raises `InputError`, as do shapes that differ.
    """
    guess, gradient, norms = _gradients(estimate, truth)
    lengths = np.linalg.norm(guess, axis=-1)
    inner = (guess * gradient).sum(axis=-1)
    cosine = inner / (np.where(lengths == 0, 1.0, lengths) * norms)
    return np.asarray(np.clip(cosine, -1.0, 1.0))


def relative_error(estimate: ArrayLike, truth: ArrayLike) -> NDArray[np.float64]:
    """Return ||estimate - truth|| / ||truth||, of shape (...), of (..., d); errors as `cosine_similarity`."""
    guess, gradient, norms = _gradients(estimate, truth)
    return np.asarray(np.linalg.norm(guess - gradient, axis=-1) / norms)


def _gradients(
    estimate: ArrayLike, truth: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    guess, gradient = np.asarray(estimate, np.float64), np.asarray(truth, np.float64)
    if guess.shape != gradient.shape or guess.ndim < 1:
        raise InputError(f"estimate has shape {guess.shape} and truth {gradient.shape}, must be one (..., d)")
    norms = np.asarray(np.linalg.norm(gradient, axis=-1))
    if np.any(norms == 0):
        raise InputError("truth holds a gradient of norm 0, which has no direction; leave such records out")
    return guess, gradient, norms


def _frequencies(labels: ArrayLike, classes: int) -> NDArray[np.float64]:
    check_count("classes", classes)
    values = np.asarray(labels)
    if values.ndim != 1 or values.size == 0 or not np.issubdtype(values.dtype, np.integer):
        raise InputError(f"labels has shape {values.shape} and type {values.dtype}, must be integers (records,)")
    if values.min() < 0 or values.max() >= classes:
        raise InputError(f"labels reach from {values.min()} to {values.max()}, must lie in [0, classes = {classes})")
    return np.bincount(values, minlength=classes) / values.size
