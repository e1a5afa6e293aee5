"""Canaries of one run: scores with fair independent bits, and the guesses that a pilot of them chose to make.

Where a coin flipped for each canary decided which file its score is in, the bits are fair as they are, and a random
pilot reveals its own alone. Where so many runs a side were made by design, fresh coins choose from which side each
canary comes; what they leave over is the pilot. Guesses depend on scores and on the pilot, never on a bit they guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.seeds import Purpose, stream
from dpzv_audit.statistics.settings import AuditSettings, Scores
from dpzv_audit.statistics.thresholds import LEAST_A_SIDE, candidate_rates, pilot_size

Floats = NDArray[np.float64]

_MARGIN = 4.0
_WRONG = np.geomspace(1e-5, 0.4, 24)


@dataclass(frozen=True)
class Canaries:
    """Scores (m,) and fair bits (m,) of the canaries to guess, and the scores of a pilot whose bits are known."""

    scores: Scores
    bits: NDArray[np.bool_]
    pilot_in: Scores
    pilot_out: Scores


@dataclass(frozen=True)
class GuessRule:
    """Guess "in" above `above`, "out" below `below` (both read on the other side when not `in_is_high`), else pass."""

    above: float
    below: float
    in_is_high: bool


@dataclass(frozen=True)
class Guesses:
    """`right` of `made` guesses about `canaries` canaries."""

    canaries: int
    made: int
    right: int


def draw_canaries(in_scores: Scores, out_scores: Scores, settings: AuditSettings) -> Canaries | None:
    """Return the canaries of (n,) and (m,) scores; None where too few are left or a side runs out of scores.

    A side runs out with probability below 1e-4: then nothing is proved, which errs on no true claim.
    """
    rng = stream(settings.seed, Purpose.SPLIT)
    if settings.coin_flips:
        total = in_scores.size + out_scores.size
        if total < 2 * LEAST_A_SIDE:
            return None
        order, cut = rng.permutation(total), pilot_size(total)
        scores = np.concatenate([in_scores, out_scores])[order]
        bits = order < in_scores.size
        pilot, known = scores[:cut], bits[:cut]
        found = Canaries(scores[cut:], bits[cut:], pilot[known], pilot[~known])
    else:
        fewer = min(in_scores.size, out_scores.size)
        if fewer < LEAST_A_SIDE:
            return None
        size = 2 * fewer - max(2 * pilot_size(fewer), math.ceil(_MARGIN * math.sqrt(2.0 * fewer)))
        bits = rng.random(size) < 0.5
        ones = int(bits.sum())
        if ones > in_scores.size or size - ones > out_scores.size:
            return None
        inside, outside = (side[rng.permutation(side.size)] for side in (in_scores, out_scores))
        scores = np.empty(size)
        scores[bits], scores[~bits] = inside[:ones], outside[: size - ones]
        found = Canaries(scores, bits, inside[ones:], outside[size - ones :])
    return found if min(found.pilot_in.size, found.pilot_out.size) >= 2 and found.scores.size > 0 else None


def choose_guesses(canaries: Canaries, promise: Callable[[Floats, Floats], Floats]) -> GuessRule:
    """Return the rule whose expected (k,) numbers of guesses made and right promise most.

    Where the pilot's own counts stand for the rates, the numbers are those of as many canaries as the pilot has: its
    counts are no surer than that.
    """
    options = _options(canaries)
    share = min(1.0, (canaries.pilot_in.size + canaries.pilot_out.size) / canaries.scores.size)
    scale = np.array([1.0 if o.fitted else share for o in options])
    promised = promise(scale * np.array([o.made for o in options]), scale * np.array([o.right for o in options]))
    return options[int(np.argmax(promised))].rule


def search_guesses(canaries: Canaries, promise: Callable[[float, float], float], *, most: int) -> GuessRule:
    """Return the same for a promise that is slow to compute: every fourth rule for both sides, then those around it.

    Then either side alone is tried in the best one's place. `most` caps the guesses a rule is expected to make.
    """
    options = _options(canaries)
    both = [o for o in options if o.both and o.made <= most] or [o for o in options if o.both] or options
    known: dict[int, float] = {}
    for stride in (4, 1):
        centre = max(known, key=lambda i: known[i]) if known else 0
        reach = range(0, len(both), 4) if stride == 4 else range(max(centre - 3, 0), min(centre + 4, len(both)))
        known.update({i: promise(both[i].made, both[i].right) for i in reach if i not in known})
    best = max(known, key=lambda i: known[i])
    alone = [o for o in options if not o.both and o.wrong == both[best].wrong]
    return max([(known[best], both[best].rule), *((promise(o.made, o.right), o.rule) for o in alone)], key=_first)[1]


def _first(pair: tuple[float, GuessRule]) -> float:
    return pair[0]


@dataclass(frozen=True)
class _Option:
    """A rule, the share of wrong guesses it was made for, and how many guesses it should make and get right."""

    rule: GuessRule
    wrong: float
    both: bool
    made: float
    right: float
    fitted: bool


def _options(canaries: Canaries) -> list[_Option]:
    """Return rules that err equally often on either side, and each side of them alone."""
    rates, m = candidate_rates(canaries.pilot_in, canaries.pilot_out), canaries.scores.size
    high, low = (float(np.max(1.0 - np.add(*rates.errors(d)))) for d in (True, False))
    in_is_high = high >= low
    order = np.argsort(rates.threshold if in_is_high else -rates.threshold)
    t = rates.threshold[order]
    fpr, fnr = (side[order] for side in rates.errors(in_is_high))
    never_in, never_out = (math.inf, -math.inf) if in_is_high else (-math.inf, math.inf)
    found = []
    for wrong in _WRONG:
        a = int(np.argmax(fpr <= wrong)) if (fpr <= wrong).any() else -1
        b = int(t.size - 1 - np.argmax((fnr <= wrong)[::-1])) if (fnr <= wrong).any() else -1
        for use_in, use_out in ((True, True), (True, False), (False, True)):
            if (use_in and a < 0) or (use_out and b < 0) or (use_in and use_out and b > a):
                continue
            right = 0.5 * m * ((1.0 - fnr[a] if use_in else 0.0) + (1.0 - fpr[b] if use_out else 0.0))
            errors = 0.5 * m * ((fpr[a] if use_in else 0.0) + (fnr[b] if use_out else 0.0))
            above, below = float(t[a]) if use_in else never_in, float(t[b]) if use_out else never_out
            rule = GuessRule(above, below, in_is_high)
            found.append(
                _Option(rule, float(wrong), use_in and use_out, float(right + errors), float(right), rates.fitted)
            )
    middle = float(t[int(np.argmin(fpr + fnr))])
    return found or [_Option(GuessRule(middle, middle, in_is_high), 0.5, True, float(m), 0.5 * m, rates.fitted)]


def count_guesses(canaries: Canaries, rule: GuessRule) -> Guesses:
    """Return how many guesses `rule` makes and how many are right; a score equal to a threshold is no guess."""
    sign = 1.0 if rule.in_is_high else -1.0
    scores = sign * canaries.scores
    says_in, says_out = scores > sign * rule.above, scores < sign * rule.below
    right = np.count_nonzero(says_in & canaries.bits) + np.count_nonzero(says_out & ~canaries.bits)
    return Guesses(canaries.scores.size, int(np.count_nonzero(says_in) + np.count_nonzero(says_out)), int(right))


def in_words(canaries: Canaries, rule: GuessRule, guesses: Guesses, settings: AuditSettings) -> str:
    """Return the rule, how it came about and what it did, as one sentence."""
    more, less = ("above", "below") if rule.in_is_high else ("below", "above")
    parts = [f"'in' {more} {rule.above:.6g}"] if math.isfinite(rule.above) else []
    parts += [f"'out' {less} {rule.below:.6g}"] if math.isfinite(rule.below) else []
    origin = "whose bits were coin flips" if settings.coin_flips else "drawn from both sides by fresh coin flips"
    return (
        f"guess {' and '.join(parts)}, chosen on a random pilot of {canaries.pilot_in.size} + "
        f"{canaries.pilot_out.size} scores (in + out); {guesses.right} of {guesses.made} guesses right about the other "
        f"{guesses.canaries} canaries, {origin}, with the whole error {settings.error:.3g} spent on one test; a score "
        "equal to a threshold is no guess"
    )
