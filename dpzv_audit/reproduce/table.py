"""What a table or figure of a paper is here: items to compute one by one, columns to print, and a drawing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.reproduce.kept import Kept

Result = dict[str, Any]
Stage = Callable[[str, int], Callable[[int], None]]


def no_stage(name: str, total: int) -> Callable[[int], None]:
    """A stage whose progress nobody looks at."""
    return lambda done: None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a whole table runs under: its length, its seeds, where its data and finished parts come from."""

    epochs: int
    """As the paper counts them."""
    seeds: int
    seed: int
    load: Callable[[Mapping[str, Any]], VerticalDataset]
    """Data set of the keywords of `dpzv_audit.data.load`; the same one for the same keywords."""
    kept: Kept = field(default_factory=Kept)
    device: str = "cpu"
    stage: Stage = no_stage


class Item(Protocol):
    """One row: what is computed, and what the paper prints for it."""

    @property
    def label(self) -> str:
        """Name of the row, unique in its table."""

    def run(self, setting: Setting) -> Result:
        """Compute the row as plain JSON values, with its label and the paper's values."""


@dataclass(frozen=True)
class Column:
    """A column of the printed table: its heading and what stands there for a row."""

    heading: str
    cell: Callable[[Result], str]


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table or figure of a paper."""

    name: str
    summary: str
    source: str
    items: tuple[Item, ...]
    columns: tuple[Column, ...]
    about: str
    """What the numbers are, in words, below the title."""
    epochs: int = 100
    """Epochs that the paper trains for; 0 where nothing is trained."""
    epochs_of: str = "the paper's"
    """Whose epochs these are, for a sentence."""
    seeds: int = 3
    """Trainings a row where the user does not say."""
    notes: tuple[str, ...] = ()
    remark: Callable[[Sequence[Result]], str] | None = None
    """What the rows together say, as a sentence; empty where there is nothing to say."""
    lead: Callable[[Sequence[Result]], str] | None = None
    """What the rows together say, as the page's first paragraph: for a question of our own, no table of a paper."""
    figure: Callable[[Result], str] | None = None
    """Draws the whole result as SVG."""
