"""Our numbers against accountants that share no code with them: dp-accounting's PLD, and plain quadrature."""

import json
import logging
import math
from dataclasses import replace
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.signal import fftconvolve
from scipy.stats import binom, norm

from dpzv_audit.accounting import Release, tightest_sound, upper_bounds
from dpzv_audit.accounting.gaussian import Participation, participations_epsilon
from dpzv_audit.base.findings import to_jsonable

from ...helpers.releases import composed

DELTAS = (1e-5, 1e-3, 1e-8)
# rate, noise multiplier against one contribution, rounds
RELEASES = [
    (rate, noise, rounds)
    for rate, noises in {
        0.001: (0.4, 0.7, 1.0, 2.0),
        0.01: (0.5, 0.8, 1.5, 4.0),
        0.1: (0.8, 1.2, 3.0, 10.0),
        0.5: (2.0, 4.0, 8.0, 20.0),
    }.items()
    for noise in noises
    for rounds in (1, 40, 400)
]
GRID = [
    pytest.param(
        rate,
        noise,
        rounds,
        DELTAS[number % 3],
        replace,
        id=f"r{rate}-z{noise}-T{rounds}-d{DELTAS[number % 3]:g}-{'replace' if replace else 'add-remove'}",
        marks=[] if (number + replace) % 11 == 3 else pytest.mark.slow,
    )
    for number, (rate, noise, rounds) in enumerate(RELEASES)
    for replace in (False, True)
]


def ours(rate, noise, rounds, delta, replace):
    kinds = ("replace",) if replace else ("remove", "add")
    found = [composed(k, rate, noise, rounds, delta).epsilon for k in kinds]
    return max(e.lower for e in found), max(e.estimate for e in found), max(e.upper for e in found)


@pytest.fixture(scope="module", autouse=True)
def _without_warnings():
    """dp-accounting warns of its own grids; the level is put back, or tests that come later would see no warning."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    yield
    root.setLevel(before)


def pld(rate, noise, rounds, delta, replace, interval, *, pessimistic):
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    loss = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        value_discretization_interval=interval,
        pessimistic_estimate=pessimistic,
        sampling_prob=rate,
        use_connect_dots=pessimistic,
        neighboring_relation=NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    return loss.self_compose(rounds).get_epsilon_for_delta(delta)


def test_the_grid_is_large_enough():
    assert len(GRID) >= 60


@pytest.mark.parametrize(("rate", "noise", "rounds", "delta", "replace"), GRID)
def test_agrees_with_pld_within_both_errors(rate, noise, rounds, delta, replace):
    lower, estimate, upper = ours(rate, noise, rounds, delta, replace)
    # PLD is off by at most interval/2 a round: small against epsilon / T
    interval = max(0.04 * upper / rounds, 1e-6)
    most, least = (
        pld(rate, noise, rounds, delta, replace, interval, pessimistic=pessimistic) for pessimistic in (True, False)
    )
    assert least <= most
    assert lower <= most * (1 + 1e-9) + 1e-9
    assert least <= upper * (1 + 1e-9) + 1e-9
    # far closer than either promises
    assert estimate == pytest.approx(most, rel=0.01, abs=interval)
    assert upper - lower <= max(0.02 * upper, 0.02)


@pytest.mark.ci
@settings(max_examples=10, deadline=None)
@given(
    rate=st.floats(math.log(1e-4), math.log(0.9)).map(math.exp),
    noise=st.floats(math.log(0.5), math.log(20.0)).map(math.exp),
    rounds=st.integers(1, 100),
    delta=st.sampled_from([1e-9, 1e-6, 1e-4, 1e-2]),
    replace=st.booleans(),
)
def test_upper_is_never_below_plds_optimistic_estimate(rate, noise, rounds, delta, replace):
    _, _, upper = ours(rate, noise, rounds, delta, replace)
    if upper > 100.0:
        return
    interval = max(0.1 * upper / rounds, 1e-4)
    assert pld(rate, noise, rounds, delta, replace, interval, pessimistic=False) <= upper * (1 + 1e-9) + 1e-9


def fixed_size_delta(epsilon, rounds, rate, z, step):
    """delta of `rounds` fixed-size rounds: the loss law read off the profile, rounded up to a grid, convolved directly.

    The profile is that of Zhu, Dong and Wang's proposition 30, in closed form. Of a pair with the profile H(e^t),
    P(L > t) = H - dH/dt: written out, that is the tail of `remove` right of 0 and of `add` left of it.
    """
    span = step * math.ceil(40.0 / step / 2.0)
    t = np.arange(-span, span + step / 2.0, step)
    x = z * z * np.log1p(np.expm1(np.abs(t)) / rate) + 0.5
    above = np.where(
        t >= -step / 4.0,
        (1.0 - rate) * norm.sf(x / z) + rate * norm.sf((x - 1.0) / z),
        norm.cdf(x / z),
    )
    single = np.append(1.0 - above[0], above[:-1] - above[1:])  # all of (t - step, t] at t
    total, lowest = single, t[0]
    for _ in range(rounds - 1):
        total, lowest = fftconvolve(total, single), lowest + t[0]
    losses = lowest + step * np.arange(len(total))
    return float(np.maximum(total, 0.0) @ np.maximum(-np.expm1(epsilon - losses), 0.0)) + rounds * above[-1]


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize(("rate", "z", "delta"), [(0.01, 0.5, 1e-4), (0.2, 1.0, 1e-3), (0.5, 2.0, 1e-5)])
def test_fixed_size_rounds_are_the_convolution_of_their_profile(rate, z, delta, rounds):
    step = 2e-4
    found = composed("fixed-size", rate, z, rounds, delta).epsilon
    # The grid moves each round's loss by less than a step: between these two lies the truth.
    assert fixed_size_delta(found.upper + rounds * step, rounds, rate, z, step) <= delta * (1 + 1e-6)
    assert fixed_size_delta(found.lower, rounds, rate, z, step) >= delta * (1 - 1e-3)
    assert found.upper - found.lower <= 0.02 * found.upper


@pytest.mark.parametrize(
    ("batch", "rounds", "z", "value", "error"),
    [(128, 46_900, 1.190, 1.659, 0.012), (128, 46_900, 8.041, 0.107, 0.003), (64, 93_750, 0.8409, 2.269, 0.018)],
)
def test_fixed_size_rounds_at_the_size_of_the_papers(batch, rounds, z, value, error):
    found = composed("fixed-size", batch / 60_000, z, rounds, 1e-3).epsilon
    assert found.estimate == pytest.approx(value, abs=error)
    # Poisson's symmetric pair says less: the two samplings must not be taken for each other.
    poisson = composed("replace", batch / 60_000, 2.0 * z, rounds, 1e-3).epsilon
    assert poisson.upper < found.lower


def quadrature_delta(epsilon, rounds, rate, z):
    """E_n of the integral of (phi(x - mu_n) - e^eps phi(x))+, by quad over x and an exact sum over all n."""
    counts = np.arange(rounds + 1)
    weights = binom.pmf(counts, rounds, rate)
    total = 0.0
    for n, weight in zip(counts, weights, strict=True):
        if n == 0 or weight < 1e-30:
            continue
        mu = math.sqrt(n) / z
        start = epsilon / mu + mu / 2  # where the difference turns positive
        tail = start + np.array([0.0, 0.5, 2.0, 6.0, 14.0])

        def density(x, mu=mu):
            return norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x)

        value = sum(quad(density, a, b, epsabs=1e-18, epsrel=1e-11)[0] for a, b in pairwise(tail))
        centre = max(mu, start)
        assert tail[-1] > centre + 8 or norm.sf(tail[-1] - mu) < 1e-18
        total += weight * value
    return total


MIXTURES = [
    (rounds, rate, z, delta)
    for rounds, rate in ((1, 0.3), (10, 0.1), (50, 0.02), (200, 0.05), (400, 0.001), (1000, 0.01), (30, 0.9))
    for z, delta in ((0.7, 1e-3), (2.0, 1e-5), (8.0, 1e-6))
]


@pytest.mark.parametrize(
    ("rounds", "rate", "z", "delta"),
    [pytest.param(*case, marks=pytest.mark.slow) if place % 4 else case for place, case in enumerate(MIXTURES)],
)
def test_binomial_mixture_is_the_quadrature(rounds, rate, z, delta):
    found = participations_epsilon([Participation(mu=1.0 / z, rounds=rounds, rate=rate, fixed=None)], delta=delta)
    if found.upper == 0.0:
        assert quadrature_delta(0.0, rounds, rate, z) <= delta * (1 + 1e-8)
    else:
        assert quadrature_delta(found.upper, rounds, rate, z) == pytest.approx(delta, rel=1e-6)
    assert len(MIXTURES) >= 20


def gaussian_epsilon(mu, delta):
    """Epsilon of a mu-GDP mechanism by bisection in fifty digits."""
    with mpmath.workdps(50):
        mu, delta = mpmath.mpf(mu), mpmath.mpf(delta)
        return bisected(lambda e: mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu), delta)


def one_round_epsilon(rate, z, delta):
    """Epsilon of one sampled round, `remove`, in fifty digits: more rounds only tell more."""
    with mpmath.workdps(50):
        z, rate, delta = mpmath.mpf(z), mpmath.mpf(rate), mpmath.mpf(delta)

        def at(epsilon):
            x = z * z * mpmath.log((mpmath.expm1(epsilon) + rate) / rate) + mpmath.mpf(0.5)
            base = mpmath.ncdf(-x / z)
            return (1 - rate) * base + rate * mpmath.ncdf((1 - x) / z) - mpmath.exp(epsilon) * base

        return bisected(at, delta)


def bisected(at, delta):
    low, high = mpmath.mpf(0), mpmath.mpf(1)
    if at(mpmath.mpf(10) ** -40) <= delta:
        return 0.0
    while at(high) > delta:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) > delta else (low, middle)
    return float(low)


def certainly_more_than(release, relation, adversary, delta, best):
    """An epsilon that no sound bound may lie below, without our accountants; `best` is one, for the size of a grid."""
    z = release.noise_multiplier(relation)
    rounds, rate = release.rounds, release.rate
    if rate == 1.0:
        return gaussian_epsilon(math.sqrt(rounds) / z, delta)
    if adversary == "client":  # it sees how often the record takes part: n or more with probability p
        found = [0.0]
        for tail in (0.9, 0.5, 0.1, 1e-2, 1e-4):
            n = int(binom.isf(tail, rounds, rate)) + 1
            p = float(binom.sf(n - 1, rounds, rate))
            if n < 2000 * z * z and delta < p:
                found.append(gaussian_epsilon(math.sqrt(n) / z, delta / p))
        return max(found)
    # A record replaced is one removed, and another besides.
    found = one_round_epsilon(rate, z if relation != "replace-label" else 2.0 * z, delta)
    if relation == "replace-label" or not 1e-12 <= delta <= 0.1 or rounds > 10_000 or not 1e-2 < best < 60.0:
        return found
    return max(found, pld(rate, z, rounds, delta, False, best / 1000.0 / math.sqrt(rounds), pessimistic=False))


SMALL = 12
RANDOM = [pytest.param(number, marks=[] if number < SMALL else pytest.mark.slow) for number in range(200)]


@pytest.mark.parametrize("number", RANDOM)
def test_no_bound_of_a_random_release_lies_below_independent_values(number):
    """Public rates, deltas from 1e-300 to next to 1, 1 to 10^7 rounds; and no accountant fails."""
    rng = np.random.default_rng([37, number])
    relation = str(rng.choice(["add-remove", "zero-out", "replace-label"]))
    adversary = "release" if relation == "add-remove" else str(rng.choice(["release", "client"]))
    rounds = round(10.0 ** rng.uniform(0.0, 3.0 if number < SMALL else 7.0))
    made = Release(
        batch_size=int(rng.choice([1, 64])),
        dataset_size=None if rng.random() < 0.5 else 10**6,
        sample_rate=1.0 if rng.random() < 0.1 else float(10.0 ** rng.uniform(-5.0, 0.0)),
        rounds=rounds,
        clip=1.0,
        sigma=1.0,
        sampler="poisson",
        server_update="frozen",
        padded=True,
    )
    made = replace(made, sigma=10.0 ** rng.uniform(-1.0, 2.5) * made.sensitivity(relation))
    delta = float(rng.choice([1e-300, 1e-100, 1e-18, 1e-9, 1e-5, 1e-3, 0.1, 0.9, 1.0 - 1e-12]))
    bounds = upper_bounds(made, delta=delta, adversaries=[adversary], neighbours=[relation])
    json.dumps(to_jsonable(bounds), allow_nan=False)
    least = certainly_more_than(made, relation, adversary, delta, tightest_sound(bounds).upper)
    assert all(bound.upper >= least * (1.0 - 1e-7) - 1e-12 for bound in bounds if bound.sound), (bounds, least)
