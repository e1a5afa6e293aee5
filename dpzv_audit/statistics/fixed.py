"""Tests of a fixed number of scores: a rule chosen on a pilot, its errors on the rest, and what the two counts prove.

`joint` and `curve`: one exact test of both counts together against a family of trade-off curves.
`clopper-pearson`: the inequality FNR >= 1 - delta - e^epsilon FPR and its mirror
(Kairouz, Oh and Viswanath, ICML 2015, theorem 2.1) at exact binomial limits of the two rates. `gaussian`: mu >=
Phi^-1(1 - FPR) - Phi^-1(FNR) for a mu-Gaussian-DP view (Dong, Roth and Su, JRSS B 2022, definition 2.6) at the same
limits.

The bounds grow with the error they may make. The least error at which a bound passes a claim is a p-value: under a true
claim a bound at error u passes it with probability at most u, for every u at once, since rule and split of the error
were fixed on the pilot. That is what Holm's method needs (Holm, Scand. J. Statist. 6, 1979). The exact test of both
rates confines one of them by a share of u: a larger u confines it to less and allows more, so what is refuted at u is
refuted at every larger one.

`joint` and `curve` rule out the least private curves of a family: for each theta the hypothesis "FNR >= f_theta(FPR)"
is tested exactly from both counts together (`binomial.p_value`), and the bound inverts the test. The statistic is the
same for every theta, so its p-value grows with theta and the theta that are ruled out are those below one number.

`bayes` is the epsilon that a joint posterior of the two error rates leaves below it with probability 1 - confidence.
The rates have independent Jeffreys priors Beta(1/2, 1/2), and so Beta posteriors. The rates that (epsilon, delta)
allows form a region; its posterior mass is one integral over the quantiles of one rate of the mass of an interval of
the other. Idea: Zanella-Beguelin et al. (ICML 2023). A credible region is no confidence region, so this estimator
informs and refutes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, betaincc, betainccinv, betaincinv, ndtr, ndtri

from dpzv_audit.errors import check_count, check_positive, check_probability
from dpzv_audit.findings import ClaimKind
from dpzv_audit.statistics.binomial import CONFINED, LEAST_P, Counts, Floats, p_value, upper_limit
from dpzv_audit.statistics.families import GAUSSIAN, CurveFamily, epsilon_delta_family
from dpzv_audit.statistics.settings import AuditSettings, Proof, check_scores
from dpzv_audit.statistics.thresholds import (
    LEAST_A_SIDE,
    Objective,
    Pilot,
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

    def objective(strict: Floats, other: Floats) -> Floats:
        room = 1.0 - delta - other
        positive = room > 0.0
        log_ratio = np.log(np.where(positive, room, 1.0)) - np.log(strict)
        return np.where(positive, log_ratio, -np.inf)

    return objective


def mu_objective(strict: Floats, other: Floats) -> Floats:
    """Return Phi^-1(1 - strict) - Phi^-1(other), the mu that two such limits prove."""
    return np.asarray(-ndtri(strict) - ndtri(other))


@dataclass(frozen=True)
class Reading:
    """How the errors of one rule prove a parameter theta of `family`.

    By one exact test of both counts, or, with an `objective`, by a limit on each rate; the strict rate's limit then
    takes one of `shares` of the error.
    """

    family: CurveFamily
    objective: Objective | None = None
    shares: tuple[float, ...] = (0.5,)

    def choose(self, pilot: Pilot, error: float) -> Rule:
        """Return the rule that should prove most from further scores at `error`."""
        if self.objective is None:
            return choose_cut(pilot, error, family=self.family)
        return choose_rule(pilot, error, objective=self.objective, shares=self.shares)

    def proved(self, counts: Counts, error: float) -> float:
        """Return the theta that `counts` prove at `error`, 0 for none."""
        if counts.n_in == 0:
            return 0.0
        if self.objective is None:
            return largest_ruled_out(self.family, oriented(self.family, counts), error)
        # The union bound joins both limits, so the sides may depend on each other (runs paired by seed).
        seen = counts if counts.strict_on_fpr else counts.exchanged
        strict = upper_limit(seen.false_positives, seen.n_out, error * seen.share)
        other = upper_limit(seen.false_negatives, seen.n_in, error * (1.0 - seen.share))
        return max(0.0, float(self.objective(strict, other)))

    def provable(self, n_in: int, n_out: int, error: float) -> float:
        """Return the theta that `n_in` + `n_out` scores without any error prove, at the best share and tail."""
        if self.objective is None:
            return largest_provable(self.family, n_in, n_out, error)
        ways = product((True, False), self.shares)
        return max(self.proved(Counts(n_in=n_in, n_out=n_out, strict_on_fpr=t, share=s), error) for t, s in ways)

    def p_value(self, counts: Counts, theta: float) -> float:
        """Return the least error at which `counts` refute `theta` > 0, rounded up; 1 where none below 1 does."""
        if counts.n_in == 0:
            return 1.0
        if self.objective is not None:
            return _least_error(lambda error: self.proved(counts, error) > theta)
        seen = oriented(self.family, counts)
        through = self.family.at(_last_above(self.family, *seen.rates))
        if theta > through:
            return 1.0
        return _least_error(lambda error: _p_value(self.family, theta, through, seen, error) <= error)


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
    """A rule that was chosen on a pilot, and its errors on the others."""

    rule: Rule
    counts: Counts
    pilot: Pilot

    def words(self, chosen: str = "chosen with its direction on") -> str:
        """Return the rule and where it comes from, the opening of a sentence."""
        side = "above" if self.rule.in_is_high else "below"
        return (
            f"'in' when the score is {side} {self.rule.threshold:.6g}, {chosen} a random pilot of "
            f"{self.pilot.inside.size} + {self.pilot.outside.size} scores (in + out)"
        )


def counted(in_scores: Floats, out_scores: Floats, reading: Reading, *, error: float, seed: int) -> Counted | None:
    """Choose a rule for `reading` on a random pilot and count its errors on the rest; None where too few are left."""
    if min(in_scores.size, out_scores.size) < LEAST_A_SIDE:
        return None
    pilot_in, rest_in = split_pilot(in_scores, seed)
    pilot_out, rest_out = split_pilot(out_scores, seed)
    pilot = Pilot(pilot_in, pilot_out, rest_in.size, rest_out.size)
    rule = reading.choose(pilot, error)
    return Counted(rule, error_counts(rest_in, rest_out, rule), pilot)


@dataclass(frozen=True, kw_only=True)
class FixedTest(Counts):
    """One rule's errors on scores that had no part in choosing it, as plain data; n_in = 0 where there were too few.

    `joint` and `clopper-pearson` speak about (epsilon, delta) of any mechanism (`joint` where its two sides are
    independent); `gaussian` and `curve` about mu of Gaussian DP, which stands for an epsilon only where the view is
    Gaussian by construction.
    """

    name: TestName
    delta: float
    rule: str

    @property
    def claim_kind(self) -> ClaimKind:
        """The kind of claim that this test can refute."""
        return self._reading.family.claim_kind

    def epsilon_lower(self, error: float) -> float:
        """Lower bound on epsilon, >= 0, which exceeds the truth with probability at most `error` in (0, 1)."""
        return self._reading.family.proves(self._reading.proved(self, error), self.delta)

    def ceiling(self, error: float) -> float:
        """Return the largest epsilon that as many scores could have proved at `error`: that of no error at all."""
        if self.n_in == 0:
            return 0.0
        return self._reading.family.proves(self._reading.provable(self.n_in, self.n_out, error), self.delta)

    def p_value(self, epsilon: float) -> float:
        """Return the least error at which the claimed `epsilon` > 0 is refuted, rounded up; 1 where none is."""
        claimed = check_positive("epsilon", epsilon)
        if self.claim_kind == "trade-off":
            from dpzv_audit.accounting.gaussian import mu_from_epsilon

            claimed = float(mu_from_epsilon(epsilon, self.delta))
        return self._reading.p_value(self, claimed)

    @property
    def _reading(self) -> Reading:
        return reading_of(self.name, self.delta)


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
    if found is None:
        return FixedTest(name=name, delta=delta, rule=TOO_FEW, n_in=0, n_out=0)
    counts = found.counts
    rule = (
        f"{found.words()}: {counts.false_positives:,} false positives of {counts.n_out:,}, "
        f"{counts.false_negatives:,} false negatives of {counts.n_in:,}"
    )
    return FixedTest(name=name, delta=delta, rule=rule, **vars(counts))


def fixed_bound(name: TestName, in_scores: Floats, out_scores: Floats, settings: AuditSettings) -> Proof:
    """Return the bound of the test `name` on (n,) and (m,) finite scores; its rule is designed for the confidence.

    `joint` and `curve` need sides that are independent: runs that share their noise are not, and `clopper-pearson`
    allows them. `joint` and `clopper-pearson` bound epsilon of any mechanism. `curve` bounds theta of
    `settings.family`, `gaussian` mu, which refutes a claim of mu-Gaussian-DP whatever the mechanism; its epsilon
    holds only for a view that is exactly Gaussian: `assumes` says so unless `exactly_gaussian` is set and a test of
    normality does not object. `mu_lower` is theta for the Gaussian family, else None.
    """
    error, reading = settings.error, reading_of(name, settings.delta, settings.family)
    found = counted(in_scores, out_scores, reading, error=error, seed=settings.seed)
    if found is None:
        return Proof(family=reading.family, rule=TOO_FEW)
    return Proof(
        family=reading.family,
        proved=reading.proved(found.counts, error),
        provable=reading.provable(found.counts.n_in, found.counts.n_out, error),
        rule=_in_words(found, reading, error),
        looks=1,
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
            strict_on_fpr=strict_on_fpr,
        )
        found.append(reading.proved(counts, error))
    return max(found)


_COARSE_PLACES, _FINE_PLACES = 64, 33
_FIRST_STEP = 8
_TIE = 1e-9


def levels(family: CurveFamily, fpr: Floats, fnr: Floats) -> Floats:
    """Return for (k,) rates the theta whose curve goes through them, 0 for none.

    Without a closed form interpolated on 64 places of the lattice, then again on 33 around the largest of the k: the
    others may be off by 1%.
    """
    if family.through is not None:
        return family.through(fpr, fnr)
    found = _interpolated(family, fpr, fnr, np.linspace(0, family.steps, _COARSE_PLACES))
    top = float(found.max())
    if top == 0.0:
        return found
    middle = math.log(top / family.least) / math.log(family.ratio)
    reach = family.steps / (_COARSE_PLACES - 1.0)
    return _interpolated(family, fpr, fnr, middle + np.linspace(-reach, reach, _FINE_PLACES), found)


def _interpolated(
    family: CurveFamily, fpr: Floats, fnr: Floats, lattice: Floats, otherwise: Floats | None = None
) -> Floats:
    """Return theta between two places of `lattice`, and `otherwise` (or 0 and the last) for rates outside all."""
    places = np.unique(np.clip(np.rint(lattice), 0, family.steps).astype(np.intp))
    thetas = np.array([family.at(int(place)) for place in places])
    table = np.stack([family.curve(fpr, float(theta)) for theta in thetas])
    last = np.sum(table > fnr, axis=0) - 1
    low, high = np.clip(last, 0, None), np.clip(last + 1, None, thetas.size - 1)
    columns = np.arange(fpr.size)
    above, below = table[low, columns], table[high, columns]
    gap = above - below
    share = np.where(gap > 0.0, np.clip((above - fnr) / np.where(gap > 0.0, gap, 1.0), 0.0, 1.0), 0.0)
    found = thetas[low] * (thetas[high] / thetas[low]) ** share
    if otherwise is None:
        return np.where(last < 0, 0.0, found)
    return np.where((last < 0) | (last == thetas.size - 1), otherwise, found)


def choose_cut(pilot: Pilot, error: float, *, family: CurveFamily) -> Rule:
    """Return the rule whose expected counts on further scores promise the largest theta."""
    rates, n_in, n_out = pilot.plan()
    fpr, fnr = (np.stack(rate) for rate in zip(*(rates.errors(d) for d in (True, False)), strict=True))
    worth = np.stack([promised(family, n_out * a, n_out, n_in * b, n_in, error) for a, b in zip(fpr, fnr, strict=True)])
    # Symmetrical worlds tie exactly: the smallest false positive rate decides, not the last digit.
    tied = worth >= worth.max() * (1.0 - _TIE)
    side, place = np.unravel_index(int(np.argmin(np.where(tied, fpr, np.inf))), fpr.shape)
    return Rule(
        threshold=float(rates.threshold[place]),
        in_is_high=bool(side == 0),
        strict_on_fpr=bool(fpr[side, place] < fnr[side, place]),
        share=0.5,
        fitted=rates.fitted,
    )


def promised(
    family: CurveFamily, false_positives: Floats, n_out: int, false_negatives: Floats, n_in: int, error: float
) -> Floats:
    """Return about what the joint test will prove from (k,) counts: each limit errs as in a sum in quadrature."""
    return levels(family, *_limits(false_positives, n_out, false_negatives, n_in, error))


def _limits(
    false_positives: ArrayLike, n_out: int, false_negatives: ArrayLike, n_in: int, error: float
) -> tuple[Floats, Floats]:
    each = float(ndtr(ndtri(error) / math.sqrt(2.0)))
    return upper_limit(false_positives, n_out, each), upper_limit(false_negatives, n_in, each)


def largest_ruled_out(family: CurveFamily, counts: Counts, error: float) -> float:
    """Return the largest theta of the lattice whose curve `counts` rule out at `error`; 0 for none.

    Places are tested from the one that two separate limits point to, in growing steps until the answer is bracketed,
    then where a straight line in the normal deviate of p puts it, or half-way where that gains little.
    """
    top = _last_above(family, *counts.rates)
    if top < 0:
        return 0.0

    def excess(place: int) -> float:
        """Return the normal deviate of p less that of the error: at most 0 where theta is ruled out."""
        p = _p_value(family, family.at(place), family.at(top), counts, error)
        return float(ndtri(min(max(p, LEAST_P), 1.0 - 1e-15)) - ndtri(error))

    limits = _limits(counts.false_positives, counts.n_out, counts.false_negatives, counts.n_in, error)
    guess = _last_above(family, *limits)
    low, high = -1, top + 1
    low_z, high_z = -np.inf, np.inf
    step = _FIRST_STEP
    while high - low > 1:
        guess = min(max(guess, low + 1), high - 1)
        width, z = high - low, excess(guess)
        if z <= 0.0:
            low, low_z = guess, z
        else:
            high, high_z = guess, z
        if np.isfinite(low_z) and np.isfinite(high_z):
            line = low + (high - low) * low_z / (low_z - high_z)
            # A step beyond the line brackets the answer from its other side.
            guess = round(line + (1 if z <= 0.0 else -1)) if high - low <= width // 2 else (low + high) // 2
        else:
            guess, step = (guess + step if z <= 0.0 else guess - step), 2 * step
    return family.at(low)


def _p_value(family: CurveFamily, theta: float, through: float, counts: Counts, error: float) -> float:
    return p_value(lambda alpha: family.curve(alpha, theta), counts, lambda alpha: family.curve(alpha, through), error)


def _last_above(family: CurveFamily, fpr: Floats | float, fnr: Floats | float) -> int:
    """Return the last place of the lattice whose curve lies above the one point (fpr, fnr); -1 for none."""
    low, high = -1, family.steps + 1
    while high - low > 1:
        middle = (low + high) // 2
        if np.all(family.curve(np.atleast_1d(fpr), family.at(middle)) >= fnr):
            low = middle
        else:
            high = middle
    return low


@lru_cache(maxsize=256)
def largest_provable(family: CurveFamily, n_in: int, n_out: int, error: float) -> float:
    """Return the largest theta that `n_in` + `n_out` scores without any error rule out, whichever rate is confined."""
    none = Counts(n_in=n_in, n_out=n_out)
    ways = (none, none.exchanged) if family.blow_up is not None and n_in != n_out else (none,)
    return max(largest_ruled_out(family, counts, error) for counts in ways)


def oriented(family: CurveFamily, counts: Counts) -> Counts:
    """Return `counts` with the worlds exchanged where that helps: for curves that are their own inverse.

    The test confines what it takes for the false positive rate, and of the two rates the rarer is known worse. Which
    is which follows from the rule, so from the pilot alone.
    """
    return counts.exchanged if family.blow_up is not None and counts.strict_on_fpr else counts


ASSUMPTION = "a Jeffreys prior on each of the two rates; credible, not a confidence"
_FARTHEST = 8.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_LARGEST = 700.0
_TOLERANCE = 1e-7


def _quantiles(shape: tuple[float, float], z: Floats) -> Floats:
    """Return the quantiles of Beta(`shape`) at the normal probabilities of `z`, each tail from its own side."""
    low, high = betaincinv(*shape, ndtr(np.minimum(z, 0.0))), betainccinv(*shape, ndtr(-np.maximum(z, 0.0)))
    return np.asarray(np.where(z < 0.0, low, high))


def _deviates(shape: tuple[float, float], x: Floats) -> Floats:
    """Return the inverse of `_quantiles`, within +-8."""
    z = np.where(
        betainc(*shape, x) < 0.5, ndtri(np.maximum(betainc(*shape, x), 1e-300)), -ndtri(betaincc(*shape, x) + 1e-300)
    )
    return np.asarray(np.clip(z, -_FARTHEST, _FARTHEST))


def mass_allowed(epsilon: float, counts: Counts, delta: float) -> float:
    """Return the posterior probability that the two rates are such as (`epsilon`, `delta`) allows, in [0, 1].

    Allowed: FNR >= 1 - delta - e^epsilon FPR and its mirror. The same with the answers exchanged is left out: a tied
    score counts as an error in both worlds, and two rates near 1 would then pass for knowledge.
    Gauss-Legendre in the normal deviate of FPR's quantile, on panels that end where a limit on FNR crosses the bulk
    of FNR's posterior: with few errors that is a jump.
    """
    wrong = ((counts.false_positives, counts.n_out), (counts.false_negatives, counts.n_in))
    fpr, fnr = ((errors + 0.5, n - errors + 0.5) for errors, n in wrong)
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


def bayes(in_scores: Floats, out_scores: Floats, settings: AuditSettings) -> Proof:
    """Return the credible lower end of epsilon from (n,) and (m,) finite scores; right when no errors were seen."""
    error, delta = settings.error, settings.delta
    reading = reading_of("clopper-pearson", delta)
    found = counted(in_scores, out_scores, reading, error=error, seed=settings.seed)
    if found is None:
        return Proof(rule=TOO_FEW, assumes=ASSUMPTION)
    n_in, n_out = found.counts.n_in, found.counts.n_out
    proved = credible_epsilon(found.counts, delta, error)
    return Proof(
        proved=proved,
        provable=max(proved, credible_epsilon(Counts(n_in=n_in, n_out=n_out), delta, error)),
        rule=f"{found.words()}; posterior of both rates from the other {n_in} + {n_out}, with the whole error "
        f"{error:.3g} as the mass below the bound; a score equal to the threshold counts as an error",
        looks=1,
        assumes=ASSUMPTION,
    )
