import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import bdtr, ndtr, ndtri
from scipy.stats import binom

from dpzv_audit.base.findings import to_jsonable
from dpzv_audit.statistics.tradeoff import empirical_tradeoff

from ...helpers.memory import memory_below
from ...helpers.refusals import refused
from ...helpers.scores import gaussian

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def gaussian_truth(alpha, mu):
    return ndtr(ndtri(1.0 - alpha) - mu)


def brute_force(inside, outside, alpha):
    cuts = [-np.inf, *inside, *outside, np.inf]
    rates = [(np.mean(outside > t), np.mean(inside <= t)) for t in cuts]
    return min(fnr for fpr, fnr in rates if fpr <= alpha)


@pytest.mark.ci
@pytest.mark.parametrize(("n_in", "n_out"), [(60, 60), (300, 1000)], ids=["every rank", "grid of ranks"])
def test_the_band_holds_the_whole_true_curve(n_in, n_out):
    # 400 bands at 90%: more misses than `allowed` have probability below 1e-5 if each misses with 10%.
    rng = np.random.default_rng(7)
    allowed = binom.isf(1e-5, 400, 0.1)
    misses = 0
    for _ in range(400):
        band = empirical_tradeoff(*gaussian(rng, 1.2, n_in, n_out), confidence=0.9)
        truth = gaussian_truth(np.array(band.alpha), 1.2)
        misses += bool(np.any(truth < np.array(band.empirical_low)) or np.any(truth > np.array(band.empirical_high)))
    assert misses <= allowed


def test_the_band_holds_with_ties():
    # Binomial scores: the truth is a step curve with few steps. Same false-alarm rate as above.
    rng = np.random.default_rng(8)
    grid = np.linspace(0, 1, 101)
    k = np.arange(-1, 5)
    above_out, below_in = 1.0 - np.where(k < 0, 0.0, bdtr(k, 4, 0.3)), np.where(k < 0, 0.0, bdtr(k, 4, 0.6))
    truth = np.array([below_in[above_out <= a + 1e-15].min() for a in grid])
    allowed = binom.isf(1e-5, 300, 0.1)
    misses = 0
    for _ in range(300):
        band = empirical_tradeoff(rng.binomial(4, 0.6, 200), rng.binomial(4, 0.3, 150), confidence=0.9)
        misses += bool(np.any(truth < band.empirical_low) or np.any(truth > band.empirical_high))
    assert misses <= allowed


def test_the_band_narrows_and_the_curve_nears_the_truth():
    rng = np.random.default_rng(1)
    widths = []
    for n in (100, 1000, 50_000):
        band = empirical_tradeoff(*gaussian(rng, 1.0, n))
        widths.append(np.max(np.subtract(band.empirical_high, band.empirical_low)[5:-5]))
    assert widths[0] > widths[1] > widths[2]
    assert widths[2] < 0.12
    assert np.max(np.abs(np.array(band.empirical) - gaussian_truth(np.array(band.alpha), 1.0))) < 0.02


@given(
    arrays(np.float64, st.integers(1, 25), elements=FINITE),
    arrays(np.float64, st.integers(1, 25), elements=FINITE),
)
@settings(max_examples=80, deadline=None)
def test_shape_of_any_curve(inside, outside):
    curve = empirical_tradeoff(inside, outside, points=11)
    alpha, beta, low, high = (
        np.array(x) for x in (curve.alpha, curve.empirical, curve.empirical_low, curve.empirical_high)
    )
    assert alpha.tolist() == np.linspace(0, 1, 11).tolist()
    assert np.all((low >= 0) & (low <= beta) & (beta <= high) & (high <= 1))
    for values in (beta, low, high):
        assert np.all(np.diff(values) <= 0)
    assert beta[-1] == high[-1] == 0.0
    assert beta.tolist() == [brute_force(inside, outside, a) for a in alpha]


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_the_band_of_one_score_a_side_by_hand(confidence):
    # The distribution function at the only score is uniform: with a quarter of the error for each tail of each side,
    # it lies in [q, 1 - q].
    q = 0.25 * (1.0 - confidence)
    right = empirical_tradeoff([1.0], [0.0], confidence=confidence, points=1001)
    alpha = np.array(right.alpha)
    # Of the thresholds 0 and 1, only that at 0 has a rate of false positives known to be below 1: at most 1 - q.
    assert right.empirical_high == pytest.approx(np.where(alpha == 1.0, 0.0, np.where(alpha >= 1.0 - q, 1.0 - q, 1.0)))
    assert right.empirical_low == pytest.approx(np.zeros(1001))
    wrong = empirical_tradeoff([0.0], [1.0], confidence=confidence, points=1001)
    assert wrong.empirical_low == pytest.approx(np.where(alpha == 1.0, 0.0, q))


def test_direction_and_monotone_maps():
    inside, outside = gaussian(2, 1.0, 200)
    curve = empirical_tradeoff(inside, outside)
    assert empirical_tradeoff(np.exp(inside), np.exp(outside)) == curve
    assert empirical_tradeoff(-inside, -outside, in_is_high=False) == curve


def test_it_is_data():
    curve = empirical_tradeoff([1.0, 2.0], [0.0], points=3)
    assert json.loads(json.dumps(to_jsonable(curve)))["empirical"] == [0.0, 0.0, 0.0]
    assert curve.confidence == 0.95


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (([], [1.0]), {}, "in_scores is empty"),
        (([1.0], [np.nan]), {}, "out_scores: row 1 is nan"),
        (([1.0], [1.0]), {"points": 1}, "points is 1"),
        (([1.0], [1.0]), {"confidence": 0.0}, "confidence is 0.0"),
    ],
)
def test_wrong_input_is_named(arguments, options, words):
    with refused(words):
        empirical_tradeoff(*arguments, **options)


def test_a_curve_of_many_scores_takes_a_few_times_their_memory():
    inside, outside = gaussian(0, 1.0, 200_000)
    empirical_tradeoff(inside[:9], outside[:9])  # what is loaded once
    with memory_below(3 * (inside.nbytes + outside.nbytes)):  # rates of every threshold took 9 times the scores
        empirical_tradeoff(inside, outside)
