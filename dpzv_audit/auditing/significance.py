"""Tests of a claimed epsilon: p-values from the two rates of one rule that was fixed before the scores it is tested on.

The lower bounds of `estimators` grow with the error they may make. The least error at which a bound passes the claim is
a p-value: under a true claim a bound at error u passes it with probability at most u, for every u at once, since rule
and split of the error were fixed on the pilot. That is what Holm's method needs (Holm, Scand. J. Statist. 6, 1979).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from dpzv_audit.auditing.binomial import upper_limit
from dpzv_audit.auditing.settings import check_scores
from dpzv_audit.auditing.thresholds import LEAST_A_SIDE, choose_rule, error_counts, split_pilot
from dpzv_audit.errors import check_count, check_positive, check_probability
from dpzv_audit.evidence import ClaimKind

TestName = Literal["clopper-pearson", "gaussian"]

LEAST_P = 1e-300
"""Below it no error is solved for: no verdict needs more."""

_SHARES: dict[TestName, tuple[float, ...]] = {"clopper-pearson": (0.5, 0.7, 0.8, 0.9), "gaussian": (0.5,)}


@dataclass(frozen=True, kw_only=True)
class FixedTest:
    """One rule's errors on scores that had no part in choosing it; n_in = 0 where there were too few to test.

    `clopper-pearson` speaks about (epsilon, delta) of any mechanism; `gaussian` about mu of Gaussian DP, which stands
    for an epsilon only where the view is Gaussian by construction.
    """

    name: TestName
    delta: float
    n_in: int
    n_out: int
    false_positives: int
    false_negatives: int
    strict_on_fpr: bool
    """Whether the bound divides by the false positive rate, or by the false negative rate."""
    share: float
    """Share of the error spent on the rate that the bound divides by."""
    rule: str

    @property
    def claim_kind(self) -> ClaimKind:
        """The kind of claim that this test can refute."""
        return "epsilon-delta" if self.name == "clopper-pearson" else "trade-off"

    def epsilon_lower(self, error: float) -> float:
        """Lower bound on epsilon, >= 0, which exceeds the truth with probability at most `error` in (0, 1)."""
        return self._epsilon(self._statistic(error, self.false_positives, self.false_negatives))

    def ceiling(self, error: float) -> float:
        """The largest epsilon that as many scores could have proved at `error`: that of no error at all."""
        return self._epsilon(self._statistic(error, 0, 0))

    def p_value(self, epsilon: float) -> float:
        """The least error at which the bound exceeds the claimed `epsilon` > 0; 1 where none below 1 does."""
        claimed = self._claimed(check_positive("epsilon", epsilon))

        def passes(log10_error: float) -> bool:
            return self._statistic(10.0**log10_error, self.false_positives, self.false_negatives) > claimed

        return _least_error(passes)

    def _claimed(self, epsilon: float) -> float:
        if self.name == "clopper-pearson":
            return epsilon
        from dpzv_audit.accounting.gaussian import mu_from_epsilon

        return float(mu_from_epsilon(epsilon, self.delta))

    def _statistic(self, error: float, false_positives: int, false_negatives: int) -> float:
        """Epsilon, or mu for `gaussian`, that the rates' upper limits prove; -inf for nothing."""
        if self.n_in == 0:
            return -np.inf
        fpr, fnr = (false_positives, self.n_out), (false_negatives, self.n_in)
        strict, other = (fpr, fnr) if self.strict_on_fpr else (fnr, fpr)
        limits = upper_limit(*strict, error * self.share), upper_limit(*other, error * (1.0 - self.share))
        return float(_objective(self.name, self.delta)(*limits))

    def _epsilon(self, statistic: float) -> float:
        if not statistic > 0.0:
            return 0.0
        if self.name == "clopper-pearson":
            return statistic
        from dpzv_audit.accounting.gaussian import epsilon_from_mu

        return float(epsilon_from_mu(statistic, self.delta))


def _least_error(passes: Callable[[float], bool]) -> float:
    """Return 10^x at the least x at which `passes` holds, rounded up, by bisection; 1 where it never does."""
    low, high = float(np.log10(LEAST_P)), 0.0
    if not passes(float(np.log10(1.0 - 1e-12))):
        return 1.0
    if passes(low):
        return LEAST_P
    while high - low > 1e-7:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if passes(middle) else (middle, high)
    return float(10.0**high)


def _objective(name: TestName, delta: float) -> Callable[..., NDArray[np.float64]]:
    """Return (limit on the strict rate, limit on the other) -> epsilon for `clopper-pearson`, mu for `gaussian`."""

    def epsilon(strict: ArrayLike, other: ArrayLike) -> NDArray[np.float64]:
        room = 1.0 - delta - np.asarray(other, dtype=np.float64)
        log_room = np.log(np.where(room > 0.0, room, 1.0))
        return np.asarray(np.where(room > 0.0, log_room - np.log(strict), -np.inf), dtype=np.float64)

    def mu(strict: ArrayLike, other: ArrayLike) -> NDArray[np.float64]:
        return np.asarray(-ndtri(strict) - ndtri(other), dtype=np.float64)

    return epsilon if name == "clopper-pearson" else mu


def fixed_test(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    name: TestName = "clopper-pearson",
    delta: float,
    design_error: float,
    seed: int = 0,
) -> FixedTest:
    """Choose a rule on a random pilot of both sides and count its errors on the rest.

    Args:
        in_scores: (n,) scores of runs with the canary, independent of each other.
        out_scores: (m,) scores of runs without it; either side may be the higher one.
        name: `clopper-pearson`, or `gaussian`, whose rates bound mu.
        delta: the delta of (epsilon, delta), in (0, 1).
        design_error: the error, in (0, 1), at which the rule is meant to prove most; costs power, never validity.
        seed: draws the pilot. Fix it first.

    Raises:
        InputError: empty, many-dimensional or infinite scores, or a number out of range.
    """
    check_probability("delta", delta)
    check_probability("design_error", design_error)
    seed = check_count("seed", seed, least=0)
    inside, outside = check_scores("in_scores", in_scores), check_scores("out_scores", out_scores)
    if min(inside.size, outside.size) < LEAST_A_SIDE:
        return FixedTest(
            name=name,
            delta=delta,
            n_in=0,
            n_out=0,
            false_positives=0,
            false_negatives=0,
            strict_on_fpr=True,
            share=0.5,
            rule=f"none: fewer than {LEAST_A_SIDE} scores on a side leave nothing to test after a pilot",
        )
    pilot_in, rest_in = split_pilot(inside, seed)
    pilot_out, rest_out = split_pilot(outside, seed)
    rule = choose_rule(
        pilot_in,
        pilot_out,
        n_in=rest_in.size,
        n_out=rest_out.size,
        error=design_error,
        objective=_objective(name, delta),
        shares=_SHARES[name],
    )
    false_positives, false_negatives = error_counts(rest_in, rest_out, rule)
    side = "above" if rule.in_is_high else "below"
    return FixedTest(
        name=name,
        delta=delta,
        n_in=rest_in.size,
        n_out=rest_out.size,
        false_positives=false_positives,
        false_negatives=false_negatives,
        strict_on_fpr=rule.strict_on_fpr,
        share=rule.share,
        rule=f"'in' when the score is {side} {rule.threshold:.6g}, fixed on a pilot of {pilot_in.size} + "
        f"{pilot_out.size} scores: {false_positives:,} false positives of {rest_out.size:,}, "
        f"{false_negatives:,} false negatives of {rest_in.size:,}",
    )
