"""Tests of an epsilon claim on the blocks of one pool: the e-process after any block, and the full test at the end.

Where the scores are Gaussian by construction each takes half of its share for a test of mu.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpzv_audit.auditing import DEFAULT_ESTIMATORS, GAUSSIAN_TESTS, GENERAL_TESTS
from dpzv_audit.auditing.fixed import TestName, fixed_test
from dpzv_audit.auditing.normality import GAUSSIAN_ASSUMPTION, gaussian_assumption
from dpzv_audit.auditing.sequential import bet_on, likelihood_of
from dpzv_audit.claims.blocks import Block, Sides, all_sides, gaussian_sides, permuted_blocks
from dpzv_audit.claims.evidence import Look
from dpzv_audit.claims.model import MechanismClaim, MethodClaim, ScoresClaim

EpsilonClaim = MethodClaim | ScoresClaim | MechanismClaim


def sequential_looks(
    blocks: Sequence[Block],
    claim: EpsilonClaim,
    *,
    stage: str,
    share: float,
    gaussian: bool,
    most_pairs: int,
    seed: int,
    bound: bool = True,
) -> list[Look]:
    """Return the looks of the sequential test at all `blocks` of a pool, which spend `share` of alpha together.

    `most_pairs` are planned in all: the betting test is left out where they could not refute the claim. Without `bound`
    the looks have p-values alone. Each side of each block is read in a random order that follows from `seed`.
    """
    blocks = permuted_blocks(blocks, seed)
    general = 0.5 * share if gaussian else share
    looks = []
    sides = all_sides(blocks)
    bets = bet_on(
        sides.inside, sides.outside, epsilon=claim.epsilon, delta=claim.delta, most_pairs=most_pairs, bound=bound
    )
    if bets is not None:
        looks.append(Look(stage=stage, weight=general, test=bets, p_value=bets.least_p_value))
    if gaussian:
        sides, delta, assumes = _for_gaussian(blocks, claim.delta)
        if delta < 1.0:
            ratio = likelihood_of(sides.inside, sides.outside, epsilon=claim.epsilon, delta=delta, bound=bound)
            weight = 0.0 if assumes else share - general
            looks.append(Look(stage=stage, weight=weight, test=ratio, p_value=ratio.least_p_value, assumes=assumes))
    return looks


def full_looks(
    blocks: Sequence[Block],
    claim: EpsilonClaim,
    *,
    stage: str,
    share: float,
    gaussian: bool,
    alpha: float,
    seed: int,
) -> list[Look]:
    """Return the looks of the full test at all `blocks` of a pool, which spend `share` of `alpha` together.

    They are the tests of `audit` on the same scores, score files or those of a game, and share the error as there.
    """
    on_gaussian = [name for name in GAUSSIAN_TESTS if name in DEFAULT_ESTIMATORS or not isinstance(claim, ScoresClaim)]
    each = share / (len(GENERAL_TESTS) + len(on_gaussian) if gaussian else len(GENERAL_TESTS))

    def look(name: TestName, sides: Sides, delta: float, assumes: str = "") -> Look:
        test = fixed_test(sides.inside, sides.outside, name=name, delta=delta, design_error=alpha * each, seed=seed)
        weight = 0.0 if assumes else each
        return Look(stage=stage, weight=weight, test=test, p_value=test.p_value(claim.epsilon), assumes=assumes)

    looks = [look(name, all_sides(blocks), claim.delta) for name in GENERAL_TESTS]
    if gaussian:
        sides, delta, assumes = _for_gaussian(blocks, claim.delta)
        if delta < 1.0:
            looks += [look(name, sides, delta, assumes) for name in on_gaussian]
    return looks


def _for_gaussian(blocks: Sequence[Block], delta: float) -> tuple[Sides, float, str]:
    """Return the scores for a test of mu, their delta, and what it rests on; all scores where none are Gaussian."""
    sides = gaussian_sides(blocks)
    if sides is None:
        return all_sides(blocks), delta, GAUSSIAN_ASSUMPTION
    assumes = gaussian_assumption(sides.inside, sides.outside, vouched=sides.vouched)
    return sides, delta / sides.probability, assumes
