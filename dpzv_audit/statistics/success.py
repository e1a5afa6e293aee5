"""Tests of claims that the mean success of an attack over trainings is at most a limit, by bets on whole trainings.

Each bet of a fraction f of the wealth multiplies it by 1 + f ((x - least) / (limit - least) - 1) after a training of
success x. That is never negative, and its mean is at most 1 where the claim is true (Waudby-Smith and Ramdas, JRSS B
86, 2024). Any fixed mixture of such bets may be looked at after every training (Ville, 1939). Half of the wealth is
bet whole, f = 1, which gains most where every training succeeds alike. The other half is spread over fractions by the
arcsine law, which suits trainings that differ.

The same bets on failures, 1 - x, give an upper confidence limit. Guesses within a training depend on each other: the
training is what is drawn independently, and so one training is one bet.
"""

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from ..base.errors import AuditError, InputError
from .binomial import LEAST_P, Floats

ARCSINE = np.sin(0.5 * np.pi * (np.arange(64) + 0.5) / 64) ** 2
"""Fractions of the wealth that are bet with equal shares: midpoints of the arcsine law."""
_FRACTIONS = np.append(ARCSINE, 1.0)
_LOG_SHARES = np.log(np.append(np.full(ARCSINE.size, 0.5 / ARCSINE.size), 0.5))
_ROUNDING = 1e-9
_HALVINGS = 40


def success_p_value(rates: Iterable[float], limit: float, *, least: float = 0.0) -> float:
    """Return a p-value, valid at any time it is looked at, of "the mean of `rates` is at most `limit`".

    Args:
        rates: Success of independent trainings, each in [`least`, 1], of equal mean.
        limit: The claimed limit on that mean, in (`least`, 1).
        least: The least success that the attack can have. Rates cut off at 0 instead would have a larger mean than the
            one that the limit speaks of.

    Raises:
        InputError: A limit that no success lies below.
        AuditError: A rate outside its range.
    """
    mean = _moved(limit, least)
    return math.exp(-_largest_log_wealth(_shares(rates, least), mean))


def excess_p_value(rates: Iterable[float], limit: float, *, least: float = 0.0) -> float:
    """Return a p-value, valid at any time, of "the mean of `rates` is at least `limit`".

    Where it is at most an error, the upper limit of `success_upper` at that error is at most `limit`. Arguments and
    errors as `success_p_value`.
    """
    mean = 1.0 - _moved(limit, least)
    return math.exp(-_largest_log_wealth(1.0 - _shares(rates, least), mean))


def success_upper(rates: Iterable[float], error: float, *, least: float = 0.0) -> float:
    """Return an upper limit on the mean of `rates`, below it at any time with probability at most `error`; 1 for none.

    Args:
        rates: As for `success_p_value`.
        error: In (0, 1).
        least: As for `success_p_value`.

    Raises:
        AuditError: A rate outside its range.
    """
    failures = 1.0 - _shares(rates, least)
    goal = -math.log(error)
    low = 0.0
    high = 1.0
    # The wealth falls as the assumed mean of the failures rises. `low` stays a mean that is refuted, or 0.
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _largest_log_wealth(failures, middle) >= goal else (low, middle)
    return 1.0 - (1.0 - least) * low


def _moved(limit: float, least: float) -> float:
    """Return a limit on success in [`least`, 1] moved to [0, 1]; `InputError` where no success lies below it."""
    if limit <= least:
        raise InputError(
            f"use more than {least:g}, the least success that the attack can have", "success_at_most", limit
        )
    return (limit - least) / (1.0 - least)


def _shares(rates: Iterable[float], least: float) -> Floats:
    """Return (n,) rates in [`least`, 1] moved to [0, 1]; `AuditError` for one outside its range."""
    shares = []
    for rate in rates:
        if not least - _ROUNDING <= rate <= 1.0 + _ROUNDING:
            raise AuditError(f"use a number in [{least:g}, 1]", "success", rate)
        shares.append((min(max(rate, least), 1.0) - least) / (1.0 - least))
    return np.array(shares)


def _largest_log_wealth(shares: Floats, mean: float) -> float:
    """Return the largest log wealth, at least 0, of bets that (n,) `shares` in [0, 1] have a mean above `mean`."""
    if not shares.size:
        return 0.0
    with np.errstate(divide="ignore"):  # a whole bet on a training that fails is lost for good
        growth = np.log1p(np.outer(shares / mean - 1.0, _FRACTIONS))
    logs = np.cumsum(growth, axis=0) + _LOG_SHARES
    top = logs.max(axis=1)
    wealth = top + np.log(np.exp(logs - top[:, None]).sum(axis=1))
    return min(max(float(wealth.max()), 0.0), -math.log(LEAST_P))


def trainings_needed(limit: float, error: float, *, least: float = 0.0) -> int:
    """Return how many trainings that all succeed suffice to refute `limit` at `error`, by the whole bet alone.

    That is the least n with (1 / 2) ((1 - least) / (limit - least))^n >= 1 / error: 73 for a limit of 0.9 at 1e-3.
    """
    error = max(error, LEAST_P)
    return math.ceil(math.log(2.0 / error) / math.log((1.0 - least) / (limit - least)))


@lru_cache(maxsize=1024)
def least_p_value(count: int, limit: float, *, least: float = 0.0) -> float:
    """Return the p-value of `limit` after `count` trainings that all succeed: the least there is."""
    mean = (limit - least) / (1.0 - least)
    wealth = float(np.logaddexp.reduce(count * np.log1p(_FRACTIONS * (1.0 / mean - 1.0)) + _LOG_SHARES))
    return max(LEAST_P, math.exp(-max(0.0, wealth)))


@lru_cache(maxsize=1024)
def largest_limit(count: int, error: float, *, least: float = 0.0) -> float:
    """Return the largest limit that `count` trainings which all succeed refute at `error`; `least` for none."""
    low = least
    high = 1.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if least_p_value(count, middle, least=least) <= error else (low, middle)
    return low
