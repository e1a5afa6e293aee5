"""Gaussian mechanisms run a random number n of times: delta(eps) = E_n[delta_G(eps; mu_n)], n binomial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import bdtr, bdtrc

from dpzv_audit.accounting.gaussian import FloatArray, epsilon_from_mu, exactly, log_delta_from_mu, root_of
from dpzv_audit.errors import check_count, check_probability
from dpzv_audit.findings import EpsilonRange

_TAIL_SHARE = 1e-9
_MOST_VALUES = 50_000
_MOST_PRODUCTS = 4_000_000
_MOST_FACTOR = 2_000


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Distribution of a count: probability `weights[i]` of `low + i`, and what was left out."""

    low: int
    weights: FloatArray
    below: float
    """Upper limit on the mass below `low`."""
    above: float
    """Upper limit on the mass above `low + len(weights) - 1`."""


def binomial_counts(rounds: int, rate: float, *, tail: float, cap: int | None = None) -> Counts:
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
    k = np.arange(low, high, dtype=np.float64)
    steps = np.log((rounds - k) / (k + 1.0)) + (math.log(rate) - math.log1p(-rate))
    position = np.concatenate(([0.0], np.cumsum(steps)))
    log_weights = position - position[mode - low]
    below = float(bdtr(low - 1, rounds, rate)) if low > 0 else 0.0
    above = float(bdtrc(high, rounds, rate)) if high < rounds else 0.0
    weights = np.exp(log_weights)
    weights *= (1.0 - below - above) / weights.sum()
    if cap is not None and cap < high:
        kept = max(cap - low, 0)
        # Everything above the cap, the mass left out included, takes part exactly `cap` times.
        weights = np.concatenate((weights[:kept], [weights[kept:].sum() + above]))
        if cap < low:
            return Counts(low=cap, weights=np.ones(1), below=0.0, above=0.0)
        above = 0.0
    return Counts(low=low, weights=weights, below=below, above=above)


def _chernoff_limits(rounds: int, rate: float, tail: float) -> tuple[int, int]:
    """Return [low, high] with P(n < low) <= tail and P(n > high) <= tail, by T KL(k/T || r) >= ln(1/tail)."""
    need = -math.log(tail)
    mean = rounds * rate

    def cost(k: float) -> float:
        hits = k * math.log(k / mean) if k > 0.0 else 0.0
        rest = rounds - k
        misses = -rest * math.log((rounds - mean) / rest) if rest > 0.0 else 0.0
        return hits + misses

    low = 0
    if cost(0.0) > need:
        low = math.floor(brentq(lambda k: cost(k) - need, 0.0, mean, xtol=0.25))
    high = rounds
    if cost(float(rounds)) > need:
        high = math.ceil(brentq(lambda k: cost(k) - need, mean, float(rounds), xtol=0.25))
    return max(low - 1, 0), min(high + 1, rounds)


@dataclass(frozen=True, kw_only=True)
class Participation:
    """How often a record takes part in one of several releases, and what each time costs (Gaussian-DP `mu`)."""

    mu: float
    rounds: int
    rate: float
    fixed: int | None
    """The number of times where it is fixed; None: min(Binomial(`rounds`, `rate`), `cap`)."""
    cap: int | None = None


@dataclass(frozen=True, kw_only=True)
class _Squares:
    """Distribution of mu^2 = n mu_1^2 summed over releases; `low` and `high` differ where values were binned."""

    low: FloatArray
    high: FloatArray
    weights: FloatArray
    """Mass without what was left out."""
    padded: FloatArray
    """The same with what was left out below, as if at the smallest value kept."""


def participations_epsilon(
    parts: Sequence[Participation], *, delta: float, certain_mu: float = 0.0, tail_share: float = _TAIL_SHARE
) -> EpsilonRange:
    """Return epsilon >= 0 at `delta` of Gaussian releases whose counts are fixed or independent and binomial.

    delta(eps) = E[delta_G(eps; sqrt(sum_j n_j mu_j^2 + certain_mu^2))]. `upper`, a certified bound, counts what the
    distributions leave out below as if at the smallest count kept, and above as lost outright; `lower` leaves both
    out. They differ by about `tail_share` relative to delta where one count is random.
    """
    check_probability("delta", delta)
    fixed = certain_mu**2 + sum(part.fixed * part.mu**2 for part in parts if part.fixed is not None)
    random = [part for part in parts if part.fixed is None]
    if not random:
        return exactly(epsilon_from_mu(math.sqrt(fixed), delta))
    squares, above = _Squares(low=np.zeros(1), high=np.zeros(1), weights=np.ones(1), padded=np.ones(1)), 0.0
    for part in random:
        counts = binomial_counts(part.rounds, part.rate, tail=delta * tail_share, cap=part.cap)
        n = counts.low + np.arange(len(counts.weights), dtype=np.float64)
        padded = counts.weights.copy()
        padded[0] += counts.below
        value = n * part.mu**2
        squares = _independent(squares, _Squares(low=value, high=value, weights=counts.weights, padded=padded))
        above += counts.above
    lower = _solve(np.sqrt(squares.low + fixed), squares.weights, delta)
    upper = _solve(np.sqrt(squares.high + fixed), squares.padded, delta - above)
    binned = not np.array_equal(squares.low, squares.high)
    middle = _solve(np.sqrt((squares.low + squares.high) / 2.0 + fixed), squares.weights, delta) if binned else lower
    return EpsilonRange(lower=lower, estimate=middle, upper=max(middle, upper))


def _independent(one: _Squares, other: _Squares) -> _Squares:
    """Return the distribution of the sum, binned outwards where it would have more values than are worth it."""
    if len(one.weights) * len(other.weights) > _MOST_PRODUCTS:
        one, other = _binned(one, _MOST_FACTOR), _binned(other, _MOST_FACTOR)
    joint = _Squares(
        low=np.add.outer(one.low, other.low).ravel(),
        high=np.add.outer(one.high, other.high).ravel(),
        weights=np.outer(one.weights, other.weights).ravel(),
        padded=np.outer(one.padded, other.padded).ravel(),
    )
    return _binned(joint, _MOST_VALUES)


def _binned(squares: _Squares, most: int) -> _Squares:
    if len(squares.weights) <= most:
        return squares
    start = float(squares.low.min())
    width = (float(squares.high.max()) - start) / most
    place = np.minimum(((squares.low - start) / width).astype(np.intp), most - 1)
    low, high = np.full(most, np.inf), np.full(most, -np.inf)
    np.minimum.at(low, place, squares.low)
    np.maximum.at(high, place, squares.high)
    weights, padded = np.zeros(most), np.zeros(most)
    np.add.at(weights, place, squares.weights)
    np.add.at(padded, place, squares.padded)
    kept = low < np.inf
    return _Squares(low=low[kept], high=high[kept], weights=weights[kept], padded=padded[kept])


def _solve(mus: FloatArray, weights: FloatArray, delta: float) -> float:
    live = (mus > 0.0) & (weights > 0.0)
    mus, log_weights, target = mus[live], np.log(weights[live]), math.log(delta)

    def excess(epsilon: float) -> float:
        terms = log_weights + log_delta_from_mu(epsilon, mus)
        peak = float(terms.max())
        return peak + math.log(float(np.exp(terms - peak).sum())) - target if peak > -math.inf else -1e300

    if len(mus) == 0 or excess(0.0) <= 0.0:
        return 0.0
    high = epsilon_from_mu(float(mus.max()), delta) * (1.0 + 1e-12)
    return root_of(excess, 0.0, high)
