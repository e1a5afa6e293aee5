import math
import re

import pytest

from dpzv_audit.accounting import ACCOUNTANTS, Composition, Release, upper_bounds
from dpzv_audit.accounting.explain import explain


def release(**changes):
    values = {
        "batch_size": 128,
        "dataset_size": 60_000,
        "rounds": 46_900,
        "clip": 10.0,
        "sigma": 0.1859,
        "sampler": "poisson",
        "server_update": "joint-zo",
    }
    return Release(**(values | changes))


@pytest.mark.parametrize(
    "made",
    [
        release(),
        release(sampler="shuffled", server_update="sgd", directions=3, server_noise_multiplier=2.0),
        release(channel="zo-gradient", sampler="uniform"),
        Composition((release(), release(rounds=100, sampler="uniform", participation_cap=3))),
    ],
)
def test_every_number_has_a_formula_a_source_and_its_assumptions(made):
    for bound in upper_bounds(made, delta=1e-3, fast=True):
        found = explain(made, bound)
        assert found.source
        assert found.assumes
        assert bool(found.formula) == (bound.epsilon is not None)
        if bound.epsilon is not None:
            # the number of the table stands in the formula
            assert f"{bound.epsilon.upper:.6g}" in " ".join(found.formula)
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
    bound = next(b for b in upper_bounds(made, delta=1e-3, adversaries=["client"]) if b.accountant == "gdp-exact")
    noise, square, _ = explain(made, bound).formula
    s, z = (float(v) for v in re.findall(r"(?:-> |= )([\d.]+)(?= \(|$)", noise))
    assert s == pytest.approx(20 / 128)
    assert z == pytest.approx(0.1859 / s, rel=1e-5)
    assert square == f"mu^2 = 100 x {1 / z:.6g}^2 = {10 / z:.6g}^2"


def test_every_accountant_has_a_source_of_its_own():
    sources = {b.accountant: explain(release(), b).source for b in upper_bounds(release(), delta=1e-3, fast=True)}
    assert set(sources) == set(ACCOUNTANTS)
    assert len(set(sources.values())) == len(ACCOUNTANTS)
