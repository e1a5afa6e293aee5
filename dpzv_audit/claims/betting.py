"""An e-process on the success of an attack: bets that its mean exceeds the claimed limit.

Waudby-Smith and Ramdas, JRSS B 86, 2024. Trainings are independent, guesses within one training are not, so the
observations are the success rates of whole trainings, in [0, 1]. The wealth of a bettor who stakes fixed shares, a
mixture over many, is a non-negative supermartingale that starts at 1 if the mean is at most the limit; by Ville's
inequality 1 / (largest wealth) is a p-value at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

STAKES = np.linspace(0.02, 0.98, 25)
"""Shares of the wealth that an observation of 0 would lose; the wealth starts spread evenly over them."""


def success_p_value(rates: Iterable[float], limit: float) -> float:
    """Return a p-value, valid at any time it is looked at, of "the mean of `rates` is at most `limit`".

    `rates` are independent numbers in [0, 1] of equal mean, `limit` lies in (0, 1). Each stake s multiplies its part of
    the wealth by 1 + (s / limit)(rate - limit), whose mean is at most 1 under the limit.
    """
    wealth = np.zeros_like(STAKES)
    largest = 0.0
    for rate in rates:
        wealth = wealth + np.log1p(STAKES / limit * (rate - limit))
        top = float(wealth.max())
        largest = max(largest, top + math.log(float(np.exp(wealth - top).mean())))
    return math.exp(-min(largest, 690.0))
