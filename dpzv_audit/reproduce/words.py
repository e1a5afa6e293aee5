"""Fills in what tables say: cells and pages of Markdown, and the sentences that follow from rows.

Cells are templates of `str.format` in `tables/text.toml`; sentences and the page are in `templates/`.
"""

from __future__ import annotations

import string
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


class _Format(string.Formatter):
    """`str.format` with formats for shares and intervals; what is None is `-`.

    `.2p` is in percent with two decimals and without a sign, `bracket F` an interval whose numbers have the format F,
    `interval F` the same followed by the reach of its seeds.
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        kind, _, form = format_spec.rpartition(" ")
        if value is None:
            return "-"
        if kind in ("bracket", "interval") and isinstance(value, Mapping):
            shown, low, high = (self.format_field(value[name], form) for name in ("value", "low", "high"))
            over = value.get("over_trainings") or {"count": 1}
            reach = f"; {{count}} seeds {{least:{form}}} to {{most:{form}}}"
            several = kind == "interval" and over["count"] > 1
            return f"{shown} [{low}, {high}]{filled(reach, over) if several else ''}"
        if form.endswith("p"):
            return format(100 * value, form[:-1] + "f")
        return format(value, form)


_FORMAT = _Format()


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return `template` with the `values` it names."""
    return _FORMAT.vformat(template, (), values)


@cache
def data(name: str) -> Mapping[str, Any]:
    """Return what stands in `tables/NAME.toml`."""
    return tomllib.loads((files("dpzv_audit.reproduce") / "tables" / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("dpzv_audit.reproduce")
    found = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.filters["shown"] = _FORMAT.format_field
    found.filters["labels"] = lambda rows: "; ".join(row["label"] for row in rows)  # labels hold commas
    return found


def say(sentence: str, **values: object) -> str:
    """Return the sentence that the macro of that name in `templates/words.jinja` makes of `values`."""
    words = _environment().get_template("words.jinja").module
    return " ".join(getattr(words, sentence)(**values).split())


def page(**values: object) -> str:
    """Return the page of Markdown that `templates/page.md` makes of `values`."""
    return _environment().get_template("page.md").render(**values).rstrip() + "\n"
