"""Prints power and coverage of the estimators on mechanisms with known epsilon; run it as a script.

Power: mean bound of 40 audits with 10,000 scores a side. Coverage: how many of 1,000 audits with 1,000 scores
a side exceed the true epsilon, beside the count that a valid bound passes with probability below 1e-4.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from scipy.special import bdtrc

from dpzv_audit.accounting.gaussian import epsilon_from_mu
from dpzv_audit.auditing import audit_scores

DELTA = 1e-5
Game = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def gaussian_game(mu: float) -> Game:
    return lambda rng, n: (rng.normal(mu, 1.0, n), rng.normal(0.0, 1.0, n))


def laplace_game(epsilon: float) -> Game:
    return lambda rng, n: (rng.laplace(epsilon, 1.0, n), rng.laplace(0.0, 1.0, n))


def epsilons(game: Game, audits: int, n: int, names: tuple[str, ...]) -> np.ndarray:
    """Return (audits, estimators) lower bounds on epsilon at 95%, one seed an audit."""
    rows = []
    for seed in range(audits):
        bounds = audit_scores(*game(np.random.default_rng(seed), n), delta=DELTA, estimators=names)
        rows.append([bound.epsilon_lower for bound in bounds])
    return np.array(rows)


def print_power(audits: int = 40, n: int = 10_000) -> None:
    """Print the mean bound, its standard error and the time of one audit for each mu."""
    print(f"power: mean of {audits} audits, {n:,} scores a side, 95%, delta {DELTA:g}")
    print(f"{'mu':>6} {'epsilon':>8} {'clopper-pearson':>18} {'gaussian':>18} {'ms/audit':>9}")
    for mu in (0.388, 1.0, 3.0, 8.4):
        start = time.perf_counter()
        found = epsilons(gaussian_game(mu), audits, n, ("clopper-pearson", "gaussian"))
        pace = 1e3 * (time.perf_counter() - start) / audits
        means, errors = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(audits)
        cells = " ".join(f"{m:>9.3f} +- {e:<5.3f}" for m, e in zip(means, errors, strict=True))
        print(f"{mu:>6} {epsilon_from_mu(mu, DELTA):>8.3f} {cells} {pace:>9.1f}")


def print_coverage(audits: int = 1000, n: int = 1000) -> None:
    """Print how often a bound exceeds the truth, for each mechanism and estimator that speaks about it."""
    allowed = next(k for k in range(audits) if bdtrc(k, audits, 0.05) < 1e-4)
    both: tuple[str, ...] = ("clopper-pearson", "gaussian")
    games = [(f"gaussian mu={mu}", gaussian_game(mu), epsilon_from_mu(mu, DELTA), both) for mu in (0.388, 1.0, 3.0)]
    games.append(("laplace epsilon=1", laplace_game(1.0), 1.0, ("clopper-pearson",)))
    print(f"coverage: exceedances in {audits:,} audits, {n:,} scores a side, 95%; valid: at most {allowed}")
    for name, game, truth, names in games:
        exceeded = (epsilons(game, audits, n, names) > truth).sum(axis=0)
        print(f"{name:<20} " + "  ".join(f"{e}: {c}" for e, c in zip(names, exceeded, strict=True)))


if __name__ == "__main__":
    print_power()
    print_coverage()
