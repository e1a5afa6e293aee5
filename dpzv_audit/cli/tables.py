"""Tables on a terminal: words fold where it is narrow, numbers are never cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FOLDED_WIDTH = 24
"""Words up to this long, as `unbounded-participation`, stay whole: folded ones are harder to read than longer lines."""


def print_table(console: Console, table: Table) -> None:
    """Print `table` with columns as wide as they must be, even if that is wider than the terminal.

    A column with `no_wrap` (numbers, verdicts, names that are typed again) is never narrower than its longest cell, any
    other never narrower than its longest word, or than `FOLDED_WIDTH` where words are longer; those fold. What room is
    left is shared out evenly, to each at most what it needs.
    """
    from rich.measure import Measurement

    unbounded = console.options.update(max_width=10_000)
    room = console.width - console.measure(table, options=unbounded).minimum
    wanted = []
    for column in table.columns:
        cells = [Measurement.get(console, unbounded, cell) for cell in (column.header, *column.cells)]
        word, line = max(cell.minimum for cell in cells), max(cell.maximum for cell in cells)
        column.min_width = line if column.no_wrap else min(word, FOLDED_WIDTH)
        column.overflow = "fold"
        room -= column.min_width - word
        wanted.append((line - column.min_width, column))
    if room < 0:
        table.width = console.width - room
    elif room < sum(more for more, _ in wanted):
        for place, (more, column) in enumerate(sorted(wanted, key=lambda one: one[0])):
            given = min(more, room // (len(wanted) - place))
            column.width = (column.min_width or 0) + given
            room -= given
    console.print(table, crop=False)
