"""The tables and sentences on the terminal that sum up a result; `templates/terminal.jinja` holds what they say."""

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.table import Table
from rich.text import Text

from reports.text import attacker, percent, the
from reports.verdicts import words_of

from ..base import rounding
from ..base.errors import AuditError, one_line
from ..base.findings import LEAST_TRAININGS
from ..results import NegativeControls, PlantedResult, PlantedRow, ReproduceResult
from .output import coloured, table_of


def at_least(value: float | None, claimed: float | None = None) -> str:
    """Return a lower bound, or what evidence could certify at most, rounded down; what is missing is `none`."""
    return "none" if value is None else rounding.down(value, beside=claimed)


def at_most(value: float | None, claimed: float | None = None) -> str:
    """Return an upper bound rounded up; what is missing is `none`."""
    return "none" if value is None else rounding.up(value, beside=claimed)


def _as_claimed(value: float | None) -> str:
    return "none" if value is None else rounding.as_claimed(value)


@cache
def _macros() -> Any:
    loader = PackageLoader("dpzv_audit.cli")
    made = Environment(
        loader=loader,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "at_least": at_least,
        "at_most": at_most,
        "as_claimed": _as_claimed,
        "p_equals": rounding.p_equals,
        "percent": percent,
        "one_line": one_line,
        "attacker": attacker,
        "the": the,
    }
    made.globals |= {"ends": rounding.interval, "words_of": words_of, "least_trainings": LEAST_TRAININGS}
    return made.get_template("terminal.jinja").module


def lines_of(macro: str, *facts: object) -> list[str]:
    """Return the lines that a macro of the template makes of `facts`."""
    text = getattr(_macros(), macro)(*facts)
    return [line.strip() for line in text.splitlines() if line.strip()]


def sentence_of(macro: str, *facts: object) -> str:
    """Return what a macro of the template makes of `facts` as one line."""
    words = " ".join(lines_of(macro, *facts))
    return re.sub(r" ([,;:.])(?= |$)", r"\1", words)


def table_from(macro: str, *facts: object) -> Table:
    """Return the table that a macro of the template describes: it adds the rows, and returns the title."""
    rows: list[tuple[str, ...]] = []
    title = sentence_of(macro, rows, *facts)
    table = table_of({"what": "text", "value": "number", "reason": "text"}, title, show_header=False)
    for row in rows:
        if row:
            table.add_row(*map(coloured, row))
        else:
            table.add_section()
    return table


def refuse_failed(controls: NegativeControls | None) -> None:
    """Raise `AuditError` where negative controls together are not at chance."""
    if controls is not None and not controls.hold:
        worst = f"{rounding.p_equals(controls.together_p)} for all together (worst: {controls.worst})"
        raise AuditError(f"the negative controls are not at chance, {worst}: none of the numbers can be trusted")


def reproduced_table(result: ReproduceResult) -> Table:
    """Return the whole table that was reproduced."""
    kinds = {title: "text" if not place else "number" for place, title in enumerate(result.columns)}
    table = table_of(kinds, result.table, rule=True)
    for column in table.columns:
        column.no_wrap = False
    for cells in result.cells:
        table.add_row(*map(Text, cells))
    return table


_PLANTED_COLUMNS = ("mechanism", "what is wrong", "claim", "at least", "at most", "verdict", "must be")


def planted_table(result: PlantedResult) -> Table:
    """Return what each planted mechanism got, and what it must get where that is another verdict."""
    # The names of gaps, and of more than one verdict, fold.
    kinds = ("name", "number", "number", "text", "name", "text")
    shown = 5 if all(row.as_expected for row in result.rows) else 6
    titles = (_PLANTED_COLUMNS[0], *_PLANTED_COLUMNS[2:])[:shown]
    table = table_of(dict(zip(titles, kinds, strict=False)), "Planted mechanisms", rule=True, pad_edge=False)
    table.columns[3].justify = "right"
    for row in result.rows:
        cells = _planted_cells(row)
        *numbers, verdict, expected = (cell.removeprefix("none: ") for cell in cells[2:])
        table.add_row(cells[0], *numbers, coloured(verdict), *[expected][: shown - 5])
    return table


def planted_markdown(result: PlantedResult) -> str:
    """Return the same as a Markdown table, with the sentence below it."""
    rows = [_PLANTED_COLUMNS, ("---",) * len(_PLANTED_COLUMNS), *map(_planted_cells, result.rows)]
    lines = [f"| {' | '.join(cells)} |\n" for cells in rows]
    return f"{''.join(lines)}\n{result.sentence}\n"


def _planted_cells(row: PlantedRow) -> tuple[str, ...]:
    return (
        row.name,
        row.bug,
        rounding.as_claimed(row.claimed),
        at_least(row.empirical_lower, row.claimed),
        f"none: {row.gap}" if row.upper is None else at_most(row.upper, row.claimed),
        row.verdict if row.as_expected else f"{row.verdict} (!)",
        " or ".join(row.expected),
    )
