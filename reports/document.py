"""What a report is made of, apart from how it is drawn, and how a template writes it: HTML and Markdown both walk it.

A block is a table, a picture, code, or a paragraph as plain text. Whoever draws it makes text safe to show.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from html import unescape
from typing import Literal, Protocol

from reports.svg import label_of
from reports.text import MISSING, number

Kind = Literal["text", "number", "code", "link"]
Row = Mapping[str, object]
"""A table's row: a value for each column's title, a dash where it is None or empty."""


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
    blocks: list[Block]


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


class AddRow(Protocol):
    """Adds a row to the table that a template writes."""

    def __call__(self, row: Row, *, strong: bool = False) -> None:
        """Add a row, stressed if `strong`."""


class Report:
    """Everything a page shows, as a template writes it from top to bottom; what is empty is left out."""

    def __init__(self, kind: str) -> None:
        self.kind, self.title, self.lead = kind, kind, ""
        self.verdict: Verdict | None = None
        self.tiles: list[Tile] = []
        self._sections: list[Section] = []

    @property
    def sections(self) -> list[Section]:
        """The sections that say anything."""
        return [section for section in self._sections if section.blocks]

    def head(self, title: str, lead: str) -> None:
        """Set the title, and the sentence that says it all."""
        self.title, self.lead = title, lead

    def judge(self, word: str, meaning: str, *, alarming: bool) -> None:
        """Set the verdict."""
        self.verdict = Verdict(word=word, meaning=meaning, alarming=alarming)

    def tile(self, label: str, value: str, note: str = "", *, strong: bool = False) -> None:
        """Add a number of the first glance."""
        self.tiles.append(Tile(label=label, value=value, note=note, strong=strong))

    def section(self, anchor: str, title: str) -> None:
        """Begin a section, in which the blocks that follow stand."""
        self._sections.append(Section(anchor=anchor, title=title, blocks=[]))

    def _add(self, block: Block) -> None:
        if block:
            self._sections[-1].blocks.append(block)

    def text(self, text: str | None = None, *, caller: Callable[[], str] | None = None) -> str:
        """Add a paragraph, given or written between `call` and `endcall`; return nothing to show there."""
        # What a template writes is escaped for a page; a report is escaped where it is drawn.
        self._add((text or "") if caller is None else " ".join(unescape(caller()).split()))
        return ""

    def code(self, text: str) -> None:
        """Add preformatted text."""
        self._add(Code(text=text))

    def picture(self, name: str, svg: str, caption: str) -> None:
        """Add a figure where something was drawn."""
        if svg:
            self._add(Picture(name=name, svg=svg, caption=" ".join(caption.split())))

    def pairs(self, caption: str, titles: tuple[str, str], values: Row, *, code: bool = False) -> None:
        """Add a table of two columns, of keys and values, where there are any."""
        first, second = titles

        def write(add: AddRow) -> None:
            for key, value in values.items():
                add({first: key, second: value})

        self.table(caption, caller=write, code=(second,) if code else ())

    def table(
        self,
        caption: str,
        *,
        caller: Callable[[AddRow], object],
        numbers: Collection[str] = (),
        code: Collection[str] = (),
        links: Collection[str] = (),
        note: str = "",
        hoist: bool = False,
    ) -> str:
        """Add a table of the rows that are written between `call(add)` and `endcall`, where there are any; return "".

        The keys of the first row are the columns; those titled in `numbers`, `code` and `links` hold these. With
        `hoist` a column that says the same in all rows moves into the note.
        """
        rows: list[Row] = []
        stressed: set[int] = set()

        def add(row: Row, *, strong: bool = False) -> None:
            stressed.update({len(rows)} if strong else ())
            rows.append(row)

        caller(add)
        if not rows:
            return ""
        kinds: dict[str, Kind] = dict.fromkeys(numbers, "number")
        kinds |= dict.fromkeys(code, "code")
        kinds |= dict.fromkeys(links, "link")
        found = Table(
            caption=caption,
            columns=tuple(Column(title=title, kind=kinds.get(title, "text")) for title in rows[0]),
            rows=tuple(tuple(map(_cell, row.values())) for row in rows),
            strong=frozenset(stressed),
            note=note,
        )
        self._add(_hoisted(found) if hoist else found)
        return ""


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
