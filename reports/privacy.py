"""Rows of tables about epsilon: trade-off curves at a few points, and bounds by adversary and accountant."""

from __future__ import annotations

from dpzv_audit.findings import UpperBound
from dpzv_audit.results import Tradeoff
from reports.document import Row
from reports.text import proportion

_CURVE_ROWS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def curve_rows(tradeoff: Tradeoff) -> list[Row]:
    """Return the trade-off curves at a few of their own points; the result file holds every one of them."""
    alpha = tradeoff.alpha
    ends = {"band from": tradeoff.empirical_low, "band to": tradeoff.empirical_high}
    present = tradeoff.curves | {title: curve for title, curve in ends.items() if curve}
    if not alpha or not present:
        return []
    inside = [i for i in range(len(alpha)) if 0 < alpha[i] < 1] or range(len(alpha))
    picks = dict.fromkeys(min(inside, key=lambda i: abs(alpha[i] - x)) for x in _CURVE_ROWS)
    rows: list[Row] = []
    for i in picks:
        rates = {title: proportion(curve[i]) for title, curve in present.items()}
        rows.append({"false positive rate": alpha[i], **rates})
    return rows


def is_sound_at(bound: UpperBound, upper: float | None, adversary: str | None) -> bool:
    """Return whether a bound is the sound one, `upper`, against the adversary."""
    sound = bound.sound and bound.epsilon is not None and bound.epsilon.upper == upper
    return sound and bound.adversary == adversary
