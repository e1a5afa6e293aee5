"""A betting test of (epsilon, delta) that may be looked at after every pair of runs and stopped at any time.

With a threshold fixed before the pair is seen, W = 1[in > t] - e^epsilon 1[out > t] - delta has mean at most 0 under
the claim, so wealth prod(1 + lambda W) with lambda fixed before too is a nonnegative supermartingale and reaches
1/alpha with probability at most alpha (Ville, 1939; Waudby-Smith and Ramdas, JRSS B 2024, section 4). Thresholds,
directions, tails and stakes are chosen at the start of each epoch from the pairs of the epochs before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzv_audit.errors import InputError, check_probability
from dpzv_audit.statistics.thresholds import candidate_rates
from dpzv_audit.statistics.wealth import Wealth, claims_array, pairs_of

Floats = NDArray[np.float64]
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
