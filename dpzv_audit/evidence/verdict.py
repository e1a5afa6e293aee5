"""Verdicts as pure functions: from p-values, by Holm's method over the file, and from upper bounds.

Holm, Scandinavian Journal of Statistics 6, 1979: however the p-values depend on each other, a true claim is refuted
with probability at most alpha over all claims together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import get_args

from dpzv_audit.findings import EmpiricalBound, Verdict
from dpzv_audit.statistics import can_refute

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

MEANINGS: dict[Verdict, str] = {
    "refuted": "the measured lower bound lies above the claim at the stated confidence",
    "overclaimed": "nothing refuted the claim, but no sound upper bound against this adversary supports it",
    "supported": "a sound upper bound lies at or below the claim, and nothing refuted it",
    "inconclusive": "there is no theory to lean on, and the audit did not refute the claim",
}

GIVEN_GAUSSIAN = "given Gaussian noise"
"""What a bound on a Gaussian trade-off curve takes as given where it may refute a claim of (epsilon, delta)."""
ACCURACY = 1e-9
"""Relative accuracy of the accountants' closed forms: a claim is not overclaimed by a last digit below it."""


def combined_p_value(stages: Iterable[tuple[float, float]]) -> float:
    """Return the p-value of a claim tested in several looks, from (p-value, weight) of each look that was taken.

    The weights of all planned looks sum to at most 1. min p/w is a p-value however the looks depend on each other, and
    stays one when the later looks are left out because of what the earlier ones showed: leaving out only raises it.
    """
    return min(1.0, min((p / weight for p, weight in stages), default=1.0))


def adjusted_p_values(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's adjusted p-values: a claim is refuted where its own is at most alpha."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


def holm(p_values: Sequence[float], alpha: float) -> tuple[bool, ...]:
    """Return which claims are refuted, with probability at most `alpha` that any true one is among them."""
    return tuple(value <= alpha for value in adjusted_p_values(p_values))


def decide(*, refuted: bool, theory: bool, upper: float | None, claimed: float | None) -> Verdict:
    """Return the verdict on one claim.

    Args:
        refuted: whether its test says so at the error rate of the whole file.
        theory: whether theory speaks about this claim at all: an accountant answered, be it "no sound bound".
        upper: the tightest *sound* upper bound on epsilon against this adversary; None where there is none.
        claimed: the claimed epsilon; None for a claim about an attack, of which no theory speaks.
    """
    if refuted:
        return "refuted"
    if not theory or claimed is None:
        return "inconclusive"
    return "supported" if upper is not None and supports(upper, claimed) else "overclaimed"


def verdict_on(claimed: float, lower: float | None, upper: float | None, *, theory: bool = True) -> Verdict:
    """Return the verdict that one lower bound, None without an audit, gives on a claimed epsilon; else as `decide`."""
    return decide(refuted=lower is not None and lower > claimed, theory=theory, upper=upper, claimed=claimed)


def fails(verdict: Verdict, *, audited: bool, allow_overclaimed: bool = False, strict: bool = False) -> bool:
    """Return whether a claim fails the gate: refuted always, overclaimed unless allowed.

    With `strict` also where it is inconclusive, and where it was not `audited`: no test was made, or a budget cut it.
    """
    if strict and (verdict == "inconclusive" or not audited):
        return True
    return verdict == "refuted" or (verdict == "overclaimed" and not allow_overclaimed)


def stopping_level(alpha: float, claims: int) -> float:
    """Return the p-value at which a claim needs no further look: a power of ten, at most alpha / claims and 1e-6.

    It does not move with the number of claims up to a thousand at alpha = 1e-3, so that a claim more in the file does
    not change how the others are tested.
    """
    return float(min(1e-6, 10.0 ** math.floor(math.log10(alpha / max(1, claims)))))


def largest_gating(bounds: Sequence[EmpiricalBound]) -> float | None:
    """Return the largest epsilon among bounds that may refute an (epsilon, delta) claim, None where none may."""
    return max((bound.epsilon_lower for bound in bounds if can_refute(bound)), default=None)


def refuted_given(claimed: float, bounds: Sequence[EmpiricalBound]) -> str | None:
    """Return what a refutation of `claimed` takes as given; None where a bound that takes nothing refutes it too.

    None as well where no bound that may refute it does.
    """
    refuting = [bound for bound in bounds if can_refute(bound) and bound.epsilon_lower > claimed]
    alone = any(bound.claim_kind == "epsilon-delta" for bound in refuting)
    return GIVEN_GAUSSIAN if refuting and not alone else None


def given_by(gating: Sequence[EmpiricalBound]) -> str | None:
    """Return what the largest bound takes as given: Gaussian noise where it is one on a trade-off curve."""
    best = max(gating, key=lambda bound: bound.epsilon_lower, default=None)
    return GIVEN_GAUSSIAN if best is not None and best.claim_kind == "trade-off" else None


def supports(upper: float, claimed: float) -> bool:
    """Return whether a sound upper bound lies at or below the claimed epsilon, as far as its digits go."""
    return upper <= claimed * (1.0 + ACCURACY)
