"""What a table or figure of a paper is here: items to compute one by one, columns to print, and a drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.reproduce.parts import TableParts
from dpzv_audit.reproduce.text import Row
from mechanisms import MethodSpec, TrainingConfig, method_named

T = TypeVar("T")
Stage = Callable[[str, int], Callable[[int], None]]


def no_stage(name: str, total: int) -> Callable[[int], None]:
    """Return a stage whose progress nobody looks at."""
    return lambda done: None


def counted(items: Iterable[T], done: Callable[[int], None], *, start: int = 0) -> Iterator[T]:
    """Yield `items`, and say after each how many are `done`, those before the first included (`start`)."""
    for number, item in enumerate(items, start + 1):
        yield item
        done(number)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a whole table runs under: its length, its seeds, where its data and finished parts come from."""

    epochs: int
    """As the paper counts them."""
    seeds: int
    seed: int
    load: Callable[[Mapping[str, Any]], VerticalDataset]
    """Data set of the keywords of `dpzv_audit.data.load`; the same one for the same keywords."""
    kept: TableParts = field(default_factory=TableParts)
    device: str = "cpu"
    stage: Stage = no_stage


class Item(Protocol):
    """One row: what is computed, and what the paper prints for it."""

    @property
    def label(self) -> str:
        """Name of the row, unique in its table."""

    def run(self, setting: Setting) -> Row:
        """Compute the row as plain JSON values, with its label and the paper's values."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What every item is that trains a `method` with `options` on a `dataset`."""

    label: str
    method: str
    options: Mapping[str, object]
    dataset: Mapping[str, Any]
    passes: int = 1
    """Epochs of this tool (D/B rounds in all) in one of the table's."""

    def start(self, setting: Setting) -> tuple[MethodSpec, TrainingConfig, VerticalDataset]:
        """Return the method, its configuration for the epochs asked for, and the data."""
        method, dataset = method_named(self.method), setting.load(self.dataset)
        return method, method.configure(**{**self.options, "epochs": setting.epochs * self.passes}), dataset


@dataclass(frozen=True)
class Column:
    """A column of the printed table: its heading and what stands there for a row."""

    heading: str
    cell: Callable[[Row], str]


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
    remark: Callable[[Sequence[Row]], str] | None = None
    """What the rows together say, as a sentence; empty where there is nothing to say."""
    lead: Callable[[Sequence[Row]], str] | None = None
    """What the rows together say, as the page's first paragraph: for a question of our own, no table of a paper."""
    figure: Callable[[Row], str] | None = None
    """Draws the whole result as SVG."""
