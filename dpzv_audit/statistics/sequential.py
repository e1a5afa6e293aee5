"""Sequential tests: what two e-processes reached against a grid of claims, as bounds and as data that a gate keeps.

Their wealth (`dpzv_audit.statistics.wealth`) is an e-process, so 1 over the largest it ever was is
a p-value whenever it is looked at, and looking costs nothing (Ville's inequality). Estimators and the gate read the
same claims, so that the same pairs give the same bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.findings import ClaimKind, EmpiricalBound
from dpzv_audit.statistics import wealth
from dpzv_audit.statistics.assumptions import permuted
from dpzv_audit.statistics.binomial import LEAST_P
from dpzv_audit.statistics.families import GAUSSIAN, CurveFamily, epsilon_delta_family
from dpzv_audit.statistics.settings import AuditSettings, Scores
from dpzv_audit.statistics.wealth import BettingTest, LikelihoodRatioTest, pairs_needed

Floats = NDArray[np.float64]
SequentialName = Literal["sequential", "sequential-gaussian"]

LEAST_ERROR, MOST_ERROR = 1e-12, 0.5
"""Errors at which a verdict may ask for a bound; wealth of more than 1 over the least is not followed up."""
_DESIGN_ERROR = 1e-3
"""A claim is bet on where as many pairs as are planned could refute it at this error."""
_CLAIMS = np.concatenate([np.arange(0.0, 6.0, 0.1), np.arange(6.0, 20.0, 0.2)])
_MOST_EPSILON = 300.0
_LEAST_MU, _MOST_MU = 1e-3, 1e2
_AT_ONCE, _PASSES = 16, 3
_MUS = np.geomspace(_LEAST_MU, _MOST_MU, (_AT_ONCE - 1) ** _PASSES + 1)


def claims(pairs: int, delta: float, confidence: float) -> Floats:
    """Return the claims of epsilon that `sequential` tests, as far as any result of so many pairs could refute them.

    Steps of 0.1 to 6 and of 0.2 to 20; the first stands whatever the number.
    """
    within = [c for c in _CLAIMS if pairs_needed(float(c), delta, confidence) <= pairs - wealth.FIRST]
    return np.array(within or _CLAIMS[:1])


def most_refutable(pairs: int, delta: float, confidence: float) -> float:
    """Return the largest claim that `pairs` pairs refute if every one pays; 0 for none."""
    tested = claims(pairs, delta, confidence)
    return float(np.max(tested, initial=0.0)) if pairs - wealth.FIRST >= pairs_needed(0.0, delta, confidence) else 0.0


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
        return self._family.claim_kind

    @property
    def least_p_value(self) -> float:
        """P-value of the claim, valid at any time it is looked at."""
        return max(LEAST_P, math.exp(-self.against))

    def epsilon_lower(self, error: float) -> float:
        """Lower bound on epsilon, >= 0, which exceeds the truth at any time with probability at most `error`."""
        return self._family.proves(self.proved(error), self.delta)

    def proved(self, error: float) -> float:
        """Return the largest of `claims` that is refuted at `error`; 0 for none.

        Of epsilons with all below it. Refuting a mu refutes every smaller one at the same pair.
        """
        refuted = np.asarray(self.evidence) >= -math.log(error)
        if self.name == "sequential":
            count = int(np.cumprod(refuted).sum())
            return self.claims[count - 1] if count else 0.0
        return float(np.max(np.asarray(self.claims)[refuted], initial=0.0))

    def provable(self, error: float) -> float:
        """Return the largest claim that so many pairs could have refuted at `error`."""
        if self.name == "sequential":
            return max(self.proved(error), most_refutable(self.n_in, self.delta, 1.0 - error))
        return _MOST_MU if self.n_in > wealth.ESTIMATED else 0.0

    def ceiling(self, error: float) -> float:
        """The largest epsilon that so many pairs could have proved at `error`."""
        return self._family.proves(self.provable(error), self.delta)

    @property
    def _family(self) -> CurveFamily:
        return epsilon_delta_family(self.delta) if self.name == "sequential" else GAUSSIAN


def bet_on(
    inside: Scores,
    outside: Scores,
    *,
    delta: float,
    epsilon: float | None = None,
    most_pairs: int = 0,
    bound: bool = True,
    error: float = MOST_ERROR,
    least_error: float = LEAST_ERROR,
) -> SequentialTest | None:
    """Return the betting test of pairs in order; of (`epsilon`, `delta`) None where `most_pairs` could not refute it.

    Without `bound` no other claim is tested beside it, which takes a fraction of the time and gives no lower bound.
    With it those are tested which as many pairs could refute at `error`; wealth is followed up to 1 / `least_error`.
    """
    if epsilon is not None and (
        epsilon > _MOST_EPSILON or pairs_needed(epsilon, delta, 1.0 - _DESIGN_ERROR) > most_pairs
    ):
        return None
    pairs = min(inside.size, outside.size)
    grid = np.union1d(claims(pairs, delta, 1.0 - error) if bound else [], [] if epsilon is None else [epsilon])
    test = BettingTest(grid, delta=delta, confidence=1.0 - least_error)
    test.update(inside[:pairs], outside[:pairs])
    against, rule = 0.0, ""
    if epsilon is not None:
        against = float(test.best[np.searchsorted(grid, epsilon)])
        rule = (
            f"bets on {pairs:,} pairs, each side in a random order, each with a threshold and a stake chosen from "
            f"those before it; refuting this claim at {_DESIGN_ERROR:g} takes "
            f"{pairs_needed(epsilon, delta, 1.0 - _DESIGN_ERROR):,} pairs at least"
        )
    return SequentialTest(
        name="sequential",
        delta=delta,
        n_in=pairs,
        n_out=pairs,
        claims=tuple(grid.tolist()),
        evidence=tuple(test.best.tolist()),
        against=against,
        rule=rule,
    )


def likelihood_of(
    inside: Scores,
    outside: Scores,
    *,
    delta: float,
    epsilon: float | None = None,
    bound: bool = True,
    errors: tuple[float, float] = (LEAST_ERROR, MOST_ERROR),
) -> SequentialTest:
    """Return the likelihood-ratio e-process of pairs in order, for Gaussian scores.

    It is against the mu of (`epsilon`, `delta`). With `bound` its claims are those that decide the bound at any error
    in the range `errors`.
    """
    pairs = min(inside.size, outside.size)
    inside, outside = inside[:pairs], outside[:pairs]
    claimed: list[float] = []
    if epsilon is not None:
        from dpzv_audit.accounting.gaussian import mu_from_epsilon

        claimed = [float(mu_from_epsilon(epsilon, delta))]
    grid = np.asarray(claimed)
    if bound:
        first, last = (_largest_refuted(inside, outside, error) for error in errors)
        grid = np.union1d(_MUS[max(first, 0) : max(last, 0) + 1], claimed)
    test = LikelihoodRatioTest(grid, confidence=1.0 - min(errors))
    test.update(inside, outside)
    return SequentialTest(
        name="sequential-gaussian",
        delta=delta,
        n_in=pairs,
        n_out=pairs,
        claims=tuple(grid.tolist()),
        evidence=tuple(test.best.tolist()),
        against=max(0.0, float(test.best[np.searchsorted(grid, claimed[0])])) if claimed else 0.0,
        rule=f"likelihood of {pairs:,} pairs, each side in a random order, under what those before it say, over "
        f"the largest under the claim, mu = {claimed[0]:.4g}"
        if claimed
        else "",
    )


def _largest_refuted(inside: Scores, outside: Scores, error: float) -> int:
    """Return the place in `_MUS` of the largest claim that is refuted at `error`, -1 for none.

    Refuting a mu refutes every smaller one at the same pair, so it is searched for: 16 claims at once, thrice.
    """
    low, step = 0, (_MUS.size - 1) // (_AT_ONCE - 1)
    found = -1
    while step >= 1:
        places = low + step * np.arange(_AT_ONCE)
        test = LikelihoodRatioTest(_MUS[places], confidence=1.0 - error)
        test.update(inside, outside)
        if not test.refuted.any():
            break
        found = low = int(places[test.refuted].max())
        if low == _MUS.size - 1:
            break
        step //= _AT_ONCE - 1
    return found


def sequential(in_scores: Scores, out_scores: Scores, settings: AuditSettings) -> EmpiricalBound:
    """Return the largest epsilon refuted, with all below it, at any pair of (n,) and (m,) finite scores.

    Each side is read in a random order of its own, so that sorted files do no harm; of the longer one a rest is left
    out.
    """
    error = settings.error
    test = bet_on(*permuted(in_scores, out_scores, settings.seed), delta=settings.delta, error=error, least_error=error)
    assert test is not None
    return settings.bound(
        "sequential",
        in_scores,
        out_scores,
        proved=test.proved(error),
        provable=test.provable(error),
        rule=f"bets on {test.n_in} pairs, each side in a random order, each with a threshold, direction, tail and "
        f"stake chosen from the pairs before it; {len(test.claims)} claims from {test.claims[0]:g} to "
        f"{test.claims[-1]:g}, each with the whole error {error:.3g}, the bound being the largest below which all are "
        "refuted; a score equal to a threshold never pays",
        directions=2,
        looks=test.n_in,
    )


def sequential_gaussian(in_scores: Scores, out_scores: Scores, settings: AuditSettings) -> EmpiricalBound:
    """Return the largest mu that a likelihood ratio refuted at any pair, and its epsilon at delta; order as above."""
    error = settings.error
    test = likelihood_of(*permuted(in_scores, out_scores, settings.seed), delta=settings.delta, errors=(error, error))
    return settings.bound(
        "sequential-gaussian",
        in_scores,
        out_scores,
        family=GAUSSIAN,
        proved=test.proved(error),
        provable=test.provable(error),
        rule=f"no threshold: likelihood of each of {test.n_in} pairs, each side in a random order, under what the "
        f"pairs before it say, over the largest under the claim, with the whole error {error:.3g} on its ever "
        f"reaching {1.0 / error:.3g}",
        directions=2,
        looks=max(test.n_in - wealth.ESTIMATED, 0),
    )
