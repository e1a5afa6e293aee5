import math

import numpy as np
import pytest
from scipy.special import ndtr

from dpzv_audit.statistics.families import FAMILIES, GAUSSIAN, LAPLACE, PURE

from ...helpers.scores import gaussian

ALPHA = np.concatenate([[0.0, 1e-12, 1e-6], np.linspace(1e-3, 1.0, 400)])
THETAS = (0.05, 1.0, 4.0)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("theta", THETAS)
def test_curves_are_convex_falling_and_their_own_inverse(name, theta):
    family = FAMILIES[name]
    beta = family.curve(ALPHA, theta)
    assert np.all((beta >= 0.0) & (beta <= 1.0 - ALPHA + 1e-12))
    assert np.all(np.diff(beta) <= 1e-12)
    assert np.all(np.diff(np.diff(beta[3:])) >= -1e-9)
    inside = (beta > 1e-6) & (beta < 1.0)
    assert family.curve(beta[inside], theta) == pytest.approx(ALPHA[inside], abs=1e-9)
    assert np.all(family.curve(ALPHA, 1.1 * theta) <= beta + 1e-12)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("theta", THETAS)
def test_epsilon_is_the_steepest_line_over_the_curve(name, theta):
    # (epsilon, delta) holds exactly if 1 - delta - e^epsilon a stays below the curve for every a.
    family, delta = FAMILIES[name], 1e-3
    a = np.concatenate([np.geomspace(1e-12, 0.5, 200_000), np.linspace(0.5, 1.0, 20_000)])
    epsilon = family.epsilon(theta, delta)
    gap = 1.0 - family.curve(a, theta) - np.exp(epsilon) * a
    assert float(gap.max()) == pytest.approx(delta, rel=1e-3) or (epsilon == 0.0 and gap.max() < delta)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("theta", THETAS)
def test_the_blow_up_of_plain_floats_is_the_curve(name, theta):
    family = FAMILIES[name]
    r = np.linspace(1e-9, 1.0 - 1e-9, 501)
    found = [family.blow_up(float(x), theta) for x in r]
    assert found == pytest.approx(family.curve(1.0 - r, theta), rel=1e-6, abs=1e-14)
    assert family.blow_up(0.0, theta) == 0.0
    assert family.blow_up(1.0, theta) == pytest.approx(1.0)


def test_curves_of_simulated_mechanisms():
    # 200,000 draws a side: a rate strays by 5 standard errors of at most 0.0012 with probability below 1e-6.
    rng, n = np.random.default_rng(0), 200_000
    worlds = {
        GAUSSIAN: gaussian(rng, 1.3, n),
        LAPLACE: (rng.laplace(1.3, 1, n), rng.laplace(0, 1, n)),
        PURE: (rng.random(n) < 1 / (1 + np.exp(-1.3)), rng.random(n) >= 1 / (1 + np.exp(-1.3))),
    }
    for family, (inside, outside) in worlds.items():
        for t in (-0.5, 0.5, 2.0) if family is not PURE else (0.5,):
            alpha = np.array([np.mean(outside > t)])
            assert np.mean(inside <= t) == pytest.approx(float(family.curve(alpha, 1.3)[0]), abs=0.02)
    assert float(GAUSSIAN.curve(np.array([0.3]), 0.0)[0]) == pytest.approx(0.7)
    assert ndtr(0.0) == 0.5


def test_the_lattice_runs_from_nothing_to_the_most():
    assert GAUSSIAN.at(-1) == 0.0
    assert GAUSSIAN.at(0) == GAUSSIAN.least
    assert GAUSSIAN.at(GAUSSIAN.steps) <= GAUSSIAN.most < GAUSSIAN.at(GAUSSIAN.steps + 1)


def test_randomised_response_at_a_delta_that_allows_everything():
    # delta(0) = tanh(epsilon / 2): from there on nothing is left, though the formula's logarithm has no argument.
    for epsilon in (0.1, 2.0):
        all_of_it = math.tanh(epsilon / 2.0)
        for delta in (all_of_it * 1.0001, 0.6 if epsilon < 1.0 else 0.95, 0.999):
            assert FAMILIES["pure"].epsilon(epsilon, delta) == 0.0
        assert FAMILIES["pure"].epsilon(epsilon, all_of_it * 0.9999) > 0.0
