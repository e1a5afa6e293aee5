import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv_audit.accounting import (
    delta_from_mu,
    epsilon_delta_tradeoff,
    epsilon_from_mu,
    gaussian_tradeoff,
    mu_from_epsilon,
)
from dpzv_audit.accounting.gaussian import log_delta_from_mu

from ...helpers.refusals import refused

MUS = [1e-3, 3e-3, 0.02, 0.0999, 0.1001, 0.3884, 1.0, 3.0, 11.89, 40.0, 120.0, 200.0]
DELTAS = [1e-12, 1e-9, 1e-5, 1e-3, 0.1, 0.5]
mus = st.floats(math.log(1e-3), math.log(200.0)).map(math.exp)
deltas = st.floats(math.log(1e-12), math.log(0.5)).map(math.exp)


def reference_delta(epsilon, mu):
    """Equation 11 at 50 digits, with as many more as its cancellation eats."""
    with mpmath.workdps(120):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        first, second = (mpmath.erfc((e / m + s * m / 2) / mpmath.sqrt(2)) / 2 for s in (-1, 1))
        return first - mpmath.exp(e) * second


def reference_epsilon(mu, delta, near):
    """Newton's method at 50 digits from `near`; the derivative of delta is -e^eps Phi(-eps/mu - mu/2)."""
    with mpmath.workdps(70):
        e, m = mpmath.mpf(near), mpmath.mpf(mu)
        for _ in range(6):
            slope = -mpmath.exp(e) * mpmath.erfc((e / m + m / 2) / mpmath.sqrt(2)) / 2
            value = reference_delta(e, mu)
            e -= (mpmath.log(value) - mpmath.log(mpmath.mpf(delta))) * value / slope
        return e


def relative(a, b):
    return float(abs(mpmath.mpf(float(a)) / b - 1))


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_agrees_with_fifty_digits(mu, delta):
    epsilon = epsilon_from_mu(mu, delta)
    if reference_delta(0.0, mu) <= delta:
        assert epsilon == 0.0
        return
    assert relative(epsilon, reference_epsilon(mu, delta, epsilon)) < 1e-9
    assert relative(delta_from_mu(epsilon, mu), reference_delta(epsilon, mu)) < 1e-9


@settings(max_examples=60, deadline=None)
@given(mu=mus, delta=deltas)
def test_epsilon_agrees_with_fifty_digits_anywhere(mu, delta):
    epsilon = epsilon_from_mu(mu, delta)
    if epsilon == 0.0:
        assert reference_delta(0.0, mu) <= delta * (1 + 1e-12)
    elif epsilon > 1e-6 * mu:  # nearer to 0 the root itself is lost in the rounding of delta
        assert relative(epsilon, reference_epsilon(mu, delta, epsilon)) < 1e-9


@settings(max_examples=100, deadline=None)
@given(mu=mus, share=st.floats(0.0, 12.0))
def test_delta_agrees_with_fifty_digits(mu, share):
    epsilon = max(0.0, mu * (mu / 2 + share))
    assert relative(delta_from_mu(epsilon, mu), reference_delta(epsilon, mu)) < 1e-9


@settings(max_examples=60, deadline=None)
@given(mu=mus, delta=deltas)
def test_mu_inverts_epsilon(mu, delta):
    epsilon = epsilon_from_mu(mu, delta)
    if epsilon > 1e-6 * mu:
        assert mu_from_epsilon(epsilon, delta) == pytest.approx(mu, rel=1e-9)


def test_mu_at_fifty_digits():
    for epsilon, delta in [(0.1, 1e-3), (1.0, 1e-5), (10.0, 1e-5), (0.0, 0.3), (2e4, 1e-12), (5.0, 0.5)]:
        mu = mu_from_epsilon(epsilon, delta)
        with mpmath.workdps(60):
            low, high = (reference_delta(epsilon, mu * (1 + s * mpmath.mpf(10) ** -9)) for s in (-1, 1))
            assert low < delta < high


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu"),
    [
        (0.1, 1e-3, 0.0575),
        (0.5, 1e-3, 0.2169),
        (1.0, 1e-3, 0.3884),
        (5.0, 1e-3, 1.4496),
        (0.1, 1e-5, 0.0325),
        (0.5, 1e-5, 0.1422),
        (1.0, 1e-5, 0.2681),
        (5.0, 1e-5, 1.1212),
        (10.0, 1e-5, 2.0004),
    ],
)
def test_known_values_of_mu(epsilon, delta, mu):
    assert mu_from_epsilon(epsilon, delta) == pytest.approx(mu, abs=5e-5)


def test_far_beyond_floats_stays_finite():
    assert float(log_delta_from_mu(5000.0, 1.0)) == pytest.approx(-(4999.5**2) / 2, rel=1e-5)
    assert float(log_delta_from_mu(1e6, 2e4)) == pytest.approx(0.0, abs=1e-300)
    assert math.isfinite(epsilon_from_mu(1e60, 1e-5))
    assert relative(delta_from_mu(1e-7, 1e-8), reference_delta(1e-7, 1e-8)) < 1e-9


def test_broadcasts():
    grid = log_delta_from_mu(np.array([0.0, 1.0])[:, None], np.array([0.05, 1.0, 30.0]))
    one_by_one = [[float(log_delta_from_mu(e, m)) for m in (0.05, 1.0, 30.0)] for e in (0.0, 1.0)]
    np.testing.assert_array_equal(grid, one_by_one)
    assert float(delta_from_mu(1.0, 0.0)) == 0.0


@pytest.mark.parametrize("mu", [0.05, 0.4, 3.0])
def test_gaussian_tradeoff_touches_every_epsilon_delta_line(mu):
    alpha = np.concatenate(([0.0], np.geomspace(1e-12, 1.0, 2001)))
    beta = gaussian_tradeoff(alpha, mu)
    for epsilon in (0.0, 0.3, 1.0):
        gap = beta - epsilon_delta_tradeoff(alpha, epsilon, float(delta_from_mu(epsilon, mu)))
        assert gap.min() > -1e-12
        assert gap.min() < 1e-4
    assert beta[0] == 1.0
    assert beta[-1] == 0.0
    # the curve is its own inverse
    np.testing.assert_allclose(gaussian_tradeoff(beta[1:-1], mu), alpha[1:-1], atol=1e-9)


def test_epsilon_delta_tradeoff_known_points():
    np.testing.assert_allclose(epsilon_delta_tradeoff([0.0, 0.5, 1.0], 0.0, 0.0), [1.0, 0.5, 0.0])
    assert float(epsilon_delta_tradeoff(0.25, math.log(2.0), 0.1)) == pytest.approx(0.4)
    assert float(epsilon_delta_tradeoff(0.1, 5000.0, 1e-5)) == 0.0


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: epsilon_from_mu(-1.0, 0.1), "mu is -1"),
        (lambda: epsilon_from_mu(1e80, 0.1), "mu is 1e"),
        (lambda: epsilon_from_mu(1.0, 1.0), "delta is 1"),
        (lambda: mu_from_epsilon(math.inf, 0.1), "epsilon is inf"),
        (lambda: mu_from_epsilon(1.0, 0.0), "delta is 0"),
        (lambda: gaussian_tradeoff(1.5, 1.0), "alpha"),
        (lambda: epsilon_delta_tradeoff(0.5, 1.0, 1.0), "delta is 1"),
        (lambda: log_delta_from_mu(-0.1, 1.0), "epsilon is -0.1 and mu 1.0"),
    ],
)
def test_wrong_numbers_are_named(call, names):
    with refused(names):
        call()


@pytest.mark.parametrize("u", [29.9, 30.01, 31.0, 45.0, 400.0])
@pytest.mark.parametrize("mu", [1e-4, 0.3, 2.9])
def test_delta_keeps_eleven_digits_where_the_series_takes_over(u, mu):
    # Past u = epsilon/mu - mu/2 = 30 the slope of the Mills ratio is a series: its coefficients decide digits 9 to 11.
    epsilon = mu * (u + mu / 2.0)
    with mpmath.workdps(60):
        exact = mpmath.log(reference_delta(epsilon, mu))
        # The rounding of epsilon/mu alone moves ln delta by u^2 eps.
        assert abs(float(log_delta_from_mu(epsilon, mu)) - exact) < 1e-11 + 8.0 * u * u * 2.2e-16


def test_delta_is_one_where_mu_leaves_the_squares_of_floats():
    assert float(log_delta_from_mu(1.0, 1e200)) == 0.0
    assert float(delta_from_mu(1e10, 1e160)) == 1.0
    # Out of reach on the other side: no delta at all.
    assert float(log_delta_from_mu(1e200, 1.0)) == -math.inf
    np.testing.assert_array_equal(delta_from_mu(1.0, [0.0, 1e200]), [0.0, 1.0])


def test_a_tradeoff_curve_is_never_below_zero_and_takes_rates_alone():
    np.testing.assert_array_equal(epsilon_delta_tradeoff([0.95, 1.0], 0.5, 0.1), [0.0, 0.0])
    for alpha in ([0.5, 1.5], [-0.1, 0.5], [0.5, math.nan]):
        with refused("alpha"):
            epsilon_delta_tradeoff(alpha, 1.0, 0.0)
        with refused("alpha"):
            gaussian_tradeoff(alpha, 1.0)
