"""The parts of a report, which a template writes and HTML and Markdown draw: head, sections, tables, pictures.

A block is a table, a picture, code, or a paragraph as plain text. Whoever draws it makes text safe to show.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from html import unescape

from .svg import label_of
from .text import MISSING, number

Row = Mapping[str, object]
"""A table's row: a value for each column's title, a dash where it is None or empty."""


@dataclass(kw_only=True)
class Table:
    """Rows of finished text by their columns' titles; rows at places in `strong` are stressed, `note` holds for all.

    `columns` says of each title whether its cells are "text", a "number", "code" or a "link", the path of a file.
    `links` are where the first cell of each row leads; "" for nowhere, [] for no row. A `narrow` table is shown on a
    phone alone, in place of a wide figure.
    """

    caption: str
    columns: dict[str, str]
    rows: list[dict[str, str]]
    strong: set[int]
    note: str
    links: list[str]
    narrow: bool = False

    def hoist(self) -> None:
        """Move every column that says the same in all rows into the note.

        The first column stays. A measurement without a confidence does not contradict those with one. A column of
        nothing but dashes goes without a note; of a single row only those go.
        """
        notes = []
        for title in [*self.columns][1:]:
            values = {row[title] for row in self.rows}
            if title == "confidence" and len(values) > 1:
                values.discard(MISSING)
            if len(values) > 1 or (len(self.rows) == 1 and values != {MISSING}):
                continue
            if values != {MISSING}:
                notes.append(f"{title}: {values.pop()}")
            for cells in (self.columns, *self.rows):
                del cells[title]
        self.note = "; ".join(notes)


@dataclass(frozen=True)
class Picture:
    """A figure: SVG source and its caption; `name` is also the stem of the file beside the report."""

    name: str
    svg: str
    caption: str

    @property
    def alt(self) -> str:
        """The words that replace the figure for who cannot see it, as plain text."""
        return label_of(self.svg)


@dataclass(frozen=True)
class Code:
    """Preformatted text, such as JSON, or one command."""

    text: str
    command: bool = False


Block = Table | Picture | Code | str


@dataclass
class Section:
    """A heading, its anchor, and the blocks under it in reading order.

    `folded` are those that a page shows when asked, and always in print; `summary` is what to ask for.
    """

    anchor: str
    title: str
    blocks: list[Block] = field(default_factory=list)
    summary: str = ""
    folded: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class NextStep:
    """A step to take next: a sentence, and the command that does it where there is one."""

    words: str
    command: str = ""


@dataclass(frozen=True)
class Judgement:
    """A verdict and its object, as "refuted" and "ε ≤ 1 against one curious client", why, and what to do next.

    `notes` say what was not tested and warn, each as a sentence.
    """

    word: str
    about: str
    why: str
    alarming: bool = False
    notes: list[str] = field(default_factory=list)
    step: NextStep | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A verdict with what a reader needs beside it: the head of a page, and what a terminal prints.

    Attributes:
        judgement: The verdict, its object, notes and the next step.
        subject: The system and the attacker, in a sentence or two.
        condition: On pages, whether what a verdict takes as given is so, as a sentence; "" for none.
        facts: What was measured, what is proven, and what both mean, by name.
        caption: What the rows are, as "Attacks, 16 trainings".
        rows: The strongest attacks, or the claims, the gravest first.
        links: Where each row leads on a page: the report of an attack, the section of a claim; "" for nowhere.
        more: How many rows were left out, as a sentence; "" for none.
        checks: Controls and test accuracy, as a sentence without its full stop.
    """

    judgement: Judgement
    subject: str = ""
    condition: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    caption: str = ""
    rows: Sequence[Row] = ()
    links: Sequence[str] = ()
    more: str = ""
    checks: str = ""

    @property
    def several_claims(self) -> bool:
        """Whether the rows are claims, each with notes and a reason of its own."""
        return len(self.rows) > 1 and "claim" in self.rows[0]

    @property
    def printed_notes(self) -> int:
        """How many notes a terminal and a printed page show; the page on a screen has all."""
        return 3 if self.several_claims else 6

    @property
    def more_notes(self) -> str:
        """How many notes these leave out, as a sentence; "" for none."""
        more = len(self.judgement.notes) - self.printed_notes
        return f"{more} more notes are in the report." if more > 0 else ""

    @property
    def why(self) -> str:
        """Why the verdict is what it is, where neither facts nor claims say it."""
        return "" if self.facts or self.several_claims else self.judgement.why


TEXTS = frozenset({"attack", "claim", "mechanisms", "row", "verdict", "result", "metric"})
"""Columns of an answer that hold words; the others hold numbers."""
HEADING = 12
"""A heading over numbers is folded by a terminal where it is longer than this, and than the numbers."""


class Report:
    """Everything a page shows, as a template writes it from top to bottom; what is empty is left out.

    `kind` says what it is about and `origin` with which version, and when, it was computed.
    """

    def __init__(self, kind: str, answer: Answer, origin: Sequence[str] = ()) -> None:
        self.kind = kind
        self.answer = answer
        self.origin = origin
        self.head(kind, "")
        self.deciding: Picture | None = None
        self._sections: list[Section] = []

    @property
    def sections(self) -> list[Section]:
        """The sections that say anything."""
        return [section for section in self._sections if section.blocks or section.folded]

    def top(self) -> "Report":
        """Return the head of the page alone, without its picture."""
        head = copy(self)
        head._sections = []
        head.deciding = None
        return head

    @property
    def pictures(self) -> list[Picture]:
        """Every figure of the page, from top to bottom."""
        blocks = (block for section in self._sections for block in [*section.blocks, *section.folded])
        return [block for block in (self.deciding, *blocks) if isinstance(block, Picture)]

    def head(self, title: str, lead: str) -> None:
        """Set the title, and the sentence that says it all."""
        self.title = title
        self.lead = lead

    @property
    def tables(self) -> list[Table]:
        """Every table of the page, the rows of the head first."""
        blocks = [self.rows, *(block for section in self._sections for block in [*section.blocks, *section.folded])]
        return [block for block in blocks if isinstance(block, Table)]

    @property
    def rows(self) -> Table | None:
        """The attacks or claims of the head as a table; None without any."""
        answer = self.answer
        if not answer.rows:
            return None
        titles = [*answer.rows[0]]
        columns = {"" if title == "result" else title: "text" if title in TEXTS else "number" for title in titles}
        rows = [dict(zip(columns, map(_cell, row.values()), strict=True)) for row in answer.rows]
        return Table(caption=answer.caption, columns=columns, rows=rows, strong=set(), note="", links=[*answer.links])

    def decide(self, name: str, svg: str, caption: str) -> None:
        """Show under the head the picture that decides the verdict, where one was drawn."""
        if svg:
            self.deciding = Picture(name, svg, " ".join(caption.split()))

    def decided_by(self, name: str) -> bool:
        """Return whether the figure of that name stands under the head already."""
        return self.deciding is not None and self.deciding.name == name

    def section(self, anchor: str, title: str) -> None:
        """Begin a section, in which the blocks that follow stand."""
        self._sections.append(Section(anchor, title))

    def fold(self, summary: str) -> None:
        """Fold away what follows in this section, under a line that says what it is."""
        self._sections[-1].summary = summary

    def _add(self, block: Block) -> None:
        section = self._sections[-1]
        if block:
            (section.folded if section.summary else section.blocks).append(block)

    def text(self, text: str | None = None, *, caller: Callable[[], str] | None = None) -> str:
        """Add a paragraph, given or written between `call` and `endcall`; return nothing to show there."""
        # What a template writes is escaped for a page; a report is escaped where it is drawn.
        self._add((text or "") if caller is None else " ".join(unescape(caller()).split()))
        return ""

    def code(self, text: str, *, command: bool = False) -> None:
        """Add preformatted text, or one `command`."""
        self._add(Code(text, command))

    def picture(self, name: str, svg: str, caption: str) -> None:
        """Add a figure where something was drawn."""
        if svg:
            self._add(Picture(name, svg, " ".join(caption.split())))

    def pairs(self, caption: str, titles: tuple[str, str], values: Row, code: Collection[str] = ()) -> None:
        """Add a table of two columns, of keys and values, where there are any."""
        self.table(caption, [dict(zip(titles, pair, strict=True)) for pair in values.items()], code=code)

    def table(
        self,
        caption: str,
        rows: Iterable[Row] = (),
        *,
        caller: Callable[[Callable[..., None]], object] | None = None,
        note: str = "",
        hoist: bool = False,
        narrow: bool = False,
        **kinds: Collection[str],
    ) -> str:
        """Add a table of known rows, or of those written between `call(add)` and `endcall`, if any; return "".

        The keys of the first row are the columns; those titled in `number`, `code` and `link` hold these. With `hoist`
        a column that says the same in all rows moves into the note.
        """
        lines = [*rows]
        links: list[str] = []
        stressed: set[int] = set()

        def add(row: Row, *, strong: bool = False, link: str = "") -> None:
            if strong:
                stressed.add(len(lines))
            lines.append(row)
            links.append(link)

        if caller is not None:
            caller(add)
        if not lines:
            return ""
        kind_of = {title: kind for kind, titles in kinds.items() for title in titles}
        columns = {title: kind_of.get(title, "text") for title in lines[0]}
        cells = [{title: _cell(value) for title, value in row.items()} for row in lines]
        table = Table(
            caption=caption, columns=columns, rows=cells, strong=stressed, note=note, links=links, narrow=narrow
        )
        if hoist:
            table.hoist()
        self._add(table)
        return ""


def _cell(value: object) -> str:
    return MISSING if value == "" else number(value)
