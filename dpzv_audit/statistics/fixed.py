"""Tests of a fixed number of scores: a rule chosen on a pilot, its errors on the rest, and what the two counts prove.

`joint` and `curve`: one exact test of both counts together against a family of trade-off curves.
`clopper-pearson`: the inequality FNR >= 1 - delta - e^epsilon FPR and its mirror
(Kairouz, Oh and Viswanath, ICML 2015, theorem 2.1) at exact binomial limits of the two rates. `gaussian`: mu >=
Phi^-1(1 - FPR) - Phi^-1(FNR) for a mu-Gaussian-DP view (Dong, Roth and Su, JRSS B 2022, definition 2.6) at the same
limits.

Counts of n scores prove a mu of about 2 Phi^-1(1 - 1/n) at most. Of scores that are Gaussian by construction `gaussian`
spends half of its error on the difference of their means (`means`), which has no such end and nearly always proves
more.

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

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, betaincc, betainccinv, betaincinv, ndtr, ndtri

from ..base.errors import check_count, check_names, check_positive, check_probability
from .binomial import CONFINED, LEAST_P, Counts, Floats, p_value, upper_limit
from .families import GAUSSIAN, CurveFamily, epsilon_delta_family
from .means import chance_of_means, mu_of_means, standard_errors_apart
from .settings import AuditSettings, Proof, check_scores
from .thresholds import (
    LEAST_A_SIDE,
    Errors,
    Pilot,
    Rule,
    candidate_rates,
    choose_rule,
    error_counts,
    pilot_size,
    split_pilot,
)

TestName = Literal["joint", "clopper-pearson", "gaussian", "curve"]

ON_MEANS = 0.5
"""Share of the error of `gaussian` that goes to the means of scores which are Gaussian by construction."""
TOO_FEW = f"none: fewer than {LEAST_A_SIDE} scores on a side are too few to choose and test a threshold"
_DEVIATES = np.linspace(-7.0, 7.0, 281)


def epsilon_objective(delta: float, strict: Floats, other: Floats) -> Floats:
    """Return log((1 - delta - other) / strict), the epsilon that two such limits prove, `-inf` for none."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(1.0 - delta - other, 0.0)) - np.log(strict))


def mu_objective(_delta: float, strict: Floats, other: Floats) -> Floats:
    """Return Phi^-1(1 - strict) - Phi^-1(other), the mu that two such limits prove."""
    return np.asarray(-ndtri(strict) - ndtri(other))


_LIMITS: dict[str, tuple[Callable[[float, Floats, Floats], Floats], tuple[float, ...]]] = {
    "clopper-pearson": (epsilon_objective, (0.5, 0.7, 0.8, 0.9)),
    "gaussian": (mu_objective, (0.5,)),
}
"""What limits on both rates prove, and the shares of the error that the strict one's may take."""


@dataclass(frozen=True, kw_only=True)
class FixedTest(Counts):
    """One rule's errors on scores that had no part in choosing it; n_in = 0 where there were too few.

    `joint` and `clopper-pearson` speak about (epsilon, delta) of any mechanism (`joint` where its two sides are
    independent); `gaussian` and `curve` about mu of Gaussian DP, which stands for an epsilon only where the view is
    Gaussian by construction. The rule `chosen` on a `pilot` of so many scores a side is None where there were too few.
    The pilot is a random part of the scores, or `separate` runs. All fields are plain data: the cache tells evidence
    apart by them.
    """

    name: TestName
    delta: float
    chosen: Rule | None = None
    pilot: tuple[int, int] = (0, 0)
    separate: bool = False

    @property
    def family(self) -> CurveFamily:
        """The family of curves whose theta is bounded."""
        if self.name in ("gaussian", "curve"):
            return GAUSSIAN
        return epsilon_delta_family(self.delta)

    def epsilon_lower(self, error: float) -> float:
        """Lower bound on epsilon, >= 0, which exceeds the truth with probability at most `error` in (0, 1)."""
        return self.family.proves(self.proved(error), self.delta)

    def ceiling(self, error: float) -> float:
        """Return the largest epsilon that any counts of as many scores prove at `error`."""
        return self.family.proves(self.provable(error), self.delta)

    def proved(self, error: float) -> float:
        """Return the theta that is proved at `error`, 0 for none."""
        return self.counts_prove(error)

    def counts_prove(self, error: float) -> float:
        """Return the theta that the counts prove at `error`, 0 for none."""
        if self.n_in == 0:
            return 0.0
        if self.name not in _LIMITS:
            return largest_ruled_out(self.family, oriented(self.family, self), error)
        # The union bound joins both limits, so the sides may depend on each other (runs paired by seed).
        seen = self if self.strict_on_fpr else self.exchanged
        strict = upper_limit(seen.false_positives, seen.n_out, error * seen.share)
        other = upper_limit(seen.false_negatives, seen.n_in, error * (1.0 - seen.share))
        objective, _ = _LIMITS[self.name]
        return max(0.0, float(objective(self.delta, strict, other)))

    def provable(self, error: float) -> float:
        """Return the largest theta that any counts of as many scores prove, at the best share and tail."""
        if self.n_in == 0:
            return 0.0
        if self.name not in _LIMITS:
            return largest_provable(self.family, self.n_in, self.n_out, error)
        none = replace(self, false_positives=0, false_negatives=0)
        ways = product((True, False), _LIMITS[self.name][1])
        return max(replace(none, strict_on_fpr=tail, share=share).counts_prove(error) for tail, share in ways)

    def least_p_value(self, epsilon: float) -> float:
        """Return the least p-value of the claimed `epsilon` that any counts of as many scores give."""
        return min(test.p_value(epsilon) for test in self._best())

    def _best(self) -> Iterator["FixedTest"]:
        """Yield the test with the counts that prove most, by tail and share of its error.

        That is no error on the strict side. On the other a few may prove more than none: the exact test confines that
        rate by what was counted, and how close it can depends on the count. Steps of a factor 1.4 miss little.
        """
        ways = [(True, self.share), (False, self.share)]
        errors = {0}
        if self.name in _LIMITS:
            ways = [*product((True, False), _LIMITS[self.name][1])]
        else:
            errors |= {round(2.0 ** (k / 2.0)) for k in range(24)}
        for strict_on_fpr, share in ways:
            most = (self.n_in if strict_on_fpr else self.n_out) // 4
            for count in sorted(errors):
                if count <= most:
                    wrong = (0, count) if strict_on_fpr else (count, 0)
                    yield replace(
                        self,
                        false_positives=wrong[0],
                        false_negatives=wrong[1],
                        strict_on_fpr=strict_on_fpr,
                        share=share,
                    )

    def p_value(self, epsilon: float) -> float:
        """Return the least error at which the claimed `epsilon` > 0 is refuted, rounded up; 1 where none is."""
        theta = self.claimed(epsilon)
        if self.n_in == 0:
            return 1.0
        if self.name in _LIMITS:
            return _least_error(lambda error: self.counts_prove(error) > theta)
        seen = oriented(self.family, self)
        top = self.family.at(_last_above(self.family, *seen.rates))
        if theta > top:
            return 1.0
        null = self.family.of(theta)
        through = self.family.of(top)
        return _least_error(lambda error: p_value(null, seen, through, error) <= error)

    def claimed(self, epsilon: float) -> float:
        """Return the theta that a claimed `epsilon` > 0 stands for."""
        theta = check_positive("epsilon", epsilon)
        if self.family.claim_kind == "epsilon-delta":
            return theta
        from ..accounting.gaussian import mu_from_epsilon

        return float(mu_from_epsilon(epsilon, self.delta))

    @property
    def rule(self) -> str:
        """The rule with its errors, as one sentence."""
        return self.in_words(
            f": {self.false_positives:,} false positives of {self.n_out:,}, "
            f"{self.false_negatives:,} false negatives of {self.n_in:,}"
        )

    def spending(self, error: float) -> str:
        """Return the rule, how it came about and how its `error` is spent, as one sentence."""
        others = f"the {'' if self.separate else 'other '}{self.n_in} + {self.n_out}"
        how = "chosen with its direction on"
        if self.name not in _LIMITS:
            spent = (
                f"; one exact test of both rates on {others}, on which the error {error:.3g} is spent, {CONFINED:.0%} "
                "of it to confine one of the rates"
            )
        else:
            by = "a smooth curve through the ranks of" if self.chosen and self.chosen.fitted else "the ranks of"
            few = "positives" if self.strict_on_fpr else "negatives"
            how = f"chosen with direction and tail by {by}"
            spent = (
                f" and tested once on {others}; few false {few}, on whose limit {error * self.share:.3g} of the error "
                f"{error:.3g} is spent"
            )
        return self.in_words(spent, how)

    def in_words(self, rest: str, how: str = "chosen with its direction on") -> str:
        """Return the rule and where it comes from, and the `rest` of the sentence."""
        if self.chosen is None:
            return TOO_FEW
        inside, outside = self.pilot
        sample = "a separate sample" if self.separate else "a random sample"
        return f"{self.chosen.words}, {how} {sample} of {inside} + {outside} scores (in + out){rest}"


@dataclass(frozen=True, kw_only=True)
class MeansTest(FixedTest):
    """`gaussian` for scores that are Gaussian by construction: the errors of a rule, and beside them the means.

    The means of all `scores`, the pilot's too, lie `apart` standard errors from each other; None where a test of
    normality objects: they then take no part, and their share of the error is not spent.
    """

    scores: tuple[int, int]
    apart: float | None

    @property
    def by_means(self) -> bool:
        """Whether the means take part."""
        return self.n_in > 0 and self.apart is not None

    def proved(self, error: float) -> float:
        """Return the mu that counts or means prove at `error`, 0 for none."""
        by_counts = self.counts_prove((1.0 - ON_MEANS) * error)
        if self.n_in == 0 or self.apart is None:
            return by_counts
        return max(by_counts, min(mu_of_means(self.apart, *self.scores, ON_MEANS * error), self.family.most))

    def provable(self, error: float) -> float:
        """Return the largest mu that as many scores prove: with means the largest that is looked for."""
        return self.family.most if self.by_means else super().provable((1.0 - ON_MEANS) * error)

    def least_p_value(self, epsilon: float) -> float:
        """Return the least p-value of the claimed `epsilon` that as many scores give."""
        mu = self.claimed(epsilon)
        if self.by_means and mu < self.family.most:
            return chance_of_means(math.inf, mu, *self.scores) / ON_MEANS
        return super().least_p_value(epsilon)

    def p_value(self, epsilon: float) -> float:
        """Return the least error at which the claimed `epsilon` > 0 is refuted, rounded up; 1 where none is."""
        least = super().p_value(epsilon) / (1.0 - ON_MEANS)
        mu = self.claimed(epsilon)
        if self.n_in > 0 and self.apart and mu < self.family.most:
            least = min(least, chance_of_means(self.apart, mu, *self.scores) / ON_MEANS)
        return min(1.0, least)

    @property
    def rule(self) -> str:
        """The rule with its errors and what the means are, as one sentence."""
        return f"{super().rule}{self._means}" if self.by_means else super().rule

    def spending(self, error: float) -> str:
        """Return the rule, how it came about and how the `error` is spent on it and on the means, as one sentence."""
        spent = super().spending((1.0 - ON_MEANS) * error)
        return f"{spent}{self._means}, with the other {ON_MEANS * error:.3g} of the error" if self.by_means else spent

    @property
    def _means(self) -> str:
        inside, outside = self.scores
        return f"; the means of all {inside} + {outside} scores, {self.apart:.4g} standard errors apart"


@dataclass(frozen=True, kw_only=True)
class CurveTest(FixedTest):
    """Bound theta of the family `curves` as `curve` bounds mu."""

    curves: CurveFamily

    @property
    def family(self) -> CurveFamily:
        """The family of curves whose theta is bounded."""
        return self.curves


def _least_error(passes: Callable[[float], bool]) -> float:
    """Return the least error at which `passes` holds, rounded up by 0.2% at most, by bisection; 1 where it never does.

    The search starts at 1e-12, below which few verdicts look.
    """
    if not passes(1.0 - 1e-12):
        return 1.0
    low = float(np.log10(LEAST_P))
    middle = -12.0
    high = 0.0
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
    assumes: str | None = None,
    pilot: tuple[ArrayLike, ArrayLike] | None = None,
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
        assumes: of scores that are Gaussian with one variance by construction "", or why a test of that objects. None
            of all others.
        pilot: scores (k,) and (l,) of further runs of both worlds, at least `LEAST_A_SIDE` of each, which choose the
            rule instead: all of the scores are then tested.

    Raises:
        InputError: scores that `check_scores` refuses, or a number out of range.
    """
    check_names("name", [name], get_args(TestName))
    test = FixedTest(name=name, delta=check_probability("delta", delta), n_in=0, n_out=0)
    error = check_probability("design_error", design_error)
    seed = check_count("seed", seed, least=0)
    inside = check_scores("in_scores", in_scores)
    outside = check_scores("out_scores", out_scores)
    apart = None if pilot is None else (check_scores("pilot", pilot[0]), check_scores("pilot", pilot[1]))
    return with_means(counted(test, inside, outside, error, seed, apart), inside, outside, assumes)


def with_means(test: FixedTest, inside: Floats, outside: Floats, assumes: str | None) -> FixedTest:
    """Return `test`, with the means of its scores beside it if it is `gaussian`; `assumes` as for `fixed_test`.

    Which share of the error is the counts' does not depend on what the test of normality said.
    """
    if test.name != "gaussian" or assumes is None:
        return test
    apart = None if assumes else standard_errors_apart(inside, outside)
    return MeansTest(**vars(test), scores=(inside.size, outside.size), apart=apart)


def unseen(n_in: int, n_out: int, *, name: TestName, delta: float) -> FixedTest:
    """Return the test of so many scores as it is before they are seen, without the pilots that choose its rule.

    `gaussian` is that of scores which are Gaussian by construction.
    """
    rest = (0, 0)
    if min(n_in, n_out) >= LEAST_A_SIDE:
        rest = n_in - pilot_size(n_in), n_out - pilot_size(n_out)
    test = FixedTest(name=name, delta=delta, n_in=rest[0], n_out=rest[1])
    return MeansTest(**vars(test), scores=(n_in, n_out), apart=0.0) if name == "gaussian" else test


def counted(
    test: FixedTest,
    inside: Floats,
    outside: Floats,
    error: float,
    seed: int,
    apart: tuple[Floats, Floats] | None = None,
) -> FixedTest:
    """Return `test` with a rule chosen for `error` on a pilot, and its errors on the rest; as it is for few.

    The pilot is a random part of the scores, or the scores of further runs that are `apart`.
    """
    if min(inside.size, outside.size) < LEAST_A_SIDE:
        return test
    if apart is None:
        pilot_in, rest_in = split_pilot(inside, seed)
        pilot_out, rest_out = split_pilot(outside, seed)
    else:
        (pilot_in, pilot_out), rest_in, rest_out = apart, inside, outside
    pilot = Pilot(pilot_in, pilot_out, rest_in.size, rest_out.size)
    if test.name in _LIMITS:
        objective, shares = _LIMITS[test.name]
        rule = choose_rule(pilot, error, objective=partial(objective, test.delta), shares=shares)
    else:
        rule = choose_joint_rule(pilot, error, family=test.family)
    errors = vars(error_counts(rest_in, rest_out, rule))
    sizes = (pilot_in.size, pilot_out.size)
    return replace(test, chosen=rule, pilot=sizes, separate=apart is not None, **errors)


def fixed_bound(name: TestName, inside: Floats, outside: Floats, settings: AuditSettings) -> Proof:
    """Return the bound of the test `name` on (n,) and (m,) finite scores; its rule is designed for the confidence.

    `joint` and `curve` need sides that are independent: runs that share their noise are not, and `clopper-pearson`
    allows them. `joint` and `clopper-pearson` bound epsilon of any mechanism. `curve` bounds theta of
    `settings.family`, `gaussian` mu, which refutes a claim of mu-Gaussian-DP whatever the mechanism; its epsilon
    holds only for a view that is exactly Gaussian: `assumes` says so unless `exactly_gaussian` is set and a test of
    normality does not object. Then its mu rests on that too, by the means, which need independent sides. `mu_lower` is
    theta for the Gaussian family, else None.
    """
    test = FixedTest(name=name, delta=settings.delta, n_in=0, n_out=0)
    if name == "curve":
        test = CurveTest(**vars(test), curves=settings.family)
    test = counted(test, inside, outside, settings.error, settings.seed, settings.pilot)
    assumes = settings.assumption(test.family, inside, outside)
    test = with_means(test, inside, outside, assumes if settings.exactly_gaussian else None)
    return Proof(
        family=test.family,
        proved=test.proved(settings.error),
        provable=test.provable(settings.error),
        rule=test.spending(settings.error),
        looks=min(test.n_in, 1),
        assumes=assumes,
    )


def expected_bound(epsilon: float, *, n_in: int, n_out: int, delta: float, confidence: float = 0.95) -> float:
    """Return the bound that `joint` shows where both rates come out as expected of a true `epsilon`.

    The view is taken to be Gaussian with exactly (`epsilon`, `delta`), and the best threshold as known: the bound of
    one audit scatters around a little less. 0 where the test sees nothing.
    Raises `InputError` for numbers out of range.
    """
    # The root finder behind it is a heavy import, so it waits until a plan is asked for.
    from ..accounting.gaussian import mu_from_epsilon

    check_count("n_in", n_in)
    check_count("n_out", n_out)
    check_probability("confidence", confidence)
    mu = mu_from_epsilon(epsilon, delta)
    if min(n_in, n_out) < LEAST_A_SIDE:
        return 0.0
    error = 1.0 - confidence
    family = epsilon_delta_family(delta)
    rest_in = n_in - pilot_size(n_in)
    rest_out = n_out - pilot_size(n_out)
    t = mu / 2.0 + _DEVIATES
    fpr = ndtr(-t)
    fnr = ndtr(t - mu)
    seen = levels(family, *_limits(rest_out * fpr, rest_out, rest_in * fnr, rest_in, error))
    proved = []
    for strict_on_fpr in (True, False):
        best = int(np.argmax(np.where((fpr < fnr) == strict_on_fpr, seen, -1.0)))
        counts = Counts(
            false_positives=round(rest_out * float(fpr[best])),
            n_out=rest_out,
            false_negatives=round(rest_in * float(fnr[best])),
            n_in=rest_in,
            strict_on_fpr=strict_on_fpr,
        )
        proved.append(largest_ruled_out(family, oriented(family, counts), error))
    return max(proved)


_COARSE_PLACES = 64
_FINE_PLACES = 33
_TIE = 1e-9


def levels(family: CurveFamily, fpr: Floats, fnr: Floats) -> Floats:
    """Return for (k,) rates the theta whose curve goes through them, 0 for none.

    Without a closed form interpolated on 64 places of the lattice, then again on 33 around the largest of the k: the
    others may be off by 1%.
    """
    if family.through is not None:
        return family.through(fpr, fnr)
    thetas = _interpolated(family, fpr, fnr, np.linspace(0, family.steps, _COARSE_PLACES))
    top = float(thetas.max())
    if top == 0.0:
        return thetas
    middle = math.log(top / family.least) / math.log(family.ratio)
    reach = family.steps / (_COARSE_PLACES - 1.0)
    return _interpolated(family, fpr, fnr, middle + np.linspace(-reach, reach, _FINE_PLACES), thetas)


def _interpolated(
    family: CurveFamily, fpr: Floats, fnr: Floats, lattice: Floats, otherwise: Floats | None = None
) -> Floats:
    """Return theta between two places of `lattice`, and `otherwise` (or 0 and the last) for rates outside all."""
    places = np.unique(np.clip(np.rint(lattice), 0, family.steps).astype(np.intp))
    thetas = np.array([family.at(int(place)) for place in places])
    table = np.stack([family.curve(fpr, float(theta)) for theta in thetas])
    last = np.sum(table > fnr, axis=0) - 1
    low = np.clip(last, 0, None)
    high = np.clip(last + 1, None, thetas.size - 1)
    columns = np.arange(fpr.size)
    above = table[low, columns]
    gap = above - table[high, columns]
    falls = gap > 0.0
    share = np.where(falls, np.clip((above - fnr) / np.where(falls, gap, 1.0), 0.0, 1.0), 0.0)
    between = thetas[low] * (thetas[high] / thetas[low]) ** share
    if otherwise is None:
        return np.where(last < 0, 0.0, between)
    return np.where((last < 0) | (last == thetas.size - 1), otherwise, between)


def choose_joint_rule(pilot: Pilot, error: float, *, family: CurveFamily) -> Rule:
    """Return the rule whose expected counts on further scores promise the largest theta."""
    rates = candidate_rates(pilot.inside, pilot.outside)
    if family.blow_up is None:
        # A curve that is not its own inverse is unlike the smooth one, by which the wrong tail would promise more.
        rates = replace(rates, errors=rates.counted, trust=0.0)

    def promise(errors: Errors, n_in: int, n_out: int) -> Floats:
        limits = (_limits(n_out * a, n_out, n_in * b, n_in, error) for a, b in zip(*_both(errors), strict=True))
        return np.stack([levels(family, *both) for both in limits])

    worth = pilot.worth(rates, promise)
    fpr, fnr = _both(rates.errors)
    # Symmetrical worlds tie: the smallest false negative rate decides, not the last digit.
    tied = worth >= worth.max() * (1.0 - _TIE)
    side, cut = np.unravel_index(int(np.argmin(np.where(tied, fnr, np.inf))), fpr.shape)
    strict_on_fpr = bool(fpr[side, cut] < fnr[side, cut])
    in_is_high = bool(side == 0)
    threshold = rates.edge(int(cut), upper=in_is_high == strict_on_fpr)
    return Rule(threshold, in_is_high, strict_on_fpr, share=0.5, fitted=rates.trust > 0.0)


def _both(errors: Errors) -> tuple[Floats, Floats]:
    """Return the false positive and the false negative rates (2, k) of both directions."""
    fpr, fnr = np.stack([errors[True], errors[False]], axis=1)
    return fpr, fnr


def _limits(
    false_positives: ArrayLike, n_out: int, false_negatives: ArrayLike, n_in: int, error: float
) -> tuple[Floats, Floats]:
    """Return a limit on each rate; together they prove about what the joint test does, as errors add in quadrature."""
    each = float(ndtr(ndtri(error) / math.sqrt(2.0)))
    return upper_limit(false_positives, n_out, each), upper_limit(false_negatives, n_in, each)


@lru_cache(maxsize=1024)
def largest_ruled_out(family: CurveFamily, counts: Counts, error: float) -> float:
    """Return the largest theta of the lattice whose curve `counts` rule out at `error`; 0 for none.

    Places are tested from the one that two separate limits point to, in growing steps until the answer is bracketed,
    then where a straight line in the normal deviate of p puts it, or half-way where that gains little.
    """
    top = _last_above(family, *counts.rates)
    if top < 0:
        return 0.0

    through = family.of(family.at(top))

    def excess(place: int) -> float:
        """Return the normal deviate of p less that of the error: at most 0 where theta is ruled out."""
        p = p_value(family.of(family.at(place)), counts, through, error)
        return float(ndtri(min(max(p, LEAST_P), 1.0 - 1e-15)) - ndtri(error))

    limits = _limits(counts.false_positives, counts.n_out, counts.false_negatives, counts.n_in, error)
    guess = _last_above(family, *limits)
    low = -1
    high = top + 1
    low_z = -np.inf
    high_z = np.inf
    step = 8
    while high - low > 1:
        guess = min(max(guess, low + 1), high - 1)
        width = high - low
        z = excess(guess)
        side = 1 if z <= 0.0 else -1
        if z <= 0.0:
            low = guess
            low_z = z
        else:
            high = guess
            high_z = z
        if not np.isfinite(low_z - high_z):
            guess += side * step
            step *= 2
        elif high - low <= width // 2:
            line = low + (high - low) * low_z / (low_z - high_z)
            # A step beyond the line brackets the answer from its other side.
            guess = round(line + side)
        else:
            guess = (low + high) // 2
    return family.at(low)


def _last_above(family: CurveFamily, fpr: Floats | float, fnr: Floats | float) -> int:
    """Return the last place of the lattice whose curve lies above the one point (fpr, fnr); -1 for none."""
    alpha = np.atleast_1d(fpr)
    places = range(family.steps + 1)
    return bisect_left(places, True, key=lambda place: bool(family.curve(alpha, family.at(place))[0] < fnr)) - 1


@lru_cache(maxsize=256)
def largest_provable(family: CurveFamily, n_in: int, n_out: int, error: float) -> float:
    """Return the largest theta that any counts of `n_in` + `n_out` scores rule out, whichever rate is confined.

    That is no error on the one side. On the confined one a few may prove more than none, since the exact test depends
    on how close what was counted confines that rate: there is one peak beside that of none, of a few tens of errors.
    """
    none = Counts(n_in=n_in, n_out=n_out)
    ways = (none, none.exchanged) if family.blow_up is not None and n_in != n_out else (none,)
    return max(_most_proved(family, counts, error) for counts in ways)


def _most_proved(family: CurveFamily, none: Counts, error: float) -> float:
    """Return the largest theta that `none` with any false positives rules out, sought by a grid that gets finer."""

    def proved(errors: int) -> float:
        return largest_ruled_out(family, replace(none, false_positives=errors), error)

    most = none.n_out // 4
    best = max({0, *(min(2**k, most) for k in range(3, 12))}, key=proved)
    for step in (max(1, best // 4), max(1, best // 16), 1) if best else ():
        best = max((k for k in range(best - 3 * step, best + 4 * step, step) if 0 <= k <= most), key=proved)
    return proved(best)


def oriented(family: CurveFamily, counts: Counts) -> Counts:
    """Return `counts` with the worlds exchanged where that helps: for curves that are their own inverse.

    The test confines what it takes for the false positive rate, and of the two rates the rarer is known worse. Which
    is which follows from the rule, so from the pilot alone.
    """
    if family.blow_up is not None and counts.strict_on_fpr:
        return counts.exchanged
    return counts


ASSUMPTION = "a Jeffreys prior on each of the two rates; credible, not a confidence"
_FARTHEST = 8.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_LARGEST = 700.0


def _quantiles(shape: tuple[float, float], z: Floats) -> Floats:
    """Return the quantiles of Beta(`shape`) at the normal probabilities of `z`, each tail from its own side."""
    low = betaincinv(*shape, ndtr(np.minimum(z, 0.0)))
    high = betainccinv(*shape, ndtr(-np.maximum(z, 0.0)))
    return np.asarray(np.where(z < 0.0, low, high))


def _deviates(shape: tuple[float, float], x: Floats) -> Floats:
    """Return the inverse of `_quantiles`, within +-8."""
    below = betainc(*shape, x)
    above = betaincc(*shape, x)
    z = np.where(below < 0.5, ndtri(np.maximum(below, 1e-300)), -ndtri(above + 1e-300))
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
    grown = np.exp(min(epsilon, _LARGEST))
    shrunk = np.exp(-epsilon)
    bulk = _quantiles(fnr, np.linspace(-_FARTHEST, _FARTHEST, 9))
    corner = (1.0 - delta) / (1.0 + grown)
    crossings = np.append([(1.0 - delta - bulk) * shrunk, 1.0 - delta - bulk * grown], corner)
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

    low = 0.0
    high = 1.0
    if excess(low) >= 0.0:
        return 0.0
    while high < _LARGEST and excess(high) < 0.0:
        low = high
        high = 2.0 * high
    return float(brentq(excess, low, high, xtol=1e-7))


def bayes(inside: Floats, outside: Floats, settings: AuditSettings) -> Proof:
    """Return the credible lower end of epsilon from (n,) and (m,) finite scores; right when no errors were seen."""
    error = settings.error
    delta = settings.delta
    test = FixedTest(name="clopper-pearson", delta=delta, n_in=0, n_out=0)
    test = counted(test, inside, outside, error, settings.seed)
    if test.chosen is None:
        return Proof(rule=TOO_FEW, assumes=ASSUMPTION)
    proved = credible_epsilon(test, delta, error)
    return Proof(
        proved=proved,
        provable=max(proved, credible_epsilon(Counts(n_in=test.n_in, n_out=test.n_out), delta, error)),
        rule=test.in_words(
            f"; posterior of both rates from the other {test.n_in} + {test.n_out}, with the whole error {error:.3g} as "
            "the mass below the bound"
        ),
        looks=1,
        assumes=ASSUMPTION,
    )
