"""Fills in what tables say: cells and pages of Markdown, and the sentences that follow from rows.

Templates of cells are in `tables/text.toml`, sentences and the page in `templates/`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ..base.findings import to_jsonable
from ..results import ReproduceResult

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def shown(value: Any, form: str) -> str:
    """Return a value by `form`, a format of Python or one of those below; what is None is `-`.

    `.2p` is in percent with two decimals and without a sign, `bracket F` an interval whose numbers have the format F,
    `interval F` the same followed by the reach of its seeds.
    """
    kind, _, form = form.rpartition(" ")
    if value is None:
        return "-"
    value = to_jsonable(value)
    if kind and isinstance(value, Mapping):
        text, low, high = (shown(value[name], form) for name in ("value", "low", "high"))
        over = value.get("over_trainings")
        reach = ""
        if kind == "interval" and over and over["count"] > 1:
            reach = f"; {over['count']} seeds {shown(over['least'], form)} to {shown(over['most'], form)}"
        return f"{text} [{low}, {high}]{reach}"
    if form.endswith("p"):
        return format(100 * value, form[:-1] + "f")
    return format(value, form)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("dpzv_audit.reproduce")
    made = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["shown"] = shown
    made.filters["labels"] = lambda rows: "; ".join(row.label for row in rows)  # labels hold commas
    return made


@cache
def _cell(template: str) -> "Template":
    return _environment().from_string(f'{{% import "words.jinja" as words %}}{template}')


def filled(template: str, values: Mapping[str, object]) -> str:
    """Return `template` with the `values` it names; `words` are the sentences."""
    return " ".join(_cell(template).render(values).split())


def say(sentence: str, **values: object) -> str:
    """Return the sentence that the macro of that name in `templates/words.jinja` makes of `values`."""
    words = _environment().get_template("words.jinja").module
    return " ".join(getattr(words, sentence)(**values).split())


def page(result: ReproduceResult, *, heading: str = "", opening: str = "", pictures: Sequence[str] = ()) -> str:
    """Return the page of Markdown that `templates/page.md` makes of a result.

    Args:
        result: The table.
        heading: Instead of the table's name and source.
        opening: What was found, in a sentence.
        pictures: Markdown of its figures, shown before the table.
    """
    made = _environment().get_template("page.md")
    return made.render(result=result, heading=heading, opening=opening, pictures=[*pictures]).rstrip() + "\n"
