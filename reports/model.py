"""What a report is made of, apart from how it is drawn: HTML and Markdown both walk these."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from reports.svg import label_of
from reports.text import MISSING

Kind = Literal["text", "number", "code", "link"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A table's column: its heading and whether its cells are words, numbers, code or paths of files."""

    title: str
    kind: Kind = "text"


def columns(*titles: str, numbers: Collection[str] = (), code: Collection[str] = ()) -> tuple[Column, ...]:
    """Return a column for each title: of numbers, of code, or of words."""
    return tuple(
        Column(title=title, kind="number" if title in numbers else "code" if title in code else "text")
        for title in titles
    )


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of finished text, a cell a column; `strong` rows are stressed, `note` holds for all rows."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int] = frozenset()
    note: str = ""


def hoisted(table: Table, *, often_blank: tuple[str, ...] = ()) -> Table:
    """Return `table` with every column that says the same in all its rows moved into its note.

    The first column stays. In the columns titled in `often_blank` a dash does not count as saying something
    else. A column of nothing but dashes goes without a note; of a single row only those go.
    """
    said = []
    keep = [0]
    for index, column in enumerate(table.columns[1:], start=1):
        values = {row[index] for row in table.rows}
        if column.title in often_blank and len(values) > 1:
            values.discard(MISSING)
        if len(values) > 1 or (len(table.rows) == 1 and values != {MISSING}):
            keep.append(index)
        elif values != {MISSING}:
            said.append(f"{column.title}: {values.pop()}")
    return replace(
        table,
        columns=tuple(table.columns[i] for i in keep),
        rows=tuple(tuple(row[i] for i in keep) for row in table.rows),
        note="; ".join(said),
    )


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure: SVG source and its caption; `name` is also the stem of the file beside the report."""

    name: str
    svg: str
    caption: str

    @property
    def alt(self) -> str:
        """The words that replace the figure for who cannot see it, as plain text."""
        return label_of(self.svg)


def picture(name: str, svg: str, caption: str) -> list[Block]:
    """Return the figure as the blocks of a section: none where nothing was drawn."""
    return [Picture(name=name, svg=svg, caption=caption)] if svg else []


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
