"""`bayes`: the epsilon that a joint posterior of the two error rates leaves below it with probability 1 - confidence.

The rates have independent Jeffreys priors Beta(1/2, 1/2), and so Beta posteriors. The rates that (epsilon, delta)
allows form a region (Kairouz, Oh and Viswanath, ICML 2015, theorem 2.1); its posterior mass is one integral over the
quantiles of one rate of the mass of an interval of the other. Idea: Zanella-Beguelin et al. (ICML 2023).
A credible region is no confidence region, so this estimator informs and refutes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincc, betainccinv, betaincinv, ndtr, ndtri

from dpzv_audit.findings import EmpiricalBound
from dpzv_audit.statistics.binomial import Counts
from dpzv_audit.statistics.fixed import TOO_FEW, counted, reading_of
from dpzv_audit.statistics.settings import AuditSettings, Scores

Floats = NDArray[np.float64]

ASSUMPTION = "a Jeffreys prior on each of the two rates; credible, not a confidence"
_FARTHEST = 8.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_LARGEST = 700.0
_TOLERANCE = 1e-7


def _shape(errors: int, n: int) -> tuple[float, float]:
    return errors + 0.5, n - errors + 0.5


def _quantiles(shape: tuple[float, float], z: Floats) -> Floats:
    """Return the quantiles of Beta(`shape`) at the normal probabilities of `z`, each tail from its own side."""
    low, high = betaincinv(*shape, ndtr(np.minimum(z, 0.0))), betainccinv(*shape, ndtr(-np.maximum(z, 0.0)))
    return np.asarray(np.where(z < 0.0, low, high), dtype=np.float64)


def _deviates(shape: tuple[float, float], x: Floats) -> Floats:
    """Return the inverse of `_quantiles`, within +-8."""
    z = np.where(
        betainc(*shape, x) < 0.5, ndtri(np.maximum(betainc(*shape, x), 1e-300)), -ndtri(betaincc(*shape, x) + 1e-300)
    )
    return np.asarray(np.clip(z, -_FARTHEST, _FARTHEST), dtype=np.float64)


def mass_allowed(epsilon: float, counts: Counts, delta: float) -> float:
    """Return the posterior probability that the two rates are such as (`epsilon`, `delta`) allows, in [0, 1].

    Allowed: FNR >= 1 - delta - e^epsilon FPR and its mirror. The same with the answers exchanged is left out: a tied
    score counts as an error in both worlds, and two rates near 1 would then pass for knowledge.
    Gauss-Legendre in the normal deviate of FPR's quantile, on panels that end where a limit on FNR crosses the bulk
    of FNR's posterior: with few errors that is a jump.
    """
    fpr, fnr = _shape(counts.false_positives, counts.n_out), _shape(counts.false_negatives, counts.n_in)
    grown, shrunk = np.exp(min(epsilon, _LARGEST)), np.exp(-epsilon)
    bulk = _quantiles(fnr, np.linspace(-_FARTHEST, _FARTHEST, 9))
    crossings = np.concatenate(
        [
            (1.0 - delta - bulk) * shrunk,
            1.0 - delta - bulk * grown,
            [(1.0 - delta) / (1.0 + grown)],
        ]
    )
    inner = _deviates(fpr, crossings[(crossings > 0.0) & (crossings < 1.0)])
    ends = np.unique(np.concatenate([np.arange(-_FARTHEST, _FARTHEST + 1.0), inner]))
    half = 0.5 * np.diff(ends)
    z = (ends[:-1] + half)[:, None] + half[:, None] * _NODES
    weights = half[:, None] * _WEIGHTS * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    x = _quantiles(fpr, z)
    least = np.clip(np.maximum(1.0 - delta - grown * x, shrunk * (1.0 - delta - x)), 0.0, 1.0)
    return float(np.clip(np.sum(weights * betaincc(*fnr, least)), 0.0, 1.0))


def credible_epsilon(counts: Counts, delta: float, error: float) -> float:
    """Return the epsilon >= 0 whose allowed region has posterior mass `error`, to 1e-7; 0 where that of 0 has more."""
    # The root finder is a heavy import for an estimator that few ask for.
    from scipy.optimize import brentq

    def excess(epsilon: float) -> float:
        return mass_allowed(epsilon, counts, delta) - error

    low, high = 0.0, 1.0
    if excess(low) >= 0.0:
        return 0.0
    while high < _LARGEST and excess(high) < 0.0:
        low, high = high, 2.0 * high
    return float(brentq(excess, low, high, xtol=_TOLERANCE))


def bayes(in_scores: Scores, out_scores: Scores, settings: AuditSettings) -> EmpiricalBound:
    """Return the credible lower end of epsilon from (n,) and (m,) finite scores; right when no errors were seen."""
    error, delta = settings.error, settings.delta
    value, ceiling, words = 0.0, 0.0, TOO_FEW
    reading = reading_of("clopper-pearson", delta)
    found = counted(in_scores, out_scores, reading, error=error, seed=settings.seed)
    if found is not None:
        n_in, n_out = found.counts.n_in, found.counts.n_out
        value = credible_epsilon(found.counts, delta, error)
        none = Counts(false_positives=0, n_out=n_out, false_negatives=0, n_in=n_in)
        ceiling = max(value, credible_epsilon(none, delta, error))
        words = (
            f"{found.words()}; posterior of both rates from the other {n_in} + {n_out}, with the whole error "
            f"{error:.3g} as the mass below the bound; a score equal to the threshold counts as an error"
        )
    return settings.bound(
        "bayes",
        in_scores,
        out_scores,
        proved=value,
        provable=ceiling,
        rule=words,
        looks=int(found is not None),
        assumes=ASSUMPTION,
    )
