"""`one-run`: epsilon from the guesses about many coin-flip canaries of one training.

Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run" (NeurIPS 2023), theorem 5.2 and corollary
5.4: under (epsilon, delta) the right guesses exceed those of randomised response, Binomial(r, e^epsilon / (1 +
e^epsilon)), by nothing more than delta allows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaln, xlog1py, xlogy

from dpzv_audit.findings import EmpiricalBound
from dpzv_audit.statistics.binomial import lower_limit
from dpzv_audit.statistics.canaries import Guesses, choose_guesses, count_guesses, draw_canaries, in_words
from dpzv_audit.statistics.settings import AuditSettings, Scores

Floats = NDArray[np.float64]

NONE = "none: too few scores to leave canaries after a pilot"
_SPREAD = 40.0
_TOLERANCE = 1e-9
_LARGEST = 700.0


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return the chance of so many right guesses under (`epsilon`, `delta`), in [0, 1]: corollary 5.4.

    P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i, W binomial. The maximum is sought over 40 standard deviations
    of W below v: further down the sum no longer grows.
    """
    v, r = guesses.right, guesses.made
    if v == 0:
        return 1.0
    q = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(betainc(v, r - v + 1.0, q))
    depth = min(v, math.ceil(_SPREAD * math.sqrt(r * q * (1.0 - q)) + _SPREAD + max(0.0, v - r * q)))
    k = np.arange(v - 1, v - depth - 1, -1, dtype=np.float64)
    log_mass = gammaln(r + 1.0) - gammaln(k + 1.0) - gammaln(r - k + 1.0) + xlogy(k, q) + xlog1py(r - k, -q)
    most = float(np.max(np.cumsum(np.exp(log_mass)) / np.arange(1.0, depth + 1.0)))
    return min(1.0, tail + 2.0 * guesses.canaries * delta * most)


def largest_refuted(guesses: Guesses, delta: float, error: float) -> float:
    """Return the largest epsilon, to 1e-9, that the guesses refute at `error`; 0 for none."""
    low, high = 0.0, 1.0
    if p_value(guesses, 0.0, delta) > error:
        return 0.0
    while high < _LARGEST and p_value(guesses, high, delta) <= error:
        low, high = high, 2.0 * high
    while high - low > _TOLERANCE:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if p_value(guesses, middle, delta) <= error else (low, middle)
    return low


def one_run(in_scores: Scores, out_scores: Scores, settings: AuditSettings) -> EmpiricalBound:
    """Return a lower bound on epsilon from (n,) and (m,) scores of canaries with bit 1 and bit 0.

    The canaries may share one training: nothing is assumed of how their scores depend on each other.
    """
    error, delta = settings.error, settings.delta
    value, ceiling, words, looks = 0.0, 0.0, NONE, 0
    canaries = draw_canaries(in_scores, out_scores, settings)
    if canaries is not None:

        def promise(made: Floats, right: Floats) -> Floats:
            return lower_limit(right, made, error)

        rule = choose_guesses(canaries, promise)
        guesses = count_guesses(canaries, rule)
        value, looks = largest_refuted(guesses, delta, error), 1
        ceiling = largest_refuted(Guesses(guesses.canaries, guesses.canaries, guesses.canaries), delta, error)
        words = in_words(canaries, rule, guesses, settings)
    return settings.bound(
        "one-run",
        in_scores,
        out_scores,
        proved=value,
        provable=max(value, ceiling),
        rule=words,
        looks=looks,
    )
