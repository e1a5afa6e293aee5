"""The Gaussian mechanism under Poisson sampling: its pair of distributions and its privacy loss.

One round is a pair (P, Q) of mixtures on the line, in units of one record's contribution c with noise of
standard deviation z = sigma / c and sampling rate r (dominating pairs: Zhu, Dong and Wang, 2022):

- `remove`: P = (1-r) N(0, z^2) + r N(1, z^2) against Q = N(0, z^2);
- `add`: the same two, exchanged (and reflected, so that the loss still increases in x);
- `replace`: P as above against (1-r) N(0, z^2) + r N(-1, z^2).

The replace pair is the worst of all contributions of norm at most c, in however many messages about one batch, each
chosen after the last: with likelihood ratios E_1, E_2 of the two shifted components against N(0, z^2), which are
martingales, what is to be maximised is E[((1-r)(1-e^t) + r E_1 - r e^t E_2)+], convex in both with a mixed derivative
that is never positive, so at every moment full speed in opposite directions is best.

The privacy loss L(x) = ln P(x)/Q(x) increases in x, so its distribution under P is that of x at L^-1(t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from dpzv_audit.accounting.gaussian import FloatArray

PairKind = Literal["remove", "add", "replace"]

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
_LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
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
    if rate == 1.0:
        return t
    small = np.minimum(t, 30.0)
    with np.errstate(divide="ignore"):
        direct = np.log1p(np.maximum(np.expm1(small) / rate, -1.0))
    large = np.maximum(t, 30.0)
    return np.where(t > 30.0, large - math.log(rate) + np.log1p(-(1.0 - rate) * np.exp(-large)), direct)


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """One round: `kind` of pair, sampling `rate` r in (0, 1], noise multiplier `noise` z > 0 against c.

    For `replace` r < 1: at r = 1 that pair is `remove` with half the noise.
    """

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
        return self._mass(self.inverse(t), 1.0)

    def survival(self, t: FloatArray) -> FloatArray:
        """Return P(L > t), which keeps its digits where it is small."""
        return self._mass(self.inverse(t), -1.0)

    def _mass(self, x: FloatArray, side: float) -> FloatArray:
        """Return P of everything left of x (`side` 1) or right of it (-1)."""
        base = ndtr(side * x / self.noise)
        if self.kind == "add":
            return np.asarray(base)
        return np.asarray((1.0 - self.rate) * base + self.rate * ndtr(side * (x - 1.0) / self.noise))

    def log_survivals(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ln P(X > x) and ln Q(X > x), which do not underflow."""
        base: FloatArray = log_ndtr(-x / self.noise)

        def mixed(mean: float) -> FloatArray:
            with np.errstate(divide="ignore"):
                rest = np.log1p(-self.rate) + base if self.rate < 1.0 else np.full_like(base, -np.inf)
            return np.asarray(np.logaddexp(rest, math.log(self.rate) + log_ndtr((mean - x) / self.noise)))

        if self.kind == "add":
            return base, mixed(-1.0)
        return mixed(1.0), base if self.kind == "remove" else mixed(-1.0)

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
        x = (centres[:, None] + NODES * (width / 2.0)).ravel()
        weights = np.tile(WEIGHTS * (width / 2.0), panels)

        def density(mean: float) -> FloatArray:
            return np.asarray(np.exp(-0.5 * ((x - mean) / self.noise) ** 2 - _LOG_SQRT_TWO_PI) / self.noise)

        p = density(0.0) if self.shifted == 0.0 else (1.0 - self.rate) * density(0.0) + self.rate * density(1.0)
        return x, weights * p, width
