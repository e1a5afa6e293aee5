"""Tests of a fixed number of scores: a rule chosen on a pilot, its errors on the rest, and what the two counts prove.

`joint` and `curve`: one exact test of both counts together against a family of trade-off curves
(`dpzv_audit.statistics.curve`). `clopper-pearson`: the inequality FNR >= 1 - delta - e^epsilon FPR and its mirror
(Kairouz, Oh and Viswanath, ICML 2015, theorem 2.1) at exact binomial limits of the two rates. `gaussian`: mu >=
Phi^-1(1 - FPR) - Phi^-1(FNR) for a mu-Gaussian-DP view (Dong, Roth and Su, JRSS B 2022, definition 2.6) at the same
limits.

The bounds grow with the error they may make. The least error at which a bound passes a claim is a p-value: under a true
claim a bound at error u passes it with probability at most u, for every u at once, since rule and split of the error
were fixed on the pilot. That is what Holm's method needs (Holm, Scand. J. Statist. 6, 1979). The exact test of both
rates confines one of them by a share of u: a larger u confines it to less and allows more, so what is refuted at u is
refuted at every larger one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from dpzv_audit.errors import check_count, check_positive, check_probability
from dpzv_audit.findings import ClaimKind, EmpiricalBound
from dpzv_audit.statistics.binomial import CONFINED, LEAST_P, Counts, upper_limit
from dpzv_audit.statistics.curve import (
    choose_cut,
    largest_provable,
    largest_ruled_out,
    oriented,
    p_value_of,
    promised,
)
from dpzv_audit.statistics.families import GAUSSIAN, CurveFamily, epsilon_delta_family
from dpzv_audit.statistics.settings import AuditSettings, Scores, check_scores
from dpzv_audit.statistics.thresholds import (
    LEAST_A_SIDE,
    Objective,
    Rule,
    choose_rule,
    error_counts,
    pilot_size,
    split_pilot,
)

TestName = Literal["joint", "clopper-pearson", "gaussian", "curve"]

TOO_FEW = f"none: fewer than {LEAST_A_SIDE} scores on a side leave nothing to test after a pilot"
_EPSILON_SHARES, _MU_SHARES = (0.5, 0.7, 0.8, 0.9), (0.5,)
_DEVIATES = np.linspace(-7.0, 7.0, 281)


def epsilon_objective(delta: float) -> Objective:
    """Return (strict, other) -> log((1 - delta - other) / strict), the epsilon that two such limits prove."""

    def objective(strict: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
        room = 1.0 - delta - np.asarray(other, dtype=np.float64)
        positive = room > 0.0
        log_ratio = np.log(np.where(positive, room, 1.0)) - np.log(strict)
        return np.asarray(np.where(positive, log_ratio, -np.inf), dtype=np.float64)

    return objective


def mu_objective(strict: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Phi^-1(1 - strict) - Phi^-1(other), the mu that two such limits prove."""
    return np.asarray(-ndtri(strict) - ndtri(other), dtype=np.float64)


@dataclass(frozen=True)
class Reading:
    """How the errors of one rule prove a parameter theta of `family`.

    By one exact test of both counts, or, with an `objective`, by a limit on each rate; the strict rate's limit then
    takes one of `shares` of the error.
    """

    family: CurveFamily
    objective: Objective | None = None
    shares: tuple[float, ...] = (0.5,)

    def choose(self, pilot_in: Scores, pilot_out: Scores, *, n_in: int, n_out: int, error: float) -> Rule:
        """Return the rule that should prove most from `n_in` + `n_out` further scores at `error`."""
        if self.objective is None:
            return choose_cut(pilot_in, pilot_out, n_in=n_in, n_out=n_out, error=error, family=self.family)
        return choose_rule(
            pilot_in, pilot_out, n_in=n_in, n_out=n_out, error=error, objective=self.objective, shares=self.shares
        )

    def proved(self, counts: Counts, error: float, *, strict_on_fpr: bool, share: float) -> float:
        """Return the theta that `counts` prove at `error`, 0 for none."""
        if self.objective is None:
            return largest_ruled_out(self.family, oriented(self.family, counts, strict_on_fpr=strict_on_fpr), error)
        return max(0.0, self._by_limits(self.objective, counts, error, strict_on_fpr, share))

    def provable(self, n_in: int, n_out: int, error: float) -> float:
        """Return the theta that `n_in` + `n_out` scores without any error prove, at the best share and tail."""
        if self.objective is None:
            return largest_provable(self.family, n_in, n_out, error)
        none = Counts(false_positives=0, n_out=n_out, false_negatives=0, n_in=n_in)
        tails = (True, False)
        return max(self.proved(none, error, strict_on_fpr=tail, share=s) for tail in tails for s in self.shares)

    def p_value(self, counts: Counts, theta: float, *, strict_on_fpr: bool, share: float) -> float:
        """Return the least error at which `counts` refute `theta` > 0, rounded up; 1 where none below 1 does."""
        objective = self.objective
        if objective is not None:
            return _least_error(lambda u: self._by_limits(objective, counts, u, strict_on_fpr, share) > theta)
        test = p_value_of(self.family, theta, oriented(self.family, counts, strict_on_fpr=strict_on_fpr))
        return 1.0 if test is None else _least_error(lambda error: test(error) <= error)

    def _by_limits(
        self, objective: Objective, counts: Counts, error: float, strict_on_fpr: bool, share: float
    ) -> float:
        # The union bound joins both limits, so the sides may depend on each other (runs paired by seed).
        seen = counts if strict_on_fpr else counts.exchanged
        strict = upper_limit(seen.false_positives, seen.n_out, error * share)
        other = upper_limit(seen.false_negatives, seen.n_in, error * (1.0 - share))
        return float(objective(strict, other))


def reading_of(name: TestName, delta: float, family: CurveFamily = GAUSSIAN) -> Reading:
    """Return how the test `name` reads its counts; `family` is that of `curve`."""
    return {
        "joint": lambda: Reading(epsilon_delta_family(delta)),
        "clopper-pearson": lambda: Reading(epsilon_delta_family(delta), epsilon_objective(delta), _EPSILON_SHARES),
        "gaussian": lambda: Reading(GAUSSIAN, mu_objective, _MU_SHARES),
        "curve": lambda: Reading(family),
    }[name]()


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


@dataclass(frozen=True)
class Counted:
    """A rule that was chosen on a pilot of `pilots` scores (in, out), and its errors on the others."""

    rule: Rule
    counts: Counts
    pilots: tuple[int, int]

    def words(self, chosen: str = "chosen with its direction on") -> str:
        """Return the rule and where it comes from, the opening of a sentence."""
        side = "above" if self.rule.in_is_high else "below"
        return (
            f"'in' when the score is {side} {self.rule.threshold:.6g}, {chosen} a random pilot of "
            f"{self.pilots[0]} + {self.pilots[1]} scores (in + out)"
        )


def counted(in_scores: Scores, out_scores: Scores, reading: Reading, *, error: float, seed: int) -> Counted | None:
    """Choose a rule for `reading` on a random pilot and count its errors on the rest; None where too few are left."""
    if min(in_scores.size, out_scores.size) < LEAST_A_SIDE:
        return None
    pilot_in, rest_in = split_pilot(in_scores, seed)
    pilot_out, rest_out = split_pilot(out_scores, seed)
    rule = reading.choose(pilot_in, pilot_out, n_in=rest_in.size, n_out=rest_out.size, error=error)
    wrong = error_counts(rest_in, rest_out, rule)
    counts = Counts(false_positives=wrong[0], n_out=rest_out.size, false_negatives=wrong[1], n_in=rest_in.size)
    return Counted(rule, counts, (pilot_in.size, pilot_out.size))


@dataclass(frozen=True, kw_only=True)
class FixedTest:
    """One rule's errors on scores that had no part in choosing it, as plain data; n_in = 0 where there were too few.

    `joint` and `clopper-pearson` speak about (epsilon, delta) of any mechanism (`joint` where its two sides are
    independent); `gaussian` and `curve` about mu of Gaussian DP, which stands for an epsilon only where the view is
    Gaussian by construction.
    """

    name: TestName
    delta: float
    n_in: int
    n_out: int
    false_positives: int
    false_negatives: int
    strict_on_fpr: bool
    """Whether the rule makes fewer false positives than false negatives, as far as its pilot says."""
    share: float = 0.5
    """Of the error, on the strict rate, where a limit on each rate is taken."""
    rule: str

    @property
    def claim_kind(self) -> ClaimKind:
        """The kind of claim that this test can refute."""
        return self._reading.family.claim_kind

    def epsilon_lower(self, error: float) -> float:
        """Lower bound on epsilon, >= 0, which exceeds the truth with probability at most `error` in (0, 1)."""
        if self.n_in == 0:
            return 0.0
        proved = self._reading.proved(self._counts, error, strict_on_fpr=self.strict_on_fpr, share=self.share)
        return self._reading.family.proves(proved, self.delta)

    def ceiling(self, error: float) -> float:
        """The largest epsilon that as many scores could have proved at `error`: that of no error at all."""
        if self.n_in == 0:
            return 0.0
        return self._reading.family.proves(self._reading.provable(self.n_in, self.n_out, error), self.delta)

    def p_value(self, epsilon: float) -> float:
        """The least error at which the claimed `epsilon` > 0 is refuted, rounded up; 1 where none below 1 does."""
        claimed = check_positive("epsilon", epsilon)
        if self.n_in == 0:
            return 1.0
        if self.claim_kind == "trade-off":
            from dpzv_audit.accounting.gaussian import mu_from_epsilon

            claimed = float(mu_from_epsilon(epsilon, self.delta))
        return self._reading.p_value(self._counts, claimed, strict_on_fpr=self.strict_on_fpr, share=self.share)

    @property
    def _reading(self) -> Reading:
        return reading_of(self.name, self.delta)

    @property
    def _counts(self) -> Counts:
        return Counts(
            false_positives=self.false_positives,
            n_out=self.n_out,
            false_negatives=self.false_negatives,
            n_in=self.n_in,
        )


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

    At `design_error` its bound is that of the estimator of the same name in `audit_scores`.

    Args:
        in_scores: (n,) scores of runs with the canary, independent of each other.
        out_scores: (m,) scores of runs without it; either side may be the higher one.
        name: `joint` or `clopper-pearson`, for (epsilon, delta), or `gaussian` or `curve`, which bound mu.
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
    found = counted(inside, outside, reading_of(name, delta), error=design_error, seed=seed)
    counts = found.counts if found else Counts(false_positives=0, n_out=0, false_negatives=0, n_in=0)
    return FixedTest(
        name=name,
        delta=delta,
        n_in=counts.n_in,
        n_out=counts.n_out,
        false_positives=counts.false_positives,
        false_negatives=counts.false_negatives,
        strict_on_fpr=found.rule.strict_on_fpr if found else True,
        share=found.rule.share if found else 0.5,
        rule=f"{found.words()}: {counts.false_positives:,} false positives of {counts.n_out:,}, "
        f"{counts.false_negatives:,} false negatives of {counts.n_in:,}"
        if found
        else TOO_FEW,
    )


def fixed_bound(name: TestName, in_scores: Scores, out_scores: Scores, settings: AuditSettings) -> EmpiricalBound:
    """Return the bound of the test `name` on (n,) and (m,) finite scores; its rule is designed for the confidence.

    `joint` and `curve` need sides that are independent: runs that share their noise are not, and `clopper-pearson`
    allows them. `joint` and `clopper-pearson` bound epsilon of any mechanism. `curve` bounds theta of
    `settings.family`, `gaussian` mu, which refutes a claim of mu-Gaussian-DP whatever the mechanism; its epsilon
    holds only for a view that is exactly Gaussian: `assumes` says so unless `exactly_gaussian` is set and a test of
    normality does not object. `mu_lower` is theta for the Gaussian family, else None.
    """
    error, reading = settings.error, reading_of(name, settings.delta, settings.family)
    found = counted(in_scores, out_scores, reading, error=error, seed=settings.seed)
    proved = provable = 0.0
    if found is not None:
        rule, counts = found.rule, found.counts
        proved = reading.proved(counts, error, strict_on_fpr=rule.strict_on_fpr, share=rule.share)
        provable = reading.provable(counts.n_in, counts.n_out, error)
    return settings.bound(
        name,
        in_scores,
        out_scores,
        family=reading.family,
        proved=proved,
        provable=provable,
        rule=TOO_FEW if found is None else _in_words(found, reading, error),
        looks=int(found is not None),
    )


def _in_words(found: Counted, reading: Reading, error: float) -> str:
    """Return the rule, how it came about and how its error is spent, as one sentence."""
    rule, counts = found.rule, found.counts
    others = f"the other {counts.n_in} + {counts.n_out}"
    if reading.objective is None:
        how = found.words()
        spent = (
            f"; one exact test of both rates on {others}, on which the error {error:.3g} is spent, {CONFINED:.0%} of "
            "it to confine one of the rates"
        )
    else:
        how = found.words(
            f"chosen with direction and tail by {'a Gaussian fit of' if rule.fitted else 'the scores of'}"
        )
        spent = (
            f" and tested once on {others}; few false {'positives' if rule.strict_on_fpr else 'negatives'}, on whose "
            f"limit {error * rule.share:.3g} of the error {error:.3g} is spent"
        )
    return f"{how}{spent}; a score equal to the threshold counts as an error"


def expected_bound(epsilon: float, *, n_in: int, n_out: int, delta: float, confidence: float = 0.95) -> float:
    """Return the bound that `joint` shows where both rates come out as expected of a true `epsilon`.

    The view is taken to be Gaussian with exactly (`epsilon`, `delta`), and the best threshold as known: the bound of
    one audit scatters around a little less. 0 where the test sees nothing.
    Raises `InputError` for numbers out of range.
    """
    # The root finder behind it is a heavy import, so it waits until a plan is asked for.
    from dpzv_audit.accounting.gaussian import mu_from_epsilon

    check_count("n_in", n_in)
    check_count("n_out", n_out)
    check_probability("confidence", confidence)
    mu = mu_from_epsilon(epsilon, delta)
    if min(n_in, n_out) < LEAST_A_SIDE:
        return 0.0
    reading, error = reading_of("joint", delta), 1.0 - confidence
    rest_in, rest_out = n_in - pilot_size(n_in), n_out - pilot_size(n_out)
    t = mu / 2.0 + _DEVIATES
    fpr, fnr = ndtr(-t), ndtr(t - mu)
    seen = promised(reading.family, rest_out * fpr, rest_out, rest_in * fnr, rest_in, error)
    found = []
    for strict_on_fpr in (True, False):
        best = int(np.argmax(np.where((fpr < fnr) == strict_on_fpr, seen, -1.0)))
        counts = Counts(
            false_positives=round(rest_out * float(fpr[best])),
            n_out=rest_out,
            false_negatives=round(rest_in * float(fnr[best])),
            n_in=rest_in,
        )
        found.append(reading.proved(counts, error, strict_on_fpr=strict_on_fpr, share=0.5))
    return max(found)
