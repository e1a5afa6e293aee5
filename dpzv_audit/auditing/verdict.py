"""The verdict on a claimed epsilon: what a lower bound refutes, and what the tightest sound upper bound supports."""

from __future__ import annotations

from collections.abc import Sequence

from dpzv_audit.auditing.estimators import can_refute
from dpzv_audit.evidence import EmpiricalBound, Verdict

GIVEN_GAUSSIAN = "given Gaussian noise"
"""What a bound on a Gaussian trade-off curve takes as given where it may refute a claim of (epsilon, delta)."""
ACCURACY = 1e-9
"""Relative accuracy of the accountants' closed forms: a claim is not overclaimed by a last digit below it."""


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


def supports(upper: float, claimed: float) -> bool:
    """Return whether a sound upper bound lies at or below the claimed epsilon, as far as its digits go."""
    return upper <= claimed * (1.0 + ACCURACY)


def verdict_on(claimed: float, lower: float | None, upper: float | None, *, theory: bool = True) -> Verdict:
    """Return the verdict on a claimed epsilon.

    Args:
        claimed: The claimed epsilon.
        lower: A lower bound that may refute it, at the stated confidence; None: no audit.
        upper: The tightest sound upper bound against the same adversary; None: there is none.
        theory: Whether there is a theory of the mechanism at all. Without one nothing supports a claim, and nothing
            says that it claims too much.
    """
    if lower is not None and lower > claimed:
        return "refuted"
    if not theory:
        return "inconclusive"
    return "supported" if upper is not None and supports(upper, claimed) else "overclaimed"
