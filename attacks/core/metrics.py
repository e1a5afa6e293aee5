"""Measures of success: rates, areas and errors, with intervals by records and over further trainings.

By records: a training's records are taken as drawn one by one from all that it might have had, given the trained model
and whatever else they share. Over trainings: the mean of a bounded number over independent trainings, of any law, by
betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024, section 4).
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv, logsumexp, stdtrit, xlogy

from dpzv_audit.base.errors import InputError, NotFinite
from dpzv_audit.base.findings import LEAST_TRAININGS, Interval, OverTrainings
from dpzv_audit.statistics.binomial import lower_limit
from dpzv_audit.statistics.success import ARCSINE

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Ints = NDArray[np.int64]
Limits = tuple[float, float]

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
    truth = np.asarray(positive, bool)
    fewer = int(np.minimum(truth.sum(1), (~truth).sum(1)).min())
    return areas_interval(trial_areas(scores, truth), fewer, truth.size, confidence)


def trial_areas(scores: ArrayLike, positive: ArrayLike) -> Floats:
    """Return the area under the ROC curve of every trial.

    Arguments and errors as `auc_interval`.
    """
    from scipy.stats import rankdata

    values = np.asarray(scores, float)
    truth = np.asarray(positive, bool)
    _check_alike("scores", values, truth)
    _check_finite("scores", values)
    if not np.all(truth.any(1) & ~truth.all(1)):
        raise InputError("positive is the same for all records of a trial; use both kinds")
    count = truth.sum(1)
    above = (rankdata(values, axis=1) * truth).sum(1) - 0.5 * count * (count + 1.0)
    return np.asarray(above / (count * (truth.shape[1] - count)))


def areas_of_one(scores: ArrayLike, positive: ArrayLike) -> Floats:
    """Return the area under the ROC curve of the same `scores` (records,) for each row of booleans (n, records)."""
    from scipy.stats import rankdata

    truth = np.asarray(positive, float)
    count = truth.sum(1)
    above = truth @ rankdata(scores) - 0.5 * count * (count + 1.0)
    return np.asarray(above / (count * (truth.shape[1] - count)))


def _check_finite(name: str, values: Floats) -> None:
    if not np.isfinite(values).all():
        raise NotFinite(f"{name} holds a number that is not finite; use finite numbers")


def _check_alike(name: str, values: NDArray[Any], truth: NDArray[Any]) -> None:
    """Raise `InputError` where an attack's answer is not of the truth's shape: numpy might stretch it to that."""
    if values.shape != truth.shape:
        raise InputError(f"{name} has shape {values.shape}; use {truth.shape} as what is true")


def low_rates(scores: Floats, members: Booleans, confidence: float) -> dict[str, Interval]:
    """Return true positive rates at low false positive rates, of `scores` and booleans `members` (trials, n).

    The threshold, one for all trials, is the smallest at which at most that share of non-members is called a member;
    ties count as such. It is itself an estimate: half of the error goes to the thresholds at which the false positive
    rate may be what it should, the other half to the true positive rates at the least and the largest of them. By
    records both are exact (Clopper-Pearson), over trainings both by `betting_limits`. Of few non-members no threshold
    is certain to be high enough: the lower limit is 0.
    """
    outside = np.sort(scores[~members])[::-1]
    thresholds = np.unique(outside)[::-1].tolist()
    half = 1.0 - (1.0 - confidence) / 2.0

    def by_records(kind: Booleans, threshold: float) -> Limits:
        return rate_limits((scores[kind] > threshold).sum(), kind.sum(), half)

    def by_trainings(kind: Booleans, threshold: float) -> Limits:
        return betting_limits(_shares_above(scores, kind, threshold), half)

    def around(limits: Callable[[Booleans, float], Limits]) -> Limits:
        """Return the limits of `value` at the largest and the least threshold whose false positives may be `rate`."""
        # The further down, the more lies above: the first place that may be at `rate`, and the first that exceeds it.
        first = bisect_left(thresholds, True, key=lambda t: limits(~members, t)[1] >= rate)
        beyond = bisect_left(thresholds, True, key=lambda t: limits(~members, t)[0] > rate)
        low = 0.0
        high = 1.0
        if first > 0:
            low, _ = limits(members, thresholds[first - 1])
        if beyond < len(thresholds):
            _, high = limits(members, thresholds[beyond])
        return min(low, value), max(high, value)

    rates = {}
    for rate in LOW_RATES:
        threshold = outside[int(rate * outside.size)]
        value = (scores > threshold)[members].mean()
        over = over_trainings(_shares_above(scores, members, threshold), confidence)
        if over.low is not None:
            low, high = around(by_trainings)
            over = replace(over, low=low, high=high)
        name = f"true positive rate at {100 * rate:g}% false positives"
        rates[name] = _interval(value, around(by_records), members.sum(), confidence, over)
    return rates


def _shares_above(scores: Floats, kind: Booleans, threshold: float) -> Floats:
    """Return the share of records of a `kind` (trials, n) with scores above `threshold`, for trials that have any."""
    counts = kind.sum(1)
    some = counts > 0
    return np.asarray(((scores > threshold) & kind).sum(1)[some] / counts[some])


def majority_baseline(labels: ArrayLike, classes: int) -> float:
    """Return the success of always guessing the commonest of `labels`, integers (records,) < `classes`."""
    return float(class_shares(labels, classes).max())


def prior_baseline(labels: ArrayLike, classes: int) -> float:
    """Return the expected success of guesses drawn from the distribution of `labels`: sum_k p_k^2."""
    return float((class_shares(labels, classes) ** 2).sum())


def class_shares(labels: ArrayLike, classes: int) -> Floats:
    """Return the share (classes,) of each class among `labels`, integers (records,) < `classes`."""
    values = np.asarray(labels)
    return np.bincount(values, minlength=classes) / values.size


def cosine_similarity(estimate: Floats, truth: Floats) -> Floats:
    """Return the cosine, in [-1, 1] and of shape (...), between gradients (..., d) and their estimates.

    An estimate of zero norm has no direction; its cosine is 0, that of an estimate that knows nothing. A true
    gradient of zero norm raises `InputError`, as do shapes that differ.
    """
    _check_alike("estimate", estimate, truth)
    lengths, norms = (np.linalg.norm(vectors, axis=-1) for vectors in (estimate, truth))
    if np.any(norms == 0):
        raise InputError("truth holds a gradient of norm 0, which has no direction; leave it out")
    lengths = np.where(lengths == 0, 1.0, lengths)
    return np.asarray(((estimate * truth).sum(axis=-1) / (lengths * norms)).clip(-1.0, 1.0))


def relative_error(estimate: Floats, truth: Floats) -> Floats:
    """Return ||estimate - truth|| / ||truth||, of shape (...), of (..., d)."""
    return np.asarray(np.linalg.norm(estimate - truth, axis=-1) / np.linalg.norm(truth, axis=-1))


_LEAST_MEAN = 1e-9


def bets(values: Floats, mean: float) -> tuple[float, float]:
    """Return the log wealth of bets that independent `values` (n,) in [0, 1] have a larger, and a smaller, mean.

    A bet of the fraction f of what may be lost multiplies the wealth by 1 + f (x / mean - 1), or by
    1 + f ((1 - x) / (1 - mean) - 1). The wealth is the average over f of the arcsine law, so that no f need be chosen
    and the order of the values plays no part. Where the values' means have the average `mean` its expectation is at
    most 1, whatever their laws (Waudby-Smith and Ramdas 2024; equal means are the worst case).
    """
    return _wealth(values, mean), _wealth(1.0 - values, 1.0 - mean)


def _wealth(values: Floats, mean: float) -> float:
    """Return the log wealth of bets on a larger mean."""
    if mean <= 0.0:
        return np.inf if (values > 0.0).any() else 0.0
    growth = np.log1p(ARCSINE[:, None] * (values / mean - 1.0)).sum(1)
    most = growth.max()
    return float(most + np.log(np.exp(growth - most).mean()))


def betting_limits(values: ArrayLike, confidence: float = 0.95) -> Limits:
    """Return an interval for the mean of independent `values` (n,) in [0, 1] of any laws; it covers at any n.

    Raises:
        InputError: values outside [0, 1], or none of them.
    """
    x = _bounded(values)
    goal = np.log(2.0 / (1.0 - confidence))
    return _lower_limit(x, goal), 1.0 - _lower_limit(1.0 - x, goal)


def _bounded(values: ArrayLike) -> Floats:
    x = np.asarray(values, np.float64)
    if x.ndim != 1 or x.size == 0 or not np.all((x >= -1e-12) & (x <= 1.0 + 1e-12)):
        raise InputError(f"values is {values!r:.80}; use at least one proportion")
    return x.clip(0.0, 1.0)


def _lower_limit(values: Floats, goal: float) -> float:
    """Return the mean at which the bets on a larger one reach `goal`; 0 where they never do.

    Their wealth falls from an assumed mean of 0 to the observed one, where it is 1 at most.
    """
    mean = values.mean()
    if mean <= _LEAST_MEAN or _wealth(values, _LEAST_MEAN) < goal:
        return 0.0
    return float(brentq(lambda assumed: _wealth(values, assumed) - goal, _LEAST_MEAN, mean, xtol=1e-12))


def over_trainings(values: ArrayLike, confidence: float = 0.95, *, least: float = 0.0) -> OverTrainings:
    """Return how `values` (K,) in [`least`, 1], one per training, differ, and an interval for the mean over others.

    The interval is by `betting_limits`; fewer than `LEAST_TRAININGS` have none.
    """
    x = np.clip(np.asarray(values, float), least, 1.0)
    over = OverTrainings(count=x.size, least=float(x.min()), most=float(x.max()))
    if x.size < LEAST_TRAININGS:
        return over
    width = 1.0 - least
    low, high = betting_limits((x - least) / width, confidence)
    return replace(over, low=least + width * low, high=least + width * high)


def behind(baseline: Interval, own: ArrayLike, success: ArrayLike) -> Interval:
    """Return a baseline that says in how many trainings its `own` (K,) lay below `success` (K,) of the attack."""
    over = baseline.over_trainings
    if over is None:
        return baseline
    count = int((np.asarray(own) < np.asarray(success)).sum())
    return replace(baseline, over_trainings=replace(over, behind=count))


MATCHINGS = 8
"""Random pairings of records of both kinds over which wealth is averaged."""


def shared_limits(hits: Floats, guesses: Floats, confidence: float = 0.95) -> Limits:
    """Return an interval for the rate at which guesses are right, by records that several trainings share.

    A record's guesses in all trainings are one draw: whatever they share, such as features that say the same in each,
    counts once. By bets as in `betting_limits`, on the `hits` (..., n) of independent records less the rate times their
    `guesses` (..., n). Wealth is averaged over further axes, which may depend on each other (Markov's inequality).
    """
    goal = np.log(2.0 / (1.0 - confidence))
    low = _shared_lower_limit(hits, guesses, goal)
    return low, 1.0 - _shared_lower_limit(guesses - hits, guesses, goal)


def _shared_lower_limit(hits: Floats, guesses: Floats, goal: float) -> float:
    """Return the rate at which bets on a larger one reach `goal`; 0 where they never do."""
    most = guesses.max()
    rate = float(hits.sum() / guesses.sum())

    def beyond(assumed: float) -> float:
        gains = (hits - assumed * guesses) / (assumed * most)
        growth = np.array([np.log1p(bet * gains).sum(-1) for bet in ARCSINE])
        return float(logsumexp(growth) - np.log(growth.size) - goal)

    if rate <= _LEAST_MEAN or beyond(_LEAST_MEAN) < 0.0:
        return 0.0
    # Averaged wealth may not be 1 at the rate of all.
    return rate if beyond(rate) >= 0.0 else float(brentq(beyond, _LEAST_MEAN, rate, xtol=1e-6))


def by_record(values: ArrayLike, ids: ArrayLike) -> tuple[Floats, Floats]:
    """Return sums (K, records) of `values` (K, n) about records `ids` (K, n), and how many there are of each."""
    of, places = np.asarray(values, float), np.asarray(ids)
    rows = np.broadcast_to(np.arange(len(of))[:, None], of.shape)
    sums = np.zeros((len(of), int(places.max()) + 1))
    counts = np.zeros_like(sums)
    np.add.at(sums, (rows, places), of)
    np.add.at(counts, (rows, places), 1.0)
    return sums, counts


def shared_rate_limits(correct: ArrayLike, ids: ArrayLike, confidence: float = 0.95) -> Limits:
    """Return `shared_limits` of right guesses `correct`, booleans (K, n), about the records `ids` (K, n)."""
    hits, guesses = (values.sum(0) for values in by_record(correct, ids))
    some = guesses > 0
    return shared_limits(hits[some], guesses[some], confidence)


def shared_area_limits(scores: ArrayLike, positive: ArrayLike, ids: ArrayLike, confidence: float = 0.95) -> Limits:
    """Return `shared_limits` of areas under ROC curves of `scores` (K, n), about the records `ids` (K, n).

    Records of both kinds, booleans `positive` (K, n), are matched at random; a pair counts in the trainings that score
    both. An area is the average over all matchings (Hoeffding, JASA 1963, section 5).
    """
    sums, counts = by_record(scores, ids)
    kinds, _ = by_record(positive, ids)
    means = sums / np.maximum(counts, 1.0)
    scored = counts > 0
    of_one, of_zero = np.flatnonzero((kinds > 0).any(0)), np.flatnonzero((scored & (kinds == 0)).any(0))
    fewer = min(len(of_one), len(of_zero))
    generator = np.random.default_rng(0)
    hits, pairs = [], []
    for _ in range(MATCHINGS):
        one, zero = (generator.permutation(kind)[:fewer] for kind in (of_one, of_zero))
        both = scored[:, one] & scored[:, zero]
        won = 0.5 + 0.5 * np.sign(means[:, one] - means[:, zero])
        hits.append((won * both).sum(0))
        pairs.append(both.sum(0))
    return shared_limits(np.array(hits), np.array(pairs, float), confidence)


def with_shared(measured: Interval, limits: Callable[[], Limits]) -> Interval:
    """Return a measurement widened to the `limits` in which a record is one draw in all of several trainings."""
    over = measured.over_trainings
    if over is None or over.count < 2:
        return measured
    low, high = limits()
    shared = replace(over, shared_low=low, shared_high=high)
    return replace(measured, low=min(measured.low, low), high=max(measured.high, high), over_trainings=shared)


def rate_limits(hits: float, n: int, confidence: float = 0.95) -> Limits:
    """Return the exact two-sided limits of a rate of `hits` in `n` (Clopper-Pearson), the count rounded outwards.

    Of independent records they cover the true rate with probability at least `confidence`, each side erring with
    probability at most (1 - confidence) / 2.
    """
    tail = (1.0 - confidence) / 2.0
    fewest = np.floor(hits + 1e-9)
    most = np.ceil(hits - 1e-9)
    # The quantile is undefined at the end, where the limit is 1 by definition.
    high = 1.0 if most >= n else float(betaincinv(most + 1.0, n - most, 1.0 - tail))
    return float(lower_limit(fewest, n, tail)), high


def _interval(
    value: float,
    limits: Limits,
    n: int,
    confidence: float,
    over: OverTrainings | None = None,
    unit: str = "records",
) -> Interval:
    low, high = map(float, limits)
    return Interval(
        value=float(value), low=low, high=high, n=int(n), confidence=confidence, over_trainings=over, unit=unit
    )


def rate_interval(correct: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the share of right guesses of `correct`, booleans (trainings, records).

    By records it is Clopper-Pearson's interval, exact for records that err independently; that trainings have rates of
    their own makes it no less so (Hoeffding, Ann. Math. Stat. 1956). What guesses of one training share (a batch's
    noise, say) is taken as given. Of one record per training the interval is about further trainings already.

    Raises:
        InputError: another shape.
    """
    outcomes = _outcomes(correct)
    hits = outcomes.sum()
    n = outcomes.size
    several = outcomes.shape[1] > 1
    over = over_trainings(outcomes.mean(1), confidence) if several else None
    unit = "records" if several else "trainings"
    return _interval(hits / n, rate_limits(hits, n, confidence), n, confidence, over, unit)


def shared_rate(correct: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the share of right guesses of `correct`, booleans (trainings, records), all of the same records.

    By records as `counts_interval`, of one training's records: more trainings on the same records make it no narrower.

    Raises:
        InputError: another shape.
    """
    outcomes = _outcomes(correct)
    hits = outcomes.sum()
    trainings, records = outcomes.shape
    limits = rate_limits(hits / trainings, records, confidence)
    over = over_trainings(outcomes.mean(1), confidence)
    return _interval(hits / outcomes.size, limits, records, confidence, over)


def _outcomes(correct: ArrayLike) -> Floats:
    outcomes = np.asarray(correct, float)
    if outcomes.ndim != 2 or outcomes.size == 0:
        raise InputError(f"correct has shape {outcomes.shape}; use (trainings, records), one of each at least")
    return outcomes


def counts_interval(hits: ArrayLike, sizes: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the mean over trainings of the rates `hits` / `sizes` (K,), whole numbers; sizes may differ.

    By records it is Clopper-Pearson's interval of as many records as the trainings have where all have equally many,
    and of K times the fewest that one has where they differ (the count rounded outwards).
    """
    of = np.asarray(sizes)
    rates = np.asarray(hits) / of
    n = of.size * of.min()
    mean = rates.mean()
    limits = rate_limits(mean * n, n, confidence)
    return _interval(mean, limits, of.sum(), confidence, over_trainings(rates, confidence))


def areas_interval(areas: ArrayLike, fewer: int, n: int, confidence: float = 0.95) -> Interval:
    """Return the mean of areas under ROC curves (K,), one for each training.

    `fewer` is how many records of the rarer kind every training has at least, `n` how many records there are in all.
    By records: an area is a U-statistic, an average over matchings of `fewer` independent comparisons each, so that
    Chernoff's bound for so many holds for it (Hoeffding, JASA 1963, section 5), whatever the scores' laws.
    """
    x = _bounded(areas)
    mean = x.mean()
    goal = np.log(2.0 / (1.0 - confidence)) / (x.size * fewer)
    limits = _chernoff(mean, goal, 0.0), _chernoff(mean, goal, 1.0)
    return _interval(mean, limits, n, confidence, over_trainings(x, confidence))


def _chernoff(mean: float, goal: float, end: float) -> float:
    """Return the rate towards `end` whose relative entropy from `mean` reaches `goal`; `end` where none does."""

    def beyond(rate: float) -> float:
        entropy = xlogy(mean, mean) - xlogy(mean, rate)
        entropy += xlogy(1 - mean, 1 - mean)
        return float(entropy - xlogy(1 - mean, 1 - rate) - goal)

    last = abs(end - _LEAST_MEAN)
    if abs(mean - end) <= _LEAST_MEAN or beyond(last) < 0.0:
        return end
    return float(brentq(beyond, *sorted((mean, last)), xtol=1e-12))


def cosine_interval(cosines: ArrayLike, confidence: float = 0.95) -> Interval:
    """Return the mean of `cosines` (trainings, batches) in [-1, 1], with an interval by `betting_limits` over batches.

    That trainings have means of their own makes it cover no less. Of one batch per training it is about trainings.
    `NotFinite` for a cosine that is no number.
    """
    x = np.clip(np.asarray(cosines, float), -1.0, 1.0)
    _check_finite("cosines", x)
    low, high = betting_limits(0.5 * (x.ravel() + 1.0), confidence)
    several = x.shape[1] > 1
    over = over_trainings(x.mean(1), confidence, least=-1.0) if several else None
    limits = 2.0 * low - 1.0, 2.0 * high - 1.0
    return _interval(x.mean(), limits, x.size, confidence, over, "batches" if several else "trainings")


def rates_difference(
    first: Interval, second: Interval, by_training: tuple[ArrayLike, ArrayLike], confidence: float = 0.95
) -> Interval:
    """Return the rate `first` less `second`, in [-1, 1], both counted over the same trainings' records.

    By records: Clopper-Pearson's limits of either rate, each with half of the error (Bonferroni), so that it covers
    however the two depend on each other. `over_trainings` is about the differences of `by_training`, two rates (K,)
    of each training.
    """
    ours, theirs = map(np.asarray, by_training)
    half = 0.5 * (1.0 + confidence)
    low, high = rate_limits(first.value * first.n, first.n, half)
    least, most = rate_limits(second.value * second.n, second.n, half)
    over = over_trainings(ours - theirs, confidence, least=-1.0)
    n = min(first.n, second.n)
    return _interval(first.value - second.value, (low - most, high - least), n, confidence, over)


def t_interval(values: ArrayLike, n: int, confidence: float = 0.95) -> Interval:
    """Return the mean of real `values` (clusters,), two or more, with Student's t interval, in their own unit.

    `n` is how many records they stand on. `InputError` for fewer values, `NotFinite` for one that is no number.
    """
    x = np.asarray(values, float)
    if x.size < 2:
        raise InputError(f"values has shape {x.shape}; use (clusters,), two at least")
    _check_finite("values", x)
    mean = x.mean()
    half = stdtrit(x.size - 1, (1.0 + confidence) / 2.0) * x.std(ddof=1) / np.sqrt(x.size)
    return _interval(mean, (mean - half, mean + half), n, confidence)
