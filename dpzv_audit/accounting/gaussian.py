"""Gaussian DP in log space (Dong, Roth and Su, 2022), also of mechanisms that run a random number of times.

Has delta, epsilon, mu and trade-off curves, and delta(eps) = E_n[delta_G(eps; mu_n)] for binomial n.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import bdtr, bdtrc, erfcx, ndtr, ndtri

from ..base.errors import InputError, check_count, check_not_negative, check_probability
from ..base.findings import EpsilonRange

Floats = NDArray[np.float64]

_SQRT_HALF_PI = math.sqrt(math.pi / 2.0)
LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
LARGEST_MU = 1e75
"""Past it epsilon is about mu^2/2 and means nothing; mu^2 must not overflow."""
_ROOT_TOLERANCE = 4.0 * float(np.finfo(np.float64).eps)


def _mills(x: Floats) -> Floats:
    """Mills ratio (1 - Phi(x)) / phi(x), for x above about -37 (it overflows below)."""
    return np.asarray(_SQRT_HALF_PI * erfcx(x / math.sqrt(2.0)))


def _mills_slope(x: Floats) -> Floats:
    """Minus the derivative of the Mills ratio, 1 - x m(x), without its cancellation at large x."""
    large = np.maximum(x, 30.0)
    inverse = 1.0 / (large * large)
    series = np.zeros_like(large)
    for coefficient in (-135135.0, 10395.0, -945.0, 105.0, -15.0, 3.0, -1.0):  # (2k - 1)!! with signs
        series = inverse * (series - coefficient)
    return np.where(x > 30.0, series, 1.0 - x * _mills(np.minimum(x, 30.0)))


def log_delta_from_mu(epsilon: ArrayLike, mu: ArrayLike) -> Floats:
    """Return ln delta_G(epsilon; mu), the delta of a mu-Gaussian-DP mechanism, broadcasting its arguments.

    `epsilon` >= 0 and `mu` >= 0 (mu = 0 gives -inf); relative error of delta about 1e-11 or less.
    With u = epsilon/mu - mu/2 and the Mills ratio m, delta = phi(u) (m(u) - m(u + mu)): e^epsilon never
    appears. The difference is integrated where it would cancel, and taken from 1 where phi(u) m(u) is near 1.
    Source: Dong, Roth and Su (2022), corollary 1; paper 001, equation 11.
    """
    eps, width = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(mu, float))
    shape = eps.shape
    eps, width = np.atleast_1d(eps, width)
    if not (np.all(eps >= 0.0) and np.all(width >= 0.0) and np.all(np.isfinite(width))):
        raise InputError(f" and mu {mu!r}; use at least 0, and a finite mu", "epsilon", epsilon)
    result = np.full(eps.shape, -np.inf)
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        u = eps / np.where(width > 0.0, width, 1.0) - width / 2.0
    live = (width > 0.0) & np.isfinite(u) & (np.abs(u) < 1e150)
    narrow = live & (width < 0.1 * np.maximum(1.0, u))
    near_one = live & ~narrow & (u < -1.0)
    plain = live & ~narrow & ~near_one
    log_phi = -0.5 * np.where(live, u, 0.0) ** 2 - LOG_SQRT_TWO_PI
    if narrow.any():
        a = u[narrow][:, None]
        h = width[narrow][:, None] / 2.0
        integral = (_mills_slope(a + h * (1.0 + NODES)) @ WEIGHTS) * h[:, 0]
        result[narrow] = log_phi[narrow] + np.log(integral)
    if near_one.any():
        # Phi(-u) is 1 - Phi(u) with Phi(u) small, and u + mu > 0 because epsilon >= 0.
        second = np.exp(log_phi[near_one]) * _mills(u[near_one] + width[near_one])
        result[near_one] = np.log1p(-(ndtr(u[near_one]) + second))
    if plain.any():
        result[plain] = log_phi[plain] + np.log(_mills(u[plain]) - _mills(u[plain] + width[plain]))
    result[(width > 0.0) & ~live & (u < 0.0)] = 0.0
    return np.asarray(np.minimum(result.reshape(shape), 0.0))


def delta_from_mu(epsilon: ArrayLike, mu: ArrayLike) -> Floats:
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
        raise InputError(f"use a number in [0, {LARGEST_MU:g}]: is there any noise?", "mu", mu)
    check_probability("delta", delta)
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        return float(log_delta_from_mu(epsilon, mu)) - target

    if mu == 0.0 or excess(0.0) <= 0.0:
        return 0.0
    # delta(epsilon) < Phi(mu/2 - epsilon/mu), so the epsilon that makes that equal delta is too large.
    high = mu * (mu / 2.0 - float(ndtri(delta))) * (1.0 + 1e-12)
    return root_of(excess, 0.0, high)


def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """Return the mu at which Gaussian DP has exactly (`epsilon`, `delta`); epsilon >= 0, 0 < delta < 1."""
    check_not_negative("epsilon", epsilon)
    check_probability("delta", delta)
    target = math.log(delta)

    def excess(mu: float) -> float:
        return float(log_delta_from_mu(epsilon, mu)) - target

    # Two lower limits: delta < Phi(mu/2 - epsilon/mu), and delta(epsilon) <= delta(0) <= 0.4 mu.
    q = -float(ndtri(delta))
    root = math.sqrt(q * q + 2.0 * epsilon)
    low = 2.0 * epsilon / (q + root) if q > 0.0 else root - q
    low = max(low, 2.0 * delta) * (1.0 - 1e-9)
    high = 2.0 * low
    while excess(high) < 0.0:
        high *= 2.0
    return root_of(excess, low, high)


def exactly(epsilon: float) -> EpsilonRange:
    """Return the range of an epsilon without numerical error."""
    return EpsilonRange(lower=epsilon, estimate=epsilon, upper=epsilon)


def gaussian_tradeoff(alpha: ArrayLike, mu: float) -> Floats:
    """Return Phi(Phi^-1(1 - alpha) - mu), the least false negative rate at false positive rate `alpha`."""
    check_not_negative("mu", mu)
    # Phi^-1(1 - alpha) = -Phi^-1(alpha), which keeps the digits of a small alpha.
    return np.asarray(ndtr(-ndtri(_rates(alpha)) - mu))


def epsilon_delta_tradeoff(alpha: ArrayLike, epsilon: float, delta: float) -> Floats:
    """Return the least false negative rate at false positive rate `alpha` under (`epsilon`, `delta`)-DP.

    max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)); Wasserman and Zhou (2010).
    """
    check_not_negative("epsilon", epsilon)
    if not 0.0 <= delta < 1.0:
        raise InputError("use a number in [0, 1)", "delta", delta)
    rates = _rates(alpha)
    with np.errstate(divide="ignore"):
        steep = 1.0 - delta - np.exp(np.minimum(epsilon + np.log(rates), 1.0))
    shallow = math.exp(-epsilon) * (1.0 - delta - rates)
    return np.maximum(0.0, np.maximum(steep, shallow))


def _rates(alpha: ArrayLike) -> Floats:
    rates = np.asarray(alpha, float)
    if not np.all((rates >= 0.0) & (rates <= 1.0)):
        raise InputError("use a number in [0, 1]", "alpha", alpha)
    return rates


_TAIL_SHARE = 1e-9
_MOST_VALUES = 50_000
_MOST_PRODUCTS = 4_000_000
_MOST_FACTOR = 2_000


@dataclass(frozen=True, kw_only=True)
class CountLaw:
    """Distribution of a count: probability `weights[i]` of `low + i`, and what was left out.

    Attributes:
        below: Upper limit on the mass below `low`.
        above: Upper limit on the mass above `low + len(weights) - 1`.
    """

    low: int
    weights: Floats
    below: float
    above: float


def binomial_counts(rounds: int, rate: float, *, tail: float, cap: int | None = None) -> CountLaw:
    """Return Binomial(`rounds`, `rate`), or its minimum with `cap`, less at most `tail` on each side.

    `rounds` >= 1, 0 < `rate` < 1, 0 < `tail` < 1. The limits come from Chernoff's bound, the mass left out
    from the incomplete beta function, and the weights from their ratios, which keep digits that gamma
    functions of 1e7 would lose.
    """
    check_count("rounds", rounds)
    check_probability("rate", rate)
    check_probability("tail", tail)
    low, high = _chernoff_limits(rounds, rate, tail)
    mode = min(max(int((rounds + 1) * rate), low), high)
    k = np.arange(float(low), high)
    steps = np.log((rounds - k) / (k + 1.0)) + (math.log(rate) - math.log1p(-rate))
    position = np.append(0.0, np.cumsum(steps))
    below = float(bdtr(low - 1, rounds, rate)) if low > 0 else 0.0
    above = float(bdtrc(high, rounds, rate)) if high < rounds else 0.0
    weights = np.exp(position - position[mode - low])
    weights *= (1.0 - below - above) / weights.sum()
    if cap is not None and cap < high:
        kept = max(cap - low, 0)
        # Everything above the cap, the mass left out included, takes part exactly `cap` times.
        weights = np.append(weights[:kept], weights[kept:].sum() + above)
        if cap < low:
            return CountLaw(low=cap, weights=np.ones(1), below=0.0, above=0.0)
        above = 0.0
    return CountLaw(low=low, weights=weights, below=below, above=above)


def _chernoff_limits(rounds: int, rate: float, tail: float) -> tuple[int, int]:
    """Return [low, high] with P(n < low) <= tail and P(n > high) <= tail, by T KL(k/T || r) >= ln(1/tail)."""
    need = -math.log(tail)
    mean = rounds * rate

    def excess(k: float) -> float:
        hits = k * math.log(k / mean) if k > 0.0 else 0.0
        rest = rounds - k
        misses = -rest * math.log((rounds - mean) / rest) if rest > 0.0 else 0.0
        return hits + misses - need

    low = 0
    high = rounds
    if excess(0.0) > 0.0:
        low = math.floor(brentq(excess, 0.0, mean, xtol=0.25))
    if excess(rounds) > 0.0:
        high = math.ceil(brentq(excess, mean, rounds, xtol=0.25))
    return max(low - 1, 0), min(high + 1, rounds)


@dataclass(frozen=True, kw_only=True)
class Participation:
    """How often a record takes part in one of several releases, and what each time costs (Gaussian-DP `mu`).

    Attributes:
        fixed: The number of times where it is fixed; None: min(Binomial(`rounds`, `rate`), `cap`).
    """

    mu: float
    rounds: int
    rate: float
    fixed: int | None
    cap: int | None = None


class _Squares(NamedTuple):
    """Distribution of mu^2 = n mu_1^2 summed over releases; `low` and `high` differ where values were binned.

    Attributes:
        weights: Mass without what was left out.
        padded: The same with what was left out below, as if at the smallest value kept.
    """

    low: Floats
    high: Floats
    weights: Floats
    padded: Floats


def participations_epsilon(parts: Sequence[Participation], *, delta: float, certain_mu: float = 0.0) -> EpsilonRange:
    """Return epsilon >= 0 at `delta` of Gaussian releases whose counts are fixed or independent and binomial.

    delta(eps) = E[delta_G(eps; sqrt(sum_j n_j mu_j^2 + certain_mu^2))]. `upper`, a certified bound, counts what the
    distributions leave out below as if at the smallest count kept, and above as lost outright; `lower` leaves both
    out. They differ by about 1e-9 relative to delta where one count is random.
    """
    check_probability("delta", delta)
    fixed = certain_mu**2 + sum(
        participation.fixed * participation.mu**2 for participation in parts if participation.fixed is not None
    )
    random = [participation for participation in parts if participation.fixed is None]
    if not random:
        return exactly(epsilon_from_mu(math.sqrt(fixed), delta))
    squares = _Squares(np.zeros(1), np.zeros(1), np.ones(1), np.ones(1))
    above = 0.0
    for participation in random:
        counts = binomial_counts(
            participation.rounds, participation.rate, tail=delta * _TAIL_SHARE, cap=participation.cap
        )
        n = counts.low + np.arange(float(len(counts.weights)))
        padded = counts.weights.copy()
        padded[0] += counts.below
        value = n * participation.mu**2
        squares = _independent(squares, _Squares(value, value, counts.weights, padded))
        above += counts.above
    lower = _solve(np.sqrt(squares.low + fixed), squares.weights, delta)
    upper = _solve(np.sqrt(squares.high + fixed), squares.padded, delta - above)
    middle = lower
    if not np.array_equal(squares.low, squares.high):
        middle = _solve(np.sqrt((squares.low + squares.high) / 2.0 + fixed), squares.weights, delta)
    return EpsilonRange(lower=lower, estimate=middle, upper=max(middle, upper))


def _independent(first: _Squares, other: _Squares) -> _Squares:
    """Return the distribution of the sum, binned outwards where it would have more values than are worth it."""
    if len(first.weights) * len(other.weights) > _MOST_PRODUCTS:
        first = _binned(first, _MOST_FACTOR)
        other = _binned(other, _MOST_FACTOR)
    joint = _Squares(
        np.add.outer(first.low, other.low).ravel(),
        np.add.outer(first.high, other.high).ravel(),
        np.outer(first.weights, other.weights).ravel(),
        np.outer(first.padded, other.padded).ravel(),
    )
    return _binned(joint, _MOST_VALUES)


def _binned(squares: _Squares, most: int) -> _Squares:
    if len(squares.weights) <= most:
        return squares
    start = float(squares.low.min())
    width = (float(squares.high.max()) - start) / most
    place = np.minimum(((squares.low - start) / width).astype(np.intp), most - 1)
    low = np.full(most, np.inf)
    high = np.full(most, -np.inf)
    np.minimum.at(low, place, squares.low)
    np.maximum.at(high, place, squares.high)
    weights, padded = (np.bincount(place, mass, most).astype(float) for mass in squares[2:])
    kept = low < np.inf
    return _Squares(low[kept], high[kept], weights[kept], padded[kept])


def _solve(mus: Floats, weights: Floats, delta: float) -> float:
    live = (mus > 0.0) & (weights > 0.0)
    mus = mus[live]
    log_weights = np.log(weights[live])
    target = math.log(delta)

    def excess(epsilon: float) -> float:
        terms = log_weights + log_delta_from_mu(epsilon, mus)
        peak = float(terms.max())
        if peak == -math.inf:
            return -1e300
        return peak + math.log(float(np.exp(terms - peak).sum())) - target

    if len(mus) == 0 or excess(0.0) <= 0.0:
        return 0.0
    high = epsilon_from_mu(float(mus.max()), delta) * (1.0 + 1e-12)
    return root_of(excess, 0.0, high)
