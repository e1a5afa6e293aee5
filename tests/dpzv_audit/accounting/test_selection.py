"""The price of a private search: against the exact law of a search by a Gaussian score, and printed figures."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpzv_audit.accounting import Composition, mu_from_epsilon, tightest_sound, upper_bounds
from dpzv_audit.accounting.selection import Selection, parse_selection

from ...helpers import releases
from ...helpers.refusals import refused

release = partial(releases.release, server_update="frozen", sigma=2.0, sampler="shuffled")
Y = np.linspace(-14.0, 24.0, 400_001)


def density(selection, centre):
    """The density of the best of K scores N(centre, 1): q(y) phi'(F(y)), of the laws as they are printed."""
    m = selection.mean
    below = norm.cdf(Y - centre)
    if selection.trials == "geometric":
        slope = (1 / m) / (1 - (1 - 1 / m) * below) ** 2
    else:
        q = 1.0 - selection._rest
        slope = q / (-math.log1p(-q) * (1 - q * below))
    return norm.pdf(Y - centre) * slope


def exact_delta(selection, mu, epsilon):
    """Delta of a search whose trials release a score of trade-off G_mu and nothing else, the larger direction."""
    here, there = density(selection, 0.0), density(selection, mu)
    worlds = ((here, there), (there, here))
    return max(float(np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0.0), Y)) for a, b in worlds)


@pytest.mark.parametrize("trials", ["geometric", "logarithmic"])
@pytest.mark.parametrize("mean", [1.5, 12.0, 200.0])
def test_the_laws_have_their_means(trials, mean):
    selection = Selection(trials, mean)
    assert np.trapezoid(density(selection, 0.0), Y) == pytest.approx(1.0, abs=1e-6)
    q = 1.0 - selection._rest
    k = np.arange(1, 60_000)
    weights = q**k if trials == "geometric" else q**k / k
    assert (k * weights).sum() / weights.sum() == pytest.approx(mean, rel=1e-6)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.sampled_from(["geometric", "logarithmic"]),
    st.floats(1.1, 100.0),
    st.floats(0.02, 1.5),
    st.floats(-8.0, -2.0),
)
def test_the_bound_holds_for_a_search_by_a_gaussian_score(trials, mean, mu, log_delta):
    selection, delta = Selection(trials, mean), 10.0**log_delta
    epsilon = selection.epsilon(mu, delta).upper
    assert exact_delta(selection, mu, epsilon) <= delta * (1 + 1e-4)


@pytest.mark.parametrize("trials", ["geometric", "logarithmic"])
def test_a_search_that_counts_as_one_trial_is_caught(trials):
    """A search at the price of one trial has five times its delta; the bound is within 40% of the exact epsilon."""
    selection, mu, delta = Selection(trials, 12.0), 0.3, 1e-5
    whole = selection.epsilon(mu, delta).upper
    one = Selection(trials, 1.0 + 1e-9).epsilon(mu, delta).upper
    assert exact_delta(selection, mu, one) > 5 * delta
    assert exact_delta(selection, mu, 0.6 * whole) > delta


@pytest.mark.parametrize(
    ("mean", "geometric", "logarithmic"), [(4, 0.712, 0.741), (12, 0.581, 0.632), (40, 0.488, 0.556)]
)
def test_trials_at_which_a_search_costs_epsilon_1(mean, geometric, logarithmic):
    """Base epsilons computed by another implementation, which rounded its ratio up."""
    for trials, base in (("geometric", geometric), ("logarithmic", logarithmic)):
        total = Selection(trials, mean).epsilon(mu_from_epsilon(base, 1e-5), 1e-5).upper
        assert 0.99 < total <= 1.0


def bounds_of(parts, selection=None, **options):
    return upper_bounds(Composition(parts, selection), delta=1e-5, **options)


def test_an_accountant_of_one_mu_prices_a_search_and_no_other_does():
    parts = (release(), release(rounds=1))
    selection = Selection("geometric", 12.0)
    alone = tightest_sound(bounds_of(parts))
    searched = {bound.accountant: bound for bound in bounds_of(parts, selection, adversaries=["release"])}
    best = tightest_sound(searched.values())
    assert best.accountant == "gdp-exact"
    exact = next(bound for bound in bounds_of(parts) if bound.accountant == "gdp-exact")
    assert best.upper == selection.epsilon(exact.mu, 1e-5).upper > alone.upper
    assert best.mu is None
    assert searched["prv"].gap == searched["rdp"].gap == "no-accountant"


def test_random_participations_have_no_one_mu():
    bounds = bounds_of((release(sampler="poisson"),), Selection("geometric", 3.0), adversaries=["release"])
    assert tightest_sound(bounds) is None


@pytest.mark.parametrize(
    "adversary", ["client", "colluding-clients", "malicious-client", "all-but-one", "eavesdropper"]
)
def test_nothing_is_said_of_who_sees_every_trial(adversary):
    bounds = bounds_of((release(), release(rounds=1)), Selection("geometric", 3.0), adversaries=[adversary])
    assert all(bound.epsilon is None for bound in bounds)
    assert all("other-trials" in bound.gap for bound in bounds if bound.gap != "no-accountant")


@pytest.mark.parametrize("trials", ["geometric", "logarithmic"])
def test_trials_almost_without_noise_cost_the_greatest_ratio(trials):
    selection = Selection(trials, 12.0)
    ratios = [selection.log_ratio(mu) for mu in (0.1, 1.0, 10.0, 24.0, 24.1, 1e6, 1e75)]
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(ratios[3], rel=1e-9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("poisson:mean=3", "selection is 'poisson:mean=3'; use geometric:mean=12"),
        ("geometric", "use geometric:mean=12"),
        ("geometric:mean=", "use geometric:mean=12"),
        ("geometric:mean=1", "use a mean above 1"),
        ("logarithmic:mean=nan", "use a mean above 1"),
        ("logarithmic:mean=inf", "use a mean above 1"),
    ],
)
def test_other_searches_are_one_line(text, words):
    with refused(words):
        parse_selection(text)
