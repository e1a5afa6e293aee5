"""Sequential tests: e-processes against claims, which may be looked at after every pair and stopped at any time.

A process that starts at 1 and has mean at most 1 under a claim at any stopping time reaches 1/alpha with probability at
most alpha (Ville, 1939): what it reached refutes the claim for good, 1 over the largest it ever was is a p-value
whenever it is looked at, and looking costs nothing. Estimators and the gate read the same claims, so that the same
pairs give the same bound.

`BettingTest`, for (epsilon, delta): with a threshold fixed before the pair is seen, W = 1[in > t] - e^epsilon
1[out > t] - delta has mean at most 0 under the claim, so wealth prod(1 + lambda W) with lambda fixed before too is a
nonnegative supermartingale (Waudby-Smith and Ramdas, JRSS B 2024, section 4). Thresholds, directions, tails and stakes
are chosen at the start of each epoch from the pairs of the epochs before.

`LikelihoodRatioTest`, for a mu of exactly Gaussian scores: under the claim they are N(m, s^2) and N(m + d, s^2),
independent, with |d| <= mu s and m, s unknown. It divides the likelihood of each pair under estimates from the pairs
before by the largest likelihood that the claim allows for all of them: at most 1 in expectation at any stopping time,
whatever m and s (Wasserman, Ramdas and Balakrishnan, PNAS 117, 2020, section 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzv_audit.errors import AuditError, InputError, check_probability
from dpzv_audit.findings import ClaimKind, EmpiricalBound
from dpzv_audit.statistics.assumptions import permuted
from dpzv_audit.statistics.binomial import LEAST_P
from dpzv_audit.statistics.families import GAUSSIAN, CurveFamily, epsilon_delta_family
from dpzv_audit.statistics.settings import AuditSettings, Scores, check_scores
from dpzv_audit.statistics.thresholds import candidate_rates

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
    within = [c for c in _CLAIMS if pairs_needed(float(c), delta, confidence) <= pairs - FIRST]
    return np.array(within or _CLAIMS[:1])


def most_refutable(pairs: int, delta: float, confidence: float) -> float:
    """Return the largest claim that `pairs` pairs refute if every one pays; 0 for none."""
    tested = claims(pairs, delta, confidence)
    return float(np.max(tested, initial=0.0)) if pairs - FIRST >= pairs_needed(0.0, delta, confidence) else 0.0


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
        return _MOST_MU if self.n_in > ESTIMATED else 0.0

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
    rule = ""
    if epsilon is not None:
        rule = (
            f"bets on {pairs:,} pairs, each side in a random order, each with a threshold and a stake chosen from "
            f"those before it; refuting this claim at {_DESIGN_ERROR:g} takes "
            f"{pairs_needed(epsilon, delta, 1.0 - _DESIGN_ERROR):,} pairs at least"
        )
    return _followed("sequential", test, grid, epsilon, delta, rule)


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
    claimed = None
    if epsilon is not None:
        from dpzv_audit.accounting.gaussian import mu_from_epsilon

        claimed = float(mu_from_epsilon(epsilon, delta))
    grid = np.asarray([] if claimed is None else [claimed])
    if bound:
        first, last = (_largest_refuted(inside, outside, error) for error in errors)
        grid = np.union1d(_MUS[max(first, 0) : max(last, 0) + 1], grid)
    test = LikelihoodRatioTest(grid, confidence=1.0 - min(errors))
    test.update(inside, outside)
    rule = ""
    if claimed is not None:
        rule = (
            f"likelihood of {pairs:,} pairs, each side in a random order, under what those before it say, over "
            f"the largest under the claim, mu = {claimed:.4g}"
        )
    return _followed("sequential-gaussian", test, grid, claimed, delta, rule)


def _followed(
    name: SequentialName, test: Wealth, grid: Floats, claimed: float | None, delta: float, rule: str
) -> SequentialTest:
    """Return what `test` of the claims `grid` reached, `claimed` among them unless it is None."""
    return SequentialTest(
        name=name,
        delta=delta,
        n_in=test.pairs,
        n_out=test.pairs,
        claims=tuple(grid.tolist()),
        evidence=tuple(test.best.tolist()),
        against=0.0 if claimed is None else max(0.0, float(test.best[np.searchsorted(grid, claimed)])),
        rule=rule,
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
        looks=max(test.n_in - ESTIMATED, 0),
    )


STAKES = np.linspace(0.02, 0.98, 25)
"""Shares of the wealth that the least success would lose; the wealth starts spread evenly over them."""
_ROUNDING = 1e-9


class Wealth:
    """Logarithms of the wealth against each of (g,) claims, of which `best` is the largest so far.

    A claim whose `best` reached `goal` = ln(1 / (1 - confidence)) is refuted for good.
    """

    def __init__(self, claims: int, *, confidence: float, keep_path: bool = False) -> None:
        """`keep_path` keeps the wealth after every pair in `path`."""
        self.confidence = check_probability("confidence", confidence)
        self.goal = -math.log(1.0 - confidence)
        self.pairs = 0
        self.best = np.zeros(claims)
        self._path: list[Floats] | None = [] if keep_path else None

    @property
    def refuted(self) -> NDArray[np.bool_]:
        """Whether the wealth against each claim has reached 1 / (1 - confidence) at any time."""
        return np.asarray(self.best >= self.goal)

    @property
    def p_values(self) -> Floats:
        """Any-time valid p-values: 1 over the largest wealth so far."""
        return np.exp(-self.best)

    @property
    def path(self) -> Floats:
        """(pairs, g) log wealth after each pair; only with `keep_path`."""
        if self._path is None:
            raise InputError("the path of the wealth is kept only where keep_path is set")
        return np.concatenate(self._path) if self._path else np.zeros((0, self.best.size))


def claims_array(name: str, claims: ArrayLike, most: float) -> Floats:
    """Return `claims` in order, at least one; `InputError` naming them for one that is not from 0 to `most`."""
    found = np.sort(np.atleast_1d(np.asarray(claims, dtype=np.float64)))
    if found.size == 0 or not np.all((found >= 0.0) & (found <= most)):
        raise InputError(f"must be numbers from 0 to {most:g}", name, claims)
    return found


def pairs_of(in_scores: ArrayLike, out_scores: ArrayLike) -> tuple[Scores, Scores]:
    """Return (k,) pairs of finite scores, k >= 1; `InputError` for anything else."""
    inside, outside = check_scores("in_scores", in_scores), check_scores("out_scores", out_scores)
    if inside.size != outside.size:
        raise InputError(f"in_scores has {inside.size} scores and out_scores {outside.size}, must be pairs")
    return inside, outside


def success_p_value(rates: Iterable[float], limit: float, *, least: float = 0.0) -> float:
    """Return a p-value, valid at any time it is looked at, of "the mean of `rates` is at most `limit`".

    `rates` are independent numbers in [`least`, 1] of equal mean, `limit` lies in (`least`, 1): the success of whole
    trainings, within which guesses depend on each other. Each stake s multiplies its part of the wealth by
    1 + s (rate - limit) / (limit - least), which is never negative and whose mean is at most 1 under the limit
    (Waudby-Smith and Ramdas, JRSS B 86, 2024). That is the bet on rates moved to [0, 1] with their limit; rates cut off
    at 0 instead would have a larger mean than the one that the limit speaks of.

    Raises:
        InputError: A limit that no success lies below.
        AuditError: A rate outside its range.
    """
    if limit <= least:
        raise InputError(
            f"must be above {least:g}, the least success that the attack can have", "success_at_most", limit
        )
    wealth = np.zeros_like(STAKES)
    largest = 0.0
    for rate in rates:
        if not least - _ROUNDING <= rate <= 1.0 + _ROUNDING:
            raise AuditError(f"must lie in [{least:g}, 1]", "success", rate)
        wealth = wealth + np.log1p(STAKES * (max(rate, least) - limit) / (limit - least))
        top = float(wealth.max())
        largest = max(largest, top + math.log(float(np.exp(wealth - top).mean())))
    return math.exp(-min(largest, 690.0))


Bools = NDArray[np.bool_]

FIRST = 16
"""Pairs that are only looked at: no stake is known yet."""
_GROWTH = 1.3
_HISTORY = 20_000
_MOST_STAKE = 0.99
_FRACTIONS = (1.0, 0.4)
"""The wealth is shared equally between these fractions of the stake that grows fastest by what is known."""


def pairs_needed(epsilon: float, delta: float, confidence: float = 0.95) -> int:
    """Return the fewest pairs that can refute (`epsilon`, `delta`): every in right, no out wrong, all staked.

    Raises `InputError` for an epsilon below 0, or a delta or confidence outside (0, 1).
    """
    if not 0.0 <= epsilon < math.inf:
        raise InputError("must be a finite number of at least 0", "epsilon", epsilon)
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    return math.ceil(-math.log(1.0 - confidence) / math.log1p((1.0 - delta) / (math.exp(epsilon) + delta)))


@dataclass(frozen=True)
class _Bet:
    """Which events pay and which cost at one threshold: four ways to read a pair."""

    threshold: float
    in_is_high: bool
    in_pays: bool

    def events(self, inside: Floats, outside: Floats) -> tuple[Bools, Bools]:
        """Return (pays, costs) for (k,) pairs; a score equal to the threshold never pays and always costs."""
        winner, loser = (inside, outside) if self.in_pays else (outside, inside)
        if self.in_is_high == self.in_pays:
            return winner > self.threshold, loser >= self.threshold
        return winner < self.threshold, loser <= self.threshold


class BettingTest(Wealth):
    """Wealth against each of (g,) claims of epsilon at `delta`; feed it pairs with `update`, look at it at any time.

    The result does not depend on how the pairs are cut into calls. `log_wealth` is now's, `best` the largest so far.
    """

    def __init__(self, epsilons: ArrayLike, *, delta: float, confidence: float = 0.95, keep_path: bool = False) -> None:
        """`keep_path` keeps the wealth after every pair in `path` and bets on after a refutation."""
        self.epsilons = claims_array("epsilons", epsilons, 300.0)
        super().__init__(self.epsilons.size, confidence=confidence, keep_path=keep_path)
        self.delta = check_probability("delta", delta)
        self._parts = np.zeros((len(_FRACTIONS), self.epsilons.size)) - math.log(len(_FRACTIONS))
        self._inside, self._outside = [np.zeros(0)], [np.zeros(0)]
        self._bets: list[_Bet | None] = [None] * self.epsilons.size
        self._stakes = np.zeros(self.epsilons.size)
        self._next = FIRST

    @property
    def log_wealth(self) -> Floats:
        """Natural logarithm of the wealth against each claim; 0 at the start."""
        return np.asarray(np.logaddexp.reduce(self._parts, axis=0), dtype=np.float64)

    @property
    def epsilon_lower(self) -> float:
        """The largest claim such that it and all smaller ones are refuted; 0 for none. Holds at all times at once."""
        count = int(np.sum(np.cumprod(self.refuted)))
        return float(self.epsilons[count - 1]) if count else 0.0

    def update(self, in_scores: ArrayLike, out_scores: ArrayLike) -> None:
        """Take (k,) further pairs of scores, k >= 1. Raises `InputError` for scores that are not k finite numbers."""
        inside, outside = pairs_of(in_scores, out_scores)
        start = 0
        while start < inside.size:
            if self.pairs == self._next:
                self._choose()
                self._next = max(self._next + 1, math.ceil(_GROWTH * self._next))
            stop = min(inside.size, start + self._next - self.pairs)
            x, y = inside[start:stop], outside[start:stop]
            self._play(x, y)
            self._inside.append(x)
            self._outside.append(y)
            self.pairs += stop - start
            start = stop

    def _play(self, inside: Floats, outside: Floats) -> None:
        """Add the winnings of pairs of one epoch."""
        seen: dict[_Bet, tuple[NDArray[np.intp], Bools, Bools]] = {}
        whole = None if self._path is None else np.repeat(self.log_wealth[None, :], inside.size, axis=0)
        for g, bet in enumerate(self._bets):
            if bet is None or (self.best[g] >= self.goal and whole is None):
                continue
            if bet not in seen:
                pays, costs = bet.events(inside, outside)
                places = np.arange(inside.size) if whole is not None else np.flatnonzero(pays | costs)
                seen[bet] = places, pays[places], costs[places]
            places, pays, costs = seen[bet]
            paths = []
            for j, fraction in enumerate(_FRACTIONS):
                stake = fraction * self._stakes[g]
                gains = _log_gains(pays, costs, stake, float(self.epsilons[g]), self.delta)
                drift = math.log1p(-stake * self.delta / (math.exp(self.epsilons[g]) + self.delta))
                # Between events every pair costs `drift`; wealth peaks only where an event paid.
                paths.append(self._parts[j, g] + np.cumsum(gains - drift) + drift * (places + 1.0))
                self._parts[j, g] = (paths[-1][-1] if places.size else self._parts[j, g]) + drift * (
                    inside.size - (places[-1] + 1 if places.size else 0)
                )
            if places.size:
                joint = np.logaddexp.reduce(paths, axis=0)
                self.best[g] = max(self.best[g], float(joint.max()))
                if whole is not None:
                    whole[:, g] = joint
        if whole is not None and self._path is not None:
            self._path.append(whole)

    def _choose(self) -> None:
        """Choose every claim's bet and stake from the pairs so far, at most the last 20,000."""
        inside, outside = (np.concatenate(side)[-_HISTORY:] for side in (self._inside, self._outside))
        self._inside, self._outside = [inside], [outside]
        rates = candidate_rates(inside, outside)
        ways, win, lose = [], [], []
        for in_is_high in (True, False):
            fpr, fnr = rates.errors(in_is_high)
            for in_pays in (True, False):
                win.append(1.0 - fnr if in_pays else 1.0 - fpr)
                lose.append(fpr if in_pays else fnr)
                ways.append((in_is_high, in_pays))
        p, q = np.concatenate(win), np.concatenate(lose)
        size = rates.threshold.size
        for g, epsilon in enumerate(self.epsilons):
            odds = math.exp(epsilon)
            # The stake that grows fastest where pays and costs never meet; the growth then counts all four outcomes.
            stake = np.clip((p - q * odds) / (p + q), 0.0, _MOST_STAKE)
            gain = stake / (odds + self.delta)
            growth = (
                p * (1.0 - q) * np.log1p(gain * (1.0 - self.delta))
                + q * (1.0 - p) * np.log1p(-stake)
                + p * q * np.log1p(gain * (1.0 - self.delta - odds))
                + (1.0 - p) * (1.0 - q) * np.log1p(-gain * self.delta)
            )
            best = int(np.argmax(growth))
            worth = growth[best] > 0.0
            self._bets[g] = _Bet(float(rates.threshold[best % size]), *ways[best // size]) if worth else None
            self._stakes[g] = float(stake[best]) if worth else 0.0


def _log_gains(pays: Bools, costs: Bools, stake: float, epsilon: float, delta: float) -> Floats:
    """Return ln(1 + lambda W) of events, lambda = stake / (e^epsilon + delta)."""
    odds = math.exp(epsilon)
    unit = stake / (odds + delta)
    table = np.log1p(np.array([-unit * delta, -stake, unit * (1.0 - delta), unit * (1.0 - odds - delta)]))
    return np.asarray(table[2 * pays.astype(np.intp) + costs], dtype=np.float64)


ESTIMATED = 10
"""Pairs that only estimate: of their likelihood nothing is counted."""
_BLOCK = 2**16
_FARTHEST = 1e100
"""Standardised scores are cut here: no Gaussian one comes near, and their squares stay floats."""


class LikelihoodRatioTest(Wealth):
    """Evidence against each of (g,) claims of mu; feed it pairs with `update`, look at it at any time.

    The result does not depend on how the pairs are cut into calls. With a claim every smaller one is refuted.
    """

    def __init__(self, mus: ArrayLike, *, confidence: float = 0.95, keep_path: bool = False) -> None:
        self.mus = claims_array("mus", mus, 1e6)
        super().__init__(self.mus.size, confidence=confidence, keep_path=keep_path)
        self._first: list[tuple[Floats, Floats]] = []
        self._shift, self._scale, self._numerator = 0.0, 0.0, 0.0
        self._sums = np.zeros(4)

    @property
    def mu_lower(self) -> float:
        """The largest claim that is refuted; 0 for none. Holds at all times at once."""
        return float(np.max(self.mus[self.refuted], initial=0.0))

    def update(self, in_scores: ArrayLike, out_scores: ArrayLike) -> None:
        """Take (k,) further pairs of scores, k >= 1. Raises `InputError` for scores that are not k finite numbers."""
        inside, outside = pairs_of(in_scores, out_scores)
        early = min(max(ESTIMATED - self.pairs, 0), inside.size)
        if early:
            self._look(inside[:early], outside[:early])
        for start in range(early, inside.size, _BLOCK):
            self._weigh(inside[start : start + _BLOCK], outside[start : start + _BLOCK])

    def _look(self, inside: Floats, outside: Floats) -> None:
        self._first.append((inside, outside))
        self.pairs += inside.size
        if self._path is not None:
            self._path.append(np.zeros((inside.size, self.mus.size)))
        if self.pairs == ESTIMATED:
            x, y = (np.concatenate(side) for side in zip(*self._first, strict=True))
            # In units of the largest score the squares stay floats.
            unit = float(max(np.max(np.abs(x)), np.max(np.abs(y)))) or 1.0
            self._shift = unit * float(0.5 * (np.mean(x / unit) + np.mean(y / unit)))
            # Scores that do not vary are not Gaussian: nothing is ever proved from them.
            varies = min(np.ptp(x / unit), np.ptp(y / unit)) > 0.0
            self._scale = unit * math.sqrt(0.5 * float(np.var(x / unit) + np.var(y / unit))) if varies else 0.0

    def _weigh(self, inside: Floats, outside: Floats) -> None:
        """Add the evidence of a block of pairs."""
        self.pairs += inside.size
        if self._scale == 0.0:
            if self._path is not None:
                self._path.append(np.zeros((inside.size, self.mus.size)))
            return
        first = self._standard(*(np.concatenate(side) for side in zip(*self._first, strict=True)))
        begun = np.array([side.sum() for side in (first[0], first[1])] + [np.sum(side**2) for side in first])
        x, y = self._standard(inside, outside)
        steps = np.stack([x, y, x**2, y**2])
        after = self._sums[:, None] + np.cumsum(steps, axis=1)
        before = after - steps
        done = self.pairs - ESTIMATED
        k = np.arange(done - inside.size + 1, done + 1, dtype=np.float64)
        self._sums = after[:, -1]
        predicted = self._numerator + np.cumsum(_predicted(x, y, before + begun[:, None], k - 1.0 + ESTIMATED))
        self._numerator = float(predicted[-1])
        paths = np.stack([predicted - _largest(after, k, float(mu)) for mu in self.mus], axis=1)
        self.best = np.maximum(self.best, paths.max(axis=0))
        if self._path is not None:
            self._path.append(paths)

    def _standard(self, inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
        def standard(scores: Floats) -> Floats:
            with np.errstate(over="ignore"):
                return np.clip(scores / self._scale - self._shift / self._scale, -_FARTHEST, _FARTHEST)

        return standard(inside), standard(outside)


def _predicted(x: Floats, y: Floats, sums: Floats, n: Floats) -> Floats:
    """Return the log density of each pair at the means and the variance of the `n` pairs with these sums."""
    mean_x, mean_y = sums[0] / n, sums[1] / n
    variance = np.maximum((sums[2] - n * mean_x**2 + sums[3] - n * mean_y**2) / (2.0 * n - 2.0), 1e-300)
    # The next score strays from an estimated mean by 1 + 1/n of the variance.
    wide = variance * (1.0 + 1.0 / n)
    with np.errstate(over="ignore"):  # minus infinity: from then on nothing is ever proved
        strays = ((x - mean_x) ** 2 + (y - mean_y) ** 2) / wide
    return np.asarray(-np.log(wide) - 0.5 * strays, dtype=np.float64)


def _largest(sums: Floats, n: Floats, mu: float) -> Floats:
    """Return the largest log likelihood of `n` pairs with |mean difference| <= mu s, over m and s.

    Where the estimate keeps the claim, the unconstrained one. Else the difference is mu s: with u = 1/s the
    likelihood is n ln u^2 - (A u^2 + n (d u - mu)^2 / 2) / 2, largest at the root of a quadratic.
    """
    mean_x, mean_y = sums[0] / n, sums[1] / n
    squares = np.maximum(sums[2] - n * mean_x**2 + sums[3] - n * mean_y**2, 1e-300)
    d = np.abs(mean_x - mean_y)
    free = -n * np.log(squares / (2.0 * n)) - n
    a, b = squares + 0.5 * n * d**2, 0.5 * n * d * mu
    u = (b + np.sqrt(b**2 + 8.0 * n * a)) / (2.0 * a)
    bound = 2.0 * n * np.log(u) - 0.5 * (squares * u**2 + 0.5 * n * (d * u - mu) ** 2)
    return np.asarray(np.where(d <= mu * np.sqrt(squares / (2.0 * n)), free, bound), dtype=np.float64)
