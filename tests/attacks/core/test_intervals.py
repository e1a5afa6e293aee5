"""Intervals by records and over trainings: known answers, and how often they miss whatever their law."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit

from attacks.core.metrics import (
    areas_interval,
    auc_interval,
    bets,
    betting_limits,
    cosine_interval,
    counts_interval,
    over_trainings,
    rate_interval,
    rate_limits,
    rates_difference,
    shared_area_limits,
    shared_limits,
    shared_rate,
    shared_rate_limits,
    with_shared,
)
from dpzv_audit.base.errors import NotFinite
from dpzv_audit.base.findings import LEAST_TRAININGS

from ...helpers.refusals import refused

LAWS = {
    "one in ten leaks": (0.55, lambda rng, k: np.where(rng.random(k) < 0.1, 1.0, 0.5) + 1e-3 * rng.normal(size=k)),
    "one in ten leaks nothing": (0.9, lambda rng, k: np.where(rng.random(k) < 0.1, 0.0, 1.0)),
    "arcsine": (0.5, lambda rng, k: rng.beta(0.5, 0.5, k)),
    "Beta(5, 45)": (0.1, lambda rng, k: rng.beta(5, 45, k)),
    "always 1": (1.0, lambda rng, k: np.ones(k)),
}
"""Means, and laws, of what a training gives."""


def misses(law, trainings, repetitions):
    """How often the interval of `trainings` misses the law's mean."""
    mean, draw = LAWS[law]
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(repetitions):
        low, high = betting_limits(np.clip(draw(rng, trainings), 0.0, 1.0))
        missed += not low - 1e-9 <= mean <= high + 1e-9
    return missed


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("trainings", "repetitions"),
    [*((k, 200) for k in (8, 16)), *(pytest.param(k, 1000, marks=pytest.mark.slow) for k in (2, 3, 5, 8, 16, 64))],
)
def test_an_interval_over_trainings_covers_whatever_their_law(law, trainings, repetitions):
    """Misses beyond the 1 - 1e-4 quantile of a miss rate of 5% are a bug; below `LEAST_TRAININGS` none is printed."""
    assert misses(law, trainings, repetitions) <= stats.binom.ppf(1 - 1e-4, repetitions, 0.05)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40), st.sampled_from([0.5, 0.95, 0.9995]))
def test_limits_hold_the_mean_and_mirror_each_other(values, confidence):
    x = np.array(values)
    low, high = betting_limits(x, confidence)
    assert 0.0 <= low <= x.mean() + 1e-12
    assert x.mean() - 1e-12 <= high <= 1.0
    mirrored = betting_limits(1.0 - x, confidence)
    assert mirrored == pytest.approx((1.0 - high, 1.0 - low), abs=1e-9)
    wider = betting_limits(x, 0.5 + 0.5 * confidence)
    assert wider[0] <= low + 1e-12
    assert wider[1] >= high - 1e-12
    assert betting_limits(x[::-1], confidence) == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize("mean", [0.1, 0.5, 0.9])
def test_the_wealth_of_a_true_mean_has_an_expectation_of_1(mean):
    """Exactly, over all outcomes of four trainings that give 0 or 1: an e-value, by which p-values follow."""
    outcomes = (np.arange(16)[:, None] >> np.arange(4)) & 1
    weights = np.prod(np.where(outcomes == 1, mean, 1.0 - mean), axis=1)
    wealth = np.exp([bets(row.astype(float), mean) for row in outcomes])
    np.testing.assert_allclose(weights @ wealth, [1.0, 1.0], rtol=1e-9)


def test_limits_of_trainings_that_agree_are_near_the_best_there_are():
    """All of n at 1: a law that is 1 with probability p comes out so in p^n, which no interval may leave out sooner."""
    for n in (8, 64):
        low, high = betting_limits(np.ones(n))
        best = 0.025 ** (1.0 / n)
        assert best - 0.12 < low < best
        assert high == 1.0


def test_few_trainings_have_no_interval_but_say_how_far_they_reach():
    few, enough = over_trainings([0.2] * (LEAST_TRAININGS - 2) + [0.9]), over_trainings([0.2] * LEAST_TRAININGS)
    assert (few.count, few.least, few.most, few.low, few.high) == (LEAST_TRAININGS - 1, 0.2, 0.9, None, None)
    assert enough.low < 0.2 < enough.high
    cosines = over_trainings(np.linspace(-0.3, 0.4, 9), least=-1.0)
    assert (cosines.least, cosines.most) == (-0.3, 0.4)
    assert -1.0 <= cosines.low < 0.0 < cosines.high <= 1.0


def test_every_label_of_three_trainings_is_what_a_reader_expects():
    """By the records of these trainings nearly 1; of others nothing is said."""
    interval = rate_interval(np.ones((3, 1408)))
    assert (interval.value, interval.n, interval.high) == (1.0, 4224, 1.0)
    assert interval.low == pytest.approx(0.025 ** (1 / 4224))
    assert (interval.over_trainings.least, interval.over_trainings.most, interval.over_trainings.low) == (
        1.0,
        1.0,
        None,
    )


RECORDS = {"alike": [0.3] * 4, "uneven": [0.02, 0.1, 0.6, 0.95], "all or nothing": [0.0, 0.0, 1.0, 1.0]}


@pytest.mark.parametrize("rates", RECORDS.values(), ids=RECORDS)
def test_an_interval_by_records_covers_the_mean_of_these_trainings(rates):
    """400 sets of records of four given trainings: misses beyond the 1 - 1e-4 quantile of 5% are a bug."""
    rng, of = np.random.default_rng(6), np.array(rates)[:, None]
    missed = np.zeros(3, dtype=int)
    for _ in range(400):
        right = rng.random((4, 50)) < of
        uneven = [right[k, : 20 + 10 * k].sum() for k in range(4)]
        same = rng.random((1, 50)) < of  # all trainings on the same records
        intervals = rate_interval(right), counts_interval(uneven, [20, 30, 40, 50]), shared_rate(same)
        missed += [not f.low <= np.mean(rates) <= f.high for f in intervals]
    assert missed.max() <= stats.binom.ppf(1 - 1e-4, 400, 0.05)


@pytest.mark.parametrize(("shift", "laplace"), [(0.0, False), (1.0, False), (1.0, True), (30.0, False)])
def test_an_area_by_records_covers_that_of_these_trainings(shift, laplace):
    """100 sets of records of three given trainings, whose scores are shifted by half, once and twice `shift`."""
    shifts = shift * np.array([0.5, 1.0, 2.0])
    draws = stats.laplace if laplace else stats.norm
    if laplace:
        truth = [np.mean(draws.cdf(draws.ppf((np.arange(20000) + 0.5) / 20000) + s)) for s in shifts]
    else:
        truth = stats.norm.cdf(shifts / np.sqrt(2.0))
    rng = np.random.default_rng(7)
    members = np.tile(np.arange(100) % 3 == 0, (3, 1))
    missed = 0
    for _ in range(100):
        scores = draws.rvs(size=(3, 100), random_state=rng) + shifts[:, None] * members
        interval = auc_interval(scores, members)
        missed += not interval.low <= np.mean(truth) <= interval.high
    assert missed <= stats.binom.ppf(1 - 1e-4, 100, 0.05)
    assert interval.high - interval.low < 0.36


def test_a_perfect_area_of_many_records_is_near_1():
    """By hand: the relative entropy of 1 from x is -ln x, so that x = (error / 2)^(1 / comparisons)."""
    found = areas_interval([1.0, 1.0], 500, 3000)
    assert found.low == pytest.approx(0.025 ** (1 / 1000), rel=1e-9)
    assert found.high == 1.0


def test_cosines_are_measured_batch_by_batch():
    cosines = np.random.default_rng(8).normal(0.6, 0.05, (3, 40))
    interval = cosine_interval(cosines)
    assert interval.value == pytest.approx(cosines.mean())
    assert -1.0 <= interval.low < interval.value < interval.high <= 1.0
    assert interval.high - interval.low < 0.25
    assert (interval.n, interval.over_trainings.count, interval.over_trainings.low) == (120, 3, None)
    with refused("not finite", NotFinite):
        cosine_interval([[np.nan, 0.1]])


def test_a_difference_covers_however_two_rates_depend_on_each_other():
    """1,000 sets of 3 trainings on 300 records: two attacks that err together, apart, and at random.

    Misses beyond the 1 - 1e-4 quantile of a miss rate of 5% are a bug.
    """
    rng = np.random.default_rng(9)
    for shift in (0.0, 0.5, None):
        missed = 0
        for _ in range(1000):
            u = rng.random((3, 300))
            v = rng.random((3, 300)) if shift is None else (u + shift) % 1.0
            right = u < 0.7, v < 0.4
            rates = right[0].mean(1), right[1].mean(1)
            interval = rates_difference(rate_interval(right[0]), rate_interval(right[1]), rates)
            assert interval.value == pytest.approx(float((rates[0] - rates[1]).mean()))
            missed += not interval.low <= 0.3 <= interval.high
        assert missed <= stats.binom.ppf(1 - 1e-4, 1000, 0.05)


def test_a_difference_says_how_trainings_differ_and_of_others_only_where_they_are_enough():
    first, second = np.ones((3, 50), bool), np.arange(150).reshape(3, 50) % 2 == 0
    interval = rates_difference(rate_interval(first), rate_interval(second), (first.mean(1), second.mean(1)), 0.9)
    low, high = rate_limits(75, 150, 0.95)
    exact = rate_limits(150, 150, 0.95)
    assert (interval.low, interval.high) == pytest.approx((exact[0] - high, exact[1] - low))
    assert (interval.over_trainings.least, interval.over_trainings.most) == (0.5, 0.5)
    assert interval.over_trainings.low is None
    many = rates_difference(rate_interval(first), rate_interval(second), ([0.9] * 8, [0.4] * 8))
    assert (many.over_trainings.low, many.over_trainings.high) == pytest.approx(
        tuple(2.0 * end - 1.0 for end in betting_limits([0.75] * 8))
    )


@pytest.mark.parametrize(("trainings", "spread"), [(1, 0.0), (2, 0.3), (4, 0.0), (4, 1.0), (16, 1.0)])
def test_an_accuracy_covers_other_test_records_and_says_how_trainings_differ(trainings, spread):
    """1,000 sets of 100 records whose logits are 1 + N(0, 2) by record, plus N(0, spread) by training, which is given.

    Misses of these trainings' mean over all records beyond the 1 - 1e-4 quantile of a miss rate of 5% are a bug. More
    trainings on the same records make the interval no narrower.
    """
    normal, weights = np.polynomial.hermite_e.hermegauss(80)
    rng = np.random.default_rng(6)
    missed = 0
    for _ in range(1000):
        shifts = spread * rng.normal(size=(trainings, 1))
        mean = float((expit(1 + shifts + 2 * normal) @ weights / weights.sum()).mean())
        interval = shared_rate(rng.random((trainings, 100)) < expit(1 + 2 * rng.normal(size=(1, 100)) + shifts))
        missed += not interval.low <= mean <= interval.high
    assert missed <= stats.binom.ppf(1 - 1e-4, 1000, 0.05)


def test_an_accuracy_counts_each_test_record_once():
    """Eight copies of one model say what the one says; of one training it is the exact interval over its records."""
    right = np.arange(389) < 350
    interval, copies = shared_rate(right[None]), shared_rate(np.tile(right, (8, 1)))
    low, high = rate_limits(350, 389)
    assert (interval.value, interval.low, interval.high, interval.n) == (350 / 389, low, high, 389)
    assert (copies.low, copies.high, copies.n) == (low, high, 389)
    with refused("trainings, records"):
        shared_rate(right)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: rate_interval(np.ones((0, 9))), "correct"),
        (lambda: betting_limits([0.5, 1.5]), "values"),
        (lambda: betting_limits([]), "values"),
    ],
)
def test_bad_input_is_named(call, word):
    with refused(word):
        call()


TRAININGS, SHARED = 16, 160


def shared_misses(limits, repetitions=200):
    """How often limits at 95% miss one half, where every training says the same of a record, and naive ones do."""
    rng = np.random.default_rng(3)
    ids = np.tile(np.arange(SHARED), (TRAININGS, 1))
    missed = naive = 0
    for _ in range(repetitions):
        (low, high), interval = limits(rng, ids)
        missed += not low <= 0.5 <= high
        naive += not interval.low <= 0.5 <= interval.high
    return missed, naive


def same_rates(rng, ids):
    correct = np.tile(rng.random(SHARED) < 0.5, (TRAININGS, 1))
    return shared_rate_limits(correct, ids), rate_interval(correct)


def same_areas(rng, ids):
    scores = np.tile(rng.normal(size=SHARED), (TRAININGS, 1))
    positive = np.tile(np.arange(SHARED) % 3 == 0, (TRAININGS, 1))
    return shared_area_limits(scores, positive, ids), auc_interval(scores, positive)


@pytest.mark.parametrize("limits", [same_rates, same_areas])
def test_trainings_that_say_the_same_of_a_record_count_it_once(limits):
    """At most 5% may be missed: a correct build fails with probability at most 1e-4; the plain one misses 25%."""
    missed, naive = shared_misses(limits)
    assert missed <= stats.binom.isf(1e-4, 200, 0.05)
    assert naive > 50


@pytest.mark.parametrize("trainings", [8, 64])
def test_trainings_with_luck_of_their_own_cost_shared_limits_little(trainings):
    rng = np.random.default_rng(4)
    records = 1400
    ids = np.tile(np.arange(records), (trainings, 1))
    positive = ids % 2 == 0
    scores = rng.normal(size=ids.shape) + 0.3 * positive
    correct = rng.random(ids.shape) < 0.2
    for (low, high), plain in (
        (shared_area_limits(scores, positive, ids), auc_interval(scores, positive)),
        (shared_rate_limits(correct, ids), rate_interval(correct)),
    ):
        assert low < plain.value < high
        assert high - low < 1.7 * (plain.high - plain.low)


def test_shared_limits_follow_ids_and_uneven_numbers_of_guesses():
    """A record that is guessed twice weighs twice; the order in which trainings guess records plays no part."""
    rng = np.random.default_rng(5)
    ids = np.stack([rng.permutation(50) for _ in range(4)])
    right = np.arange(50) < 20
    assert shared_rate_limits(right[ids], ids) == pytest.approx(shared_limits(4.0 * right, np.full(50, 4.0)))
    scores = np.arange(50.0)[ids]
    expected = shared_area_limits(
        np.tile(np.arange(50.0), (4, 1)), np.tile(right, (4, 1)), np.tile(np.arange(50), (4, 1))
    )
    assert shared_area_limits(scores, right[ids], ids) == pytest.approx(expected)
    low, high = shared_limits(np.array([2.0, 0.0, 1.0] * 40), np.array([2.0, 1.0, 1.0] * 40))
    assert low < 0.75 < high
    assert shared_limits(np.zeros(30), np.ones(30))[0] == 0.0
    assert shared_limits(np.ones(30), np.ones(30))[1] == 1.0


def test_one_training_has_no_shared_limits():
    alone = rate_interval([[True, False, True]])
    assert with_shared(alone, lambda: (0.0, 1.0)) is alone
    both = with_shared(rate_interval([[True, False], [True, False]]), lambda: (0.1, 0.9))
    assert (both.over_trainings.shared_low, both.over_trainings.shared_high) == (0.1, 0.9)
    plain = rate_interval([[True, False], [True, False]])
    assert (both.low, both.high) == (min(0.1, plain.low), max(0.9, plain.high))
