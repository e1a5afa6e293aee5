"""Gaussian mechanisms run a random number n of times: delta(eps) = E_n[delta_G(eps; mu_n)], n binomial."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import bdtr, bdtrc

from dpzv_audit.accounting.gaussian import FloatArray, epsilon_from_mu, log_delta_from_mu
from dpzv_audit.errors import InputError, check_count, check_positive, check_probability
from dpzv_audit.evidence import EpsilonRange

_TAIL_SHARE = 1e-9
_LEAST_NOISE = 1e-50
_ROOT_TOLERANCE = 4.0 * float(np.finfo(np.float64).eps)


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


def mixture_epsilon(counts: Counts, *, scale: float, delta: float, server_mu: float = 0.0) -> EpsilonRange:
    """Return epsilon >= 0 of the mixture at `delta`; n participations cost sqrt(n scale^2 + server_mu^2).

    `upper`, a certified bound, counts the mass left out below as if at the smallest kept count, and above
    as lost outright; `lower` and `estimate` leave it out. They differ by about `tail`/`delta`.
    """
    check_positive("scale", scale)
    check_probability("delta", delta)
    n = counts.low + np.arange(len(counts.weights), dtype=np.float64)
    mus = np.sqrt(n * scale**2 + server_mu**2)
    lower = _solve(mus, counts.weights, delta)
    padded = counts.weights.copy()
    padded[0] += counts.below
    upper = _solve(mus, padded, delta - counts.above)
    return EpsilonRange(lower=lower, estimate=lower, upper=max(lower, upper))


def _solve(mus: FloatArray, weights: FloatArray, delta: float) -> float:
    live = (mus > 0.0) & (weights > 0.0)
    mus, log_weights, target = mus[live], np.log(weights[live]), math.log(delta)

    def excess(epsilon: float) -> float:
        terms = log_weights + log_delta_from_mu(epsilon, mus)
        peak = float(terms.max())
        return peak + math.log(float(np.exp(terms - peak).sum())) - target if peak > -math.inf else -1e300

    if len(mus) == 0 or excess(0.0) <= 0.0:
        return 0.0
    high = epsilon_from_mu(float(mus[-1]), delta) * (1.0 + 1e-12)
    return float(brentq(excess, 0.0, high, xtol=1e-300, rtol=_ROOT_TOLERANCE, maxiter=500))


def known_ids_epsilon(
    *,
    noise_multiplier: float,
    delta: float,
    rounds: int,
    rate: float,
    fixed: int | None,
    cap: int | None = None,
    server_mu: float | None = None,
) -> EpsilonRange:
    """Return the exact epsilon against an adversary who knows the batch ids.

    `fixed` participations give the Gaussian trade-off of mu = sqrt(fixed / z^2 + server_mu^2); None gives
    the mixture over min(Binomial(`rounds`, `rate`), `cap`). `noise_multiplier` z > 0; `delta` in (0, 1).
    """
    if check_positive("noise_multiplier", noise_multiplier) < _LEAST_NOISE:
        raise InputError(f"noise_multiplier is {noise_multiplier}, must be at least {_LEAST_NOISE:g}")
    scale = 1.0 / noise_multiplier
    extra = server_mu or 0.0
    if fixed is not None:
        epsilon = epsilon_from_mu(math.hypot(math.sqrt(fixed) * scale, extra), delta)
        return EpsilonRange(lower=epsilon, estimate=epsilon, upper=epsilon)
    counts = binomial_counts(rounds, rate, tail=delta * _TAIL_SHARE, cap=cap)
    return mixture_epsilon(counts, scale=scale, delta=delta, server_mu=extra)
