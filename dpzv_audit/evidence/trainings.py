"""Decides how many trainings a claim about an attack's success takes, by its limit and the success so far.

The rule reads nothing but the success of the trainings so far, so that the same trainings stop at the same one. Both
tests that it looks at may be looked at after every training (`dpzv_audit.statistics.success`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..statistics.success import excess_p_value, success_p_value, trainings_needed

MOST_TRAININGS = 200
"""Trainings of one claim at most, where `max_trials` does not say."""
FEWEST = 16
"""Trainings of the attack that a pilot chose, before it may end a claim by finding little."""


@dataclass(frozen=True, kw_only=True)
class TrainingsRule:
    """The plan for one attack: refute "the mean success is at most `limit`" at `stop`, or hold it at `held_at`.

    `least` is the least success that there is. The limit is held after `fewest` trainings at least; the budget allows
    `most`.
    """

    limit: float
    least: float
    stop: float
    held_at: float
    most: int
    fewest: int = FEWEST

    @property
    def needed(self) -> int:
        """Trainings that refute the limit where all succeed."""
        return trainings_needed(self.limit, self.stop, least=self.least)

    @property
    def first(self) -> int:
        """Trainings before the first look, which could decide nothing sooner."""
        return min(self.fewest, self.needed, self.most)

    def refuted(self, rates: Sequence[float]) -> bool:
        """Return whether the success of trainings refutes the limit."""
        return success_p_value(rates, self.limit, least=self.least) <= self.stop

    def held(self, rates: Sequence[float]) -> bool:
        """Return whether the upper limit of the mean success lies at or below the claimed one."""
        return excess_p_value(rates, self.limit, least=self.least) <= self.held_at

    def goes_on(self, rates: Sequence[float]) -> bool:
        """Return whether one more training is worth it after those of success `rates`.

        Trainings end once the claim is refuted or held. They go on to the planned number; beyond it, while the
        measured success is above the limit and could still refute it.
        """
        count = len(rates)
        if count >= self.most:
            return False
        if count < self.first:
            return True
        if self.refuted(rates):
            return False
        if count < self.fewest:
            return True
        if self.held(rates):
            return False
        if float(np.mean(rates)) > self.limit:
            return self.refuted([*rates, *[1.0] * (self.most - count)])
        return count < self.needed
