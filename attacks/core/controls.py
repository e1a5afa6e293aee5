"""Controls of an attack: runs whose result is known, and how far what is measured may lie from it."""

from __future__ import annotations

from attacks.core.chance import ChanceTest
from dpzv_audit.findings import Control, Interval

CERTAIN = 1.0 - 1e-9
"""What a success of 1 must reach: an area under a curve may come out an ulp below it."""


def reaches(interval: Interval, *, what: str, least: float) -> Control:
    """Return a positive control: the value of `interval` must reach `least`."""
    return Control(**vars(interval), what=what, kind="positive", expected=least)


def at_chance(interval: Interval, *, what: str, expected: float, test: ChanceTest | None) -> Control:
    """Return a negative control: `test` must not say that it is off `expected`."""
    p, by = (None, None) if test is None else (test.p, test.by)
    return Control(**vars(interval), what=what, kind="negative", expected=expected, p_value=p, tested_by=by)
