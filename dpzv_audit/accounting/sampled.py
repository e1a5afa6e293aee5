"""The Gaussian mechanism under Poisson sampling: its privacy loss, and certified Chernoff bounds.

One round is a pair (P, Q) of mixtures on the line, in units of one record's contribution c with noise of
standard deviation z = sigma / c and sampling rate r (dominating pairs: Zhu, Dong and Wang, 2022):

- `remove`: P = (1-r) N(0, z^2) + r N(1, z^2) against Q = N(0, z^2);
- `add`: the same two, exchanged (and reflected, so that the loss still increases in x);
- `replace`: P as above against (1-r) N(0, z^2) + r N(-1, z^2).

The privacy loss L(x) = ln P(x)/Q(x) increases in x, so its distribution under P is that of x at L^-1(t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from dpzv_audit.accounting.gaussian import FloatArray

PairKind = Literal["remove", "add", "replace"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_ORDERS = np.geomspace(1e-3, 1e7, 180)
_STEEPEST = 8.0
_LEAST_NOISE = 1e-3
_MOST_PANELS = 20_000


def _log_mix(rate: float, u: FloatArray) -> FloatArray:
    """Return ln(1 - r + r e^u) without overflow at large u or lost digits at small r."""
    small = np.minimum(u, 30.0)
    direct = np.log1p(rate * np.expm1(small))
    large = np.maximum(u, 30.0)
    return np.where(u > 30.0, large + math.log(rate) + np.log1p((1.0 - rate) / rate * np.exp(-large)), direct)


def _inverse_log_mix(rate: float, t: FloatArray) -> FloatArray:
    """Return u with ln(1 - r + r e^u) = t; -inf at and below ln(1 - r)."""
    small = np.minimum(t, 30.0)
    with np.errstate(divide="ignore"):
        direct = np.log1p(np.maximum(np.expm1(small) / rate, -1.0))
    large = np.maximum(t, 30.0)
    return np.where(t > 30.0, large - math.log(rate) + np.log1p(-(1.0 - rate) * np.exp(-large)), direct)


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """One round: `kind` of pair, sampling `rate` r in (0, 1), noise multiplier `noise` z > 0 against c."""

    kind: PairKind
    rate: float
    noise: float

    @property
    def shifted(self) -> float:
        """Weight of the component of P at 1; the rest is at 0."""
        return 0.0 if self.kind == "add" else self.rate

    def loss(self, x: FloatArray) -> FloatArray:
        """Return the privacy loss L(x), increasing in x."""
        up = (2.0 * x - 1.0) / (2.0 * self.noise**2)
        down = (-2.0 * x - 1.0) / (2.0 * self.noise**2)
        if self.kind == "remove":
            return _log_mix(self.rate, up)
        if self.kind == "add":
            return -_log_mix(self.rate, down)
        return _log_mix(self.rate, up) - _log_mix(self.rate, down)

    def inverse(self, t: FloatArray) -> FloatArray:
        """Return x with L(x) = t; infinite outside the range of L."""
        square = self.noise**2
        if self.kind == "remove":
            return square * _inverse_log_mix(self.rate, t) + 0.5
        if self.kind == "add":
            return -square * _inverse_log_mix(self.rate, -t) - 0.5
        # With w = e^(x/z^2) = e^(t/2) y, the quadratic becomes y - 1/y = 2 (1-r)/r e^(1/(2 z^2)) sinh(t/2).
        half = np.abs(t) / 2.0
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2.0 * half)) - math.log(2.0)
        q = log_sinh + math.log1p(-self.rate) - math.log(self.rate) + 1.0 / (2.0 * square)
        root = np.where(q > 20.0, q + math.log(2.0), np.arcsinh(np.exp(np.minimum(q, 20.0))))
        return np.asarray(square * (t / 2.0 + np.sign(t) * root), dtype=np.float64)

    def cdf(self, t: FloatArray) -> FloatArray:
        """Return P(L <= t)."""
        return self._cdf_x(self.inverse(t))

    def _cdf_x(self, x: FloatArray) -> FloatArray:
        base = ndtr(x / self.noise)
        if self.kind == "add":
            return np.asarray(base)
        return np.asarray((1.0 - self.rate) * base + self.rate * ndtr((x - 1.0) / self.noise))

    def window(self, outside: float) -> tuple[float, float]:
        """Return (low, high) on the x axis such that P has at most `outside` mass beyond them."""
        z, w = self.noise, self.shifted
        q = -float(ndtri(outside / 4.0))
        high = z * q
        if w > 0.0:
            high = max(high, 1.0 - z * float(ndtri(min(outside / (4.0 * w), 0.5))))
        return -z * q, high

    def quadrature(self, low: float, high: float) -> tuple[FloatArray, FloatArray, float] | None:
        """Return nodes, P-weights and panel width of a Gauss-Legendre rule over [low, high].

        Panels are at most half of z and of z^2 wide: L has singularities pi z^2 off the axis. None where that
        would take more panels than are worth their time (very low noise).
        """
        if self.noise < _LEAST_NOISE:
            return None
        width = min(self.noise, self.noise**2) / 2.0
        panels = math.ceil((high - low) / width)
        if panels > _MOST_PANELS:
            return None
        width = (high - low) / panels
        centres = low + (np.arange(panels) + 0.5) * width
        x = (centres[:, None] + _NODES * (width / 2.0)).ravel()
        weights = np.tile(_WEIGHTS * (width / 2.0), panels)

        def density(mean: float) -> FloatArray:
            return np.asarray(np.exp(-0.5 * ((x - mean) / self.noise) ** 2 - _LOG_SQRT_TWO_PI) / self.noise)

        p = density(0.0) if self.shifted == 0.0 else (1.0 - self.rate) * density(0.0) + self.rate * density(1.0)
        return x, weights * p, width


@dataclass(frozen=True, kw_only=True)
class LossMoments:
    """Upper limits on ln E[e^(s L)] of one round's loss L, cut to a window that P leaves with `outside`."""

    orders: FloatArray
    up: FloatArray
    """ln E[e^(s L)] for each order s > 0; infinite where the quadrature could not be trusted."""
    down: FloatArray
    """ln E[e^(-s L)]."""
    outside: float
    least: float
    """Smallest loss in the window."""
    most: float
    """Largest loss in the window."""

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return a certified epsilon of `rounds` rounds at `delta`, infinite where there is none.

        From delta(eps) = E[(1 - e^(eps - L))+] <= E[e^(s (L - eps))] s^s / (1 + s)^(1 + s), every s > 0.
        """
        left = delta - rounds * self.outside
        if left <= 0.0:
            return math.inf
        s = self.orders
        rest = s * np.log(s) - (1.0 + s) * np.log1p(s)
        return max(0.0, float(np.min((rounds * self.up + rest - math.log(left)) / s)))

    def spread(self, rounds: int, tail: float) -> float:
        """Return b such that |L_1 + ... + L_rounds| > b has probability at most 2 `tail`, on the window."""
        need = -math.log(tail)
        sides = [float(np.min((rounds * side + need) / self.orders)) for side in (self.up, self.down)]
        return max(sides)


def loss_moments(pair: SampledGaussian, *, outside: float) -> LossMoments | None:
    """Return the `LossMoments` of `pair` on the window with `outside` mass beyond it; None at very low noise.

    Orders at which e^(s L) changes by more than e^8 across one panel are left out (infinite).
    """
    low, high = pair.window(outside)
    rule = pair.quadrature(low, high)
    if rule is None:
        return None
    x, weights, width = rule
    y = pair.loss(x)
    ends = pair.loss(np.array([low, low + width, high - width, high]))
    steepest = float(max(ends[1] - ends[0], ends[3] - ends[2], np.max(np.diff(y[:: len(_NODES)]), initial=0.0)))
    usable = _ORDERS[_ORDERS * steepest <= _STEEPEST]
    return LossMoments(
        orders=_ORDERS,
        up=_pad(np.array([_log_moment(weights, y, s) for s in usable])),
        down=_pad(np.array([_log_moment(weights, y, -s) for s in usable])),
        outside=outside,
        least=float(ends[0]),
        most=float(ends[3]),
    )


def _pad(values: FloatArray) -> FloatArray:
    padded = np.full(len(_ORDERS), np.inf)
    padded[: len(values)] = values
    return padded


def _log_moment(weights: FloatArray, y: FloatArray, s: float) -> float:
    """Return ln(1 + sum_i w_i (e^(s y_i) - 1)), by expm1, and in logs where e^(s y) overflows."""
    exponent = s * y
    peak = float(exponent.max())
    if peak < 600.0:
        return math.log1p(float(weights @ np.expm1(exponent)))
    with np.errstate(divide="ignore"):
        terms = np.log(weights) + exponent
    peak = float(terms.max())
    return float(np.logaddexp(0.0, peak + math.log(float(np.exp(terms - peak).sum()))))
