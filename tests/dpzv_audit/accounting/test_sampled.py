"""One sampled round: its window, and its tails against fifty digits."""

import math

import mpmath
import numpy as np
import pytest

from dpzv_audit.accounting.sampled import SampledGaussian

PAIRS = [
    SampledGaussian(kind=kind, rate=rate, noise=noise)
    for kind in ("remove", "add", "replace", "fixed-size")
    for rate in (1e-3, 0.1, 0.5, 0.95)
    for noise in (0.2, 3.0)
]


def mixture_mass(mean, pair, x, side):
    """Mass left (side 1) or right (-1) of x of (1-r) N(0, z^2) + r N(mean, z^2)."""
    with mpmath.workdps(50):
        x, z, r = mpmath.mpf(x), mpmath.mpf(pair.noise), mpmath.mpf(pair.rate)
        return (1 - r) * mpmath.ncdf(side * x / z) + r * mpmath.ncdf(side * (x - mean) / z)


def fixed_size_mass(pair, x, side):
    """Mass of (1-r) N(0, z^2) + r U left or right of x, U made of the pieces of its definition."""
    with mpmath.workdps(50):
        x, z, r, half = mpmath.mpf(x), mpmath.mpf(pair.noise), mpmath.mpf(pair.rate), mpmath.mpf(1) / 2

        def between(low, high, mean):
            return mpmath.ncdf((high - mean) / z) - mpmath.ncdf((low - mean) / z) if high > low else mpmath.mpf(0)

        low, high = (-mpmath.inf, x) if side > 0 else (x, mpmath.inf)
        moved = between(low, min(high, -half), 0) + between(max(low, half), high, 1)
        return (1 - r) * mpmath.ncdf(side * x / z) + r * moved


def masses(pair, x, side):
    """(P, Q) of the pair beyond x, by definition; add is reflected in x."""
    if pair.kind == "fixed-size":
        return fixed_size_mass(pair, x, side), fixed_size_mass(pair, -x, -side)
    plain, up, down = (mixture_mass(mean, pair, x, side) for mean in (0, 1, -1))
    return {"remove": (up, plain), "add": (plain, down), "replace": (up, down)}[pair.kind]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("outside", [1e-3, 1e-12])
def test_the_window_leaves_out_no_more_than_it_says(pair, outside):
    low, high = pair.window(math.log(outside))
    left, right = masses(pair, low, 1)[0], masses(pair, high, -1)[0]
    assert left + right <= outside * (1.0 + 1e-9)
    assert right >= outside / 100.0  # and is not much wider than it need be


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_tails_keep_their_digits(pair):
    x = pair.noise * np.array([-9.0, -1.0, 0.3, 2.0, 9.0]) + 0.5
    for i, place in enumerate(x):
        p_right, q_right = masses(pair, place, -1)
        exact = float(mpmath.log(p_right)), float(mpmath.log(q_right))
        np.testing.assert_allclose([float(v[i]) for v in pair.log_survivals(x)], exact, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("noise", [0.1, 0.15, 0.2, 1.0])
@pytest.mark.parametrize("rate", [1e-6, 0.02, 0.6])
@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [("remove", 0.01, 60.0), ("add", -60.0, -0.01), ("replace", -60, 60), ("fixed-size", -60, 60)],
)
def test_the_inverse_takes_every_loss_back(kind, least, most, rate, noise):
    # Through the places where one form of the logarithm gives way to another, each a matter of a few units.
    pair = SampledGaussian(kind=kind, rate=rate, noise=noise)
    t = np.linspace(least, most, 3001)
    assert pair.loss(pair.inverse(t)) == pytest.approx(t, abs=1e-9)


@pytest.mark.parametrize("kind", ["remove", "add", "replace", "fixed-size"])
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.5])
def test_the_quadrature_knows_that_both_are_probabilities(kind, noise):
    pair = SampledGaussian(kind=kind, rate=0.3, noise=noise)
    x, weights, _ = pair.quadrature(-1.0 - 8.0 * noise, 1.0 + 8.0 * noise)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert weights @ np.exp(-pair.loss(x)) == pytest.approx(1.0, abs=1e-11)


def by_definition(pair, t):
    """Divergence of order e^t, the integral of (p - e^t q)+: the loss increases, so that of both right of one x."""
    p, q = (float(np.exp(log_survival)) for log_survival in pair.log_survivals(pair.inverse(np.float64(t))))
    return p - np.exp(t) * q


@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.7])
@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
def test_the_fixed_size_pair_has_the_divergence_of_both_theorems(rate, noise):
    # Of `remove` from order 1 up and of `add` below it, and of neither the other way round.
    pairs = {kind: SampledGaussian(kind=kind, rate=rate, noise=noise) for kind in ("fixed-size", "remove", "add")}
    for t in (-2.0, -0.5, -0.01 * rate, 0.01 * rate, 0.1, 1.0, 3.0):
        found = {kind: by_definition(pair, t) for kind, pair in pairs.items()}
        assert found["fixed-size"] == pytest.approx(found["remove" if t >= 0.0 else "add"], rel=1e-9, abs=1e-13)
        assert found["fixed-size"] >= max(found["remove"], found["add"]) - 1e-12
    # The other pair is really smaller somewhere: the order matters.
    t = -0.1 * rate / noise
    assert by_definition(pairs["remove"], t) < by_definition(pairs["add"], t) - 1e-4 * rate


@pytest.mark.parametrize("noise", [0.06, 0.5, 3.0])
def test_at_a_rate_of_one_the_loss_is_the_gaussian_one_however_low(noise):
    """At noise 0.06 it falls to -131, where 1 - r + r e^u is 0 in floats."""
    pair = SampledGaussian(kind="remove", rate=1.0, noise=noise)
    x = np.linspace(0.5 - 0.5 * 131.0 * noise**2, 1.0 + 9.0 * noise, 7)
    np.testing.assert_allclose(pair.loss(x), (x - 0.5) / noise**2, rtol=1e-12, atol=1e-12)
