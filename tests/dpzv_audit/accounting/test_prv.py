import math
import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.accounting import epsilon_from_mu
from dpzv_audit.accounting.gaussian import Participation, participations_epsilon
from dpzv_audit.accounting.prv import Rounds, prv_composition, prv_directions
from dpzv_audit.accounting.sampled import SampledGaussian, certified_lower, composed_moments, loss_moments

from ...helpers.refusals import refused
from ...helpers.releases import composed

KINDS = ("remove", "add", "replace")


def sampled(kind, rate, noise, rounds):
    return Rounds(SampledGaussian(kind=kind, rate=rate, noise=noise), rounds)


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
    moments = loss_moments(pair, log_outside=math.log(1e-14))
    x, weights, _ = pair.quadrature(*pair.window(math.log(1e-14)))
    assert weights.sum() == pytest.approx(1.0, abs=1e-11)
    y = pair.loss(x)
    # E_P[e^-L] = 1 because Q is a probability too, up to what the window leaves of it
    assert weights @ np.exp(-y) <= 1.0 + 1e-10
    assert np.isfinite(moments.up[0])
    # a hair beyond, for where the loss saturates much of P has the least or the most of it
    assert pair.cdf(np.array([moments.ceiling * (1 + 1e-9)]))[0] == pytest.approx(1.0, abs=1e-12)
    assert pair.cdf(np.array([moments.floor - 1e-9 * abs(moments.floor) - 1e-12]))[0] == pytest.approx(0.0, abs=1e-12)


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
    answer = composed(kind, rate, noise, 1).epsilon
    exact = one_round_epsilon(SampledGaussian(kind=kind, rate=rate, noise=noise), 1e-5)
    assert answer.lower <= exact + 1e-9
    assert exact <= answer.upper + 1e-9
    assert answer.upper - answer.lower <= 0.03 * exact + 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_in_every_batch_is_gaussian(kind):
    answer = composed(kind, 1.0, 3.0, 7, 1e-6).epsilon
    shift = 2.0 if kind == "replace" else 1.0
    assert "composed, error" not in composed(kind, 1.0, 3.0, 7, 1e-6).note
    assert answer.lower == answer.upper == epsilon_from_mu(math.sqrt(7) * shift / 3.0, 1e-6)
    nearly = composed(kind, 1 - 1e-9, 3.0, 7, 1e-6).epsilon
    assert nearly.lower <= answer.upper <= nearly.upper * (1 + 1e-8)


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(0.001, 0.95),
    noise=st.floats(0.3, 3.0),
    angle=st.floats(0.0, math.pi),
    lengths=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
    epsilon=st.floats(-2.0, 4.0),
)
def test_no_other_contributions_tell_more_than_opposite_ones(rate, noise, angle, lengths, epsilon):
    side = np.linspace(-8 * noise - 1, 8 * noise + 1, 401)
    x, y = np.meshgrid(side, side)
    cell = (side[1] - side[0]) ** 2 / (2 * math.pi * noise**2)

    def normal(a, b):
        return np.exp(-0.5 * ((x - a) ** 2 + (y - b) ** 2) / noise**2)

    def hockey(one, other):
        p, q = ((1 - rate) * normal(0, 0) + rate * normal(*shift) for shift in (one, other))
        return np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell

    worst = hockey((1.0, 0.0), (-1.0, 0.0))
    given_ = hockey((lengths[0], 0.0), (lengths[1] * math.cos(angle), lengths[1] * math.sin(angle)))
    assert given_ <= worst * (1 + 1e-6) + 1e-9


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
    answers = [composed(kind, rate, noise, rounds, delta) for kind in (("replace",) if replace else ("remove", "add"))]
    assert all("composed, error" in answer.note for answer in answers)
    independent = pld_epsilon(replace, rate, noise, rounds, delta, interval)
    assert max(a.epsilon.lower for a in answers) <= independent
    assert independent <= max(a.epsilon.upper for a in answers) + 2 * interval
    assert max(a.epsilon.estimate for a in answers) == pytest.approx(independent, rel=5e-4, abs=interval)


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    rate=st.floats(1e-3, 0.9),
    noise=st.floats(0.5, 20.0),
    rounds=st.integers(1, 500),
    delta=st.sampled_from([1e-8, 1e-5, 1e-3]),
)
@pytest.mark.slow
def test_range_is_ordered_and_below_known_ids(kind, rate, noise, rounds, delta):
    answer = composed(kind, rate, noise, rounds, delta).epsilon
    assert 0.0 <= answer.lower <= answer.estimate <= answer.upper < math.inf
    step = (2.0 if kind == "replace" else 1.0) / noise
    known = participations_epsilon([Participation(mu=step, rounds=rounds, rate=rate, fixed=None)], delta=delta)
    assert answer.upper <= known.upper * (1 + 1e-12)


def test_certified_bounds_hold_where_the_answer_is_known():
    for kind in KINDS:
        pair = SampledGaussian(kind=kind, rate=0.02, noise=1.5)
        answer = composed(kind, 0.02, 1.5, 2000)
        certified = composed_moments([(loss_moments(pair, log_outside=math.log(1e-13)), 2000)]).epsilon(1e-5)
        assert "composed, error" in answer.note
        assert answer.epsilon.lower <= certified < 1.3 * answer.epsilon.upper


def test_agrees_with_the_package_used_directly():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

        mechanism = PoissonSubsampledGaussianMechanism(sampling_probability=0.01, noise_multiplier=1.0)
        package = PRVAccountant(mechanism, max_self_compositions=1000, eps_error=0.02, delta_error=1e-8)
        low, middle, high = package.compute_epsilon(1e-5, [1000])
    ours = composed("remove", 0.01, 1.0, 1000).epsilon
    assert low <= ours.estimate <= high
    assert ours.estimate == pytest.approx(middle, rel=1e-4)


def test_past_one_hundred_is_vacuous_and_nothing_is_composed():
    answer = composed("remove", 0.001, 0.1, 100_000)
    assert "vacuous (> 100)" in answer.note
    assert "composed, error" not in answer.note
    assert answer.epsilon.upper > 100


def test_a_loose_certified_bound_does_not_coarsen_the_answer():
    # one round in the add direction: at most -ln(1 - r), where the certified bound is hundreds of times that
    answer = composed("add", 0.002, 0.4, 1).epsilon
    assert answer.upper - answer.lower < 0.03 * answer.estimate
    nothing = composed("add", 1e-6, 0.4, 1, 0.9e-6).epsilon
    assert nothing.lower == 0.0
    assert nothing.upper < 1e-5


def test_small_delta_is_within_reach():
    ranges = [composed("replace", 0.001, 20.0, 100_000, delta) for delta in (1e-12, 1e-7)]
    assert all("composed, error" in answer.note for answer in ranges)
    small, loose = (answer.epsilon for answer in ranges)
    assert small.upper - small.lower < 0.02 * small.upper
    # near Gaussian: the central limit gives the size, to a few hundredths
    mu = 2 * 0.001 * math.sqrt(100_000) / 20.0
    for epsilon, delta in ((small, 1e-12), (loose, 1e-7)):
        assert epsilon.estimate == pytest.approx(epsilon_from_mu(mu, delta), rel=0.03)


@pytest.mark.slow
def test_beyond_double_precision_the_certified_bound_answers_and_says_so():
    answer = composed("remove", 1e-7, 0.5, 10**7, 1e-12)
    assert "composed, error" not in answer.note
    assert "certified bound alone" in answer.note
    assert 0.0 <= answer.epsilon.lower < answer.epsilon.upper < 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_losses_that_saturate_keep_their_mass(kind):
    # at z = 0.05 the loss is the same in every digit over most of P; 1.0 is the mu of a release beside it
    answer = prv_composition((sampled(kind, 0.002, 0.05, 1),), certain_mu=1.0, delta=2.1e-3)
    assert "composed, error" in answer.note
    assert 2.0 < answer.epsilon.lower <= answer.epsilon.estimate <= answer.epsilon.upper < 4.0


def test_a_delta_that_equals_a_probability_is_no_contradiction():
    # one round at r = delta: the record takes part with probability delta, so epsilon is 0, up to rounding
    for noise in (0.05, 0.1, 1.0):
        answer = composed("replace", 0.001, noise, 1, 0.001).epsilon
        assert answer.upper == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_certain_is_the_least_that_there_is(kind):
    part = sampled(kind, 1e-9, 1.0, 10)
    alone = epsilon_from_mu(1.5, 1e-5)
    for fast in (True, False):
        found = prv_composition((part,), certain_mu=1.5, delta=1e-5, fast=fast).epsilon
        assert alone * (1 - 1e-9) <= found.lower <= alone * (1 + 1e-5)
        assert alone <= found.upper


@pytest.mark.parametrize(("rate", "noise"), [(1e-9, 20.0), (1e-9, 1.0), (1e-6, 0.3), (0.01, 5.0), (0.7, 1.0)])
def test_one_round_of_removal_has_a_closed_form(rate, noise):
    # P - e^eps Q = r (N(1) - (1 + (e^eps - 1) / r) N(0)): the Gaussian of one record at delta / r, also at 1e-10.
    exact = math.log1p(rate * math.expm1(epsilon_from_mu(1.0 / noise, 1e-3)))
    answer = composed("remove", rate, noise, 1, 1e-3 * rate).epsilon
    assert answer.lower <= exact <= answer.upper
    assert answer.estimate == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0 + 1e-9, math.nan])
def test_a_rate_that_is_no_probability_is_refused(rate):
    with refused("rate is"):
        composed("remove", rate, 1.0, 10)


def test_several_parts_compose():
    for kind in KINDS:
        one = sampled(kind, 0.01, 1.0, 300)
        whole = prv_composition((one,), delta=1e-5).epsilon
        split = prv_composition(tuple(sampled(kind, 0.01, 1.0, r) for r in (100, 200)), delta=1e-5).epsilon
        assert split.estimate == pytest.approx(whole.estimate, rel=1e-3)
        # another phase costs more, and a Gaussian release beside it too
        assert prv_composition((one, sampled(kind, 0.05, 2.0, 50)), delta=1e-5).epsilon.lower > whole.upper
        beside = prv_composition((one,), certain_mu=0.5, delta=1e-5).epsilon
        assert beside.lower > max(whole.upper, epsilon_from_mu(0.5, 1e-5))


@pytest.mark.parametrize("replace", [False, True])
def test_heterogeneous_composition_agrees_with_an_independent_accountant(replace):
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    relation = NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE

    def loss(noise, rate):
        return privacy_loss_distribution.from_gaussian_mechanism(
            noise, value_discretization_interval=2e-4, sampling_prob=rate, neighboring_relation=relation
        )

    theirs = loss(1.0, 0.02).self_compose(200).compose(loss(3.0, 0.2).self_compose(40))
    # one certain Gaussian of mu = 0.4: noise 2.5 against add-remove, 5 against twice the contribution
    theirs = theirs.compose(loss(5.0 if replace else 2.5, 1.0)).get_epsilon_for_delta(1e-6)
    found = []
    for kind in ("replace",) if replace else ("remove", "add"):
        parts = sampled(kind, 0.02, 1.0, 200), sampled(kind, 0.2, 3.0, 40)
        found.append(prv_composition(parts, certain_mu=0.4, delta=1e-6).epsilon)
    assert max(e.lower for e in found) <= theirs <= max(e.upper for e in found) + 241 * 2e-4
    assert max(e.estimate for e in found) == pytest.approx(theirs, rel=1e-3)


@settings(max_examples=40, deadline=None)
@given(pair=pairs, rounds=st.integers(1, 200), delta=st.sampled_from([1e-9, 1e-5, 1e-2]))
def test_certified_lower_bounds_are_below_certified_upper_ones(pair, rounds, delta):
    upper = composed_moments([(loss_moments(pair, log_outside=math.log(1e-16)), rounds)]).epsilon(delta)
    assert 0.0 <= certified_lower(pair, rounds, delta) <= upper * (1 + 1e-9) + 1e-9


def test_certified_lower_bound_is_tight_where_one_round_decides():
    pair = SampledGaussian(kind="remove", rate=0.5, noise=0.2)
    exact = one_round_epsilon(pair, 1e-5)
    assert 0.6 * exact < certified_lower(pair, 1, 1e-5) <= exact


def test_enough_composes_only_where_the_certified_bounds_do_not_decide():
    ask = partial(prv_directions, {kind: (sampled(kind, 0.05, 0.6, 400),) for kind in ("remove", "add")}, delta=1e-5)
    fast, whole = ask(fast=True), ask()
    assert fast.epsilon.lower < whole.epsilon.lower <= whole.epsilon.upper < fast.epsilon.upper
    assert ask(enough=0.5 * (fast.epsilon.upper + whole.epsilon.upper)) == whole
    for claimed in (fast.epsilon.upper * 1.01, fast.epsilon.lower * 0.99):
        decided = ask(enough=claimed)
        assert decided.epsilon == fast.epsilon
        assert "composed, error" not in decided.note
    assert "decides" in decided.note
