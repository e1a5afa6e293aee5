"""The sequential test of one claim as data: what its wealth reached against the claim and against a grid of others.

The wealth is an e-process (`dpzv_audit.auditing.betting`, `.likelihood_ratio`), so 1 over the largest it ever was is a
p-value whenever it is looked at, and looking costs nothing (Ville's inequality).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpzv_audit.auditing.betting import BettingTest, pairs_needed
from dpzv_audit.auditing.families import gaussian_epsilon
from dpzv_audit.auditing.joint import LEAST_P
from dpzv_audit.auditing.likelihood_ratio import FIRST, LikelihoodRatioTest
from dpzv_audit.auditing.sequential import most_refutable
from dpzv_audit.claims.blocks import Sides
from dpzv_audit.evidence import ClaimKind

SequentialName = Literal["sequential", "sequential-gaussian"]

LEAST_ERROR = 1e-12
"""No verdict needs a smaller error; wealth of more than 1 over it is not followed up."""
_MOST_EPSILON = 300.0
_EPSILONS = np.concatenate([np.arange(0.0, 3.0, 0.1), np.arange(3.0, 10.25, 0.25)])
_MUS = np.geomspace(0.01, 100.0, 250)


@dataclass(frozen=True, kw_only=True)
class SequentialTest:
    """Largest log wealth against the claim (`against`) and against each of `claims` (`evidence`) after `n_in` pairs.

    `claims` are epsilons for `sequential`, which speaks about (epsilon, delta) of any mechanism, and mus for
    `sequential-gaussian`, which stand for an epsilon only where the view is Gaussian by construction.
    """

    name: SequentialName
    delta: float
    n_in: int
    n_out: int
    claims: tuple[float, ...]
    evidence: tuple[float, ...]
    against: float
    rule: str

    @property
    def claim_kind(self) -> ClaimKind:
        """The kind of claim that this test can refute."""
        return "epsilon-delta" if self.name == "sequential" else "trade-off"

    @property
    def least_p_value(self) -> float:
        """P-value of the claim, valid at any time it is looked at."""
        return max(LEAST_P, math.exp(-self.against))

    def epsilon_lower(self, error: float) -> float:
        """Lower bound on epsilon, >= 0, which exceeds the truth at any time with probability at most `error`."""
        refuted = np.asarray(self.evidence) >= -math.log(error)
        if self.name == "sequential":
            count = int(np.cumprod(refuted).sum())
            return self.claims[count - 1] if count else 0.0
        mu = float(np.max(np.asarray(self.claims)[refuted], initial=0.0))
        return float(gaussian_epsilon(mu, self.delta))

    def ceiling(self, error: float) -> float:
        """The largest epsilon that so many pairs could have proved at `error`."""
        if self.name == "sequential":
            return max(self.epsilon_lower(error), most_refutable(self.n_in, self.delta, 1.0 - error))
        return float(gaussian_epsilon(self.claims[-1], self.delta)) if self.n_in > FIRST else 0.0


def betting_test(
    sides: Sides, *, epsilon: float, delta: float, most_pairs: int, bound: bool = True
) -> SequentialTest | None:
    """Return the betting test of (`epsilon`, `delta`); None where not even `most_pairs` pairs could refute it.

    Without `bound` no other claim is tested beside it, which takes a fraction of the time and gives no lower bound.
    """
    if epsilon > _MOST_EPSILON or pairs_needed(epsilon, delta, 1.0 - 1e-3) > most_pairs:
        return None
    pairs = min(sides.inside.size, sides.outside.size)
    others = [other for other in _EPSILONS if pairs_needed(other, delta, 1.0 - 1e-3) <= most_pairs] if bound else []
    grid = np.union1d(others, [epsilon])
    test = BettingTest(grid, delta=delta, confidence=1.0 - LEAST_ERROR)
    test.update(sides.inside[:pairs], sides.outside[:pairs])
    return SequentialTest(
        name="sequential",
        delta=delta,
        n_in=pairs,
        n_out=pairs,
        claims=tuple(grid.tolist()),
        evidence=tuple(test.best.tolist()),
        against=float(test.best[np.searchsorted(grid, epsilon)]),
        rule=(
            f"bets on {pairs:,} pairs, each side in a random order, each with a threshold and a stake chosen from "
            f"those before it; refuting this claim at 1e-3 takes "
            f"{pairs_needed(epsilon, delta, 1.0 - 1e-3):,} pairs at least"
        ),
    )


def likelihood_ratio_test(sides: Sides, *, epsilon: float, delta: float, bound: bool = True) -> SequentialTest:
    """Return the likelihood-ratio e-process against the mu of (`epsilon`, `delta`), for Gaussian scores.

    `bound` as for `betting_test`.
    """
    from dpzv_audit.accounting.gaussian import mu_from_epsilon

    pairs = min(sides.inside.size, sides.outside.size)
    claimed = float(mu_from_epsilon(epsilon, delta))
    grid = np.union1d(_MUS if bound else [], [claimed])
    test = LikelihoodRatioTest(grid, confidence=1.0 - LEAST_ERROR)
    test.update(sides.inside[:pairs], sides.outside[:pairs])
    return SequentialTest(
        name="sequential-gaussian",
        delta=delta,
        n_in=pairs,
        n_out=pairs,
        claims=tuple(grid.tolist()),
        evidence=tuple(test.best.tolist()),
        against=max(0.0, float(test.best[np.searchsorted(grid, claimed)])),
        rule=(
            f"likelihood of {pairs:,} pairs, each side in a random order, each under what those before it say, over "
            f"the largest under the claim, mu = {claimed:.4g}"
        ),
    )
