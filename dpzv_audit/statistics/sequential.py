"""Sequential tests: e-processes against claims, which may be looked at after every pair and stopped at any time.

A process that starts at 1 and has mean at most 1 under a claim at any stopping time reaches 1/alpha with probability at
most alpha (Ville, 1939): what it reached refutes the claim for good, 1 over the largest it ever was is a p-value
whenever it is looked at, and looking costs nothing. Estimators and the gate read the same claims, so that the same
pairs give the same bound.

Betting, for (epsilon, delta): with a threshold fixed before the pair is seen, W = 1[in > t] - e^epsilon
1[out > t] - delta has mean at most 0 under the claim, so wealth prod(1 + lambda W) with lambda fixed before too is a
nonnegative supermartingale (Waudby-Smith and Ramdas, JRSS B 2024, section 4). Thresholds, directions, tails and stakes
are chosen at the start of each epoch from the pairs of the epochs before.

The likelihood ratio, for a mu of exactly Gaussian scores: under the claim they are N(m, s^2) and N(m + d, s^2),
independent, with |d| <= mu s and m, s unknown. It divides the likelihood of each pair under estimates from the pairs
before by the largest likelihood that the claim allows for all of them: at most 1 in expectation at any stopping time,
whatever m and s (Wasserman, Ramdas and Balakrishnan, PNAS 117, 2020, section 7).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, check_not_negative, check_probability
from .assumptions import permuted, unit_of
from .binomial import LEAST_P, Floats
from .families import GAUSSIAN, CurveFamily, epsilon_delta_family
from .settings import AuditSettings, Proof, check_scores
from .thresholds import Scores, candidate_rates

SequentialName = Literal["sequential", "sequential-gaussian"]

LEAST_ERROR = 1e-12
"""Least error at which a verdict may ask for a bound; wealth of more than 1 over it is not followed up."""
MOST_ERROR = 0.5
"""Largest error at which a verdict may ask for a bound."""
_DESIGN_ERROR = 1e-3
"""A claim is bet on where as many pairs as are planned could refute it at this error."""
_CLAIMS = np.concatenate([np.arange(0.0, 6.0, 0.1), np.arange(6.0, 20.0, 0.2)])
_LEAST_MU = 1e-3
_MOST_MU = 1e2
_AT_ONCE = 16
_PASSES = 3
_LARGEST_MU = 1e6
_MUS = np.geomspace(_LEAST_MU, _MOST_MU, (_AT_ONCE - 1) ** _PASSES + 1)


def claims(pairs: int, delta: float, confidence: float) -> Floats:
    """Return the claims of epsilon that `sequential` tests, as far as any result of so many pairs could refute them.

    Steps of 0.1 to 6 and of 0.2 to 20; the first, 0, stands whatever the number.
    """
    within = [c for c in _CLAIMS if pairs_needed(float(c), delta, confidence) <= pairs - FIRST]
    return np.array(within or _CLAIMS[:1])


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
    def least_p_value(self) -> float:
        """P-value of the claim, valid at any time it is looked at."""
        return max(LEAST_P, math.exp(-self.against))

    def epsilon_lower(self, error: float) -> float:
        """Lower bound on epsilon, >= 0, which exceeds the truth at any time with probability at most `error`."""
        return self.family.proves(self.proved(error), self.delta)

    def proved(self, error: float) -> float:
        """Return the largest of `claims` that is refuted at `error`; 0 for none.

        Of epsilons with all below it. Refuting a mu refutes every smaller one at the same pair.
        """
        refuted = np.asarray(self.evidence) >= -math.log(error)
        if self.name == "sequential":
            refuted = np.logical_and.accumulate(refuted)
        return float(np.max(np.asarray(self.claims)[refuted], initial=0.0))

    def provable(self, error: float) -> float:
        """Return the largest claim that so many pairs could have refuted at `error`."""
        if self.name == "sequential":
            return max(self.proved(error), float(claims(self.n_in, self.delta, 1.0 - error)[-1]))
        return _MOST_MU if self.n_in > ESTIMATED else 0.0

    def ceiling(self, error: float) -> float:
        """Return the largest epsilon that so many pairs could have proved at `error`."""
        return self.family.proves(self.provable(error), self.delta)

    @property
    def family(self) -> CurveFamily:
        """The family of curves that the claims are about."""
        if self.name == "sequential":
            return epsilon_delta_family(self.delta)
        return GAUSSIAN


def bet_on(
    inside: Floats,
    outside: Floats,
    *,
    delta: float,
    epsilon: float | None = None,
    most_pairs: int = 0,
    bound: bool = True,
    errors: tuple[float, float] = (LEAST_ERROR, MOST_ERROR),
) -> SequentialTest | None:
    """Return the betting test of pairs in order; of (`epsilon`, `delta`) None where `most_pairs` could not refute it.

    Without `bound` no other claim is tested beside it, which takes a fraction of the time and gives no lower bound.
    With it those are tested which as many pairs could refute at the larger of `errors`; wealth is followed up to 1 over
    the smaller.
    """
    needed: float = 0
    if epsilon is not None:
        needed = math.inf if epsilon > 300.0 else pairs_needed(epsilon, delta, 1.0 - _DESIGN_ERROR)
    if needed > most_pairs:
        return None
    inside, outside = paired(inside, outside)
    claimed = []
    rule = ""
    if epsilon is not None:
        claimed = [epsilon]
        rule = (
            f"bets on {inside.size:,} pairs, each side in a random order, each with a threshold and a stake chosen "
            f"from those before it. Refuting this claim at {_DESIGN_ERROR:g} takes {needed:,} pairs at least"
        )
    grid = np.union1d(claims(inside.size, delta, 1.0 - errors[1]) if bound else [], claimed)
    best, _ = wealth_against(grid, inside, outside, delta=delta, confidence=1.0 - errors[0])
    return _followed("sequential", grid, best, claimed, delta, inside.size, rule)


def likelihood_of(
    inside: Floats,
    outside: Floats,
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
    inside, outside = paired(inside, outside)
    claimed = []
    rule = ""
    if epsilon is not None:
        from ..accounting.gaussian import mu_from_epsilon

        claimed = [mu_from_epsilon(epsilon, delta)]
        rule = (
            f"likelihood of {inside.size:,} pairs, each side in a random order, under what those before it say, over "
            f"the largest under the claim, mu = {claimed[0]:.4g}"
        )
    grid = np.asarray(claimed)
    if bound:
        first, last = (_largest_refuted(inside, outside, 1.0 - error) for error in errors)
        grid = np.union1d(_MUS[max(first, 0) : max(last, 0) + 1], grid)
    best = evidence_against(grid, inside, outside)
    return _followed("sequential-gaussian", grid, best, claimed, delta, inside.size, rule)


def paired(inside: Scores, outside: Scores) -> tuple[Scores, Scores]:
    """Return the (k,) scores of each side that have a partner, k >= 1; `InputError` as `check_scores`."""
    pairs = min(inside.size, outside.size)
    return check_scores("in_scores", inside[:pairs]), check_scores("out_scores", outside[:pairs])


def _followed(
    name: SequentialName, grid: Floats, best: Floats, claimed: list[float], delta: float, pairs: int, rule: str
) -> SequentialTest:
    """Return the test whose evidence against the claims `grid`, of which one may be `claimed`, reached `best`."""
    return SequentialTest(
        name=name,
        delta=delta,
        n_in=pairs,
        n_out=pairs,
        claims=tuple(grid.tolist()),
        evidence=tuple(best.tolist()),
        against=float(np.max(best[np.searchsorted(grid, claimed)], initial=0.0)),
        rule=rule,
    )


def _largest_refuted(inside: Floats, outside: Floats, confidence: float) -> int:
    """Return the place in `_MUS` of the largest claim that is refuted at `confidence`, -1 for none.

    Refuting a mu refutes every smaller one at the same pair, so it is searched for: 16 claims at once, thrice.
    """
    largest = -1
    step = (_MUS.size - 1) // (_AT_ONCE - 1)
    while step >= 1 and largest < _MUS.size - 1:
        places = max(largest, 0) + step * np.arange(_AT_ONCE)
        refuted = evidence_against(_MUS[places], inside, outside) >= -math.log(1.0 - confidence)
        if not refuted.any():
            break
        largest = int(places[refuted].max())
        step //= _AT_ONCE - 1
    return largest


def sequential(inside: Floats, outside: Floats, settings: AuditSettings) -> Proof:
    """Return the largest epsilon refuted, with all below it, at any pair of (n,) and (m,) finite scores.

    Each side is read in a random order of its own, so that sorted files do no harm; of the longer one a rest is left
    out.
    """
    error = settings.error
    test = bet_on(*permuted(inside, outside, settings.seed), delta=settings.delta, errors=(error, error))
    assert test is not None
    return Proof(
        proved=test.proved(error),
        provable=test.provable(error),
        rule=f"bets on {test.n_in} pairs, each side in a random order, each with a threshold, direction, tail and "
        f"stake chosen from the pairs before it. {len(test.claims)} claims from {test.claims[0]:g} to "
        f"{test.claims[-1]:g}, each with the whole error {error:.3g}, the bound being the largest below which all are "
        "refuted",
        directions=2,
        looks=test.n_in,
    )


def sequential_gaussian(inside: Floats, outside: Floats, settings: AuditSettings) -> Proof:
    """Return the largest mu that a likelihood ratio refuted at any pair, and its epsilon at delta; order as above."""
    error = settings.error
    infinite = sum(int(np.count_nonzero(np.isinf(side))) for side in (inside, outside))
    if infinite:
        return Proof(family=GAUSSIAN, rule=f"none: {infinite} scores are infinite, the likelihood needs finite ones")
    test = likelihood_of(*permuted(inside, outside, settings.seed), delta=settings.delta, errors=(error, error))
    return Proof(
        family=GAUSSIAN,
        proved=test.proved(error),
        provable=test.provable(error),
        rule=f"no threshold: the likelihood of each of {test.n_in} pairs, each side in a random order, over the "
        f"largest under the claim. It is fitted on the pairs before; the whole error {error:.3g} is on its ever "
        f"reaching {1.0 / error:.3g}",
        directions=2,
        looks=max(test.n_in - ESTIMATED, 0),
    )


def most_refutable(pairs: int, planned: int, epsilon: float, delta: float, error: float) -> tuple[float, float]:
    """Return the largest epsilon that `pairs` of `planned` pairs can refute at `error`, and the p-value of `epsilon`.

    Every pair pays and all of the wealth is staked (see `pairs_needed`); no claim is bet on that those planned could
    not refute (see `bet_on`).
    """

    def largest(count: int, at: float) -> float:
        odds = (1.0 - delta) / math.expm1(-math.log(at) / count) - delta if count > 0 else 0.0
        return max(0.0, math.log(odds)) if odds > 0.0 else 0.0

    designed = largest(planned, _DESIGN_ERROR)
    growth = math.log1p((1.0 - delta) / (math.exp(min(epsilon, 300.0)) + delta))
    p_value = math.exp(-growth * max(0, pairs - FIRST)) if epsilon <= designed else 1.0
    return min(designed, largest(pairs - FIRST, error)), p_value


Bools = NDArray[np.bool_]

FIRST = 16
"""Pairs that are only looked at: no stake is known yet."""
_GROWTH = 1.3
_HISTORY = 20_000
_MOST_STAKE = 0.99
_WAYS = tuple(product((True, False), repeat=2))
_FRACTIONS = (1.0, 0.4)
"""The wealth is shared equally between these fractions of the stake that grows fastest by what is known."""


def pairs_needed(epsilon: float, delta: float, confidence: float = 0.95) -> int:
    """Return the fewest pairs that can refute (`epsilon`, `delta`): every in right, no out wrong, all staked.

    Raises `InputError` for an epsilon below 0, or a delta or confidence outside (0, 1).
    """
    check_not_negative("epsilon", epsilon)
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    return math.ceil(-math.log(1.0 - confidence) / math.log1p((1.0 - delta) / (math.exp(epsilon) + delta)))


@dataclass(frozen=True)
class _Bet:
    """Which scores pay, of "in" or of "out", and cost where they are the other's: from a threshold up or down."""

    threshold: float
    upper: bool
    in_pays: bool

    def events(self, inside: Scores, outside: Scores) -> tuple[Bools, Bools]:
        """Return (pays, costs) for (k,) pairs."""
        sign = 1.0 if self.upper else -1.0
        there = (sign * side.astype(np.float64) >= sign * self.threshold for side in (inside, outside))
        of_in, of_out = there
        return (of_in, of_out) if self.in_pays else (of_out, of_in)


def wealth_against(
    epsilons: Floats, inside: Floats, outside: Floats, *, delta: float, confidence: float | None = None
) -> tuple[Floats, Floats]:
    """Return the largest log wealth against each of (g,) claims at any of (k,) pairs, and (k, g) that after each pair.

    With a `confidence` the second is empty, and nothing more is bet against a claim once the wealth against it has
    reached 1 / (1 - `confidence`): it is refuted for good.
    """
    every_pair = confidence is None
    goal = math.inf if confidence is None else -math.log(1.0 - confidence)
    parts = np.full((len(_FRACTIONS), epsilons.size), -math.log(len(_FRACTIONS)))
    best = np.zeros(epsilons.size)
    path = np.zeros((inside.size if every_pair else 0, epsilons.size))
    start = FIRST
    while start < inside.size:
        stop = min(inside.size, max(start + 1, math.ceil(_GROWTH * start)))
        x = inside[start:stop]
        y = outside[start:stop]
        path[start:stop] = np.logaddexp.reduce(parts, axis=0)
        seen: dict[_Bet, tuple[NDArray[np.intp], Bools, Bools]] = {}
        for g, (bet, most) in enumerate(_choose(epsilons, inside[:start], outside[:start], delta)):
            if bet is None or best[g] >= goal:
                continue
            if bet not in seen:
                pays, costs = bet.events(x, y)
                places = np.arange(x.size) if every_pair else np.flatnonzero(pays | costs)
                seen[bet] = places, pays[places], costs[places]
            places, pays, costs = seen[bet]
            idle = x.size - (places[-1] + 1 if places.size else 0)
            logs = []
            for j, fraction in enumerate(_FRACTIONS):
                stake = fraction * most
                gains = _log_gains(pays, costs, stake, float(epsilons[g]), delta)
                drift = math.log1p(-stake * delta / (math.exp(epsilons[g]) + delta))
                # Between events every pair costs `drift`; wealth peaks only where an event paid.
                wealth = parts[j, g] + np.cumsum(gains - drift) + drift * (places + 1.0)
                logs.append(wealth)
                parts[j, g] = (wealth[-1] if places.size else parts[j, g]) + drift * idle
            joint = np.logaddexp.reduce(logs, axis=0)
            best[g] = np.max(joint, initial=best[g])
            if every_pair:
                path[start:stop, g] = joint
        start = stop
    return best, path


def _choose(epsilons: Floats, inside: Floats, outside: Floats, delta: float) -> Iterator[tuple[_Bet | None, float]]:
    """Yield the bet against each claim, None for none, and its stake, from pairs so far, at most the last 20,000."""
    rates = candidate_rates(inside[-_HISTORY:], outside[-_HISTORY:])
    sides = [rates.errors[in_is_high][:: 1 if in_pays else -1] for in_is_high, in_pays in _WAYS]
    q, wrong = (np.concatenate(side) for side in zip(*sides, strict=True))
    p = 1.0 - wrong
    size = rates.above.size
    for epsilon in epsilons:
        odds = math.exp(epsilon)
        # The stake that grows fastest where pays and costs never meet; the growth then counts all four outcomes.
        stake = np.clip((p - q * odds) / (p + q), 0.0, _MOST_STAKE)
        gain = stake / (odds + delta)
        growth = (
            p * (1.0 - q) * np.log1p(gain * (1.0 - delta))
            + q * (1.0 - p) * np.log1p(-stake)
            + p * q * np.log1p(gain * (1.0 - delta - odds))
            + (1.0 - p) * (1.0 - q) * np.log1p(-gain * delta)
        )
        best = int(np.argmax(growth))
        in_is_high, in_pays = _WAYS[best // size]
        upper = in_is_high == in_pays
        bet = _Bet(rates.edge(best % size, upper=upper), upper, in_pays)
        yield bet if growth[best] > 0.0 else None, float(stake[best])


def _log_gains(pays: Bools, costs: Bools, stake: float, epsilon: float, delta: float) -> Floats:
    """Return ln(1 + lambda W) of events, lambda = stake / (e^epsilon + delta)."""
    odds = math.exp(epsilon)
    unit = stake / (odds + delta)
    table = np.log1p(np.array([-unit * delta, -stake, unit * (1.0 - delta), unit * (1.0 - odds - delta)]))
    return np.asarray(table[2 * pays.astype(np.intp) + costs])


ESTIMATED = 10
"""Pairs that only estimate: of their likelihood nothing is counted."""
_BLOCK = 2**16
_FARTHEST = 1e100
"""Standardised scores are cut here: no Gaussian one comes near, and their squares stay floats."""


def evidence_against(mus: Floats, inside: Floats, outside: Floats) -> Floats:
    """Return the largest log likelihood ratio against each of (g,) claims of mu at any of (k,) pairs, at least 0.

    With a claim every smaller one is refuted.
    """
    if not np.all(mus <= _LARGEST_MU):
        raise InputError(f"use numbers from 0 to {_LARGEST_MU:g}", "mus", mus)
    best = np.zeros(mus.size)
    inside, outside = inside.astype(np.float64), outside.astype(np.float64)
    if not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        return best  # no Gaussian score is infinite
    first = inside[:ESTIMATED], outside[:ESTIMATED]
    # In units of the largest score the squares stay floats.
    unit = unit_of(*first)
    x, y = (side / unit for side in first)
    # Scores that do not vary are not Gaussian: nothing is ever proved from them.
    if inside.size <= ESTIMATED or not min(np.ptp(x), np.ptp(y)) > 0.0:
        return best
    shift = unit * float(0.5 * (np.mean(x) + np.mean(y)))
    scale = unit * math.sqrt(0.5 * float(np.var(x) + np.var(y)))
    if scale == 0.0:
        return best
    with np.errstate(over="ignore"):
        x, y = (np.clip(side / scale - shift / scale, -_FARTHEST, _FARTHEST) for side in (inside, outside))
    scores = np.stack([x, y, x**2, y**2])
    begun = np.array([np.sum(row[:ESTIMATED]) for row in scores])
    sums = np.zeros(4)
    numerator = 0.0
    for start in range(ESTIMATED, inside.size, _BLOCK):
        block = scores[:, start : start + _BLOCK]
        after = sums[:, None] + np.cumsum(block, axis=1)
        sums = after[:, -1]
        k = np.arange(1.0, block.shape[1] + 1.0) + (start - ESTIMATED)
        before = after - block + begun[:, None]
        predicted = numerator + np.cumsum(_predicted(block[0], block[1], before, k - 1.0 + ESTIMATED))
        numerator = float(predicted[-1])
        best = np.maximum(best, [np.max(predicted - _largest(after, k, float(mu))) for mu in mus])
    return best


def _predicted(x: Floats, y: Floats, sums: Floats, n: Floats) -> Floats:
    """Return the log density of each pair at the means and the variance of the `n` pairs with these sums."""
    mean_x = sums[0] / n
    mean_y = sums[1] / n
    variance = np.maximum((sums[2] - n * mean_x**2 + sums[3] - n * mean_y**2) / (2.0 * n - 2.0), 1e-300)
    # The next score strays from an estimated mean by 1 + 1/n of the variance.
    wide = variance * (1.0 + 1.0 / n)
    with np.errstate(over="ignore"):  # minus infinity: from then on nothing is ever proved
        strays = ((x - mean_x) ** 2 + (y - mean_y) ** 2) / wide
    return np.asarray(-np.log(wide) - 0.5 * strays)


def _largest(sums: Floats, n: Floats, mu: float) -> Floats:
    """Return the largest log likelihood of `n` pairs with |mean difference| <= mu s, over m and s.

    Where the estimate keeps the claim, the unconstrained one. Else the difference is mu s: with u = 1/s the
    likelihood is n ln u^2 - (A u^2 + n (d u - mu)^2 / 2) / 2, largest at the root of a quadratic.
    """
    mean_x = sums[0] / n
    mean_y = sums[1] / n
    squares = np.maximum(sums[2] - n * mean_x**2 + sums[3] - n * mean_y**2, 1e-300)
    d = np.abs(mean_x - mean_y)
    free = -n * np.log(squares / (2.0 * n)) - n
    a = squares + 0.5 * n * d**2
    b = 0.5 * n * d * mu
    u = (b + np.sqrt(b**2 + 8.0 * n * a)) / (2.0 * a)
    bound = 2.0 * n * np.log(u) - 0.5 * (squares * u**2 + 0.5 * n * (d * u - mu) ** 2)
    return np.asarray(np.where(d <= mu * np.sqrt(squares / (2.0 * n)), free, bound))
