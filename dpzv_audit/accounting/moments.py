"""Certified bounds on many sampled rounds: moments of the privacy loss (Chernoff, equal to RDP), and tests on counts.

The upper bound is Renyi DP with the conversion of Canonne, Kamath and Steinke (2020), proposition 12, in the notation
s = order - 1; the lower one is the error of a threshold test, played out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import bdtrc

from dpzv_audit.accounting.gaussian import FloatArray
from dpzv_audit.accounting.sampled import NODES, SampledGaussian

ORDERS = np.geomspace(1e-3, 1e7, 360)
_STEEPEST = 16.0
_THRESHOLDS = np.linspace(-0.5, 2.0, 26)
_DEVIATIONS = np.linspace(-6.0, 6.0, 25)


@dataclass(frozen=True, kw_only=True)
class LossMoments:
    """Upper limits on ln E[e^(s L)] of the loss L of one round or more, cut to windows that P leaves with `outside`."""

    up: FloatArray
    """ln E[e^(s L)] for each order s > 0 of `ORDERS`; infinite where the quadrature could not be trusted."""
    down: FloatArray
    """ln E[e^(-s L)]."""
    outside: float
    least: float
    """Smallest loss of any one round in its window."""
    most: float
    """Largest loss of any one round in its window."""
    ceiling: float
    """Largest loss of all rounds together in their windows."""
    floor: float
    """Smallest loss of all rounds together."""

    def epsilon(self, delta: float) -> float:
        """Return a certified epsilon at `delta`, infinite where there is none.

        From delta(eps) = E[(1 - e^(eps - L))+] <= E[e^(s (L - eps))] s^s / (1 + s)^(1 + s), every s > 0.
        """
        left = delta - self.outside
        return math.inf if left <= 0.0 else max(0.0, min(self.ceiling, epsilon_of_moments(ORDERS, self.up, left)[0]))

    def log_moment(self, order: FloatArray) -> FloatArray:
        """Return an upper limit on ln E[e^(v L)] at any real `order` v: it is convex, so chords lie above it."""
        kept_up, kept_down = np.isfinite(self.up), np.isfinite(self.down)
        v = np.concatenate((-ORDERS[kept_down][::-1], [0.0], ORDERS[kept_up]))
        values = np.concatenate((self.down[kept_down][::-1], [0.0], self.up[kept_up]))
        return np.interp(order, v, values, left=np.inf, right=np.inf)

    def spread(self, tail: float, *, tilt: float = 0.0) -> float:
        """Return b such that |L| > b has probability at most 2 `tail` under P tilted by e^(`tilt` L)."""
        base = float(self.log_moment(np.array([tilt]))[0])
        need = -math.log(tail) - base
        up, down = (float(np.min((self.log_moment(tilt + sign * ORDERS) + need) / ORDERS)) for sign in (1.0, -1.0))
        return max(min(up, self.ceiling), min(down, -self.floor), 0.0)


def epsilon_of_moments(orders: FloatArray, log_moments: FloatArray, delta: float) -> tuple[float, float]:
    """Return the least epsilon >= 0 that moments ln E[e^(s L)] at `orders` s certify at `delta`, and its order."""
    rest = orders * np.log(orders) - (1.0 + orders) * np.log1p(orders)
    found = (log_moments + rest - math.log(delta)) / orders
    best = int(np.argmin(found))
    return max(0.0, float(found[best])), float(orders[best])


def composed_moments(parts: Sequence[tuple[LossMoments, int]]) -> LossMoments:
    """Return the moments of independent losses, each repeated so many rounds: logarithms add."""
    return LossMoments(
        up=np.sum([rounds * part.up for part, rounds in parts], axis=0),
        down=np.sum([rounds * part.down for part, rounds in parts], axis=0),
        outside=sum(rounds * part.outside for part, rounds in parts),
        least=min(part.least for part, _ in parts),
        most=max(part.most for part, _ in parts),
        ceiling=sum(rounds * part.ceiling for part, rounds in parts),
        floor=sum(rounds * part.floor for part, rounds in parts),
    )


@lru_cache(maxsize=256)
def loss_moments(pair: SampledGaussian, *, outside: float) -> LossMoments | None:
    """Return the `LossMoments` of one round on the window with `outside` mass beyond it; None at very low noise.

    Orders at which e^(s L) changes by more than e^16 across one panel are left out (infinite).
    """
    low, high = pair.window(outside)
    rule = pair.quadrature(low, high)
    if rule is None:
        return None
    x, weights, width = rule
    y = pair.loss(x)
    ends = pair.loss(np.array([low, low + width, high - width, high]))
    steepest = float(max(ends[1] - ends[0], ends[3] - ends[2], np.max(np.diff(y[:: len(NODES)]), initial=0.0)))
    usable = ORDERS[ORDERS * steepest <= _STEEPEST]
    return LossMoments(
        up=_pad(np.array([_log_moment(weights, y, s) for s in usable])),
        down=_pad(np.array([_log_moment(weights, y, -s) for s in usable])),
        outside=outside,
        least=float(ends[0]),
        most=float(ends[3]),
        ceiling=float(ends[3]),
        floor=float(ends[0]),
    )


def _pad(values: FloatArray) -> FloatArray:
    padded = np.full(len(ORDERS), np.inf)
    padded[: len(values)] = values
    return padded


def _log_moment(weights: FloatArray, y: FloatArray, s: float) -> float:
    """Return ln(1 + sum_i w_i (e^(s y_i) - 1)), by expm1 near 1, and in logs where e^(s y) would leave the floats."""
    exponent = s * y
    peak = float(exponent.max())
    if peak < 600.0:
        excess = float(weights @ np.expm1(exponent))
        if excess > -0.5:
            return math.log1p(excess)
    with np.errstate(divide="ignore"):
        terms = np.log(weights) + exponent
    peak = float(terms.max())
    whole = peak + math.log(float(np.exp(terms - peak).sum()))
    return float(np.logaddexp(0.0, whole)) if whole > 0.0 else whole


def certified_lower(pair: SampledGaussian, rounds: int, delta: float) -> float:
    """Return an epsilon that `rounds` rounds exceed for certain: that of the best of some tests on counts.

    The test counts rounds with x above a threshold and says P from k on: epsilon >= ln((P - delta) / Q). P of k or
    more is binomial, Q at most Chernoff's e^(-T KL(k/T || q)).
    """
    log_p, log_q = pair.log_survivals(_THRESHOLDS)
    p = np.exp(log_p)[:, None]
    spread = np.sqrt(rounds * p * (1.0 - p))
    k = np.clip(np.floor(rounds * p + _DEVIATIONS * spread), 1.0, rounds)
    log_q = log_q[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = rounds - k
        misses = np.where(rest > 0.0, rest * (np.log(rest / rounds) - np.log1p(-np.exp(log_q))), 0.0)
        cost = k * (np.log(k / rounds) - log_q) + misses
        log_false = np.where(k > rounds * np.exp(log_q), -cost, 0.0)
        # Where P is delta but for rounding, the difference is rounding: lower it by more than that.
        power = bdtrc(k - 1.0, rounds, p) * (1.0 - 1e-9) - delta
        found = np.log(np.maximum(power, 0.0)) - log_false
    return max(0.0, float(np.max(found)))
