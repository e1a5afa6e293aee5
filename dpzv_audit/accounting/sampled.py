"""The Gaussian mechanism under Poisson and fixed-size sampling: its pair of distributions, privacy loss and moments.

One round is a pair (P, Q) of mixtures on the line, in units of one record's contribution c with noise of
standard deviation z = sigma / c and sampling rate r (dominating pairs: Zhu, Dong and Wang, 2022):

- `remove`: P = (1-r) N(0, z^2) + r N(1, z^2) against Q = N(0, z^2);
- `add`: the same two, exchanged (and reflected, so that the loss still increases in x);
- `replace`: P as above against (1-r) N(0, z^2) + r N(-1, z^2);
- `fixed-size`: below, and in units of the step 2c by which a batch moves when one of its records is exchanged.

The first three are of Poisson sampling. The replace pair is the worst of all contributions of norm at most c, in
however many messages about one batch, each chosen after the last: with likelihood ratios E_1, E_2 of the two shifted
components against N(0, z^2), which are martingales, what is to be maximised is
E[((1-r)(1-e^t) + r E_1 - r e^t E_2)+], convex in both with a mixed derivative that is never positive, so at every
moment full speed in opposite directions is best.

`fixed-size`: B of D records without replacement, a record replaced (Balle, Barthe and Gaboardi, 2018, theorem 9). With
mu_0, mu_1 the laws of a round without and with the record, and mu_1' with its replacement, the worlds are
(1-r) mu_0 + r mu_1 and (1-r) mu_0 + r mu_1', r = B/D. Advanced joint convexity bounds the divergence of order
1 + r (e^t - 1) by r max(H(mu_1, mu_0), H(mu_1, mu_1')), H that of order e^t. Either pair differs by one record of a
batch exchanged for another (a batch without the record holds one more of the others in its place): by 2c, however
little the record itself changes. So the divergence of order e^t is at most that of `remove` for t >= 0 and, both
worlds' roles being equal, that of `add` for t < 0, both with N(1, z^2) in units of 2c (Zhu, Dong and Wang, 2022,
proposition 30). One pair has this divergence at every order, so it dominates each round and composes to a bound in
both directions: P = (1-r) N(0, z^2) + r U against Q = (1-r) N(0, z^2) + r V, where left of -1/2 U and V have the
densities of N(0, z^2) and N(-1, z^2), right of 1/2 those of N(1, z^2) and N(0, z^2), and nothing between. Composing
`remove` alone would not do: a worst case of one round need not be one of many (Lebeda, Regehr, Kamath and Steinke,
2025).

The privacy loss L(x) = ln P(x)/Q(x) never decreases in x, so its distribution under P is that of x at L^-1(t).

Many rounds have certified bounds on epsilon: from above moments of the loss (Chernoff's bound, equal to Renyi DP with
the conversion of Canonne, Kamath and Steinke, 2020, proposition 12, in the notation s = order - 1), from below the
error of a threshold test on counts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np
from scipy.special import bdtrc, log_ndtr, ndtr, ndtri_exp

from .gaussian import LOG_SQRT_TWO_PI, NODES, WEIGHTS, Floats

PairKind = Literal["remove", "add", "replace", "fixed-size"]

_LEAST_NOISE = 1e-3
_MOST_PANELS = 20_000


def log_mix(rate: float, u: Floats) -> Floats:
    """Return ln(1 - r + r e^u) without overflow at large u or lost digits at small r."""
    if rate == 1.0:
        return u
    direct = np.log1p(rate * np.expm1(np.minimum(u, 30.0)))
    large = np.maximum(u, 30.0)
    rest = np.log1p((1.0 - rate) / rate * np.exp(-large))
    return np.where(u > 30.0, large + math.log(rate) + rest, direct)


def _inverse_log_mix(rate: float, t: Floats) -> Floats:
    """Return u with ln(1 - r + r e^u) = t; -inf at and below ln(1 - r)."""
    if rate == 1.0:
        return t
    with np.errstate(divide="ignore"):
        direct = np.log1p(np.maximum(np.expm1(np.minimum(t, 30.0)) / rate, -1.0))
    large = np.maximum(t, 30.0)
    rest = np.log1p(-(1.0 - rate) * np.exp(-large))
    return np.where(t > 30.0, large - math.log(rate) + rest, direct)


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """One round: `kind` of pair, sampling `rate` r in (0, 1], noise multiplier `noise` z > 0 against c or 2c.

    For `replace` and `fixed-size` r < 1: at r = 1 they are `remove` with half the noise, and with the same.
    """

    kind: PairKind
    rate: float
    noise: float

    @property
    def shifted(self) -> float:
        """Weight of the component of P at 1 (of `fixed-size`: of U); the rest is at 0."""
        return 0.0 if self.kind == "add" else self.rate

    @property
    def certain_mu(self) -> float:
        """Return the mu of one round that certainly holds the record."""
        return (2.0 if self.kind == "replace" else 1.0) / self.noise

    def loss(self, x: Floats) -> Floats:
        """Return the privacy loss L(x), which increases in x; of `fixed-size` it is 0 between -1/2 and 1/2."""
        up = (2.0 * x - 1.0) / (2.0 * self.noise**2)
        down = (-2.0 * x - 1.0) / (2.0 * self.noise**2)
        if self.kind == "remove":
            return log_mix(self.rate, up)
        if self.kind == "add":
            return -log_mix(self.rate, down)
        if self.kind == "fixed-size":
            up = np.maximum(up, 0.0)
            down = np.maximum(down, 0.0)
        return log_mix(self.rate, up) - log_mix(self.rate, down)

    def inverse(self, t: Floats) -> Floats:
        """Return the largest x with L(x) = t; infinite outside the range of L."""
        square = self.noise**2
        if self.kind == "remove":
            return square * _inverse_log_mix(self.rate, t) + 0.5
        if self.kind == "add":
            return -square * _inverse_log_mix(self.rate, -t) - 0.5
        if self.kind == "fixed-size":
            beyond = square * _inverse_log_mix(self.rate, np.abs(t)) + 0.5
            return np.where(t >= 0.0, beyond, -beyond)
        # With w = e^(x/z^2) = e^(t/2) y, the quadratic becomes y - 1/y = 2 (1-r)/r e^(1/(2 z^2)) sinh(t/2).
        half = np.abs(t) / 2.0
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2.0 * half)) - math.log(2.0)
        q = log_sinh + math.log1p(-self.rate) - math.log(self.rate) + 1.0 / (2.0 * square)
        root = np.where(q > 20.0, q + math.log(2.0), np.arcsinh(np.exp(np.minimum(q, 20.0))))
        return np.asarray(square * (t / 2.0 + np.sign(t) * root))

    def cdf(self, t: Floats) -> Floats:
        """Return P(L <= t)."""
        return self._mass(self.inverse(t), 1.0)

    def survival(self, t: Floats) -> Floats:
        """Return P(L > t), which keeps its digits where it is small."""
        return self._mass(self.inverse(t), -1.0)

    def _mass(self, x: Floats, side: float) -> Floats:
        """Return P of everything left of x (`side` 1) or right of it (-1)."""
        base = ndtr(side * x / self.noise)
        if self.kind != "add":
            base = (1.0 - self.rate) * base + self.rate * ndtr(side * self._moved(x) / self.noise)
        return np.asarray(base)

    def _moved(self, x: Floats) -> Floats:
        """Return u such that P's component of weight r has the mass Phi(u/z) left of x."""
        if self.kind == "fixed-size":
            return np.where(x < -0.5, x, np.maximum(x, 0.5) - 1.0)
        return x - 1.0

    def log_survivals(self, x: Floats) -> tuple[Floats, Floats]:
        """Return ln P(X > x) and ln Q(X > x), which do not underflow."""
        base: Floats = log_ndtr(-x / self.noise)

        def mixed(place: Floats) -> Floats:
            with np.errstate(divide="ignore"):
                rest = np.log1p(-self.rate) + base if self.rate < 1.0 else np.full_like(base, -np.inf)
            return np.asarray(np.logaddexp(rest, math.log(self.rate) + log_ndtr(-place / self.noise)))

        if self.kind == "add":
            return base, mixed(x + 1.0)
        # Q of `replace` and `fixed-size` is P with its sides exchanged.
        return mixed(self._moved(x)), base if self.kind == "remove" else mixed(-self._moved(-x))

    def window(self, log_outside: float) -> tuple[float, float]:
        """Return (low, high) on the x axis such that P has at most e^`log_outside` mass beyond them."""
        z = self.noise
        w = self.shifted
        tail = log_outside - math.log(4.0)
        q = -float(ndtri_exp(tail))
        high = z * q
        if w > 0.0:
            high = max(high, 1.0 - z * float(ndtri_exp(min(tail - math.log(w), -math.log(2.0)))))
        return -z * q, high

    def quadrature(self, low: float, high: float) -> tuple[Floats, Floats, float] | None:
        """Return nodes, P-weights and panel width of a Gauss-Legendre rule over [low, high].

        Panels are at most half of z and of z^2 wide: L has singularities pi z^2 off the axis. None where that
        would take more panels than are worth their time (very low noise). Of `fixed-size` none crosses -1/2 or 1/2,
        where densities and loss bend, and the width is that of the widest.
        """
        if self.noise < _LEAST_NOISE:
            return None
        bends = []
        if self.kind == "fixed-size":
            bends = [bend for bend in (-0.5, 0.5) if low < bend < high]
        wanted = min(self.noise, self.noise**2) / 2.0
        pieces = [(start, stop, math.ceil((stop - start) / wanted)) for start, stop in pairwise([low, *bends, high])]
        if sum(panels for _, _, panels in pieces) > _MOST_PANELS:
            return None
        rules = [_gauss_legendre(start, stop, panels) for start, stop, panels in pieces]
        x, weights = (np.concatenate(arrays) for arrays in zip(*rules, strict=True))
        return x, weights * self._density(x), max((stop - start) / panels for start, stop, panels in pieces)

    def _density(self, x: Floats) -> Floats:
        """Return the density of P."""

        def density(mean: float) -> Floats:
            return np.asarray(np.exp(-0.5 * ((x - mean) / self.noise) ** 2 - LOG_SQRT_TWO_PI) / self.noise)

        if self.kind == "add":
            return density(0.0)
        moved = density(1.0)
        if self.kind == "fixed-size":
            moved = np.where(x > 0.5, moved, np.where(x < -0.5, density(0.0), 0.0))
        return (1.0 - self.rate) * density(0.0) + self.rate * moved


@dataclass(frozen=True, kw_only=True)
class KnownBatch:
    """One Gaussian round, `mu`-GDP where its batch holds the record, which it does with chance `rate` in (0, 1].

    The adversary knows the batch: the privacy loss is N(mu^2/2, mu^2) where the record is in it, else 0.
    """

    kind: ClassVar = "known ids"
    rate: float
    mu: float

    @property
    def noise(self) -> float:
        """Return the noise multiplier, 1/mu."""
        return 1.0 / self.mu

    def cdf(self, t: Floats) -> Floats:
        """Return P(L <= t)."""
        return np.asarray(self.rate * ndtr(t / self.mu - self.mu / 2.0) + (1.0 - self.rate) * (t >= 0.0))

    def survival(self, t: Floats) -> Floats:
        """Return P(L > t), which keeps its digits where it is small."""
        return np.asarray(self.rate * ndtr(self.mu / 2.0 - t / self.mu) + (1.0 - self.rate) * (t < 0.0))

    def moments(self, log_outside: float) -> "LossMoments":
        """Return the moments of one round, ln E[e^(s L)] = ln(1 - r + r e^(s (s + 1) mu^2 / 2)), in closed form."""
        mean = self.mu**2 / 2.0
        reach = -self.mu * float(ndtri_exp(log_outside - math.log(2.0)))
        return LossMoments(
            up=log_mix(self.rate, ORDERS * (ORDERS + 1.0) * mean),
            down=log_mix(self.rate, ORDERS * (ORDERS - 1.0) * mean),
            outside=math.exp(log_outside),
            ceiling=mean + reach,
            floor=min(mean - reach, 0.0),
            mean=self.rate * mean,
        )


def _gauss_legendre(low: float, high: float, panels: int) -> tuple[Floats, Floats]:
    """Return the nodes and weights of `panels` equal panels over [low, high]."""
    width = (high - low) / panels
    centres = low + (np.arange(panels) + 0.5) * width
    return (centres[:, None] + NODES * (width / 2.0)).ravel(), np.tile(WEIGHTS * (width / 2.0), panels)


ORDERS = np.geomspace(1e-3, 1e7, 360)
_STEEPEST = 16.0
_THRESHOLDS = np.linspace(-0.5, 2.0, 26)
_DEVIATIONS = np.linspace(-6.0, 6.0, 25)


@dataclass(frozen=True, kw_only=True)
class LossMoments:
    """Upper limits on ln E[e^(s L)] of the loss L of one round or more, cut to windows that P leaves with `outside`.

    Attributes:
        up: ln E[e^(s L)] for each order s > 0 of `ORDERS`; infinite where the quadrature could not be trusted.
        down: ln E[e^(-s L)].
        ceiling: Largest loss of all rounds together in their windows.
        floor: Smallest loss of all rounds together.
        mean: Mean loss of all rounds together in their windows.
    """

    up: Floats
    down: Floats
    outside: float
    ceiling: float
    floor: float
    mean: float

    def epsilon(self, delta: float) -> float:
        """Return a certified epsilon at `delta`, infinite where there is none.

        From delta(eps) = E[(1 - e^(eps - L))+] <= E[e^(s (L - eps))] s^s / (1 + s)^(1 + s), every s > 0.
        """
        left = delta - self.outside
        if left <= 0.0:
            return math.inf
        epsilon, _ = epsilon_of_moments(ORDERS, self.up, left)
        return max(0.0, min(self.ceiling, epsilon))

    def log_moment(self, order: Floats) -> Floats:
        """Return an upper limit on ln E[e^(v L)] at any real `order` v: it is convex, so chords lie above it."""
        kept_up = np.isfinite(self.up)
        kept_down = np.isfinite(self.down)
        v = np.concatenate((-ORDERS[kept_down][::-1], [0.0], ORDERS[kept_up]))
        values = np.concatenate((self.down[kept_down][::-1], [0.0], self.up[kept_up]))
        return np.interp(order, v, values, left=np.inf, right=np.inf)

    def spread(self, log_tail: float, *, tilt: float = 0.0) -> float:
        """Return b such that |L| > b has probability at most 2 e^`log_tail` under P tilted by e^(`tilt` L)."""
        need = -log_tail - float(self.log_moment(np.array([tilt]))[0])
        up = float(np.min((self.log_moment(tilt + ORDERS) + need) / ORDERS))
        down = float(np.min((self.log_moment(tilt - ORDERS) + need) / ORDERS))
        return max(min(up, self.ceiling), min(down, -self.floor), 0.0)


def epsilon_of_moments(orders: Floats, log_moments: Floats, delta: float) -> tuple[float, float]:
    """Return the least epsilon >= 0 that moments ln E[e^(s L)] at `orders` s certify at `delta`, and its order."""
    rest = orders * np.log(orders) - (1.0 + orders) * np.log1p(orders)
    epsilons = (log_moments + rest - math.log(delta)) / orders
    best = int(np.argmin(epsilons))
    return max(0.0, float(epsilons[best])), float(orders[best])


def composed_moments(parts: Sequence[tuple[LossMoments, int]]) -> LossMoments:
    """Return the moments of independent losses, each repeated so many rounds: logarithms add."""
    return LossMoments(
        up=np.sum([n * moments.up for moments, n in parts], axis=0),
        down=np.sum([n * moments.down for moments, n in parts], axis=0),
        outside=sum(n * moments.outside for moments, n in parts),
        ceiling=sum(n * moments.ceiling for moments, n in parts),
        floor=sum(n * moments.floor for moments, n in parts),
        mean=sum(n * moments.mean for moments, n in parts),
    )


@lru_cache(maxsize=256)
def loss_moments(pair: SampledGaussian, *, log_outside: float) -> LossMoments | None:
    """Return the `LossMoments` of one round in a window that leaves out e^`log_outside`; None at very low noise.

    Orders at which e^(s L) changes by more than e^16 across one panel are left out (infinite).
    """
    low, high = pair.window(log_outside)
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
        outside=math.exp(log_outside),
        ceiling=float(ends[3]),
        floor=float(ends[0]),
        mean=float(weights @ y) / float(weights.sum()),
    )


def _pad(values: Floats) -> Floats:
    padded = np.full(len(ORDERS), np.inf)
    padded[: len(values)] = values
    return padded


def _log_moment(weights: Floats, y: Floats, s: float) -> float:
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
        bounds = np.log(np.maximum(power, 0.0)) - log_false
    return max(0.0, float(np.max(bounds)))
