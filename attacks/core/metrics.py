"""How well an attack did: area and low rates of its scores, baselines of guessing, and the error of gradients."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attacks.core.intervals import areas_interval, betting_limits
from dpzv_audit.errors import InputError, NotFinite, check_count
from dpzv_audit.findings import LEAST_TRAININGS, Interval, OverTrainings
from dpzv_audit.intervals import proportion

LOW_RATES = (0.01, 0.001)
"""False positive rates at which true positive rates are reported."""


def auc_interval(scores: ArrayLike, positive: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the area under the ROC curve, mean over trials, with its interval by `areas_interval`.

    Args:
        scores: (trials, records), raw: the larger the likelier positive. Ties count half.
        positive: booleans (trials, records), both kinds in every trial.
        confidence: strictly between 0 and 1.

    Raises:
        InputError: shapes that differ, or a trial with one kind only; `NotFinite` for a score that is not finite.
    """
    areas, truth = trial_areas(scores, positive), np.asarray(positive, bool)
    fewer = int(np.minimum(truth.sum(1), (~truth).sum(1)).min())
    return areas_interval(areas, fewer, truth.size, confidence)


def trial_areas(scores: ArrayLike, positive: ArrayLike) -> NDArray[np.float64]:
    """Return the area under the ROC curve of every trial.

    Arguments and errors as `auc_interval`.
    """
    from sklearn.metrics import roc_auc_score

    values, truth = np.asarray(scores, np.float64), np.asarray(positive, bool)
    if values.shape != truth.shape or values.ndim != 2:
        raise InputError(f"scores has shape {values.shape} and positive {truth.shape}, must be one (trials, records)")
    if not np.isfinite(values).all():
        raise NotFinite("scores holds a number that is not finite; every score must be")
    if not np.all(truth.any(1) & ~truth.all(1)):
        raise InputError("positive is the same for all records of a trial, must hold both kinds")
    return np.array([float(roc_auc_score(t, v)) for t, v in zip(truth, values, strict=True)])


Limits = Callable[[NDArray[np.bool_], float], tuple[float, float]]
"""Limits of the share of records (trials, n) of a kind whose score is above a threshold."""


def low_rates(scores: NDArray[np.float64], members: NDArray[np.bool_], confidence: float) -> dict[str, Interval]:
    """True positive rates at low false positive rates, of `scores` and booleans `members` (trials, n).

    The threshold, one for all trials, is the smallest at which at most that share of non-members is called a member;
    ties count as such. It is itself an estimate: half of the error goes to the thresholds at which the false positive
    rate may be what it should, the other half to the true positive rates at the least and the largest of them. By
    records both are exact (Clopper-Pearson), over trainings both by `betting_limits`. Of few non-members no threshold
    is certain to be high enough: the lower limit is 0.
    """
    outside = np.sort(scores[~members])[::-1]
    half = 1.0 - (1.0 - confidence) / 2.0

    def by_records(kind: NDArray[np.bool_], threshold: float) -> tuple[float, float]:
        found = proportion(int((scores[kind] > threshold).sum()), int(kind.sum()), half)
        return found.low, found.high

    def by_trainings(kind: NDArray[np.bool_], threshold: float) -> tuple[float, float]:
        return betting_limits(_shares_above(scores, kind, threshold), half)

    found = {}
    for rate in LOW_RATES:
        threshold = outside[int(rate * outside.size)]
        value = float((scores > threshold)[members].mean())
        low, high = _rate_limits(members, outside, rate, value, by_records)
        shares = _shares_above(scores, members, threshold)
        over = OverTrainings(count=shares.size, least=float(shares.min()), most=float(shares.max()))
        if shares.size >= LEAST_TRAININGS:
            limits = _rate_limits(members, outside, rate, value, by_trainings)
            over = replace(over, low=limits[0], high=limits[1])
        found[f"true positive rate at {100 * rate:g}% false positives"] = Interval(
            value=value, low=low, high=high, n=int(members.sum()), confidence=confidence, over_trainings=over
        )
    return found


def _rate_limits(
    members: NDArray[np.bool_], outside: NDArray[np.float64], rate: float, value: float, limits: Limits
) -> tuple[float, float]:
    """Limits of the true positive rate where the false positive rate is `rate`, about the `value` that was found."""
    most, least = _thresholds(members, outside, rate, limits)
    low = 0.0 if np.isinf(most) else limits(members, most)[0]
    high = 1.0 if np.isinf(least) else limits(members, least)[1]
    return min(low, value), max(high, value)


def _thresholds(
    members: NDArray[np.bool_], outside: NDArray[np.float64], rate: float, limits: Limits
) -> tuple[float, float]:
    """The largest and the least threshold at which the false positive rate may be `rate`; infinite beyond all scores.

    `outside` is the scores of non-members, the largest first.
    """
    candidates = np.unique(outside)[::-1]

    def at(place: int) -> tuple[float, float]:
        return limits(~members, float(candidates[place]))

    # The further down, the more lies above: the first place whose rate may be `rate`, and the first that exceeds it.
    first = bisect_left(range(candidates.size), True, key=lambda place: at(place)[1] >= rate)
    beyond = bisect_left(range(candidates.size), True, key=lambda place: at(place)[0] > rate)
    most = math.inf if first == 0 else float(candidates[first - 1])
    least = -math.inf if beyond == candidates.size else float(candidates[beyond])
    return most, least


def _shares_above(scores: NDArray[np.float64], kind: NDArray[np.bool_], threshold: float) -> NDArray[np.float64]:
    """Share of the records of a `kind` (trials, n) whose score is above `threshold`, of each trial that has any."""
    counts = kind.sum(1)
    shares: NDArray[np.float64] = ((scores > threshold) & kind).sum(1)[counts > 0] / counts[counts > 0]
    return shares


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
