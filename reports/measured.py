"""Measurements in a report: rows of tables, intervals in words, and the settings that repeat a run."""

import math
import shlex
from collections.abc import Mapping, Sequence

from dpzv_audit.base.findings import Control, Interval, UpperBound
from dpzv_audit.base.rounding import interval, p_equals
from dpzv_audit.results import Epoch, NegativeControls, Privacy, Result, Tradeoff

from .document import Row
from .text import MISSING, clean, exact, number, percent, proportion

_CURVE_ROWS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
_OF_THE_RUN = ["method", "dataset", "attack", "adversary", "seed", "run"]
_OF_THE_RUN += ["delta", "confidence", "exactly_gaussian", "family", "coin_flips", "rounds"]


def span(low: float | None, high: float | None, digits: int = 4) -> str:
    """Return an interval of proportions in words, its ends rounded outwards."""
    return MISSING if low is None or high is None else interval(low, high, digits)


def row(name: str, role: str, measurement: Interval | float) -> Row:
    """Return a row of a table of measurements: an interval or a bare number with its name and role."""
    cells: dict[str, object] = dict.fromkeys(("what", "role", "value", "interval", "confidence", "n", "trainings"))
    cells |= {"what": name.strip(), "role": role}
    if not isinstance(measurement, Interval):
        return {**cells, "value": proportion(measurement)}
    n, unit = measurement.n, measurement.unit
    return {
        **cells,
        "value": proportion(measurement.value),
        "interval": span(measurement.low, measurement.high),
        "confidence": percent(measurement.confidence),
        "n": n if unit == "records" else f"{number(n)} {unit}",
        "trainings": _trainings(measurement),
    }


def _trainings(measurement: Interval) -> str:
    """Return how trainings differ: an interval over them, or of few the least and the most; and a control's p-value."""
    over = measurement.over_trainings
    notes = []
    if over is not None:
        reach = "" if over.count == 1 else f", from {span(over.least, over.most)}"
        notes.append(f"{number(over.count)}{reach if over.low is None else f': {span(over.low, over.high)}'}")
    if isinstance(measurement, Control) and measurement.kind != "positive":
        p = measurement.p_value
        by = measurement.tested_by or "its interval"
        notes.append("too few to test" if p is None else f"{p_equals(p)} by {by}")
    return "; ".join(notes)


def controls_in_words(controls: NegativeControls) -> str:
    """Return how the negative controls of many attacks passed together."""
    passed = "All passed" if controls.hold else "They did NOT all pass, and no number here can be trusted"
    return (
        f"{controls.tests} negative controls were tested together at a false-alarm rate of {controls.false_alarm:g}. "
        f"{passed}. The smallest has {p_equals(controls.smallest_p)} ({clean(controls.worst)}), "
        f"which is {p_equals(controls.together_p)} with all of them counted."
    )


def point_row(point: Row, first: Row) -> Row:
    """Return a point of a curve as a row with the keys of the `first`, the two ends of an interval in one."""
    cells: dict[str, object] = {key: point.get(key) for key in first}
    if not {"low", "high"} <= set(first):
        return cells
    high = number(cells.pop("high"))
    cells["low"] = f"{number(cells['low'])} to {high}"
    return {"interval" if key == "low" else key: value for key, value in cells.items()}


def thinned(history: Sequence[Epoch]) -> list[Epoch]:
    """Return epochs at even distances, few enough for a table, the last among them."""
    stride = max(1, math.ceil(len(history) / 40))
    last = [] if (len(history) - 1) % stride == 0 else history[-1:]
    return [*history[::stride], *last]


def curve_rows(tradeoff: Tradeoff) -> list[Row]:
    """Return the trade-off curves at a few of their own points; the result file holds every one of them."""
    alpha = tradeoff.alpha
    ends = {"band from": tradeoff.empirical_low, "band to": tradeoff.empirical_high}
    present = tradeoff.curves | {title: curve for title, curve in ends.items() if curve}
    if not alpha or not present:
        return []
    inside = [i for i in range(len(alpha)) if 0 < alpha[i] < 1] or range(len(alpha))
    picks = dict.fromkeys(min(inside, key=lambda i: abs(alpha[i] - x)) for x in _CURVE_ROWS)
    return [
        {"false positive rate": alpha[i], **{title: proportion(curve[i]) for title, curve in present.items()}}
        for i in picks
    ]


def is_sound_at(bound: UpperBound, upper: float | None, adversary: str | None) -> bool:
    """Return whether a bound is the sound one, `upper`, against the adversary."""
    same = bound.epsilon is not None and bound.epsilon.upper == upper
    return bound.sound and same and bound.adversary == adversary


def sound_bound(privacy: Privacy) -> UpperBound | None:
    """Return the sound bound against the adversary of a privacy section; None without one."""
    return next((bound for bound in privacy.bounds if is_sound_at(bound, privacy.upper, privacy.adversary)), None)


def command_of(result: Result) -> str:
    """Return the command line that repeats a run, as it must be typed."""
    return shlex.join(result.model_dump(include={"command_line"})["command_line"])


def settings_of(result: Result) -> dict[str, Row]:
    """Return by caption all that is needed to repeat a run, each value as it must be typed."""
    values = result.model_dump(exclude_unset=True)
    data = values.get("data", {})
    digests = data.pop("digests", {})
    data.pop("hints", None)  # beside the accuracy that they are about
    data |= {f"note {i}": note for i, note in enumerate(data.pop("notes", []), start=1)}
    run: dict[str, object] = {"schema": result.SCHEMA}
    run |= {key: values.get(key) for key in _OF_THE_RUN}
    for section in ("scores", "compute", "data"):
        run |= {f"{section}: {key}": value for key, value in values.get(section, {}).items()}
    tables = {
        "The run": {key: value for key, value in run.items() if value is not None},
        "Configuration": values.get("config", {}),
        "The release that was accounted": values.get("release") or values.get("privacy", {}).get("release", {}),
        "The attack's setting": values.get("attack_setting", {}),
        "Data files (SHA-256)": digests,
        "Versions": values.get("versions", {}),
    }
    return {caption: _typed(table) for caption, table in tables.items()}


def _typed(values: Mapping[str, object]) -> Row:
    """Return values as they must be typed, those of a dict in them one level up, as "packages: torch"."""
    rows: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            rows |= {f"{key}: {inner}": exact(v) for inner, v in value.items()}
        else:
            rows[key] = exact(value)
    return rows
