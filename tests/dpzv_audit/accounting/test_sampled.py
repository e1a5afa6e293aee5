"""One sampled round: its window, and its tails against fifty digits."""

import mpmath
import numpy as np
import pytest

from dpzv_audit.accounting.sampled import SampledGaussian

PAIRS = [
    SampledGaussian(kind=kind, rate=rate, noise=noise)
    for kind in ("remove", "add", "replace")
    for rate in (1e-3, 0.1, 0.5, 0.95)
    for noise in (0.2, 3.0)
]


def mixture_mass(mean, pair, x, side):
    """Mass left (side 1) or right (-1) of x of (1-r) N(0, z^2) + r N(mean, z^2)."""
    with mpmath.workdps(50):
        x, z, r = mpmath.mpf(x), mpmath.mpf(pair.noise), mpmath.mpf(pair.rate)
        return (1 - r) * mpmath.ncdf(side * x / z) + r * mpmath.ncdf(side * (x - mean) / z)


def masses(pair, x, side):
    """(P, Q) of the pair beyond x, by definition; add is reflected in x."""
    plain, up, down = (mixture_mass(mean, pair, x, side) for mean in (0, 1, -1))
    return {"remove": (up, plain), "add": (plain, down), "replace": (up, down)}[pair.kind]


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("outside", [1e-3, 1e-12])
def test_the_window_leaves_out_no_more_than_it_says(pair, outside):
    low, high = pair.window(outside)
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
    ("kind", "least", "most"), [("remove", 0.01, 60.0), ("add", -60.0, -0.01), ("replace", -60, 60)]
)
def test_the_inverse_takes_every_loss_back(kind, least, most, rate, noise):
    # Through the places where one form of the logarithm gives way to another, each a matter of a few units.
    pair = SampledGaussian(kind=kind, rate=rate, noise=noise)
    t = np.linspace(least, most, 3001)
    assert pair.loss(pair.inverse(t)) == pytest.approx(t, abs=1e-9)


@pytest.mark.parametrize("kind", ["remove", "add", "replace"])
@pytest.mark.parametrize("noise", [0.05, 0.1, 0.5])
def test_the_quadrature_knows_that_both_are_probabilities(kind, noise):
    pair = SampledGaussian(kind=kind, rate=0.3, noise=noise)
    x, weights, _ = pair.quadrature(-1.0 - 8.0 * noise, 1.0 + 8.0 * noise)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert weights @ np.exp(-pair.loss(x)) == pytest.approx(1.0, abs=1e-11)
