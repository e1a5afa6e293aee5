"""What a report is made of, apart from how it is drawn: HTML and Markdown both walk these.

A block is a table, a picture, code, or a paragraph as plain text. Whoever draws it makes text safe to show.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Literal

from reports.svg import label_of
from reports.text import MISSING, number

Kind = Literal["text", "number", "code", "link"]
Row = Mapping[str, object]
"""A table's row: a value for each column's title, a dash where it is None or empty."""


@cache
def _words() -> Mapping[str, Mapping[str, str]]:
    source = files("reports").joinpath("templates", "words.toml")
    return tomllib.loads(source.read_text("utf-8"))


def words(part: str, name: str, **values: str) -> str:
    """Return a sentence of `templates/words.toml` with `values` filled in."""
    text = _words()[part][name]
    return text.format(**values) if values else text


@dataclass(frozen=True, kw_only=True)
class Column:
    """A table's column: its heading and whether its cells are words, numbers, code or paths of files."""

    title: str
    kind: Kind = "text"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of finished text, a cell per column; `strong` rows are stressed, `note` holds for all rows."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int] = frozenset()
    note: str = ""


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


@dataclass(frozen=True, kw_only=True)
class Code:
    """Preformatted text, such as JSON."""

    text: str


Block = Table | Picture | Code | str


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


def table(
    caption: str,
    rows: Sequence[Row],
    *,
    numbers: Collection[str] = (),
    code: Collection[str] = (),
    links: Collection[str] = (),
    strong: Iterable[int] = (),
    note: str = "",
    hoist: bool = False,
) -> list[Block]:
    """Return the rows as a table, whose columns are the keys of the first one; nothing where there are none.

    Columns titled in `numbers`, `code` and `links` hold these. With `hoist` a column that says the same in all rows
    moves into the note.
    """
    if not rows:
        return []
    kinds: dict[str, Kind] = dict.fromkeys(numbers, "number")
    kinds |= dict.fromkeys(code, "code")
    kinds |= dict.fromkeys(links, "link")
    titles = tuple(rows[0])
    found = Table(
        caption=caption,
        columns=tuple(Column(title=title, kind=kinds.get(title, "text")) for title in titles),
        rows=tuple(tuple(_cell(row[title]) for title in titles) for row in rows),
        strong=frozenset(strong),
        note=note,
    )
    return [_hoisted(found) if hoist else found]


def pairs(
    caption: str, titles: tuple[str, str], values: Mapping[str, object], *, kind: Kind = "text", note: str = ""
) -> list[Block]:
    """Return a mapping as a table of two columns, values of `kind`; nothing where it is empty."""
    first, second = titles
    rows = [{first: key, second: value} for key, value in values.items()]
    numbers, code = ({second} if kind == name else () for name in ("number", "code"))
    return table(caption, rows, numbers=numbers, code=code, note=note)


def _cell(value: object) -> str:
    return MISSING if value == "" else number(value)


def _hoisted(found: Table) -> Table:
    """Return the table with every column that says the same in all its rows moved into its note.

    The first column stays. A measurement without a confidence does not contradict those with one. A column of nothing
    but dashes goes without a note; of a single row only those go.
    """
    said = []
    keep = [0]
    for index, column in enumerate(found.columns[1:], start=1):
        values = {row[index] for row in found.rows}
        if column.title == "confidence" and len(values) > 1:
            values.discard(MISSING)
        if len(values) > 1 or (len(found.rows) == 1 and values != {MISSING}):
            keep.append(index)
        elif values != {MISSING}:
            said.append(f"{column.title}: {values.pop()}")
    return replace(
        found,
        columns=tuple(found.columns[i] for i in keep),
        rows=tuple(tuple(row[i] for i in keep) for row in found.rows),
        note="; ".join(said),
    )


def picture(name: str, svg: str, caption: str | None = None) -> list[Block]:
    """Return a figure with the caption that its name has among the words; nothing where nothing was drawn."""
    if caption is None:
        caption = words("captions", name)
    return [Picture(name=f"figure-{name}", svg=svg, caption=caption)] if svg else []


def section(anchor: str, title: str, blocks: Sequence[Block]) -> list[Section]:
    """Return a section of a report; nothing where it has no block."""
    return [Section(anchor=anchor, title=title, blocks=tuple(blocks))] if blocks else []
