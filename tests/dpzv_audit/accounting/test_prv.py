import math
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.accounting import epsilon_from_mu
from dpzv_audit.accounting.mixture import known_ids_epsilon
from dpzv_audit.accounting.prv import prv_epsilon
from dpzv_audit.accounting.sampled import SampledGaussian, loss_moments

KINDS = ("remove", "add", "replace")
pairs = st.builds(
    SampledGaussian,
    kind=st.sampled_from(KINDS),
    rate=st.floats(math.log(1e-6), math.log(0.95)).map(math.exp),
    noise=st.floats(math.log(0.1), math.log(50.0)).map(math.exp),
)


def densities(pair, x):
    """P and Q of the pair, written out from their definition (add: reflected in x)."""

    def normal(mean):
        return np.exp(-0.5 * ((x - mean) / pair.noise) ** 2)

    def mixture(mean):
        return (1 - pair.rate) * normal(0.0) + pair.rate * normal(mean)

    return {
        "remove": (mixture(1.0), normal(0.0)),
        "add": (normal(0.0), mixture(-1.0)),
        "replace": (mixture(1.0), mixture(-1.0)),
    }[pair.kind]


@given(pair=pairs, place=st.floats(-6.0, 6.0))
def test_loss_is_the_log_ratio_and_inverts(pair, place):
    x = np.array([place * pair.noise])
    p, q = densities(pair, x)
    loss = pair.loss(x)
    np.testing.assert_allclose(loss, np.log(p / q), rtol=1e-6, atol=1e-11)
    np.testing.assert_allclose(pair.loss(pair.inverse(loss)), loss, rtol=1e-9, atol=1e-15)


@settings(max_examples=30, deadline=None)
@given(pair=pairs)
def test_moments_hold_their_identities(pair):
    moments = loss_moments(pair, outside=1e-14)
    x, weights, _ = pair.quadrature(*pair.window(1e-14))
    assert weights.sum() == pytest.approx(1.0, abs=1e-11)
    y = pair.loss(x)
    # E_P[e^-L] = 1 because Q is a probability too, up to what the window leaves of it
    assert weights @ np.exp(-y) <= 1.0 + 1e-10
    assert np.isfinite(moments.up[0])
    assert pair.cdf(np.array([moments.most]))[0] == pytest.approx(1.0, abs=1e-12)
    assert pair.cdf(np.array([moments.least]))[0] == pytest.approx(0.0, abs=1e-12)


def one_round_epsilon(pair, delta):
    """Epsilon of ONE round by quadrature of (P - e^eps Q)+ on a fine grid."""
    x = np.linspace(-12 * pair.noise - 1, 12 * pair.noise + 1, 400_001)
    p, q = (d / (pair.noise * math.sqrt(2 * math.pi)) * (x[1] - x[0]) for d in densities(pair, x))
    low, high = 0.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(p - math.exp(middle) * q, 0).sum() > delta else (low, middle)
    return low


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rate", "noise"), [(0.3, 0.7), (0.01, 2.0), (0.9, 1.5), (0.002, 0.4)])
def test_one_round_is_the_integral(kind, rate, noise):
    answer = prv_epsilon(kind=kind, rate=rate, noise=noise, rounds=1, delta=1e-5).epsilon
    exact = one_round_epsilon(SampledGaussian(kind=kind, rate=rate, noise=noise), 1e-5)
    assert answer.lower <= exact + 1e-9
    assert exact <= answer.upper + 1e-9
    assert answer.upper - answer.lower <= 0.03 * exact + 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_in_every_batch_is_gaussian(kind):
    answer = prv_epsilon(kind=kind, rate=1.0, noise=3.0, rounds=7, delta=1e-6).epsilon
    shift = 2.0 if kind == "replace" else 1.0
    assert answer.lower == answer.upper == epsilon_from_mu(math.sqrt(7) * shift / 3.0, 1e-6)
    nearly = prv_epsilon(kind=kind, rate=1 - 1e-9, noise=3.0, rounds=7, delta=1e-6).epsilon
    assert nearly.lower <= answer.upper <= nearly.upper * (1 + 1e-8)


def pld_epsilon(replace, rate, noise, rounds, delta, interval):
    """dp-accounting's (pessimistic, connect-the-dots) epsilon of the same release."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    relation = NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(relation, value_discretization_interval=interval)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), rounds)
    return accountant.get_epsilon(delta)


RELEASES = [
    (0.01, 0.5, 100, 1e-5, 1e-3),
    (0.1, 5.0, 500, 1e-3, 5e-4),
    (0.5, 2.0, 10, 1e-6, 1e-3),
    (0.9, 3.0, 30, 1e-5, 1e-3),
    (0.3, 0.7, 1, 1e-5, 1e-3),
    (0.02, 1.5, 2000, 1e-5, 2e-4),
    (0.01, 0.2, 3, 1e-3, 1e-3),
]
SLOW_RELEASES = [
    (0.001, 1.0, 1000, 1e-5, 3e-5),
    (1e-4, 0.3, 5000, 1e-5, 4e-4),
    (0.001, 0.2, 1000, 1e-5, 1e-3),
    (0.02, 1.5, 20_000, 1e-5, 1e-4),
]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    "release", [*RELEASES, *(pytest.param(values, marks=pytest.mark.slow) for values in SLOW_RELEASES)]
)
def test_agrees_with_an_independent_accountant(release, replace):
    rate, noise, rounds, delta, interval = release
    answers = [
        prv_epsilon(kind=kind, rate=rate, noise=noise, rounds=rounds, delta=delta)
        for kind in (("replace",) if replace else ("remove", "add"))
    ]
    assert all(answer.composed for answer in answers)
    independent = pld_epsilon(replace, rate, noise, rounds, delta, interval)
    assert max(a.epsilon.lower for a in answers) <= independent
    assert independent <= max(a.epsilon.upper for a in answers) + 2 * interval
    estimate = max(a.epsilon.estimate for a in answers)
    assert estimate == pytest.approx(independent, rel=5e-4, abs=interval)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rate=st.floats(1e-3, 0.9),
    noise=st.floats(0.5, 20.0),
    rounds=st.integers(1, 500),
    delta=st.sampled_from([1e-8, 1e-5, 1e-3]),
)
def test_range_is_ordered_and_below_known_ids(kind, rate, noise, rounds, delta):
    answer = prv_epsilon(kind=kind, rate=rate, noise=noise, rounds=rounds, delta=delta).epsilon
    assert 0.0 <= answer.lower <= answer.estimate <= answer.upper < math.inf
    step = (2.0 if kind == "replace" else 1.0) / noise
    known = known_ids_epsilon(noise_multiplier=1 / step, delta=delta, rounds=rounds, rate=rate, fixed=None)
    assert answer.upper <= known.upper * (1 + 1e-12)


def test_certified_bounds_hold_where_the_answer_is_known():
    for kind in KINDS:
        pair = SampledGaussian(kind=kind, rate=0.02, noise=1.5)
        answer = prv_epsilon(kind=kind, rate=0.02, noise=1.5, rounds=2000, delta=1e-5)
        certified = loss_moments(pair, outside=1e-13).epsilon(2000, 1e-5)
        assert answer.composed
        assert answer.epsilon.lower <= certified < 1.3 * answer.epsilon.upper


def test_agrees_with_the_package_used_directly():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

        mechanism = PoissonSubsampledGaussianMechanism(sampling_probability=0.01, noise_multiplier=1.0)
        package = PRVAccountant(mechanism, max_self_compositions=1000, eps_error=0.02, delta_error=1e-8)
        low, middle, high = package.compute_epsilon(1e-5, [1000])
    ours = prv_epsilon(kind="remove", rate=0.01, noise=1.0, rounds=1000, delta=1e-5).epsilon
    assert low <= ours.estimate <= high
    assert ours.estimate == pytest.approx(middle, rel=1e-4)


def test_past_one_hundred_is_vacuous_at_once():
    start = time.perf_counter()
    answer = prv_epsilon(kind="remove", rate=0.001, noise=0.1, rounds=100_000, delta=1e-5)
    assert time.perf_counter() - start < 1.0
    assert "vacuous (> 100)" in answer.note
    assert not answer.composed
    assert answer.epsilon.upper > 100


def test_a_loose_certified_bound_does_not_coarsen_the_answer():
    # one round in the add direction: at most -ln(1 - r), where the certified bound is hundreds of times that
    answer = prv_epsilon(kind="add", rate=0.002, noise=0.4, rounds=1, delta=1e-5).epsilon
    assert answer.upper - answer.lower < 0.03 * answer.estimate
    nothing = prv_epsilon(kind="add", rate=1e-6, noise=0.4, rounds=1, delta=0.9e-6).epsilon
    assert nothing.lower == 0.0
    assert nothing.upper < 1e-5


def test_small_delta_falls_back_on_the_certified_bound_and_says_so():
    answer = prv_epsilon(kind="replace", rate=0.001, noise=20.0, rounds=100_000, delta=1e-12)
    assert not answer.composed
    assert "certified bound alone" in answer.note
    loose = prv_epsilon(kind="replace", rate=0.001, noise=20.0, rounds=100_000, delta=1e-9 * 100)
    assert loose.epsilon.upper < answer.epsilon.upper < 0.5


def test_a_hundred_thousand_rounds_take_less_than_three_seconds():
    code = """
import time, warnings
warnings.simplefilter("error")
start = time.perf_counter()
from dpzv_audit.accounting import Release, prv
for sigma in (0.05, 0.1, 1.0):
    release = Release(batch_size=10, dataset_size=10_000, rounds=100_000, clip=1.0, sigma=sigma,
                      sampler="poisson", server_update="joint-zo")
    bound = prv(release, "release", "replace-label", 1e-5)
    assert bound.sound and "composed" in bound.note, bound
    assert bound.epsilon.upper - bound.epsilon.estimate < 0.01 * bound.epsilon.upper
print(time.perf_counter() - start)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    # three releases and the import of the package
    assert float(done.stdout) < 9.0
