"""The central-limit approximation against fifty digits, and what the Gaussian accountants refuse."""

import math
from functools import partial

import mpmath
import pytest

from dpzv_audit.accounting.accountants import gdp_clt, gdp_exact, gdp_paper, log_clt_mu, paper_mu
from dpzv_audit.accounting.release import Composition

from ...helpers import releases
from ...helpers.refusals import refused

release = partial(
    releases.release, batch_size=20, rounds=300, clip=2.0, sigma=0.3, server_update="frozen", directions=3
)
public = partial(release, dataset_size=None, sample_rate=0.02)


def clt_mu_by_definition(rate, rounds, z, uniform):
    """Bu, Dong, Long and Su (2020), theorems 4 and 5, as printed."""
    with mpmath.workdps(50):
        z = mpmath.mpf(z)
        power = mpmath.exp(1 / z**2)
        if uniform:
            inside = power * mpmath.ncdf(3 / (2 * z)) + 3 * mpmath.ncdf(-1 / (2 * z)) - 2
            return mpmath.log(mpmath.sqrt(2) * rate * mpmath.sqrt(rounds * inside))
        return mpmath.log(rate * mpmath.sqrt(rounds * (power - 1)))


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("z", [0.02, 0.14, 0.143, 0.5, 0.72, 0.999, 1.001, 1.7, 30.0, 1e3, 9e6, 1.1e7, 1e12])
def test_clt_mu_is_the_printed_formula(z, uniform):
    expected = clt_mu_by_definition(0.03, 700, z, uniform)
    # In absolute terms, which for ln mu are relative ones of mu. At large z the uniform form cancels a few digits, and
    # past 1e7 it is its first term, wrong by 0.8 / z.
    assert abs(log_clt_mu(0.03, 700, z, uniform=uniform) - expected) < (
        1e-12 if z < 10.0 else 1e-8 if z < 1e7 else 1e-7
    )


def test_clt_mu_stays_a_number_at_almost_no_noise():
    # The rest is nothing against e^(1/z^2); ln Phi(3/(2z)) is 0.
    for uniform in (False, True):
        half = 0.5 * math.log(2.0) if uniform else 0.0
        expected = math.log(0.03) + 0.5 * math.log(700) + 0.5e12 + half
        assert log_clt_mu(0.03, 700, 1e-6, uniform=uniform) == pytest.approx(expected, rel=1e-15)
        assert log_clt_mu(0.03, 700, 1e-120, uniform=uniform) == math.inf


def test_paper_mu_is_theorem_five_one_with_every_direction_a_scalar():
    # 2 C sqrt(T q) / (D sigma) = 2 * 2 * 30 / (1000 * 0.3)
    assert paper_mu(release()) == pytest.approx(0.4, rel=1e-15)
    joined = gdp_paper(Composition((release(), release(directions=1))), "release", "zero-out", 1e-5)
    assert joined.mu == pytest.approx(0.4 * math.sqrt(4.0 / 3.0), rel=1e-14)
    # D is B over the rate where the rate is what is known
    assert paper_mu(public()) == pytest.approx(0.4, rel=1e-15)


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
@pytest.mark.parametrize("relation", ["replace-label", "replace-record"])
@pytest.mark.parametrize("adversary", ["client", "colluding-clients", "eavesdropper", "release"])
def test_the_theorem_is_right_where_every_batch_holds_all_records(sampler, relation, adversary):
    whole = release(batch_size=1000, sigma=0.03, sampler=sampler)
    paper, exact = (accountant(whole, adversary, relation, 1e-5) for accountant in (gdp_paper, gdp_exact))
    assert (paper.sound, paper.gap) == (True, None)
    assert paper.mu == pytest.approx(exact.mu, rel=1e-14)
    # one record left out of each batch, and it is not
    almost = gdp_paper(release(batch_size=999, sigma=0.03, sampler=sampler), adversary, relation, 1e-5)
    assert (almost.sound, almost.gap in ("known-ids", "clt")) == (False, True)
    # nor where the server's state is open, or moves by updates of its own that the theorem does not count
    opened = gdp_paper(release(batch_size=1000, sampler=sampler, server_update="sgd"), adversary, relation, 1e-5)
    assert (opened.sound, opened.gap) == (False, "server-state")
    for changes in ({"server_mu": 0.2}, {"server_noise_multiplier": 5.0}, {"whole_data_rounds": 1}):
        moved = release(batch_size=1000, sampler=sampler, server_update="dp-sgd", **changes)
        assert not gdp_paper(moved, adversary, relation, 1e-5).sound


def test_one_part_that_does_not_fit_refuses_the_whole():
    rows = release(channel="gradient", directions=1)
    for accountant in (gdp_paper, gdp_clt):
        whole = accountant(Composition((release(), rows)), "client", "zero-out", 1e-5)
        assert (whole.epsilon, whole.gap) == (None, "no-accountant")
    mixed = Composition((release(), release(sampler="uniform")))
    assert gdp_clt(mixed, "release", "zero-out", 1e-5).epsilon is None
    assert gdp_clt(public(participation_cap=9), "release", "add-remove", 1e-5).epsilon is None
    assert gdp_clt(release(), "release", "replace-record", 1e-5).epsilon is None
    assert gdp_clt(release(sampler="uniform"), "release", "replace-record", 1e-5).epsilon is not None


def test_clt_adds_what_is_certain():
    # One record moves a message by c = C/B = 0.1; z = 3, and q = 3 directions count as noise less by sqrt(3).
    mu = float(mpmath.exp(clt_mu_by_definition(0.02, 300, 3.0 / math.sqrt(3.0), False)))
    server = 0.7
    found = gdp_clt(public(server_mu=server), "release", "add-remove", 1e-5)
    assert found.mu == pytest.approx(math.hypot(mu, server), rel=1e-9)
    two = Composition((public(), public(server_mu=server)))
    assert gdp_clt(two, "release", "add-remove", 1e-5).mu == pytest.approx(math.hypot(mu, mu, server), rel=1e-9)


def test_noise_lost_in_a_contribution_is_refused_in_any_part():
    lost = release(clip=1.5e50, sigma=2.0, batch_size=1, sampler="shuffled", participations=1)
    assert lost.participation_mu("replace-record") > 1e50
    fine = release(sampler="shuffled", participations=4)
    for parts in ((lost,), (fine, lost)):
        with refused("too far"):
            gdp_exact(Composition(parts), "client", "replace-record", 1e-5)
    # Four participations of z = 0.3 / 0.2 with three directions each.
    assert gdp_exact(fine, "client", "replace-record", 1e-5).mu == pytest.approx(math.sqrt(12.0) / 1.5, rel=1e-14)
