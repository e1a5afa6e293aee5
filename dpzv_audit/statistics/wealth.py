"""Wealth against claims: the largest so far of e-processes, which may be looked at after every pair of runs.

A process that starts at 1 and has mean at most 1 under a claim at any stopping time reaches 1/alpha with probability at
most alpha (Ville, 1939): what it reached refutes the claim for good, and 1 over it is a p-value at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzv_audit.errors import AuditError, InputError, check_probability
from dpzv_audit.statistics.settings import Scores, check_scores

Floats = NDArray[np.float64]

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
