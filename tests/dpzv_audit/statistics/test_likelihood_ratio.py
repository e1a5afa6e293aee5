import math

import numpy as np
import pytest
from scipy.special import bdtrc

from dpzv_audit.errors import InputError
from dpzv_audit.statistics.assumptions import permuted
from dpzv_audit.statistics.estimators import audit_scores, can_refute
from dpzv_audit.statistics.sequential import ESTIMATED, LikelihoodRatioTest, _largest


def pairs(seed: int, mu: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(mu, 1.0, n), rng.normal(0.0, 1.0, n)


@pytest.mark.parametrize("mu", [0.0, 0.5, 1.5, 6.0])
def test_the_largest_likelihood_by_brute_force(mu):
    x, y = pairs(0, 2.0, 30)
    best = -np.inf
    for s in np.linspace(0.6, 3.0, 601):
        for d in np.linspace(0.0, mu * s, 41):
            m = 0.5 * (x.mean() - d + y.mean())
            value = -60.0 * np.log(s) - 0.5 * (np.sum((x - m - d) ** 2) + np.sum((y - m) ** 2)) / s**2
            best = max(best, float(value))
    sums = np.array([[x.sum()], [y.sum()], [np.sum(x**2)], [np.sum(y**2)]])
    assert float(_largest(sums, np.array([30.0]), mu)[0]) == pytest.approx(best, abs=0.05)


def test_the_result_does_not_depend_on_the_cuts_and_shift_and_scale_drop_out():
    x, y = pairs(1, 2.0, 500)
    whole = LikelihoodRatioTest([0.5, 1.0], keep_path=True)
    whole.update(x, y)
    pieces = LikelihoodRatioTest([1.0, 0.5], keep_path=True)
    for start, stop in ((0, 3), (3, 9), (9, 12), (12, 13), (13, 500)):
        pieces.update(x[start:stop], y[start:stop])
    assert pieces.path == pytest.approx(whole.path, abs=1e-8)
    moved = LikelihoodRatioTest([0.5, 1.0], keep_path=True)
    moved.update(1e6 - 1e3 * x, 1e6 - 1e3 * y)
    assert moved.path == pytest.approx(whole.path, abs=1e-5)
    assert np.all(whole.path[:ESTIMATED] == 0.0)
    assert np.all(whole.path[:, 0] >= whole.path[:, 1] - 1e-9)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_looking_after_every_pair_keeps_the_error(mu):
    # 300 audits of 500 pairs: more than `allowed` with probability at most 3e-5 if each errs with 5%.
    allowed, exceeded = next(k for k in range(300) if bdtrc(k, 300, 0.05) < 3e-5), 0
    for seed in range(300):
        test = LikelihoodRatioTest([mu])
        test.update(*pairs(seed, mu, 500))
        exceeded += bool(test.refuted[0])
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


def test_power_is_what_information_promises():
    # Mean of 30 first times; their standard error is a tenth of the promised number.
    times = []
    for seed in range(30):
        test = LikelihoodRatioTest([0.5], keep_path=True)
        test.update(*pairs(seed, 1.0, 3000))
        times.append(int(np.argmax(test.path[:, 0] >= test.goal)))
    assert np.mean(times) == pytest.approx(expected_pairs(0.5, 1.0), rel=0.5)


def test_the_estimator_searches_the_largest():
    x, y = pairs(2, 1.0, 4000)
    bound = audit_scores(x, y, delta=1e-5, estimators=["sequential-gaussian"], exactly_gaussian=True)[0]
    test = LikelihoodRatioTest([bound.mu_lower * 0.9999, bound.mu_lower * 1.01])
    test.update(*permuted(x, y, 0))
    assert test.refuted.tolist() == [True, False]
    assert 0.75 < bound.mu_lower < 1.0
    assert can_refute(bound)
    assert bound.looks == 4000 - ESTIMATED


def test_constant_and_few_scores_prove_nothing():
    for inside, outside in (([1.0] * 100, [0.0] * 100), ([1.0, 2.0], [0.0, 0.5])):
        bound = audit_scores(inside, outside, delta=1e-5, estimators=["sequential-gaussian"])[0]
        assert bound.epsilon_lower == bound.mu_lower == 0.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LikelihoodRatioTest([]), "mus is"),
        (lambda: LikelihoodRatioTest([-1.0]), "mus is"),
        (lambda: LikelihoodRatioTest([1.0], confidence=1.0), "confidence is 1.0"),
        (lambda: LikelihoodRatioTest([1.0]).update([1.0], [1.0, 2.0]), "must be pairs"),
        (lambda: LikelihoodRatioTest([1.0]).path, "keep_path"),
    ],
)
def test_wrong_input_is_named(make, words):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize("scale", [1e-120, 1e-3, 1e120])
def test_units_of_the_scores_do_not_matter(scale):
    rng = np.random.default_rng(4)
    x, y = rng.normal(3.0, 1.0, 120), rng.normal(0.0, 1.0, 120)
    plain, scaled = (LikelihoodRatioTest([0.3, 1.0, 2.0], confidence=0.95) for _ in range(2))
    plain.update(x, y)
    scaled.update(scale * x, scale * y)
    assert plain.best[0] > 5.0
    assert scaled.best == pytest.approx(plain.best, rel=1e-6)
