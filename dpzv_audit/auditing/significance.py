"""Tests of a claimed epsilon: p-values from the two rates of one rule that was fixed before the scores it is tested on.

The lower bounds of `estimators` grow with the error they may make. The least error at which a bound passes the claim is
a p-value: under a true claim a bound at error u passes it with probability at most u, for every u at once, since rule
and split of the error were fixed on the pilot. That is what Holm's method needs (Holm, Scand. J. Statist. 6, 1979).
The exact test of both rates (`joint`) confines one of them by a share of u: a larger u confines it to less and allows
more, so what is refuted at u is refuted at every larger one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from dpzv_audit.auditing.binomial import upper_limit
from dpzv_audit.auditing.curve import (
    choose_cut,
    cut_and_counts,
    largest_provable,
    largest_ruled_out,
    oriented,
    p_value_of,
)
from dpzv_audit.auditing.families import epsilon_delta_family
from dpzv_audit.auditing.joint import LEAST_P, Counts
from dpzv_audit.auditing.one_threshold import GAUSSIAN_SHARES, mu_objective
from dpzv_audit.auditing.settings import check_scores
from dpzv_audit.auditing.thresholds import LEAST_A_SIDE, choose_rule
from dpzv_audit.errors import check_count, check_positive, check_probability
from dpzv_audit.evidence import ClaimKind

TestName = Literal["joint", "gaussian"]

_SHARE = GAUSSIAN_SHARES[0]
"""Of the error, on each of the two rates that bound mu."""


@dataclass(frozen=True, kw_only=True)
class FixedTest:
    """One rule's errors on scores that had no part in choosing it; n_in = 0 where there were too few to test.

    `joint` speaks about (epsilon, delta) of any mechanism whose two sides are independent; `gaussian` about mu of
    Gaussian DP, which stands for an epsilon only where the view is Gaussian by construction.
    """

    name: TestName
    delta: float
    n_in: int
    n_out: int
    false_positives: int
    false_negatives: int
    strict_on_fpr: bool
    """Whether the rule makes fewer false positives than false negatives, as far as its pilot says."""
    rule: str

    @property
    def claim_kind(self) -> ClaimKind:
        """The kind of claim that this test can refute."""
        return "epsilon-delta" if self.name == "joint" else "trade-off"

    def epsilon_lower(self, error: float) -> float:
        """Lower bound on epsilon, >= 0, which exceeds the truth with probability at most `error` in (0, 1)."""
        if self.n_in == 0:
            return 0.0
        if self.name == "joint":
            return largest_ruled_out(epsilon_delta_family(self.delta), self._counts(), error)
        return self._epsilon(self._mu(error, self.false_positives, self.false_negatives))

    def ceiling(self, error: float) -> float:
        """The largest epsilon that as many scores could have proved at `error`: that of no error at all."""
        if self.n_in == 0:
            return 0.0
        if self.name == "joint":
            return largest_provable(epsilon_delta_family(self.delta), self.n_in, self.n_out, error)
        return self._epsilon(self._mu(error, 0, 0))

    def p_value(self, epsilon: float) -> float:
        """The least error at which the claimed `epsilon` > 0 is refuted, rounded up; 1 where none below 1 does."""
        check_positive("epsilon", epsilon)
        if self.n_in == 0:
            return 1.0
        if self.name == "joint":
            test = p_value_of(epsilon_delta_family(self.delta), epsilon, self._counts())
            return 1.0 if test is None else _least_error(lambda error: test(error) <= error)
        from dpzv_audit.accounting.gaussian import mu_from_epsilon

        claimed = float(mu_from_epsilon(epsilon, self.delta))
        return _least_error(lambda error: self._mu(error, self.false_positives, self.false_negatives) > claimed)

    def _counts(self) -> Counts:
        counts = Counts(
            false_positives=self.false_positives,
            n_out=self.n_out,
            false_negatives=self.false_negatives,
            n_in=self.n_in,
        )
        return oriented(epsilon_delta_family(self.delta), counts, strict_on_fpr=self.strict_on_fpr)

    def _mu(self, error: float, false_positives: int, false_negatives: int) -> float:
        """The mu that the rates' upper limits prove."""
        fpr = upper_limit(false_positives, self.n_out, error * _SHARE)
        fnr = upper_limit(false_negatives, self.n_in, error * (1.0 - _SHARE))
        return float(mu_objective(fpr, fnr))

    def _epsilon(self, mu: float) -> float:
        if not mu > 0.0:
            return 0.0
        from dpzv_audit.accounting.gaussian import epsilon_from_mu

        return float(epsilon_from_mu(mu, self.delta))


def _least_error(passes: Callable[[float], bool]) -> float:
    """Return the least error at which `passes` holds, rounded up by 0.2% at most, by bisection; 1 where it never does.

    The search starts at 1e-12, below which few verdicts look.
    """
    low, high = float(np.log10(LEAST_P)), 0.0
    if not passes(1.0 - 1e-12):
        return 1.0
    middle = -12.0
    while high - low > 1e-3:
        low, high = (low, middle) if passes(10.0**middle) else (middle, high)
        middle = 0.5 * (low + high)
    return LEAST_P if high <= np.log10(LEAST_P) + 1e-2 else float(10.0**high)


def fixed_test(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    name: TestName = "joint",
    delta: float,
    design_error: float,
    seed: int = 0,
) -> FixedTest:
    """Choose a rule on a random pilot of both sides and count its errors on the rest.

    Args:
        in_scores: (n,) scores of runs with the canary, independent of each other.
        out_scores: (m,) scores of runs without it; either side may be the higher one.
        name: `joint`, for (epsilon, delta), or `gaussian`, whose rates bound mu.
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
            rule=f"none: fewer than {LEAST_A_SIDE} scores on a side leave nothing to test after a pilot",
        )
    family = epsilon_delta_family(delta)
    rule, counts = cut_and_counts(
        inside,
        outside,
        choose=partial(choose_cut, family=family, error=design_error)
        if name == "joint"
        else partial(choose_rule, objective=mu_objective, shares=GAUSSIAN_SHARES, error=design_error),
        seed=seed,
    )
    side = "above" if rule.in_is_high else "below"
    return FixedTest(
        name=name,
        delta=delta,
        n_in=counts.n_in,
        n_out=counts.n_out,
        false_positives=counts.false_positives,
        false_negatives=counts.false_negatives,
        strict_on_fpr=rule.strict_on_fpr,
        rule=f"'in' when the score is {side} {rule.threshold:.6g}, fixed on a pilot of {inside.size - counts.n_in} + "
        f"{outside.size - counts.n_out} scores: {counts.false_positives:,} false positives of {counts.n_out:,}, "
        f"{counts.false_negatives:,} false negatives of {counts.n_in:,}",
    )
