"""What a report is made of, apart from how it is drawn: HTML and Markdown both walk these."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["text", "number", "code", "link"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A table's column: its heading and whether its cells are words, numbers, code or paths of files."""

    title: str
    kind: Kind = "text"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of finished text, a cell a column; `strong` rows are stressed, `note` holds for all rows."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int] = frozenset()
    note: str = ""


def hoisted(table: Table, *, blank: str, often_blank: tuple[str, ...] = ()) -> Table:
    """Return `table` with every column that says the same in all its rows moved into its note.

    The first column stays. In the columns titled in `often_blank` a cell `blank` does not count as saying
    something else. A column of nothing but `blank` goes without a note; of a single row only those go.
    """
    said = []
    keep = [0]
    for index, column in enumerate(table.columns[1:], start=1):
        values = {row[index] for row in table.rows}
        if column.title in often_blank and len(values) > 1:
            values.discard(blank)
        if len(values) > 1 or (len(table.rows) == 1 and values != {blank}):
            keep.append(index)
        elif values != {blank}:
            said.append(f"{column.title}: {values.pop()}")
    return replace(
        table,
        columns=tuple(table.columns[i] for i in keep),
        rows=tuple(tuple(row[i] for i in keep) for row in table.rows),
        note="; ".join(said),
    )


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure: SVG source, the words that replace it for who cannot see it, and its caption.

    `name` is also the stem of the file beside the report.
    """

    name: str
    svg: str
    alt: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Prose:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Code:
    """Preformatted text, such as JSON."""

    text: str


Block = Table | Picture | Prose | Code


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, its anchor, and the blocks under it in reading order."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One number of the first glance: what it is, the number, and what to read with it."""

    label: str
    value: str
    note: str
    strong: bool = False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict's word and the sentence that says what the word means."""

    word: str
    meaning: str
    alarming: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything a page shows, top to bottom."""

    kind: str
    title: str
    lead: str
    verdict: Verdict | None
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
