import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit

from attacks.intervals import (
    accuracy_interval,
    clustered_rate,
    difference_interval,
    mean_interval,
    p_value,
    rate_interval,
    t_interval,
)
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
    found = difference_interval(first, second, 0.99)
    assert found.value == pytest.approx(float((first - second).mean()))
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))


def test_differences_without_a_spread_claim_no_more_than_one_trial_each():
    """As rates do, on the scale from -1 to 1: trials that agree are no certainty, one says next to nothing."""
    one, agreeing = difference_interval([0.8], [0.5]), difference_interval([0.8] * 5, [0.5] * 5)
    assert (one.low, one.high) == (-1.0, 1.0)
    assert agreeing.low == pytest.approx(2 * float(clopper_pearson(3, 5)[0]) - 1)
    assert agreeing.high == pytest.approx(2 * float(clopper_pearson(4, 5)[1]) - 1)
    with pytest.raises(InputError, match="must be one"):
        difference_interval([0.8], [0.5, 0.4])


LAWS = {
    "all guesses alike, half right": (0.5, lambda rng, k: rng.integers(0, 2, k)),
    "all guesses alike, most right": (0.9, lambda rng, k: rng.random(k) < 0.9),
    "trainings differ": (1 / 3, lambda rng, k: rng.beta(50, 100, k)),
    "trainings do not differ": (0.3, lambda rng, k: np.full(k, 0.3)),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("trials", [1, 2, 3, 5])
def test_a_rate_is_an_interval_for_the_mean_over_trainings(law, trials):
    """2,000 sets of trainings of 200 guesses: misses beyond the 1 - 1e-4 quantile of a miss rate of 5% are a bug."""
    mean, draw = LAWS[law]
    rng = np.random.default_rng(5)
    missed = 0
    for _ in range(2000):
        found = rate_interval(rng.random((trials, 200)) < draw(rng, trials)[:, None])
        missed += not found.low <= mean <= found.high
    assert missed <= stats.binom.ppf(1 - 1e-4, 2000, 0.05)


@given(st.floats(0.0, 1.0), st.integers(1, 60), st.sampled_from([0.5, 0.95, 0.9995]))
def test_no_mean_outside_the_interval_of_trials_that_agree_gives_them_so_often(rate, trials, confidence):
    """Of all variables in [0, 1] with one mean, one that is 0 or 1 where it is not `rate` comes out so oftenest."""
    found = mean_interval(np.full(trials, rate), trials, confidence)
    tail = (1.0 - confidence) / 2.0
    if found.high < 1.0:
        assert ((1.0 - found.high) / (1.0 - rate)) ** trials <= tail * (1 + 1e-6)
    if found.low > 0.0:
        assert (found.low / rate) ** trials <= tail * (1 + 1e-6)


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
        (lambda: clustered_rate(np.ones((0, 9))), "correct"),
        (lambda: clustered_rate(np.full((3, 9), 0.5)), "correct"),
        (lambda: clustered_rate(np.ones((3, 9)), 0.0), "confidence"),
    ],
)
def test_bad_input_is_named(call, word):
    with pytest.raises(InputError, match=word):
        call()
