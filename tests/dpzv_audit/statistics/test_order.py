import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from dpzv_audit.statistics.assumptions import LEAST_ROWS, LEVEL, dependence, lag_correlation, orders, permuted

from ...helpers.scores import bound_of, gaussian

DELTA = 1e-5
IN_ORDER = ("sequential", "sequential-gaussian")


def drifting(rng, n, rho):
    """AR(1) scores of variance 1."""
    steps = rng.normal(size=n)
    scores = np.empty(n)
    scores[0] = steps[0]
    for i in range(1, n):
        scores[i] = rho * scores[i - 1] + math.sqrt(1.0 - rho**2) * steps[i]
    return scores


def test_each_side_has_an_order_of_its_own_that_follows_from_the_seed():
    inside, outside = orders(100, 100, 7)
    assert sorted(inside) == sorted(outside) == list(range(100))
    assert not np.array_equal(inside, outside)
    assert all(np.array_equal(a, b) for a, b in zip((inside, outside), orders(100, 100, 7), strict=True))
    assert not np.array_equal(inside, orders(100, 100, 8)[0])
    assert not np.array_equal(inside, orders(100, 100, 7, 1)[0])
    first, second = permuted(np.arange(5.0), np.arange(9.0), 0)
    assert (sorted(first), sorted(second)) == (list(range(5)), list(range(9)))


@pytest.mark.ci
@pytest.mark.parametrize("name", IN_ORDER)
def test_sorted_files_refute_no_true_claim(name):
    # One law in both worlds, sorted up against sorted down: read in the order given, every one of these was refuted.
    for seed in range(100):
        rng = np.random.default_rng([seed, 99])
        inside, outside = np.sort(rng.normal(size=1000)), -np.sort(rng.normal(size=1000))
        bound = bound_of(inside, outside, name, confidence=1.0 - 1e-6, seed=seed)
        assert bound.epsilon_lower == 0.0  # false alarm: 1e-4 over all 100


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_ORDER)
def test_no_power_is_lost_on_files_that_are_sorted(name):
    # The same scores sorted and as drawn: means of 20 bounds differ by less than five standard errors.
    rng, drawn, in_order = np.random.default_rng(4), [], []
    for seed in range(20):
        scores = gaussian(rng, 1.0, 2000)
        for found, sides in ((drawn, scores), (in_order, [np.sort(side) for side in scores])):
            found.append(bound_of(*sides, name, seed=seed).epsilon_lower)
    assert min(np.mean(drawn), np.mean(in_order)) > 1.0
    spread = math.hypot(np.std(drawn), np.std(in_order)) / math.sqrt(20)
    assert abs(np.mean(drawn) - np.mean(in_order)) < 5.0 * spread


@pytest.mark.parametrize("scores", [[1.0, 2.0, 4.0, 8.0, 9.0], [0.0, 0.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 1.0, 2.0]])
def test_the_variance_of_the_correlation_is_that_over_all_orders(scores, monkeypatch):
    monkeypatch.setattr("dpzv_audit.statistics.assumptions.LEAST_ROWS", 5)
    found = [lag_correlation(np.array(order)) for order in itertools.permutations(scores)]
    correlations = np.array([correlation for correlation, _ in found])
    z = (correlations - correlations.mean()) / correlations.std()
    assert [p for _, p in found] == pytest.approx([math.erfc(abs(one) / math.sqrt(2.0)) for one in z], abs=1e-9)


@pytest.mark.parametrize("n", [LEAST_ROWS, 500])
@pytest.mark.parametrize("draw", ["normal", "binary", "heavy"])
def test_independent_scores_look_independent(n, draw):
    # 2,000 pairs of files: more alarms than `allowed` have probability 2e-5 at most where the level holds, six cells.
    rng = np.random.default_rng(3)
    draws = {
        "normal": rng.standard_normal,
        "binary": lambda k: (rng.random(k) < 0.2) * 1.0,
        "heavy": rng.standard_cauchy,
    }
    allowed = binom.isf(2e-5, 2000, LEVEL)
    assert sum(dependence(draws[draw](n), draws[draw](n)) != "" for _ in range(2000)) <= allowed


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda rng: (drifting(rng, 1000, 0.99), drifting(rng, 1000, 0.99)), "neighbouring rows"),
        (lambda rng: (drifting(rng, 1000, 0.3), rng.normal(size=700)), r"\(in\)\. "),
        (lambda rng: (rng.normal(size=700), np.sort(rng.normal(size=1000))), r"\(out\)\. "),
        (lambda rng: (rng.normal(size=1000), drifting(rng, 1000, -0.5)), r"correlation of -0\.\d+ \(out\)"),
    ],
    ids=["AR(1) 0.99", "AR(1) 0.3 on one side", "sorted", "alternating"],
)
def test_scores_that_depend_on_their_neighbours_are_noticed(make, words):
    import re

    for seed in range(20):
        assert re.search(f"do not look independent.*{words}", dependence(*make(np.random.default_rng(seed))))


def test_sides_that_share_their_noise_are_noticed():
    noise = np.random.default_rng(0).normal(size=400)
    assert "the same rows of both sides have a rank correlation of 1.00" in dependence(noise + 1.0, noise)
    assert "correlation of -1.00" in dependence(noise + 1.0, -noise)
    assert dependence(noise + 1.0, noise[:399]) == ""


def test_few_or_constant_scores_are_not_tested():
    assert lag_correlation(np.arange(LEAST_ROWS - 1.0)) == (0.0, 1.0)
    assert lag_correlation(np.full(200, 3.0)) == (0.0, 1.0)
    assert dependence(np.full(200, 3.0), np.full(200, 1.0)) == ""
