"""Bounds from the guesses about many coin-flip canaries of one training, or of many.

Where a coin flipped for each canary decided which file its score is in, the bits are fair as they are, and a random
pilot reveals its own alone. Where so many runs a side were made by design, fresh coins choose from which side each
canary comes; what they leave over is the pilot. Guesses depend on scores and on the pilot, never on a bit they guess.

`one-run`: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run" (NeurIPS 2023), theorem 5.2 and
corollary 5.4: under (epsilon, delta) the right guesses exceed those of randomised response, Binomial(r, e^epsilon /
(1 + e^epsilon)), by nothing more than delta allows.

`one-run-fdp`: Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run" (ICML 2025), algorithm 3:
if the curve f held, the probabilities p_i of i right guesses would obey one inequality for every set of i; from an
assumed P[right >= c] >= tau it follows that they sum to more than one, and the assumption is refuted.

`CoinTest`: the p-values of `one-run`, one of each training, as bets (Vovk and Wang, "E-values: calibration, combination
and applications", Annals of Statistics 49, 2021, section 2). One training proves little at a small error, however many
coins it has: with a chance of delta it may tell all of them. That several of them do is as unlikely as it should be.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, gammaln, xlog1py, xlogy

from ..base.errors import InputError
from ..base.seeds import Purpose, stream
from .binomial import LEAST_P, Floats, lower_limit
from .families import CurveFamily, epsilon_delta_family
from .fixed import levels
from .settings import AuditSettings, Proof
from .thresholds import LEAST_A_SIDE, candidate_rates, pilot_size

NONE = "none: too few scores to choose and test a threshold"
_SPREAD = 40.0
_LARGEST = 700.0


def p_value(guesses: "Guesses", epsilon: float, delta: float) -> float:
    """Return the chance of so many right guesses under (`epsilon`, `delta`), in [0, 1]: corollary 5.4.

    P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i, W binomial. The maximum is sought over 40 standard deviations
    of W below v: further down the sum no longer grows.
    """
    v = guesses.right
    r = guesses.made
    if v == 0:
        return 1.0
    q = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(betainc(v, r - v + 1.0, q))
    depth = min(v, math.ceil(_SPREAD * math.sqrt(r * q * (1.0 - q)) + _SPREAD + max(0.0, v - r * q)))
    k = np.arange(v - 1, v - depth - 1, -1)
    log_mass = gammaln(r + 1.0) - gammaln(k + 1.0) - gammaln(r - k + 1.0) + xlogy(k, q) + xlog1py(r - k, -q)
    most = float(np.max(np.cumsum(np.exp(log_mass)) / np.arange(1.0, depth + 1.0)))
    return min(1.0, tail + 2.0 * guesses.canaries * delta * most)


def largest_refuted(guesses: "Guesses", delta: float, error: float) -> float:
    """Return the largest epsilon, to 1e-9, that the guesses refute at `error`; 0 for none."""
    return _largest(lambda epsilon: p_value(guesses, epsilon, delta) <= error, 0.0, 1.0, 1e-9)


def most_provable(coins: int, *, delta: float, error: float) -> float:
    """Return the largest epsilon that so many coins could prove at `error`: all of them guessed right."""
    return largest_refuted(Guesses(coins, coins, coins), delta, error)


def _largest(refuted: Callable[[float], bool], low: float, high: float, tolerance: float) -> float:
    """Return a refuted number, below the largest by `tolerance` at most; it is sought from `low` on; 0 for none."""
    while high < _LARGEST and refuted(high):
        low = high
        high = 2.0 * high
    if not refuted(low):
        low, high = 0.0, low
    while high - low > tolerance:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def guessed(
    canaries: "Canaries | None",
    settings: AuditSettings,
    *,
    choose: "Callable[[Canaries], GuessRule]",
    largest: "Callable[[Guesses], float]",
    family: CurveFamily | None = None,
) -> Proof:
    """Return what `largest` says of the guesses that the rule of `choose` makes.

    The canaries may share one training: nothing is assumed of how their scores depend on each other.
    """
    if canaries is None:
        return Proof(family=family, rule=NONE)
    rule = choose(canaries)
    guesses = count_guesses(canaries, rule)
    proved = largest(guesses)
    m = guesses.canaries
    return Proof(
        family=family,
        proved=proved,
        provable=max(proved, largest(Guesses(m, m, m))),
        rule=in_words(canaries, rule, guesses, settings),
        looks=1,
    )


def one_run(inside: Floats, outside: Floats, settings: AuditSettings) -> Proof:
    """Return a lower bound on epsilon from (n,) and (m,) scores of canaries with bit 1 and bit 0."""
    delta = settings.delta
    error = settings.error
    return guessed(
        draw_canaries(inside, outside, settings),
        settings,
        choose=lambda canaries: surest_guesses(canaries, error),
        largest=lambda guesses: largest_refuted(guesses, delta, error),
    )


def surest_guesses(canaries: "Canaries", error: float) -> "GuessRule":
    """Return the rule of whose guesses the largest share should be shown to be right at `error`."""
    return choose_guesses(canaries, lambda made, right: lower_limit(right, made, error))


_WRONG = np.geomspace(1e-5, 0.4, 24)


@dataclass(frozen=True)
class Canaries:
    """Scores (m,) and fair bits (m,) of the canaries to guess, and the scores of a pilot whose bits are known."""

    scores: Floats
    bits: NDArray[np.bool_]
    pilot_in: Floats
    pilot_out: Floats


@dataclass(frozen=True)
class GuessRule:
    """Guess "in" from `above` up and "out" from `below` down, else pass; each the other way when not `in_is_high`.

    NaN stands for no guess on that side.
    """

    above: float
    below: float
    in_is_high: bool


@dataclass(frozen=True)
class Guesses:
    """`right` of `made` guesses about `canaries` canaries."""

    canaries: int
    made: int
    right: int


def draw_canaries(in_scores: Floats, out_scores: Floats, settings: AuditSettings) -> Canaries | None:
    """Return the canaries of (n,) and (m,) scores; None where too few are left or a side runs out of scores.

    A side runs out with probability below 1e-4: then nothing is proved, which errs on no true claim. Beside a pilot of
    further runs all scores of coin flips are canaries.
    """
    rng = stream(settings.seed, Purpose.SPLIT)
    if settings.coin_flips and settings.pilot is not None:
        scores = np.concatenate([in_scores, out_scores])
        canaries = Canaries(scores, np.arange(scores.size) < in_scores.size, *settings.pilot)
    elif settings.coin_flips:
        total = in_scores.size + out_scores.size
        if total < 2 * LEAST_A_SIDE:
            return None
        order = rng.permutation(total)
        size = pilot_size(total)
        scores = np.concatenate([in_scores, out_scores])[order]
        bits = order < in_scores.size
        pilot = scores[:size]
        known = bits[:size]
        canaries = Canaries(scores[size:], bits[size:], pilot[known], pilot[~known])
    else:
        fewer = min(in_scores.size, out_scores.size)
        if fewer < LEAST_A_SIDE:
            return None
        size = 2 * fewer - max(2 * pilot_size(fewer), math.ceil(4.0 * math.sqrt(2.0 * fewer)))
        bits = rng.random(size) < 0.5
        ones = int(bits.sum())
        if ones > in_scores.size or size - ones > out_scores.size:
            return None
        inside, outside = (side[rng.permutation(side.size)] for side in (in_scores, out_scores))
        scores = np.empty(size)
        scores[bits], scores[~bits] = inside[:ones], outside[: size - ones]
        canaries = Canaries(scores, bits, inside[ones:], outside[size - ones :])
    if min(canaries.pilot_in.size, canaries.pilot_out.size) >= 2 and canaries.scores.size > 0:
        return canaries
    return None


def choose_guesses(canaries: Canaries, promise: Callable[[Floats, Floats], Floats]) -> GuessRule:
    """Return the rule whose expected (k,) numbers of guesses made and right promise most.

    Where the pilot's own counts stand for the rates, the numbers are those of as many canaries as the pilot has: its
    counts are no surer than that.
    """
    options, trust = _options(canaries)
    pilot = canaries.pilot_in.size + canaries.pilot_out.size
    share = min(1.0, pilot / canaries.scores.size)
    counted = share * np.array([o.counted for o in options])
    promised = (1.0 - trust) * promise(*counted.T)
    if trust > 0.0:
        promised += trust * promise(np.array([o.made for o in options]), np.array([o.right for o in options]))
    return options[int(np.argmax(promised))].rule


def search_guesses(canaries: Canaries, promise: Callable[[float, float], float]) -> GuessRule:
    """Return the same for a promise that is slow to compute: every fourth rule for both sides, then those around it.

    Then either side alone is tried in the best one's place. Rules that should make more than 20,000 guesses are
    left out where there are others.
    """
    options, _ = _options(canaries)
    both = [o for o in options if o.both and o.made <= _MOST_GUESSES] or [o for o in options if o.both] or options
    known: dict[int, float] = {}

    def best_of(places: range) -> int:
        known.update({i: promise(both[i].made, both[i].right) for i in places if i not in known})
        return max(known, key=known.__getitem__)

    centre = best_of(range(0, len(both), 4))
    best = best_of(range(max(centre - 3, 0), min(centre + 4, len(both))))
    tried = [(known[best], both[best].rule)]
    tried += [(promise(o.made, o.right), o.rule) for o in options if not o.both and o.wrong == both[best].wrong]
    return max(tried, key=itemgetter(0))[1]


@dataclass(frozen=True)
class _Option:
    """A rule, the share of wrong guesses it was made for, and how many guesses it should make and get right.

    `counted` are the same two numbers by the counts of the pilot.
    """

    rule: GuessRule
    wrong: float
    both: bool
    made: float
    right: float
    counted: tuple[float, float]


def _options(canaries: Canaries) -> tuple[list[_Option], float]:
    """Return rules that err equally often on either side, each side of them alone too, and the `trust` in their fit."""
    rates = candidate_rates(canaries.pilot_in, canaries.pilot_out)
    m = canaries.scores.size
    high, low = (float(np.max(1.0 - np.add(*rates.errors[d]))) for d in (True, False))
    in_is_high = high >= low
    order = np.arange(rates.above.size)[:: 1 if in_is_high else -1]
    sure_in = (rates.above if in_is_high else rates.below)[order]
    sure_out = (rates.below if in_is_high else rates.above)[order]
    fpr, fnr = (side[order] for side in rates.errors[in_is_high])
    seen_fpr, seen_fnr = (side[order] for side in rates.counted[in_is_high])
    none = order.size

    def option(wrong: float, i: int, j: int) -> _Option:
        """Return the rule that says "in" at cut i and "out" at cut j, or neither where that is `none` or -1."""
        above = float(sure_in[i]) if i < none else math.nan
        below = float(sure_out[j]) if j >= 0 else math.nan
        expected = []
        for wrong_in, wrong_out in ((fpr, fnr), (seen_fpr, seen_fnr)):
            right = (1.0 - wrong_out[i] if i < none else 0.0) + (1.0 - wrong_in[j] if j >= 0 else 0.0)
            errors = (wrong_in[i] if i < none else 0.0) + (wrong_out[j] if j >= 0 else 0.0)
            expected.append((0.5 * m * float(right + errors), 0.5 * m * float(right)))
        rule = GuessRule(above, below, in_is_high)
        return _Option(rule, wrong, i < none and j >= 0, *expected[0], expected[1])

    of_out = np.append(fpr, 0.0)
    rules = []
    for wrong in _WRONG.tolist():
        a = int(np.argmax(of_out <= wrong))
        b = int(np.max(np.flatnonzero(fnr <= wrong), initial=-1))
        pairs = [(a, b)] if a < none and 0 <= b <= a else []
        pairs += [(a, -1)] if a < none else []
        pairs += [(none, b)] if b >= 0 else []
        if a < b:
            # Sides so far apart that the cut of each lies beyond that of the other: one between for both.
            pairs.append(((a + b) // 2, (a + b) // 2))
        rules += [option(wrong, i, j) for i, j in pairs]
    if not rules:
        cut = int(np.argmin(fpr + fnr))
        rules = [option(0.5, cut, cut)]
    return rules, rates.trust


def count_guesses(canaries: Canaries, rule: GuessRule) -> Guesses:
    """Return how many guesses `rule` makes and how many are right; a score between its thresholds is no guess."""
    sign = 1.0 if rule.in_is_high else -1.0
    scores = sign * canaries.scores.astype(np.float64)
    says_in = scores >= sign * rule.above
    says_out = (scores <= sign * rule.below) & ~says_in
    right = np.count_nonzero(says_in & canaries.bits) + np.count_nonzero(says_out & ~canaries.bits)
    return Guesses(canaries.scores.size, int(np.count_nonzero(says_in) + np.count_nonzero(says_out)), int(right))


_POWERS = np.linspace(0.05, 0.95, 19)
"""Powers kappa of the bets kappa p^(kappa - 1); the wealth starts spread evenly over them."""


@dataclass(frozen=True, kw_only=True)
class CoinTest:
    """Bets on the guesses about the coins of each training, in order; valid whenever it is looked at.

    Whatever the trainings before gave, the p-value of the next is at most u with a chance of at most u under the claim:
    its coins are its own, and the rule of its guesses is chosen on the coins of those before. So a bet on it multiplies
    the wealth by at most 1 in expectation. `n_in` and `n_out` count the coins that fell on either side, those of the
    first training too, which is only looked at.
    """

    name: Literal["one-run"] = "one-run"
    delta: float
    n_in: int
    n_out: int
    guesses: tuple[Guesses, ...]

    @property
    def family(self) -> CurveFamily:
        """The family of curves that the claims are about."""
        return epsilon_delta_family(self.delta)

    def p_value(self, epsilon: float) -> float:
        """Return 1 over the largest wealth against (`epsilon`, delta) after any training, at most 1."""
        logs = np.log([max(LEAST_P, p_value(guess, epsilon, self.delta)) for guess in self.guesses])
        wealth = np.cumsum(np.log(_POWERS)[:, None] + (_POWERS[:, None] - 1.0) * logs, axis=1)
        largest = np.max(np.logaddexp.reduce(wealth, axis=0), initial=-math.inf) - math.log(_POWERS.size)
        return max(LEAST_P, math.exp(-max(0.0, float(largest))))

    def epsilon_lower(self, error: float) -> float:
        """Lower bound on epsilon, >= 0, which exceeds the truth at any time with probability at most `error`."""
        return _largest(lambda epsilon: self.p_value(epsilon) <= error, 0.0, 1.0, 1e-6)

    def ceiling(self, error: float) -> float:
        """Return the largest epsilon that as many coins could have proved at `error`: all of them guessed right."""
        every = tuple(Guesses(guess.canaries, guess.canaries, guess.canaries) for guess in self.guesses)
        return replace(self, guesses=every).epsilon_lower(error)

    @property
    def rule(self) -> str:
        """What was guessed and how it was tested, as one sentence."""
        canaries, made, right = (sum(getattr(guess, name) for guess in self.guesses) for name in _COUNTS)
        return (
            f"{right:,} of {made:,} guesses right about {canaries:,} fair coins of {len(self.guesses)} trainings, each "
            "by a rule chosen on the coins of those before it; bets on each training's p-value"
        )


_COUNTS = ("canaries", "made", "right")


def coin_test(trainings: Sequence[tuple[Floats, Floats]], *, delta: float, design_error: float) -> CoinTest:
    """Return the test of the scores of each training's coins, (n,) of those that fell on 1 and (m,) on 0.

    Scores of one training may depend on each other. Rules are meant to show most at `design_error`.
    """
    guesses = []
    for number in range(1, len(trainings)):
        inside, outside = trainings[number]
        before = [np.concatenate(side) for side in zip(*trainings[:number], strict=True)]
        guessed = Guesses(inside.size + outside.size, 0, 0)
        if min(map(len, before)) >= 2 and guessed.canaries:
            bits = np.arange(guessed.canaries) < inside.size
            canaries = Canaries(np.concatenate([inside, outside]), bits, *before)
            guessed = count_guesses(canaries, surest_guesses(canaries, design_error))
        guesses.append(guessed)
    n_in, n_out = (sum(training[side].size for training in trainings) for side in (0, 1))
    return CoinTest(delta=delta, n_in=n_in, n_out=n_out, guesses=tuple(guesses))


def best_coin_test(trainings: int, coins: int, *, delta: float) -> CoinTest:
    """Return the test that proves most of so many trainings with so many coins each: all of them guessed right."""
    total = trainings * coins
    guesses = (Guesses(coins, coins, coins),) * max(0, trainings - 1)
    return CoinTest(delta=delta, n_in=total - total // 2, n_out=total // 2, guesses=guesses)


def in_words(canaries: Canaries, rule: GuessRule, guesses: Guesses, settings: AuditSettings) -> str:
    """Return the rule, how it came about and what it did, as one sentence."""
    up, down = ("least", "most") if rule.in_is_high else ("most", "least")
    parts = [f"'in' at {up} {rule.above:.6g}"] if not math.isnan(rule.above) else []
    parts += [f"'out' at {down} {rule.below:.6g}"] if not math.isnan(rule.below) else []
    origin = "whose bits were coin flips" if settings.coin_flips else "drawn from both sides by fresh coin flips"
    return (
        f"guess {' and '.join(parts)}, chosen on a random sample of {canaries.pilot_in.size} + "
        f"{canaries.pilot_out.size} scores (in + out). {guesses.right} of {guesses.made} guesses right about the other "
        f"{guesses.canaries} canaries, {origin}, with the whole error {settings.error:.3g} spent on one test"
    )


_FINE = 1e-4
_COARSE = 1e-2
_LEAST_SHARE = 0.25
_MOST_GUESSES = 20_000

BlowUp = Callable[[float, float], float]


def refuted(guesses: Guesses, blow_up: BlowUp, theta: float, error: float) -> bool:
    """Return whether so many right guesses have a chance of at most `error` under the curve of `theta`.

    With m canaries, c' guesses and c of them right: r = tau c / m and h = tau (c' - c) / m; then for i = c - 1 down
    to 0, h grows to the x with 1 - f(x) = r, and r by i / (c' - i) of what h grew by. Refuted if r + h > c' / m.
    """
    m = guesses.canaries
    made = guesses.made
    right = guesses.right
    r = error * right / m
    h = error * (made - right) / m
    whole = made / m
    for i in range(right - 1, -1, -1):
        grown = blow_up(r, theta)
        if grown <= h:
            break  # neither changes any more
        r += i / (made - i) * (grown - h)
        h = grown
        if r + h > whole:
            return True
    return r + h > whole


def largest_refuted_curve(guesses: Guesses, family: CurveFamily, error: float, *, tolerance: float = _FINE) -> float:
    """Return a theta that is refuted, below the largest by at most `tolerance` of what the bare rates say; 0 for none.

    The bare rates are those of right and of wrong guesses among all canaries: in the limit of many canaries, a curve
    through them is what the guesses prove.
    """
    blow_up = family.blow_up
    if guesses.right <= 0 or blow_up is None:
        return 0.0
    m = guesses.canaries
    wrong = guesses.made - guesses.right
    bare = levels(family, np.array([(wrong + 0.5) / (m + 1.0)]), np.array([1.0 - (guesses.right + 0.5) / (m + 1.0)]))
    high = float(bare[0])
    if high == 0.0:
        return 0.0
    low = _LEAST_SHARE * high
    return _largest(lambda theta: refuted(guesses, blow_up, theta, error), low, high, tolerance * high)


def one_run_fdp(inside: Floats, outside: Floats, settings: AuditSettings) -> Proof:
    """Return a lower bound on theta of `settings.family` and its epsilon, from scores of canaries with bit 1 and 0.

    Raises `InputError` for a family that is not symmetric: the two directions of the neighbour relation have different
    curves, and the inequality needs one.
    """
    family = settings.family
    if family.blow_up is None:
        raise InputError(f"one-run-fdp needs a curve that is its own inverse, which {family.name} is not: use one-run")

    def largest(guesses: Guesses, tolerance: float = _FINE) -> float:
        return largest_refuted_curve(guesses, family, settings.error, tolerance=tolerance)

    def choose(canaries: Canaries) -> GuessRule:
        m = canaries.scores.size
        return search_guesses(canaries, lambda made, right: largest(Guesses(m, round(made), round(right)), _COARSE))

    canaries = draw_canaries(inside, outside, settings)
    return guessed(canaries, settings, choose=choose, largest=largest, family=family)
