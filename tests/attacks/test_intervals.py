import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from attacks.intervals import accuracy_interval, clustered_rate, difference_interval, p_value, t_interval
from dpzv_audit.errors import InputError
from dpzv_audit.intervals import clopper_pearson, proportion


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
        naive = proportion(int(correct.sum()), correct.size)
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


@pytest.mark.parametrize(("trainings", "spread"), [(1, 0.0), (2, 0.3), (4, 0.0), (4, 1.0), (16, 0.3), (16, 1.0)])
def test_an_accuracy_covers_other_trainings_and_other_test_records(trainings, spread):
    """1,000 sets of trainings on 100 records whose logits are 1 + N(0, 2) by record + N(0, spread) by training.

    Misses of the mean over both beyond the 1 - 1e-4 quantile of a miss rate of 5% are a bug.
    """
    normal, weights = np.polynomial.hermite_e.hermegauss(80)
    mean = float(expit(1 + np.hypot(2, spread) * normal) @ weights / weights.sum())
    rng = np.random.default_rng(6)
    missed = 0
    for _ in range(1000):
        logits = 1 + 2 * rng.normal(size=(1, 100)) + spread * rng.normal(size=(trainings, 1))
        found = accuracy_interval(rng.random((trainings, 100)) < expit(logits))
        missed += not found.low <= mean <= found.high
    assert missed <= stats.binom.ppf(1 - 1e-4, 1000, 0.05)


def test_an_accuracy_counts_each_test_record_once():
    """Eight copies of one model say what the one says; of one training it is the exact interval over its records."""
    one = np.arange(389) < 350
    found, copies = accuracy_interval(one[None]), accuracy_interval(np.tile(one, (8, 1)))
    exact = proportion(350, 389)
    assert found == exact
    assert copies.n == 389
    assert copies.low <= exact.low <= exact.high <= copies.high
    with pytest.raises(InputError, match="trainings, records"):
        accuracy_interval(one)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: clustered_rate(np.ones((1, 9))), "correct"),
        (lambda: clustered_rate(np.full((3, 9), 0.5)), "correct"),
        (lambda: clustered_rate(np.ones((3, 9)), 0.0), "confidence"),
    ],
)
def test_bad_input_is_named(call, word):
    with pytest.raises(InputError, match=word):
        call()
