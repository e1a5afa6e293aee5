"""Says in words what the numbers of a result mean: the texts are those of the template `sentences.jinja`."""

import math
import re
from functools import cache
from typing import Any

from reports.text import attacker, percent, the

from ..base import rounding
from ..base.findings import Interval
from ..statistics.comparison import compared

ACCURACY = 1e-9
"""Relative accuracy of the accountants' closed forms: a claim is not overclaimed by a last digit below it."""


@cache
def _macros() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("reports"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    numbers = (
        rounding.as_claimed,
        rounding.down,
        rounding.p_equals,
        rounding.p_value,
        rounding.percent_down,
        rounding.percent_up,
        rounding.up,
        percent,
        attacker,
        the,
    )
    environment.filters |= {function.__name__: function for function in numbers}
    environment.filters["coin_chance"] = _coin_chance
    sides = {"beats": _beats, "below": _below, "beside_words": _beside, "supports": supports}
    environment.globals |= {"ends": rounding.interval, **sides}
    return environment.get_template("sentences.jinja").module


def said(macro: str, *facts: object) -> str:
    """Return what a macro of the template says of `facts`, as one line."""
    text = " ".join(getattr(_macros(), macro)(*facts).split())
    return re.sub(r" ([,;:.])(?= |$)", r"\1", text)


def _coin_chance(epsilon: float, claimed: float) -> str:
    """Return in percent, rounded down, the chance of guessing a fair coin right that an epsilon at delta 0 allows."""
    return rounding.percent_down(1.0 / (1.0 + math.exp(-epsilon)), beside=claimed)


def _beats(success: Interval, other: Interval) -> bool:
    return compared(success, other).side == "above"


def supports(upper: float, claimed: float) -> bool:
    """Return whether a sound upper bound lies at or below the claimed epsilon, as far as its digits go."""
    return upper <= claimed * (1.0 + ACCURACY)


def _beside(success: Interval, other: float | Interval, named: str) -> str:
    """Return on which side of a baseline `success` lies: in all of these trainings, else on average over trainings."""
    comparison = compared(success, other)
    trainings = success.over_trainings
    if comparison.side is None:
        few = trainings is not None and trainings.low is None
        count = 0 if trainings is None else trainings.count
        in_few = f" in {'one training' if count == 1 else f'{count} trainings'}" if few else ""
        return f"not clearly above or below {named}{in_few}"
    if trainings is None:
        return f"{comparison.side} {named}"
    if not comparison.of_these:
        return f"{comparison.side} {named} on average over trainings"
    return f"{comparison.side} {named} in {'this' if trainings.count == 1 else 'each'} training"


def _below(success: Interval, other: float | Interval) -> bool:
    return compared(success, other).side == "below"
