import math
import re
from functools import partial

import pytest
from scipy.stats import binom

from dpzv_audit.accounting import ACCOUNTANTS, Composition, epsilon_from_mu, upper_bounds
from dpzv_audit.accounting.explain import explain
from dpzv_audit.base.rounding import up

from ...helpers import releases

release = partial(releases.release, batch_size=128, dataset_size=60_000, rounds=46_900, sigma=0.1859)


MADE = [
    release(),
    release(sampler="shuffled", server_update="sgd", directions=3, server_noise_multiplier=2.0),
    release(channel="zo-gradient", sampler="uniform"),
    Composition((release(), release(rounds=100, sampler="uniform", participation_cap=3))),
]


def test_the_releases_below_have_a_number_of_every_accountant():
    bounds = [bound for made in MADE for bound in releases.every_row(made, delta=1e-3, fast=True)]
    assert {bound.accountant for bound in bounds if bound.epsilon is not None} == set(ACCOUNTANTS)


@pytest.mark.parametrize("made", MADE)
def test_every_number_has_a_formula_a_source_and_its_assumptions(made):
    for bound in releases.every_row(made, delta=1e-3, fast=True):
        found = explain(made, bound)
        assert found.source
        assert found.assumes
        assert bool(found.formula) == (bound.epsilon is not None)
        if bound.epsilon is not None:
            # the number of the table stands in the formula
            assert up(bound.epsilon.upper, 6) in " ".join(found.formula)
        for name in (bound.gap or "").split(","):
            assert not name or any(f"NOT met, {name}" in line for line in found.assumes)


def test_the_papers_formula_can_be_checked_by_hand():
    bounds = upper_bounds(release(), delta=1e-3, adversaries=["client"], neighbours=["replace-label"])
    paper = explain(release(), bounds[0]).formula[0]
    assert paper == "mu = 2 C sqrt(T) / (D sigma) = 2 x 10 x sqrt(46900) / (60000 x 0.1859) = 0.388316"
    written = paper.split(" = ")[2].replace(" x ", "*").replace("sqrt", "math.sqrt")
    assert eval(written, {"math": math}) == pytest.approx(0.388316, rel=1e-5)


def test_the_exact_formula_can_be_checked_by_hand():
    made = release(sampler="shuffled", participations=100)
    bound = next(b for b in releases.every_row(made, delta=1e-3, adversaries=["client"]) if b.accountant == "gdp-exact")
    noise, square, _ = explain(made, bound).formula
    s, z = (float(v) for v in re.findall(r"(?:= )([\d.]+)(?= \(|$)", noise))
    assert s == pytest.approx(20 / 128)
    assert z == pytest.approx(0.1859 / s, rel=1e-5)
    assert square == f"mu^2 = 100 x {1 / z:.6g}^2 = {10 / z:.6g}^2"


def test_every_accountant_has_a_source_of_its_own():
    sources = {b.accountant: explain(release(), b).source for b in releases.every_row(release(), delta=1e-3, fast=True)}
    assert set(sources) == set(ACCOUNTANTS)
    assert len(set(sources.values())) == len(ACCOUNTANTS)


def explained(made, accountant, relation):
    bounds = upper_bounds(made, delta=1e-3, adversaries=["release"], neighbours=[relation], fast=True)
    bound = next(b for b in bounds if b.accountant == accountant)
    return bound, explain(made, bound).formula


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
@pytest.mark.parametrize("relation", ["replace-label", "zero-out"])
def test_renyi_can_be_checked_by_hand(sampler, relation):
    bound, lines = explained(release(sampler=sampler, sigma=2.0), "rdp", relation)
    moment, s = (float(v) for v in re.search(r"ln E\[e\^\(s L\)\] = (\S+) at s = (\S+),", lines[-2]).groups())
    by_hand = (moment + s * math.log(s) - (1 + s) * math.log1p(s) - math.log(1e-3)) / s
    assert bound.epsilon.upper == pytest.approx(by_hand, rel=1e-4)
    if (sampler, relation) == ("uniform", "replace-label"):
        assert any("both ways round, in units of the 2c" in line for line in lines)
    if sampler == "shuffled":
        n, mu = (float(v) for v in re.search(r"mu\^2 = (\d+) x (\S+)\^2;", lines[-3]).groups())
        assert moment == pytest.approx(n * s * (s + 1) / 2 * mu**2, rel=1e-4)


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
def test_advanced_composition_can_be_checked_by_hand(sampler):
    bound, lines = explained(release(sampler=sampler, sigma=2.0), "advanced-composition", "zero-out")
    n, each, share, mu = (
        float(v)
        for v in re.search(r"n = (\d+) of eps_0 = (\S+) at delta_0 = (\S+), mu = ([\d.e-]+)", lines[-2]).groups()
    )
    by_hand = math.sqrt(2 * math.log(2 / 1e-3) * n) * each + n * each * math.expm1(each)
    assert bound.epsilon.upper == pytest.approx(by_hand, rel=1e-4)
    rate = 1.0 if sampler != "poisson" else 128 / 60_000
    assert each == pytest.approx(math.log1p(rate * math.expm1(epsilon_from_mu(mu, share / rate))), rel=1e-4)
    assert n * share == pytest.approx(1e-3 / (4 if sampler == "uniform" else 2), rel=1e-4)
    if sampler == "uniform":  # the other quarter is the chance that a record takes part more often, and hardly less
        assert binom.sf(n, 46_900, 128 / 60_000) <= 1e-3 / 4 < binom.sf(n - 2, 46_900, 128 / 60_000)


def test_what_a_sound_bound_leans_on_is_said():
    for made, says in (
        (release(), "the server's parameters move by the released scalars alone"),
        (release(server_update="none"), "the server has no parameters that move"),
        (release(sampler="shuffled", clients=3), "clients take turns, and each goes through all records"),
        (release(participation_cap=3), "the server enforces the cap"),
        (release(), "nothing else depends on the data"),
    ):
        bound = upper_bounds(made, delta=1e-3, adversaries=["release"], neighbours=["zero-out"], fast=True)[2]
        assert any(line.startswith(says) for line in explain(made, bound).assumes), says


@pytest.mark.parametrize("sampler", ["poisson", "uniform"])
def test_an_amplified_bound_says_what_it_takes_for_granted_of_hidden_batches(sampler):
    says = "a round depends on earlier batches through what is released alone"
    for accountant, reached, said in (("prv", False, True), ("prv", True, False), ("gdp-exact", False, False)):
        made = release(sampler=sampler, secret_batches=reached)
        bound, _ = explained(made, accountant, "replace-label")
        assumes = explain(made, bound).assumes
        assert any(line.startswith(says) for line in assumes) == said
        assert any(line.startswith("NOT met, secret-batches") for line in assumes) == reached
