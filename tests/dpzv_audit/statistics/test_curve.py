import numpy as np
import pytest
from scipy.stats import binom

from dpzv_audit.accounting.sampled import SampledGaussian
from dpzv_audit.statistics.estimators import audit_scores, can_refute
from dpzv_audit.statistics.families import GAUSSIAN, composed_corners, sampled_family

from ...helpers.refusals import refused
from ...helpers.releases import composed
from ...helpers.scores import bound_of, gaussian

DELTA = 1e-5


@pytest.mark.parametrize(
    ("pair", "rate", "noise", "rounds"),
    # the last reaches so far that little room is left on the circle of the transform
    [("remove", 0.1, 1.0, 10), ("replace", 0.05, 1.0, 100), ("replace", 0.3, 200.0, 100_000)],
)
def test_composed_curves_lie_just_below_the_accountants(pair, rate, noise, rounds):
    alpha, beta = composed_corners(pair, rate, noise, rounds)
    assert alpha[0] == 0.0
    assert (alpha[-1], beta[-1]) == (1.0, 0.0)
    assert np.all(np.diff(alpha) >= 0.0)
    assert np.all(np.diff(beta) <= 1e-15)
    for delta in (1e-5, 1e-2):
        truth = composed(pair, rate, noise, rounds, delta).epsilon
        found = float(np.max(1.0 - beta - np.exp(truth.estimate) * alpha))
        assert delta * 0.9999 <= found <= delta * 1.003


def test_composed_curve_of_simulated_rounds():
    # 100,000 runs a side: rates stray by 0.008 (five standard errors of both) with probability below 1e-5.
    rng, n, rounds = np.random.default_rng(3), 100_000, 20
    pair = SampledGaussian(kind="remove", rate=0.2, noise=1.5)
    inside = sum(pair.loss((rng.random(n) < 0.2) + 1.5 * rng.normal(size=n)) for _ in range(rounds))
    outside = sum(pair.loss(1.5 * rng.normal(size=n)) for _ in range(rounds))
    corners = composed_corners("remove", 0.2, 1.5, rounds)
    for t in (-0.5, 0.2, 1.0, 2.5):
        assert np.mean(inside <= t) == pytest.approx(float(np.interp(np.mean(outside > t), *corners)), abs=0.012)


def test_the_bound_of_a_sampled_mechanism():
    rng, n = np.random.default_rng(4), 4000
    pair = SampledGaussian(kind="remove", rate=0.3, noise=1.0)
    worlds = ((rng.random((5, n)) < 0.3) + rng.normal(size=(5, n)), rng.normal(size=(5, n)))
    scores = [pair.loss(world).sum(axis=0) for world in worlds]
    family = sampled_family(rate=0.3, rounds=5)
    bound = bound_of(*scores, "curve", family=family)
    truth = max(composed(kind, 0.3, 1.0, 5, DELTA).epsilon.estimate for kind in ("remove", "add"))
    assert 0.6 * truth < bound.epsilon_lower <= truth
    assert bound.mu_lower is None
    assert "sampled-gaussian(rate=0.3, rounds=5, pair=remove)" in bound.assumes
    assert not can_refute(bound)


def test_the_curve_sees_more_than_one_threshold_with_two_limits():
    # Means of 20 audits at mu = 1, n = 2,000 differ by 0.25 with a standard error of the difference of 0.03.
    rng = np.random.default_rng(5)
    rows = []
    for seed in range(20):
        rows.append(audit_scores(*gaussian(rng, 1.0, 2000), delta=DELTA, estimators=["curve", "gaussian"], seed=seed))
    curve, counts = (np.mean([row[i].epsilon_lower for row in rows]) for i in (0, 1))
    assert curve > counts + 0.1


@pytest.mark.parametrize("kind", ["plain", "swapped", "rounded", "heavy"])
@pytest.mark.parametrize("audits", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_coverage_whatever_the_scores_look_like(kind, audits):
    # Audits at 95%: more than `allowed` with probability at most 2e-5 each, four cells.
    rng, allowed = np.random.default_rng(6), binom.isf(2e-5, audits, 0.05)
    exceeded = 0
    for seed in range(audits):
        inside, outside = gaussian(rng, 1.0, 300)
        if kind == "swapped":
            inside, outside = outside, inside
        elif kind == "rounded":
            inside, outside = np.round(inside), np.round(outside)
        elif kind == "heavy":
            inside, outside = inside**9, outside**9
        exceeded += bound_of(inside, outside, "curve", seed=seed).mu_lower > 1.0
    assert exceeded <= allowed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 1.0, "rounds": 3}, "rate is 1.0"),
        ({"rate": 0.1, "rounds": 0}, "rounds is 0"),
        ({"rate": 0.1, "rounds": 3, "pair": "add"}, "pair is 'add'"),
    ],
)
def test_wrong_families_are_named(options, words):
    with refused(words):
        sampled_family(**options)
    with refused("did you mean 'gaussian'"):
        audit_scores([1.0], [0.0], delta=DELTA, family="gausian")
    assert GAUSSIAN.name == "gaussian"
