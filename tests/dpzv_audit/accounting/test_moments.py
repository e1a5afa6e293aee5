"""Certified bounds from moments: what the window leaves out is paid for, and steep losses are not integrated."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from dpzv_audit.accounting.sampled import (
    ORDERS,
    SampledGaussian,
    certified_lower,
    composed_moments,
    epsilon_of_moments,
    loss_moments,
)


def test_what_the_window_leaves_out_is_taken_from_delta():
    moments = loss_moments(SampledGaussian(kind="remove", rate=0.2, noise=1.3), log_outside=math.log(1e-9))
    whole, cut = replace(moments, outside=0.0), replace(moments, outside=1e-5)
    assert cut.epsilon(3e-5) == pytest.approx(whole.epsilon(2e-5), rel=1e-12)
    assert cut.epsilon(3e-5) > 1.02 * whole.epsilon(3e-5)
    assert cut.epsilon(1e-5) == cut.epsilon(9e-6) == math.inf
    many = composed_moments([(cut, 3), (whole, 40)])
    assert many.outside == pytest.approx(3e-5)
    assert many.epsilon(3e-5) == math.inf
    assert many.up == pytest.approx(43 * moments.up)
    assert (many.ceiling, many.floor) == pytest.approx((43 * moments.ceiling, 43 * moments.floor))


@pytest.mark.parametrize(("kind", "rate"), [("remove", 0.3), ("add", 0.3), ("replace", 0.05), ("replace", 0.97)])
def test_orders_too_steep_for_a_panel_are_left_out(kind, rate):
    # Where a replaced record is nearly always sampled the loss is steepest in the middle, not at the window's ends.
    pair = SampledGaussian(kind=kind, rate=rate, noise=2.0)
    moments = loss_moments(pair, log_outside=math.log(1e-12))
    low, high = pair.window(math.log(1e-12))
    width = pair.quadrature(low, high)[2]
    x = np.linspace(low, high - width, 40_001)
    steepest = float((pair.loss(x + width) - pair.loss(x)).max())
    assert 0.9 * 16.0 < steepest * ORDERS[np.isfinite(moments.up)][-1] <= 16.0 * (1.0 + 1e-3)
    assert np.array_equal(np.isfinite(moments.up), np.isfinite(moments.down))


@pytest.mark.parametrize(("mu", "delta"), [(0.5, 1e-5), (3.0, 1e-3)])
def test_moments_of_a_gaussian_give_the_best_order_of_its_closed_form(mu, delta):
    # ln E[e^(s L)] = s (s + 1) mu^2 / 2; the conversion of Canonne, Kamath and Steinke, proposition 12, by itself.
    def converted(s):
        rest = mpmath.log(s) - (1 + 1 / s) * mpmath.log1p(s) if s < 1e300 else 0
        return (s + 1) * mu**2 / 2 + rest - mpmath.log(delta) / s

    epsilon, order = epsilon_of_moments(ORDERS, 0.5 * ORDERS * (ORDERS + 1.0) * mu**2, delta)
    assert epsilon == pytest.approx(float(converted(mpmath.mpf(order))), rel=1e-12)
    finest = min(float(converted(mpmath.mpf(float(s)))) for s in np.geomspace(order / 2.0, order * 2.0, 2001))
    assert finest <= epsilon < finest * (1.0 + 1e-3)


@pytest.mark.parametrize("kind", ["remove", "add", "replace", "fixed-size"])
def test_the_certified_lower_end_is_a_test_that_can_be_played(kind):
    # One round: the best of its thresholds on x itself; epsilon >= ln((P - delta) / Q), from the tails of the mixtures.
    rate, noise, delta = 0.4, 0.8, 1e-3
    t = np.linspace(-0.5, 2.0, 26)

    def tail(mean):
        return (1.0 - rate) * ndtr(-t / noise) + rate * ndtr((mean - t) / noise)

    p, q = {
        "remove": (tail(1.0), ndtr(-t / noise)),
        "add": (ndtr(-t / noise), tail(-1.0)),
        "replace": (tail(1.0), tail(-1.0)),
        # between -1/2 and 1/2 nothing but the component that does not move
        "fixed-size": tuple(
            (1.0 - rate) * ndtr(-t / noise) + rate * ndtr((mean - np.maximum(t, 0.5)) / noise) for mean in (1.0, 0.0)
        ),
    }[kind]
    best = float(np.max(np.log((p - delta)[p > delta] / q[p > delta])))
    found = certified_lower(SampledGaussian(kind=kind, rate=rate, noise=noise), 1, delta)
    assert best * (1.0 - 1e-5) < found < best


@pytest.mark.parametrize("v", [-5.0, -1.0, -0.5, -1e-4, 1e-4, 0.3, 2.0, 5.0])
def test_moments_of_either_sign_by_closed_form_and_duality(v):
    def moment(kind, rate, noise, at):
        pair = SampledGaussian(kind=kind, rate=rate, noise=noise)
        return float(loss_moments(pair, log_outside=math.log(1e-15)).log_moment([at])[0])

    # ln E_P[e^(v L)] = v (v + 1) mu^2 / 2 where every record is in every batch, here mu = 1/2.
    closed, found = v * (v + 1.0) / 8.0, moment("remove", 1.0 - 1e-12, 2.0, v)
    # A chord between orders lies above, by a share of the square of their distance.
    assert closed - 1e-12 <= found <= closed + 1e-3 * abs(v) + 1e-12
    # E_P[e^(v L)] = E_Q[e^((v + 1) L)], which is the other direction's moment of -(v + 1).
    assert moment("add", 0.2, 1.0, v) == pytest.approx(moment("remove", 0.2, 1.0, -1.0 - v), abs=2e-3)


@pytest.mark.parametrize("kind", ["remove", "add", "replace", "fixed-size"])
@pytest.mark.parametrize("tail", [1e-9, 1e-3])
def test_the_spread_holds_both_tails(kind, tail):
    pair = SampledGaussian(kind=kind, rate=0.2, noise=0.5)
    moments = loss_moments(pair, log_outside=math.log(1e-12))
    low, high = pair.window(math.log(1e-12))
    losses = pair.loss(np.linspace(low, high, 10_001))
    assert (moments.floor, moments.ceiling) == (losses.min(), losses.max())
    b = moments.spread(math.log(tail))
    assert float(pair.cdf(np.array([-b]))[0] + pair.survival(np.array([b]))[0]) <= 2.0 * tail
    assert b <= max(-losses.min(), losses.max())
    # Chernoff is generous, but half as far would not do.
    shorter = 0.5 * b
    assert float(pair.cdf(np.array([-shorter]))[0] + pair.survival(np.array([shorter]))[0]) > tail
