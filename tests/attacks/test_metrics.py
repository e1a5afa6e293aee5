import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attacks.metrics import (
    clustered_rate,
    cosine_similarity,
    difference_interval,
    low_rates,
    majority_baseline,
    p_value,
    prior_baseline,
    relative_error,
    success_rate,
    t_interval,
)
from dpzv_audit.errors import InputError
from dpzv_audit.intervals import clopper_pearson, proportion


def test_success_rate_counts_matches_and_takes_tensors():
    interval = success_rate(torch.tensor([1, 2, 3, 0]), np.array([1, 2, 0, 0]), 0.9)
    assert (interval.value, interval.n, interval.confidence) == (0.75, 4, 0.9)
    low, high = clopper_pearson(3, 4, 0.9)
    assert (interval.low, interval.high) == (float(low), float(high))


def test_clustered_rate_is_the_t_interval_of_cluster_means():
    correct = np.random.default_rng(3).random((12, 50)) < 0.4
    rates = correct.mean(axis=1)
    reference = stats.ttest_1samp(rates, 0.0).confidence_interval(0.99)
    interval = clustered_rate(correct, 0.99)
    assert interval.value == pytest.approx(rates.mean())
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high))
    assert interval.n == 600


def test_clustered_rate_covers_where_guesses_in_a_cluster_are_all_alike():
    # 1,000 attacks of 30 clusters, each of 40 identical guesses, right with probability 0.5. The coverage of
    # the t interval follows exactly from the binomial count of clusters that are right, and the number of
    # attacks covered is binomial: it leaves the limits below with probability at most 1e-4.
    clusters, repeats = 30, 1000
    counts = np.arange(clusters + 1)
    p = counts / clusters
    with np.errstate(invalid="ignore"):
        half = stats.t.ppf(0.975, clusters - 1) * np.sqrt(p * (1 - p) / (clusters - 1))
    coverage = stats.binom.pmf(counts, clusters, 0.5)[np.abs(p - 0.5) <= half].sum()
    assert coverage > 0.94
    coins = np.random.default_rng(11).random((repeats, clusters, 1)) < 0.5
    covered = exact = 0
    for coin in coins:
        correct = np.repeat(coin, 40, axis=1)
        interval = clustered_rate(correct)
        covered += interval.low <= 0.5 <= interval.high
        naive = success_rate(correct.ravel().astype(int), np.ones(correct.size, dtype=int))
        exact += naive.low <= 0.5 <= naive.high
    low, high = stats.binom.ppf([5e-5, 1 - 5e-5], repeats, coverage)
    assert low <= covered <= high
    assert exact < 0.5 * repeats  # taking them as independent is wrong, which is why this function exists


def test_clusters_that_agree_claim_no_more_than_one_trial_each():
    interval = clustered_rate(np.ones((5, 64)))
    assert (interval.value, interval.high) == (1.0, 1.0)
    assert interval.low == pytest.approx(0.025 ** (1 / 5))
    half = clustered_rate(np.tile([0, 1], (5, 1)))
    assert half.low == pytest.approx(float(clopper_pearson(2, 5)[0]))
    assert half.high == pytest.approx(float(clopper_pearson(3, 5)[1]))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=50))
def test_baselines_are_ordered_and_bounded(labels):
    majority, prior = majority_baseline(labels, 7), prior_baseline(labels, 7)
    assert 1 / 7 - 1e-12 <= prior <= majority + 1e-12
    assert majority <= 1.0
    assert majority == max(labels.count(k) for k in range(7)) / len(labels)


def test_prior_baseline_is_the_chance_that_two_draws_agree():
    assert prior_baseline([0, 0, 0, 1], 2) == pytest.approx(0.75**2 + 0.25**2)
    assert majority_baseline(torch.tensor([0, 0, 0, 1]), 5) == 0.75


def test_cosine_and_relative_error_of_known_vectors():
    truth = np.array([[3.0, 4.0], [1.0, 0.0], [1.0, 0.0]])
    estimate = np.array([[6.0, 8.0], [0.0, 2.0], [0.0, 0.0]])
    np.testing.assert_allclose(cosine_similarity(estimate, truth), [1.0, 0.0, 0.0])
    np.testing.assert_allclose(relative_error(estimate, truth), [1.0, np.sqrt(5.0), 1.0])


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: success_rate([1, 2], [1]), "predicted"),
        (lambda: success_rate([], []), "n is 0"),
        (lambda: success_rate([1], [1], 1.5), "confidence"),
        (lambda: clustered_rate(np.ones((1, 9))), "correct"),
        (lambda: clustered_rate(np.full((3, 9), 0.5)), "correct"),
        (lambda: clustered_rate(np.ones((3, 9)), 0.0), "confidence"),
        (lambda: majority_baseline([0, 3], 3), "classes = 3"),
        (lambda: prior_baseline([], 3), "labels"),
        (lambda: prior_baseline([0.5], 3), "labels"),
        (lambda: cosine_similarity(np.ones(3), np.zeros(3)), "norm 0"),
        (lambda: relative_error(np.ones(3), np.ones(4)), "estimate"),
    ],
)
def test_bad_input_is_named(call, word):
    with pytest.raises(InputError, match=word):
        call()


def test_a_p_value_is_the_error_at_which_the_interval_leaves_the_value_out():
    values = np.random.default_rng(0).normal(0.3, 1.0, 12)
    for expected in (0.0, 0.5, 1.5):
        found = p_value(lambda c: t_interval(values, 12, c), expected)
        assert found == pytest.approx(stats.ttest_1samp(values, expected).pvalue, rel=2e-3)
    assert p_value(lambda c: t_interval(values, 12, c), float(values.mean())) > 0.99
    assert p_value(lambda c: proportion(5000, 5000, c), 0.1) == 1e-15


def test_p_values_of_a_true_value_are_not_too_small_too_often():
    """400 trials of a t interval over 3 values: of p-values below 1/20 there are 5%, at most 7 standard errors more."""
    rng = np.random.default_rng(1)
    found = [p_value(lambda c, v=rng.normal(size=3): t_interval(v, 3, c), 0.0) for _ in range(400)]
    assert np.mean(np.array(found) < 0.05) < 0.05 + 7 * np.sqrt(0.05 * 0.95 / 400)


def test_low_rates_allow_for_trials_of_different_sizes():
    scores = np.tile(np.linspace(1.0, 0.0, 200), (4, 1))
    truth = np.zeros((4, 200), dtype=bool)
    for row, count in enumerate((1, 2, 3, 4)):
        truth[row, :count] = True
    found = low_rates(scores, truth, 0.95)
    assert found["true positive rate at 1% false positives"].value == 1.0


def test_a_difference_is_the_paired_t_interval():
    first, second = np.array([0.8, 0.7, 0.75, 0.72]), np.array([0.5, 0.41, 0.43, 0.45])
    reference = stats.ttest_rel(first, second).confidence_interval(0.99)
    found = difference_interval(first, second, 1000, 0.99)
    assert found.value == pytest.approx(float((first - second).mean()))
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))


def test_differences_without_a_spread_are_judged_by_their_records():
    """Hoeffding for each rate at half of the error: trials that agree are no certainty, fewer records even less."""
    one, agreeing = difference_interval([0.8], [0.5], 400), difference_interval([0.8, 0.8], [0.5, 0.5], 400)
    assert one == agreeing
    assert one.high - one.value == pytest.approx(2 * np.sqrt(np.log(4 / 0.05) / 800))
    assert difference_interval([0.8], [0.5], 40).low < one.low
    with pytest.raises(InputError, match="must be one"):
        difference_interval([0.8], [0.5, 0.4], 40)
