import math
from functools import partial

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import bdtrc

from dpzv_audit.accounting import Composition, epsilon_from_mu, gdp_exact, prv, tightest_sound, upper_bounds
from dpzv_audit.accounting.accountants import (
    _most,
    advanced_composition,
    composed_epsilon,
    czofo_epsilon,
    czofo_theorem,
    gdp_clt,
    log_clt_mu,
    rdp,
)
from dpzv_audit.accounting.explain import explain
from dpzv_audit.accounting.gaussian import Participation

from ...helpers import releases

release = partial(releases.release, sampler="shuffled")


@pytest.mark.parametrize(
    ("zeta", "variance", "epsilon", "bar"), [(20.1, 1.61, 2.798e-3, 5.24), (7.3, 0.15, 3.329e-3, 6.40)]
)
def test_czofo_table_two(zeta, variance, epsilon, bar):
    found = czofo_epsilon(zeta=zeta, sigma=math.sqrt(variance), records=60_000, delta=1e-6)
    assert found == pytest.approx(epsilon, abs=5e-7)
    # the table prints 85.9 and 93.6 here, which the formula does not give
    assert composed_epsilon(found, 93_800, 1e-6) == pytest.approx(bar, abs=0.005)


def test_czofo_is_never_sound_and_speaks_of_its_estimates_alone():
    made = release(
        channel="zo-gradient", clip=20.1, sigma=1.27, dataset_size=60_000, rounds=93_800, server_update="frozen"
    )
    known = czofo_theorem(made, "client", "replace-label", 1e-3)
    hidden = czofo_theorem(made, "release", "replace-label", 1e-3)
    assert (known.sound, known.gap) == (False, "clt,known-directions")
    assert (hidden.sound, hidden.gap) == (False, "clt")
    assert known.epsilon == hidden.epsilon
    each = czofo_epsilon(zeta=20.1, sigma=1.27, records=60_000, delta=1e-3 / (2 * 93_800))
    assert known.epsilon.upper == pytest.approx(composed_epsilon(each, 93_800, 5e-4))
    assert "deltabar = T delta_0 + delta' = 93800 x 5.3304" in "".join(explain(made, known).formula)
    others = [b for b in releases.every_row(made, delta=1e-3) if b.accountant != "czofo-theorem"]
    assert all(b.epsilon is None for b in others)
    assert czofo_theorem(release(), "client", "replace-label", 1e-3).gap == "no-accountant"


made_releases = st.builds(
    release,
    sampler=st.sampled_from(["shuffled", "uniform", "poisson"]),
    rounds=st.integers(1, 3000),
    sigma=st.floats(0.1, 30.0),
    directions=st.integers(1, 4),
    participation_cap=st.one_of(st.none(), st.integers(1, 30)),
    server_mu=st.one_of(st.none(), st.floats(0.05, 1.0)),
)


@settings(max_examples=60, deadline=None)
@given(made=made_releases, relation=st.sampled_from(["replace-label", "zero-out"]), delta=st.sampled_from([1e-9, 1e-4]))
def test_looser_accountants_never_fall_below_the_exact_one(made, relation, delta):
    exact = gdp_exact(made, "client", relation, delta).epsilon
    for accountant in (rdp, advanced_composition):
        found = accountant(made, "client", relation, delta)
        if found.epsilon is None:
            assert "vacuous" in found.note
        else:
            assert found.sound
            assert found.epsilon.upper >= exact.lower * (1 - 1e-9)


@pytest.mark.parametrize("server_mu", [None, 0.7])
def test_rdp_of_a_gaussian_by_hand(server_mu):
    made = release(participations=10, server_mu=server_mu)
    mu = gdp_exact(made, "client", "zero-out", 1e-5).mu
    best = min(
        s1 * mu**2 / 2 + math.log(1 - 1 / s1) - math.log(1e-5 * s1) / (s1 - 1)
        for s1 in (1 + i / 1000 for i in range(1, 60_000))
    )
    assert rdp(made, "client", "zero-out", 1e-5).epsilon.upper == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize(("sigma", "cap"), [(0.5, None), (0.07, None), (0.5, 1), (0.07, 5)])
def test_rdp_of_a_random_number_of_participations_by_hand(sigma, cap):
    made = release(sampler="poisson", rounds=40, sigma=sigma, participation_cap=cap)
    mu = 0.2 / sigma
    log_weights = [math.log(math.comb(40, n)) + n * math.log(0.05) + (40 - n) * math.log(0.95) for n in range(41)]

    def moment(s):
        """ln E[e^(s L)] of n Gaussians, n binomial; a cap adds a bound, that of always taking part `cap` times."""
        terms = [w + n * s * (s + 1) * mu**2 / 2 for n, w in enumerate(log_weights)]
        mean = max(terms) + math.log(math.fsum(math.exp(term - max(terms)) for term in terms))
        return mean if cap is None else min(mean, cap * s * (s + 1) * mu**2 / 2)

    orders = [math.exp(i / 1000) for i in range(-3000, 5000)]
    best = min((moment(s) + math.log(1 / 1e-5) - math.log1p(s)) / s + math.log(s / (1 + s)) for s in orders)
    assert rdp(made, "client", "zero-out", 1e-5).epsilon.upper == pytest.approx(best, rel=1e-4)


def test_rdp_of_sampled_rounds_agrees_with_an_independent_accountant():
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    made = release(sampler="poisson", sample_rate=0.05, sigma=0.3)
    theirs = RdpAccountant()
    theirs.compose(PoissonSampledDpEvent(0.05, GaussianDpEvent(0.3 / 0.2)), 400)
    found = rdp(made, "release", "add-remove", 1e-5)
    assert found.sound
    # both minimise over a list of orders, each its own
    assert theirs.get_epsilon(1e-5) * 0.97 < found.epsilon.upper < theirs.get_epsilon(1e-5) * 1.001
    assert prv(made, "release", "add-remove", 1e-5).epsilon.upper < found.epsilon.upper


def test_advanced_composition_by_hand():
    made = release(participations=100, sigma=8.0)
    each = epsilon_from_mu(1 / made.noise_multiplier("replace-label"), 1e-5 / 2 / 100)
    by_hand = math.sqrt(2 * 100 * math.log(2 / 1e-5)) * each + 100 * each * math.expm1(each)
    assert advanced_composition(made, "client", "replace-label", 1e-5).epsilon.upper == pytest.approx(by_hand)
    # amplified where the ids are secret
    sampled = release(sampler="poisson", sigma=8.0)
    hidden = advanced_composition(sampled, "release", "zero-out", 1e-5)
    assert "amplified" in hidden.note
    assert hidden.epsilon.upper < advanced_composition(sampled, "client", "zero-out", 1e-5).epsilon.upper
    assert advanced_composition(release(sigma=0.001), "client", "zero-out", 1e-5).gap == "no-accountant"


@pytest.mark.parametrize(("rounds", "rate", "tail"), [(40, 0.05, 1e-3), (400, 0.3, 1e-7), (3, 0.5, 0.2)])
def test_a_random_count_is_cut_at_its_quantile(rounds, rate, tail):
    most = _most(Participation(mu=1.0, rounds=rounds, rate=rate, fixed=None), tail)
    assert bdtrc(most, rounds, rate) <= tail < bdtrc(most - 1, rounds, rate)
    assert _most(Participation(mu=1.0, rounds=rounds, rate=rate, fixed=None, cap=2), tail) == 2


def test_advanced_composition_of_sampled_rounds_beside_a_certain_gaussian_by_hand():
    made = release(sampler="poisson", sample_rate=0.05, sigma=8.0, server_mu=0.3)
    share = 1e-5 / 2 / 401
    certain = epsilon_from_mu(0.3, share)
    each = math.log1p(0.05 * math.expm1(epsilon_from_mu(0.2 / 8.0, share / 0.05)))
    by_hand = math.sqrt(2 * math.log(2 / 1e-5) * (certain**2 + 400 * each**2))
    by_hand += certain * math.expm1(certain) + 400 * each * math.expm1(each)
    found = advanced_composition(made, "release", "add-remove", 1e-5)
    assert found.epsilon.upper == pytest.approx(by_hand, rel=1e-9)


def test_adding_a_record_to_a_batch_of_all_is_a_plain_gaussian():
    # Every record is in every batch: sampling leaves nothing to chance, and one row more is one contribution.
    whole = release(sampler="poisson", batch_size=1000, sample_rate=1.0, rounds=20, sigma=0.2)
    found = rdp(whole, "release", "add-remove", 1e-5)
    assert found.sound
    assert found.epsilon.upper == pytest.approx(rdp(whole, "client", "zero-out", 1e-5).epsilon.upper, rel=1e-3)
    once = epsilon_from_mu(math.sqrt(20) * 0.05, 1e-5 / 2)
    by_hand = math.sqrt(2 * math.log(2 / 1e-5)) * once + once * math.expm1(once)
    assert advanced_composition(whole, "release", "add-remove", 1e-5).epsilon.upper == pytest.approx(by_hand)


@pytest.mark.parametrize("z", [0.05, 0.2, 1.0, 5.0, 40.0, 1e3, 1e6, 1e9])
def test_both_central_limits_at_sixty_digits(z):
    with mpmath.workdps(60):
        power = mpmath.exp(1 / mpmath.mpf(z) ** 2)
        uniform = 2 * (power * mpmath.ncdf(1.5 / mpmath.mpf(z)) + 3 * mpmath.ncdf(-0.5 / mpmath.mpf(z)) - 2)
        for excess, flag in ((power - 1, False), (uniform, True)):
            exact = mpmath.log(mpmath.mpf("0.01") * mpmath.sqrt(1000 * excess))
            assert log_clt_mu(0.01, 1000, z, uniform=flag) == pytest.approx(float(exact), rel=1e-8)


def test_the_uniform_form_is_for_replace_relations():
    made = release(sampler="uniform", sigma=2.0)
    bound = gdp_clt(made, "release", "replace-label", 1e-5)
    z = made.noise_multiplier("replace-label")
    assert math.log(bound.mu) == pytest.approx(log_clt_mu(0.05, 400, z, uniform=True))
    assert (bound.sound, bound.gap) == (False, "clt")
    assert bound.epsilon.upper < gdp_exact(made, "release", "replace-label", 1e-5).epsilon.upper
    assert gdp_clt(made, "client", "replace-label", 1e-5).gap == "known-ids,clt"
    assert gdp_clt(made, "release", "zero-out", 1e-5).gap == "no-accountant"
    assert gdp_clt(release(), "release", "replace-label", 1e-5).gap == "no-accountant"


def test_dp_sgd_on_the_same_batches_joins_the_scalar():
    alone = release(sampler="poisson", server_update="dp-sgd")
    assert gdp_exact(alone, "client", "replace-label", 1e-5).gap == "server-state"
    joined = release(sampler="poisson", server_update="dp-sgd", server_noise_multiplier=5.0)
    for accountant in (gdp_exact, prv, rdp, advanced_composition):
        bound = accountant(joined, "release", "replace-label", 1e-5)
        assert bound.sound
        without = accountant(release(sampler="poisson"), "release", "replace-label", 1e-5)
        assert bound.epsilon.upper > without.epsilon.upper
    # fixed participations: the same as the server's mu in all
    fixed = release(server_update="dp-sgd", server_noise_multiplier=5.0, participations=20)
    given = release(server_update="dp-sgd", server_mu=2 * math.sqrt(20) / 5.0, participations=20)
    one, other = (gdp_exact(m, "client", "replace-label", 1e-5) for m in (fixed, given))
    assert one.mu == pytest.approx(other.mu)
    assert one.epsilon.upper == pytest.approx(other.epsilon.upper)


def test_releases_compose():
    first, second = release(participations=9), release(participations=16, sigma=1.0)
    both = gdp_exact(Composition((first, second)), "client", "replace-label", 1e-5)
    mus = [gdp_exact(m, "client", "replace-label", 1e-5).mu for m in (first, second)]
    assert both.sound
    assert both.mu == pytest.approx(math.hypot(*mus))
    # a Poisson phase and a shuffled one: known ids, PRV with the shuffled phase in full, and RDP all answer
    mixed = Composition((release(sampler="poisson", sigma=1.0), release(participations=2, sigma=2.0)))
    bounds = upper_bounds(mixed, delta=1e-5, adversaries=["release"], neighbours=["replace-label"])
    found = {b.accountant: b.epsilon.upper for b in bounds if b.sound}
    assert set(found) == {"gdp-exact", "prv", "rdp", "advanced-composition"}
    assert tightest_sound(bounds).accountant == "prv"
    # all in one batch size, split in two phases, is the whole
    halves = Composition((release(sampler="poisson", rounds=100), release(sampler="poisson", rounds=300)))
    for accountant in (gdp_exact, prv, rdp):
        split, whole = (accountant(m, "release", "zero-out", 1e-5) for m in (halves, release(sampler="poisson")))
        assert split.epsilon.estimate == pytest.approx(whole.epsilon.estimate, rel=1e-3)
    # embedding noise protects from the server, scalar noise labels from the clients
    channels = Composition((release(), release(channel="embedding", sigma=30.0, whole_data_rounds=1)))
    server = gdp_exact(channels, "server", "replace-record", 1e-5)
    assert server.sound
    assert server.epsilon == gdp_exact(channels.parts[1], "server", "replace-record", 1e-5).epsilon
    client = gdp_exact(channels, "client", "replace-label", 1e-5)
    assert client.epsilon == gdp_exact(release(), "client", "replace-label", 1e-5).epsilon


def test_embedding_noise_by_hand():
    # C = 10, sigma = 30, 20 rounds of h+ and h-, and one filling of the table
    made = release(channel="embedding", sigma=30.0, participations=20, directions=2, whole_data_rounds=1)
    bound = gdp_exact(made, "server", "replace-record", 1e-5)
    assert bound.sound
    assert bound.mu == pytest.approx(math.sqrt(41) * 20.0 / 30.0)
    assert prv(made, "server", "replace-record", 1e-5).epsilon.estimate == pytest.approx(
        bound.epsilon.estimate, rel=1e-3
    )
    assert gdp_exact(made, "client", "replace-label", 1e-5).gap == "unprotected-channel"


def test_gradient_noise_by_hand():
    made = release(channel="gradient", clip=0.1, sigma=0.5, participations=16)
    assert gdp_exact(made, "client", "replace-label", 1e-5).mu == pytest.approx(4 * 0.2 / 0.5)
    # rows of their own: no sum hides who is in the batch
    rows = release(channel="gradient", clip=0.1, sampler="poisson", server_update="frozen")
    exact, composed = (f(rows, "release", "replace-label", 1e-5) for f in (gdp_exact, prv))
    assert exact.sound
    assert composed.sound
    assert composed.epsilon.estimate == pytest.approx(exact.epsilon.estimate, rel=1e-3)
