"""Text of reproduced tables: cells and sentences are templates of `tables/text.toml`, filled in from rows."""

from __future__ import annotations

import string
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from dpzv_audit.findings import Interval, OverTrainings

Row = Mapping[str, Any]
"""A row of a result: plain JSON values by name."""


class _Format(string.Formatter):
    """`str.format` with formats for shares and intervals; what is None is `-`.

    `.2p` is in percent with two decimals and without a sign, `bracket F` an interval whose numbers have the format F,
    `interval F` the same followed by the reach of its seeds.
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return "-"
        kind, _, form = format_spec.rpartition(" ")
        if kind == "interval":
            return interval_text(value, form)
        if kind == "bracket":
            return f"{self._of(value, 'value', form)} [{self._of(value, 'low', form)}, {self._of(value, 'high', form)}]"
        if format_spec.endswith("p"):
            return format(100 * value, format_spec[:-1] + "f")
        return format(value, format_spec)

    def _of(self, found: Row, name: str, form: str) -> str:
        return self.format_field(found[name], form)


_FORMAT = _Format()


def filled(template: str, values: Row) -> str:
    """Return `template` with the `values` it names."""
    return _FORMAT.vformat(template, (), values)


def interval_text(found: Row | float, form: str) -> str:
    """Return a rate with its interval by records and the reach of its trainings; or alone where it has none.

    Args:
        found: An interval as JSON, or a number.
        form: Format of each number, as in a template.
    """
    if not isinstance(found, Mapping):
        return _FORMAT.format_field(found, form)
    over = found.get("over_trainings") or {"count": 1}
    reach = f"; {{count}} seeds {{least:{form}}} to {{most:{form}}}" if over["count"] > 1 else ""
    return _FORMAT.format_field(found, f"bracket {form}") + filled(reach, over)


@cache
def data(name: str) -> Mapping[str, Any]:
    """Return what stands in `tables/NAME.toml`."""
    return tomllib.loads((files("dpzv_audit.reproduce") / "tables" / f"{name}.toml").read_text(encoding="utf-8"))


def say(sentence: str, **values: object) -> str:
    """Return the sentence of that name with its `values`."""
    return filled(data("text")["sentences"][sentence], values)


def cell(template: str, derived: Mapping[str, Callable[[Row], object]]) -> Callable[[Row], str]:
    """Return what fills `template` from a row and from the values `derived` from it, which are computed if named."""
    named = {name.partition("[")[0] for _, name, _, _ in string.Formatter().parse(template) if name}

    def text(row: Row) -> str:
        return filled(template, {**row, **{name: derived[name](row) for name in named & derived.keys()}})

    return text


def listed(names: Sequence[str]) -> str:
    """Return names with semicolons between them: labels hold commas."""
    return "; ".join(names)


def interval_of(found: Mapping[str, Any]) -> Interval:
    """Return the measurement that a row holds as JSON."""
    fields = {key: found[key] for key in ("value", "low", "high", "n", "confidence")}
    over = found.get("over_trainings")
    return Interval(**fields, over_trainings=OverTrainings(**over) if over else None)
