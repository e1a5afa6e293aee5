"""Gaussian DP in log space: delta, epsilon, mu and trade-off curves (Dong, Roth and Su, 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri

from dpzv_audit.errors import InputError, check_probability
from dpzv_audit.findings import EpsilonRange

FloatArray = NDArray[np.float64]

_SQRT_HALF_PI = math.sqrt(math.pi / 2.0)
_LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
LARGEST_MU = 1e75
"""Past it epsilon is about mu^2/2 and means nothing; mu^2 must not overflow."""
_ROOT_TOLERANCE = 4.0 * float(np.finfo(np.float64).eps)


def check_epsilon(name: str, value: float) -> float:
    """Return `value` if it is a finite number of at least 0; raise `InputError` naming `name` otherwise."""
    if not 0.0 <= value < math.inf:
        raise InputError("must be a finite number of at least 0", name, value)
    return value


def _mills(x: FloatArray) -> FloatArray:
    """Mills ratio (1 - Phi(x)) / phi(x), for x above about -37 (it overflows below)."""
    return np.asarray(_SQRT_HALF_PI * erfcx(x / math.sqrt(2.0)), dtype=np.float64)


def _mills_slope(x: FloatArray) -> FloatArray:
    """Minus the derivative of the Mills ratio, 1 - x m(x), without its cancellation at large x."""
    large = np.maximum(x, 30.0)
    inverse = 1.0 / (large * large)
    series = np.zeros_like(large)
    for coefficient in (-135135.0, 10395.0, -945.0, 105.0, -15.0, 3.0, -1.0):  # (2k - 1)!! with signs
        series = inverse * (series - coefficient)
    return np.where(x > 30.0, series, 1.0 - x * _mills(np.minimum(x, 30.0)))


def log_delta_from_mu(epsilon: ArrayLike, mu: ArrayLike) -> FloatArray:
    """Return ln delta_G(epsilon; mu), the delta of a mu-Gaussian-DP mechanism, broadcasting its arguments.

    `epsilon` >= 0 and `mu` >= 0 (mu = 0 gives -inf); relative error of delta about 1e-11 or less.
    With u = epsilon/mu - mu/2 and the Mills ratio m, delta = phi(u) (m(u) - m(u + mu)): e^epsilon never
    appears. The difference is integrated where it would cancel, and taken from 1 where phi(u) m(u) is near 1.
    Source: Dong, Roth and Su (2022), corollary 1; paper 001, equation 11.
    """
    eps, width = np.broadcast_arrays(np.asarray(epsilon, np.float64), np.asarray(mu, np.float64))
    shape = eps.shape
    eps, width = np.atleast_1d(eps), np.atleast_1d(width)
    if not (np.all(eps >= 0.0) and np.all(width >= 0.0) and np.all(np.isfinite(width))):
        raise InputError(f" and mu {mu!r}, must be at least 0, and mu finite", "epsilon", epsilon)
    result = np.full(eps.shape, -np.inf)
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        u = eps / np.where(width > 0.0, width, 1.0) - width / 2.0
    live = (width > 0.0) & np.isfinite(u) & (np.abs(u) < 1e150)
    narrow = live & (width < 0.1 * np.maximum(1.0, u))
    near_one = live & ~narrow & (u < -1.0)
    plain = live & ~narrow & ~near_one
    log_phi = -0.5 * np.where(live, u, 0.0) ** 2 - _LOG_SQRT_TWO_PI
    if narrow.any():
        a, h = u[narrow][:, None], width[narrow][:, None] / 2.0
        integral = (_mills_slope(a + h * (1.0 + _NODES)) @ _WEIGHTS) * h[:, 0]
        result[narrow] = log_phi[narrow] + np.log(integral)
    if near_one.any():
        # Phi(-u) is 1 - Phi(u) with Phi(u) small, and u + mu > 0 because epsilon >= 0.
        second = np.exp(log_phi[near_one]) * _mills(u[near_one] + width[near_one])
        result[near_one] = np.log1p(-(ndtr(u[near_one]) + second))
    if plain.any():
        result[plain] = log_phi[plain] + np.log(_mills(u[plain]) - _mills(u[plain] + width[plain]))
    far = (width > 0.0) & ~live & (u < 0.0)
    result[far] = 0.0
    return np.asarray(np.minimum(result.reshape(shape), 0.0), dtype=np.float64)


def delta_from_mu(epsilon: ArrayLike, mu: ArrayLike) -> FloatArray:
    """Return delta_G(epsilon; mu) in [0, 1]; see `log_delta_from_mu`, which does not underflow."""
    return np.exp(log_delta_from_mu(epsilon, mu))


def root_of(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where `function` is 0 between `low` and `high`, to the last digits of a float."""
    return float(brentq(function, low, high, xtol=1e-300, rtol=_ROOT_TOLERANCE, maxiter=500))


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Return the epsilon >= 0 at which a `mu`-Gaussian-DP mechanism has `delta`; 0 where delta(0) <= `delta`.

    0 <= `mu` <= 1e75, 0 < `delta` < 1; relative error at most 1e-9 for mu in [1e-3, 200] and
    delta in [1e-12, 0.5]. Raises `InputError` for numbers outside their range.
    """
    if not 0.0 <= mu <= LARGEST_MU:
        raise InputError(f"must lie in [0, {LARGEST_MU:g}]: is there any noise?", "mu", mu)
    check_probability("delta", delta)
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        return float(log_delta_from_mu(epsilon, mu)) - target

    if mu == 0.0 or excess(0.0) <= 0.0:
        return 0.0
    # delta(epsilon) < Phi(mu/2 - epsilon/mu), so the epsilon that makes that equal delta is too large.
    high = mu * (mu / 2.0 - float(ndtri(delta)))
    high *= 1.0 + 1e-12
    return root_of(excess, 0.0, high)


def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """Return the mu at which Gaussian DP has exactly (`epsilon`, `delta`); epsilon >= 0, 0 < delta < 1."""
    check_epsilon("epsilon", epsilon)
    check_probability("delta", delta)
    target = math.log(delta)

    def excess(mu: float) -> float:
        return float(log_delta_from_mu(epsilon, mu)) - target

    # Two lower limits: delta < Phi(mu/2 - epsilon/mu), and delta(epsilon) <= delta(0) <= 0.4 mu.
    q = -float(ndtri(delta))
    root = math.sqrt(q * q + 2.0 * epsilon)
    low = max(2.0 * epsilon / (q + root) if q > 0.0 else root - q, 2.0 * delta) * (1.0 - 1e-9)
    high = 2.0 * low
    while excess(high) < 0.0:
        high *= 2.0
    return root_of(excess, low, high)


def exactly(epsilon: float) -> EpsilonRange:
    """Return the range of an epsilon without numerical error."""
    return EpsilonRange(lower=epsilon, estimate=epsilon, upper=epsilon)


def gaussian_tradeoff(alpha: ArrayLike, mu: float) -> FloatArray:
    """Return Phi(Phi^-1(1 - alpha) - mu), the least false negative rate at false positive rate `alpha`."""
    check_epsilon("mu", mu)
    # Phi^-1(1 - alpha) = -Phi^-1(alpha), which keeps the digits of a small alpha.
    return np.asarray(ndtr(-ndtri(_rates(alpha)) - mu), dtype=np.float64)


def epsilon_delta_tradeoff(alpha: ArrayLike, epsilon: float, delta: float) -> FloatArray:
    """Return the least false negative rate at false positive rate `alpha` under (`epsilon`, `delta`)-DP.

    max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)); Wasserman and Zhou (2010).
    """
    check_epsilon("epsilon", epsilon)
    if not 0.0 <= delta < 1.0:
        raise InputError("must lie in [0, 1)", "delta", delta)
    rates = _rates(alpha)
    with np.errstate(divide="ignore"):
        steep = 1.0 - delta - np.exp(np.minimum(epsilon + np.log(rates), 1.0))
    shallow = math.exp(-epsilon) * (1.0 - delta - rates)
    return np.maximum(0.0, np.maximum(steep, shallow))


def _rates(alpha: ArrayLike) -> FloatArray:
    rates = np.asarray(alpha, dtype=np.float64)
    if not np.all((rates >= 0.0) & (rates <= 1.0)):
        raise InputError("must lie in [0, 1]", "alpha", alpha)
    return rates
