"""An e-process on the success of an attack: bets that its mean exceeds the claimed limit.

Waudby-Smith and Ramdas, JRSS B 86, 2024. Trainings are independent, guesses within one training are not, so the
observations are the success rates of whole trainings, in [0, 1], or their cosines, in [-1, 1]. The wealth of a bettor
who stakes fixed shares, a mixture over many, is a non-negative supermartingale that starts at 1 if the mean is at most
the limit; by Ville's inequality 1 / (largest wealth) is a p-value at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from dpzv_audit.errors import AuditError

STAKES = np.linspace(0.02, 0.98, 25)
"""Shares of the wealth that the least observation would lose; the wealth starts spread evenly over them."""
_ROUNDING = 1e-9


def success_p_value(rates: Iterable[float], limit: float, *, least: float = 0.0) -> float:
    """Return a p-value, valid at any time it is looked at, of "the mean of `rates` is at most `limit`".

    `rates` are independent numbers in [`least`, 1] of equal mean, `limit` lies in (`least`, 1). Each stake s multiplies
    its part of the wealth by 1 + s (rate - limit) / (limit - least), which is never negative and whose mean is at most
    1 under the limit. That is the bet on rates moved to [0, 1] with their limit; rates cut off at 0 instead would have
    a larger mean than the one that the limit speaks of.

    Raises:
        AuditError: A rate outside its range.
    """
    wealth = np.zeros_like(STAKES)
    largest = 0.0
    for rate in rates:
        if not least - _ROUNDING <= rate <= 1.0 + _ROUNDING:
            raise AuditError(f"success is {rate}, must lie in [{least:g}, 1]")
        wealth = wealth + np.log1p(STAKES * (max(rate, least) - limit) / (limit - least))
        top = float(wealth.max())
        largest = max(largest, top + math.log(float(np.exp(wealth - top).mean())))
    return math.exp(-min(largest, 690.0))
