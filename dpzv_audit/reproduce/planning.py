"""Checks of all rows of a table before any is trained, and how long they take, going by a few rounds of each."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic

from ..base.errors import InputError
from ..base.rounding import duration
from .kept import KeptRows
from .table import PaperTable, R, Setting, TableRow, Work

PATIENCE = 20.0
"""Seconds after which further rows are not rehearsed: they count as the mean of the others."""


@dataclass(frozen=True, kw_only=True)
class Plan(Generic[R]):
    """The rows of a table that will be computed, and by label why others are skipped; `keys` says which are alike."""

    rows: Sequence[TableRow[R]]
    keys: Sequence[str]
    skipped: dict[str, str]


def in_words(plan: Plan[R], seconds: Sequence[float]) -> str:
    """Return how many rows there are and how long they take, which `seconds` say by row."""
    kept = sum(not value for value in seconds)
    rows = f"{len(plan.rows)} row{'s' if len(plan.rows) != 1 else ''}"
    others = f", {kept} of them kept from before" if kept else ""
    untimed = " and ".join(dict.fromkeys(row.untimed for row in plan.rows if row.untimed))
    return f"{rows}{others}, {duration(sum(seconds))}{f', and {untimed}' if untimed else ''}"


def checked(table: PaperTable[R], setting: Setting) -> Plan[R]:
    """Check settings and data of every row, without training any.

    Rows whose data cannot be cut among so many clients are skipped.

    Raises:
        InputError: The data are absent, a setting does not fit, or every row is skipped.
    """
    rows: list[TableRow[R]] = []
    keys: list[str] = []
    skipped: dict[str, str] = {}
    for item in table.items:
        try:
            keys.append(item.check(item.under(setting)))
            rows.append(item)
        except InputError as error:
            if error.field != "clients":
                raise
            skipped[item.label] = str(error)
            if len(skipped) == len(table.items):
                raise error.placed(f"{item.label}: ") from error
    return Plan(rows=rows, keys=keys, skipped=skipped)


def expected(
    plan: Plan[R], setting: Setting, clock: Callable[[], float] = time.monotonic, kept: KeptRows | None = None
) -> list[float]:
    """Return about how many seconds each row of a plan takes, going by a few rounds of each; 0 where it is kept.

    Controls that several rows share count for the first of them.

    Raises:
        InputError: A training cannot begin, or a kept part is damaged.
    """
    began = clock()
    works: dict[str, Work] = {}
    shared: set[str] = set()
    seconds: list[float | None] = []
    for row, key in zip(plan.rows, plan.keys, strict=True):
        own = row.under(setting)
        on_file = kept is not None and kept.row(row, own, repeat=False) is not None
        if on_file or setting.kept.holds(row, own):
            seconds.append(0.0)
            continue
        if key not in works and clock() - began < PATIENCE:
            works[key] = row.rehearse(own)
        work = works.get(key)
        if work is None:
            seconds.append(None)
            continue
        seconds.append(work.seconds + sum(cost for name, cost in work.shared.items() if name not in shared))
        shared |= set(work.shared)
    known = [value for value in seconds if value]
    mean = sum(known) / len(known) if known else 0.0
    return [mean if value is None else value for value in seconds]


@dataclass
class RowClock:
    """The time that is left of a table: as expected at first, then at the pace of the rows that are done.

    `expected` are the seconds of each row.
    """

    expected: Sequence[float]
    clock: Callable[[], float] = time.monotonic
    row: int = -1
    _began: float = field(default=0.0, init=False)
    _first: float = field(default=0.0, init=False)

    def begin(self, row: int) -> None:
        """Begin the row of that number, from 0."""
        self._began = self.clock()
        if not row:
            self._first = self._began
        self.row = row

    def left(self) -> float:
        """Return about how many seconds the rest takes."""
        done = sum(self.expected[: self.row])
        pace = (self._began - self._first) / done if done > 0.0 else 1.0
        own = pace * self.expected[self.row] - (self.clock() - self._began)
        return max(0.0, own) + pace * sum(self.expected[self.row + 1 :])
