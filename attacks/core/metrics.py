"""How well an attack did: rates, areas and errors, with intervals by records and over further trainings.

By records: a training's records are taken as drawn one by one from all that it might have had, given the trained model
and whatever else they share. Over trainings: the mean of a bounded number over independent trainings, of any law, by
betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024, section 4).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv, stdtrit, xlogy

from dpzv_audit.errors import InputError, NotFinite, check_count, check_probability
from dpzv_audit.findings import LEAST_TRAININGS, Interval, OverTrainings

# False positive rates at which true positive rates are reported.
LOW_RATES = (0.01, 0.001)


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


# Limits of the share of records (trials, n) of a kind whose score is above a threshold.
Limits = Callable[[NDArray[np.bool_], float], tuple[float, float]]


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


# Fractions of what may be lost that are bet, equally likely: the arcsine law.
_FRACTIONS = np.sin(0.5 * np.pi * (np.arange(64) + 0.5) / 64) ** 2
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
    outcomes = _outcomes(correct)
    exact = proportion(int(outcomes.sum()), outcomes.size, confidence)
    if outcomes.shape[1] == 1:
        return exact
    return replace(exact, over_trainings=over_trainings(outcomes.mean(1), confidence))


def _outcomes(correct: ArrayLike) -> NDArray[np.float64]:
    outcomes = np.asarray(correct, dtype=np.float64)
    if outcomes.ndim != 2 or outcomes.size == 0:
        raise InputError(f"correct has shape {outcomes.shape}, must be (trainings, records) with one of each at least")
    if not np.all((outcomes == 0) | (outcomes == 1)):
        raise InputError("correct holds a value other than 0 and 1, must say for each guess whether it was right")
    return outcomes


def _limits(hits: float, n: int, confidence: float) -> tuple[float, float]:
    """Return Clopper-Pearson's limits of a rate of `hits` in `n`, the count rounded outwards."""
    low = clopper_pearson(max(0.0, np.floor(hits + 1e-9)), n, confidence)[0]
    high = clopper_pearson(min(n, np.ceil(hits - 1e-9)), n, confidence)[1]
    return float(low), float(high)


def counts_interval(hits: ArrayLike, sizes: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the mean over trainings of the rates `hits` / `sizes` (K,), whole numbers; sizes may differ.

    By records it is Clopper-Pearson's interval of as many records as the trainings have where all have equally many,
    and of K times the fewest that one has where they differ (the count rounded outwards).
    """
    right, of = np.asarray(hits, np.float64), np.asarray(sizes, np.float64)
    rates = right / of
    n = int(of.sum()) if np.ptp(of) == 0 else int(of.size * of.min())
    mean = float(rates.mean())
    low, high = _limits(mean * n, n, confidence)
    over = over_trainings(rates, confidence)
    return Interval(value=mean, low=low, high=high, n=int(of.sum()), confidence=confidence, over_trainings=over)


def shared_rate(correct: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the share of right guesses of `correct`, booleans (trainings, records), all of the same records.

    By records as `counts_interval`, of one training's records: more trainings on the same records make it no narrower.

    Raises:
        InputError: a shape or confidence other than these.
    """
    outcomes = _outcomes(correct)
    trainings, records = outcomes.shape
    low, high = _limits(float(outcomes.sum()) / trainings, records, confidence)
    over = over_trainings(outcomes.mean(1), confidence)
    return Interval(
        value=int(outcomes.sum()) / outcomes.size,
        low=low,
        high=high,
        n=records,
        confidence=confidence,
        over_trainings=over,
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
    (low, high), (least, most) = (
        _limits(rate.value * rate.n, rate.n, 0.5 * (1.0 + confidence)) for rate in (first, second)
    )
    return Interval(
        value=first.value - second.value,
        low=low - most,
        high=high - least,
        n=min(first.n, second.n),
        confidence=confidence,
        over_trainings=over_trainings(ours - theirs, confidence, least=-1.0),
    )


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
    quantile = float(stdtrit(found.size - 1, (1.0 + confidence) / 2.0))
    mean, half = float(found.mean()), quantile * float(found.std(ddof=1)) / float(np.sqrt(found.size))
    return Interval(value=mean, low=mean - half, high=mean + half, n=n, confidence=confidence)


def clopper_pearson(
    successes: ArrayLike, n: ArrayLike, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the exact two-sided interval (low, high) of a binomial proportion, elementwise.

    It covers the true proportion with probability at least `confidence` for independent trials, each side
    erring with probability at most (1 - confidence) / 2.

    Args:
        successes: whole numbers in [0, n], of any shape.
        n: numbers of trials, at least 1, broadcast against `successes`.
        confidence: strictly between 0 and 1.

    Returns:
        Two arrays of the broadcast shape (of shape () for scalars), in [0, 1].

    Raises:
        InputError: a count that is not a whole number in its range, or a confidence outside (0, 1).
    """
    check_probability("confidence", confidence)
    hits, trials = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(n, np.float64))
    if not np.all((trials >= 1) & (trials == np.floor(trials)) & np.isfinite(trials)):
        raise InputError("must be a whole number of at least 1", "n", n)
    if not np.all((hits >= 0) & (hits <= trials) & (hits == np.floor(hits))):
        raise InputError(f"must be a whole number from 0 to n = {n!r}", "successes", successes)
    tail = (1.0 - confidence) / 2.0
    # The beta quantile is undefined at the ends, where the limit is 0 or 1 by definition.
    low = np.where(hits == 0, 0.0, betaincinv(np.maximum(hits, 1.0), trials - hits + 1.0, tail))
    high = np.where(hits == trials, 1.0, betaincinv(hits + 1.0, np.maximum(trials - hits, 1.0), 1.0 - tail))
    return low, high


def proportion(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Return the observed proportion of `n` independent trials with its interval by `clopper_pearson`."""
    low, high = clopper_pearson(successes, n, confidence)
    return Interval(value=successes / n, low=float(low), high=float(high), n=int(n), confidence=confidence)
