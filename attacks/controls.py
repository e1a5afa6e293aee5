"""Controls of an attack: runs whose result is known, and how far what is measured may lie from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attacks.intervals import p_value
from dpzv_audit.evidence import Interval

CERTAIN = 1.0 - 1e-9
"""What a success of 1 must reach: an area under a curve may come out an ulp below it."""


@dataclass(frozen=True, kw_only=True)
class Control:
    """A run whose result is known: `expected` must lie in the interval (negative), or `value` reach it (positive).

    A positive one is judged by its value alone: of few trainings an interval reaches anything, also for an attack that
    guesses. What it must reach lies so far below what a working attack reads that chance plays no part.

    `p_value` of a negative one is that of the test by its interval, by which many controls are tested together; None
    for a positive one, and where one training has no spread to judge by.
    """

    value: float
    low: float
    high: float
    n: int
    confidence: float
    what: str
    kind: str
    expected: float
    p_value: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the control came out as it must."""
        if self.kind == "positive":
            return self.value >= self.expected
        return self.low <= self.expected <= self.high


def _control(interval: Interval, *, what: str, kind: str, expected: float, p: float | None) -> Control:
    return Control(
        value=interval.value,
        low=interval.low,
        high=interval.high,
        n=interval.n,
        confidence=interval.confidence,
        what=what,
        kind=kind,
        expected=expected,
        p_value=p,
    )


def reaches(interval: Interval, *, what: str, least: float) -> Control:
    """A positive control: the value of `interval` must reach `least`."""
    return _control(interval, what=what, kind="positive", expected=least, p=None)


def at_chance(
    interval_at: Callable[[float], Interval], confidence: float, *, what: str, expected: float, trials: int
) -> Control:
    """A negative control of `trials` trainings: the interval at `confidence` must hold `expected`."""
    p = p_value(interval_at, expected) if trials > 1 else None
    return _control(interval_at(confidence), what=what, kind="negative", expected=expected, p=p)
