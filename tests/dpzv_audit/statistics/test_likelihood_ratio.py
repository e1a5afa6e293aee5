import math
from bisect import bisect_left

import numpy as np
import pytest
from scipy.stats import binom

from dpzv_audit.statistics.assumptions import permuted
from dpzv_audit.statistics.estimators import can_refute
from dpzv_audit.statistics.sequential import ESTIMATED, _largest, evidence_against, likelihood_of

from ...helpers.refusals import refused
from ...helpers.scores import bound_of, gaussian


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.5, 6.0])
def test_the_largest_likelihood_by_brute_force(mu):
    x, y = gaussian(0, 2.0, 30)
    best = -np.inf
    for s in np.linspace(0.6, 3.0, 601):
        for d in np.linspace(0.0, mu * s, 41):
            m = 0.5 * (x.mean() - d + y.mean())
            value = -60.0 * np.log(s) - 0.5 * (np.sum((x - m - d) ** 2) + np.sum((y - m) ** 2)) / s**2
            best = max(best, float(value))
    sums = np.array([[x.sum()], [y.sum()], [np.sum(x**2)], [np.sum(y**2)]])
    assert float(_largest(sums, np.array([30.0]), mu)[0]) == pytest.approx(best, abs=0.05)


def test_shift_and_scale_drop_out_and_the_first_pairs_only_estimate():
    x, y = gaussian(1, 2.0, 500)
    mus = np.array([0.5, 1.0])
    for n in (3, 9, ESTIMATED, ESTIMATED + 1, 13, 100, 500):
        whole = evidence_against(mus, x[:n], y[:n])
        assert evidence_against(mus, 1e6 - 1e3 * x[:n], 1e6 - 1e3 * y[:n]) == pytest.approx(whole, abs=1e-5)
        assert whole[0] >= whole[1] - 1e-9
        assert (whole[0] == 0.0) or n > ESTIMATED
    assert whole[0] > 10.0


def test_the_result_does_not_depend_on_the_blocks(monkeypatch):
    x, y = gaussian(1, 2.0, 500)
    whole = evidence_against(np.array([0.5, 1.0]), x, y)
    monkeypatch.setattr("dpzv_audit.statistics.sequential._BLOCK", 7)
    assert evidence_against(np.array([0.5, 1.0]), x, y) == pytest.approx(whole, abs=1e-8)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_looking_after_every_pair_keeps_the_error(mu):
    # 300 audits of 500 pairs: more than `allowed` with probability at most 3e-5 if each errs with 5%.
    allowed, exceeded = binom.isf(3e-5, 300, 0.05), 0
    for seed in range(300):
        exceeded += bool(evidence_against(np.array([mu]), *gaussian(seed, mu, 500))[0] >= math.log(20.0))
    assert exceeded <= allowed


def expected_pairs(claimed_mu, true_mu, confidence=0.95):
    """About how many pairs refute `claimed_mu` if `true_mu` is larger.

    The n at which the information of n pairs about a difference in units of an unknown spread is ln(1 / (1 -
    confidence)) and the 3/2 ln n that estimating three numbers costs.
    """
    # Largest likelihood under the claim against the truth, a pair: ln of the ratio of the two scales.
    a, b = 2.0 + 0.5 * true_mu**2, 0.5 * true_mu * claimed_mu
    u = (b + math.sqrt(b * b + 8.0 * a)) / (2.0 * a)
    information = -1.0 - (2.0 * math.log(u) - 0.5 * (2.0 * u * u + 0.5 * (true_mu * u - claimed_mu) ** 2))
    pairs = 2.0
    for _ in range(60):
        pairs = max(2.0, (1.5 * math.log(pairs) - math.log(1.0 - confidence)) / information)
    return pairs


def refutes(x, y, mu):
    return x.size > 0 and bool(evidence_against(np.array([mu]), x, y)[0] >= math.log(20.0))


def test_power_is_what_information_promises():
    # Mean of 30 first times; their standard error is a tenth of the promised number.
    times = []
    for seed in range(30):
        x, y = gaussian(seed, 1.0, 3000)
        # The largest ratio so far never falls, so the first time is bisected for.
        times.append(bisect_left(range(3000), True, key=lambda n: refutes(x[:n], y[:n], 0.5)))
    assert np.mean(times) == pytest.approx(expected_pairs(0.5, 1.0), rel=0.5)


def test_the_estimator_searches_the_largest():
    x, y = gaussian(2, 1.0, 4000)
    bound = bound_of(x, y, "sequential-gaussian", exactly_gaussian=True)
    assert [refutes(*permuted(x, y, 0), bound.mu_lower * factor) for factor in (0.9999, 1.01)] == [True, False]
    assert 0.75 < bound.mu_lower < 1.0
    assert can_refute(bound)
    assert bound.looks == 4000 - ESTIMATED


def test_constant_and_few_scores_prove_nothing():
    for inside, outside in (([1.0] * 100, [0.0] * 100), ([1.0, 2.0], [0.0, 0.5])):
        bound = bound_of(inside, outside, "sequential-gaussian")
        assert bound.epsilon_lower == bound.mu_lower == 0.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: evidence_against(np.array([1e7]), np.ones(20), np.ones(20)), "mus is"),
        (lambda: likelihood_of(np.ones(0), np.ones(1), delta=0.1), "in_scores is empty"),
        (lambda: likelihood_of(np.ones(1), np.array([np.nan, 1.0]), delta=0.1), "out_scores: row 1 is nan"),
        (lambda: likelihood_of(np.ones(20), np.ones(20), delta=0.0, epsilon=1.0), "delta is 0.0"),
    ],
)
def test_wrong_input_is_named(make, words):
    with refused(words):
        make()


@pytest.mark.parametrize("scale", [1e-120, 1e-3, 1e120])
def test_units_of_the_scores_do_not_matter(scale):
    x, y = gaussian(4, 3.0, 120)
    plain, scaled = (evidence_against(np.array([0.3, 1.0, 2.0]), unit * x, unit * y) for unit in (1.0, scale))
    assert plain[0] > 5.0
    assert scaled == pytest.approx(plain, rel=1e-6)
