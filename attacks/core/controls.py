"""Controls of an attack: runs whose result is known, and how far what is measured may lie from it."""

from __future__ import annotations

from dataclasses import dataclass

from attacks.core.chance import ChanceTest
from dpzv_audit.evidence import Interval

CERTAIN = 1.0 - 1e-9
"""What a success of 1 must reach: an area under a curve may come out an ulp below it."""


@dataclass(frozen=True, kw_only=True)
class Control(Interval):
    """A run whose result is known: it must be at `expected` (negative), or `value` reach it (positive).

    A negative one is judged by its `p_value`, found as `tested_by` says: one below the error of the interval, 1 -
    `confidence`, is off chance. Where both are None there are too few trainings to tell. A positive one is judged by
    its value alone: what it must reach lies so far below what a working attack reads that chance plays no part.
    """

    what: str
    kind: str
    expected: float
    p_value: float | None = None
    tested_by: str | None = None

    @property
    def holds(self) -> bool:
        """Whether nothing says that the control came out otherwise than it must."""
        if self.kind == "positive":
            return self.value >= self.expected
        return self.p_value is None or self.p_value >= 1.0 - self.confidence


def reaches(interval: Interval, *, what: str, least: float) -> Control:
    """Return a positive control: the value of `interval` must reach `least`."""
    return Control(**vars(interval), what=what, kind="positive", expected=least)


def at_chance(interval: Interval, *, what: str, expected: float, test: ChanceTest | None) -> Control:
    """Return a negative control: `test` must not say that it is off `expected`."""
    p, by = (None, None) if test is None else (test.p, test.by)
    return Control(**vars(interval), what=what, kind="negative", expected=expected, p_value=p, tested_by=by)
