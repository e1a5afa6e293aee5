"""Tables and figures of papers: rows to compute one by one, parts that are kept, columns and remarks."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from pydantic import BaseModel, PrivateAttr, TypeAdapter, model_serializer

from mechanisms import MethodSpec, TrainingConfig, method_named
from mechanisms.core.checkpoints import FileCheckpoints, run_key
from mechanisms.core.config import check_sizes

from ..base.findings import Interval, to_jsonable
from ..base.store import Store
from ..data.vertical import VerticalDataset, sample_of_training
from ..results import PaperFigure, Part

T = TypeVar("T")
Values = Mapping[str, object]
"""Values by name that are handed through: plain ones of JSON, or what `findings.to_jsonable` makes such of."""
Stage = Callable[[str, int], Callable[[int], None]]
Compute = Callable[[FileCheckpoints | None], Values]


_FREE = {
    "epsilon",
    "delta",
    "sigma",
    "calibration",
    "dp_sigma",
    "dp_clip",
    "clip",
    "client_rate",
    "server_rate",
    "shift",
}
"""Settings on whose values the time of a training does not depend."""


_LONG_ENOUGH = 0.05
"""Seconds of calls that tell how long one takes."""


class ResultPart(BaseModel, frozen=True):
    """A part of a result: fields for what code reads of it, while `to_json` has all that was given, in its order.

    What only the cells of a table show, or its file names, needs no field.
    """

    _given: dict[str, object] = PrivateAttr()

    def __init__(self, **given: object) -> None:
        plain = to_jsonable(given)
        super().__init__(**plain)
        self._given = plain

    @model_serializer
    def to_json(self) -> dict[str, object]:
        """Return the part as `result.json` holds it."""
        return self._given


class Row(ResultPart):
    """A row of a result."""

    label: str


R = TypeVar("R", bound=Row)
"""The rows of a table are of one kind."""


class TableResult(Part, Generic[R]):
    """What the rows of a table gave; `skipped` says by label why a row is missing."""

    table: str
    source: str
    epochs: int
    paper_epochs: int
    seeds: int
    records: int | None
    seed: int
    rows: list[R]
    skipped: dict[str, str] | None = None
    notes: list[str]


@dataclass(frozen=True)
class Work:
    """The time that a row takes, going by a few of its rounds: its own, and that of controls which other rows share.

    Args:
        seconds: Of the row itself.
        shared: Of each control by what it follows from, in seconds.
    """

    seconds: float
    shared: Mapping[str, float] = field(default_factory=dict)


def pace(step: Callable[[], object], *, most: int = 5) -> float:
    """Return the seconds that a call of `step` takes once it is warm; at most `most` calls, one of them untimed."""
    if most > 1:
        step()
    began = time.perf_counter()
    calls = 0
    while not calls or (calls < most - 1 and time.perf_counter() - began < _LONG_ENOUGH):
        step()
        calls += 1
    return (time.perf_counter() - began) / calls


def no_stage(name: str, total: int) -> Callable[[int], None]:
    """Return a no-op stage."""
    return lambda done: None


def counted(items: Iterable[T], done: Callable[[int], None], *, start: int = 0) -> Iterator[T]:
    """Yield `items`, and say after each how many are `done`, those before the first included (`start`)."""
    for number, item in enumerate(items, start + 1):
        yield item
        done(number)


class _Lacking(Exception):
    """A part is not kept."""


class TableParts:
    """Parts of a table by the facts that they follow from: each is computed once, and read back with `resume`.

    A part is a file in `folder`, written whole or not at all; while it is computed, its training keeps its epoch
    checkpoint beside it. Without a folder parts live in memory only.
    """

    def __init__(self, folder: Path | None = None, *, resume: bool = False) -> None:
        self._folder = folder
        self._resume = resume
        self._parts: dict[str, Values] = {}

    @property
    def resumes(self) -> bool:
        """Whether parts of an earlier run are taken up."""
        return self._resume

    def part(self, facts: Values, compute: Compute) -> Values:
        """Return the part that follows from `facts`, by `compute` where it is not kept; plain JSON values.

        Raises:
            InputError: The kept file is damaged.
        """
        key = run_key(facts)
        if key not in self._parts:
            self._parts[key] = self._kept(key, compute)
        return self._parts[key]

    def holds(self, row: "TableRow[R]", setting: "Setting") -> bool:
        """Return whether all parts of a row are kept, so that it is not computed again.

        Raises:
            InputError: A kept file is damaged.
        """
        if not self._resume:
            return False
        with suppress(_Lacking):
            row.run(replace(setting, kept=_OnlyKept(self._folder, resume=True), stage=no_stage))
            return True
        return False

    def remove(self) -> None:
        """Forget the parts that were asked for: the table is done."""
        if self._folder is None:
            return
        for key in self._parts:
            (self._folder / f"{key}.json").unlink(missing_ok=True)
        with suppress(OSError):  # not there, or not empty
            self._folder.rmdir()

    def _kept(self, key: str, compute: Compute) -> Values:
        if self._folder is None:
            return compute(None)
        store = Store(self._folder)
        name = f"{key}.json"
        cure = "remove it, or start without ‹resume›, which replaces it"
        if self._resume and (kept := store.read(name, dict, cure=cure)) is not None:
            return kept
        checkpoints = FileCheckpoints(self._folder, key, resume=self._resume)
        values = compute(checkpoints)
        store.write(name, values, cure="make room and go on with ‹resume›")
        checkpoints.remove()
        return values


class _OnlyKept(TableParts):
    """Parts that are read back, and none of which is computed."""

    def part(self, facts: Values, compute: Compute) -> Values:
        """Return the part that is kept; `_Lacking` where it is not."""

        def lacking(_: FileCheckpoints | None) -> Values:
            raise _Lacking

        return super().part(facts, lacking)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings of a whole table: its length, its seeds, where its data and finished parts come from.

    Args:
        load: Data set of the keywords of `dpzv_audit.data.load`; the same one for the same keywords.
        epochs: Epochs as the paper counts them.
        seeds: Trainings a row, run as one stack.
        records: Records of each data set to train on, the same for every seed; None for all.
        seed: Seed of every stream.
        device: `cpu` or `cuda`.
        kept: Where finished parts go, and come from when a run is taken up again.
        stage: Starts a stage of progress.
    """

    load: Callable[[Values], VerticalDataset]
    epochs: int
    seeds: int
    records: int | None = None
    seed: int = 0
    device: str = "cpu"
    kept: TableParts = field(default_factory=TableParts)
    stage: Stage = no_stage

    def dataset(self, keywords: Values) -> VerticalDataset:
        """Return the data set of `keywords`, or as many of its training records as are wanted."""
        whole = self.load(keywords)
        return whole if self.records is None else sample_of_training(whole, self.records)

    def part(self, dataset: VerticalDataset, compute: Compute, **facts: object) -> Values:
        """Return the part that follows from `facts`, the data and the seeds, by `compute` where it is not kept."""
        public = {
            "dataset": dataset.name,
            "digests": dataset.digests,
            "records": len(dataset.train),
            "partition": dataset.partition,
            "clients": dataset.clients,
            "seed": self.seed,
            "seeds": self.seeds,
        }
        return self.kept.part({**public, **facts}, compute)


@dataclass(frozen=True, kw_only=True)
class TableRow(Generic[R]):
    """One row: what is computed, and what the paper prints for it.

    Args:
        label: Name of the row, unique in its table.
        method: Name of the method, with its `options`.
        options: See `method`.
        dataset: Keywords of `dpzv_audit.data.load`.
        passes: Epochs of this tool (D/B rounds in all) in one of the table's.
        seeds: Trainings of this row, where the table's number is not its own.
        tags: What else stands in the row for its columns and figure: plain JSON values.
    """

    label: str
    method: str = ""
    options: Values = field(default_factory=dict)
    dataset: Values = field(default_factory=dict)
    passes: int = 1
    seeds: int | None = None
    tags: Values = field(default_factory=dict)

    untimed: ClassVar[str] = ""
    """What takes time beside what `rehearse` times, in words."""
    row_type: ClassVar[type[Row]] = Row
    """The class of what `run` returns."""

    def under(self, setting: Setting) -> Setting:
        """Return the setting of a table with this row's own number of trainings."""
        return setting if self.seeds is None else replace(setting, seeds=self.seeds)

    def read(self, values: Values) -> R:
        """Return the row of numbers on file, with this label and these tags; `ValidationError` where they are none."""
        printed = {"paper": self.paper} if hasattr(self, "paper") else {}
        return self.row_type(**{**values, "label": self.label, **self.tags, **printed})  # type: ignore[return-value]

    def begins_as(self, row: R, setting: Setting) -> bool:
        """Return whether a training that is begun anew gives the first numbers of `row`; True where it has none."""
        return True

    def run(self, setting: Setting) -> R:
        """Compute the row, with what the paper prints for it."""
        raise NotImplementedError

    def check(self, setting: Setting) -> str:
        """Check settings and data without training; return what the time of the row follows from.

        Raises:
            InputError: The data are absent or cannot be cut among so many clients, or the settings do not fit them.
        """
        raise NotImplementedError

    def rehearse(self, setting: Setting) -> Work:
        """Return how long the row takes, going by a few rounds; `InputError` where its training cannot begin."""
        raise NotImplementedError

    def checked(self, setting: Setting, **more: object) -> str:
        """Check method, settings and data, and return them without what costs no time, and with `more` that does."""
        method, config, dataset = self.start(setting)
        config.check_clients(dataset.clients)
        check_sizes(config, records=len(dataset.train), clients=dataset.clients)
        costly = config.model_dump(mode="json", exclude=_FREE)
        costly["defences"] = [defence.name for defence in config.defences]
        return run_key({"method": method.name, "config": costly, "dataset": self.dataset, **more})

    def start(self, setting: Setting) -> tuple[MethodSpec, TrainingConfig, VerticalDataset]:
        """Return the method, its configuration for the epochs asked for, and the data."""
        method = method_named(self.method)
        dataset = setting.dataset(self.dataset)
        return method, method.configure(**{**self.options, "epochs": setting.epochs * self.passes}), dataset


@dataclass(frozen=True, kw_only=True)
class PaperTable(Generic[R]):
    """A table or figure of a paper.

    Args:
        name: Its name on the command line, with a line about it (`summary`) and the paper (`source`).
        summary: See `name`.
        source: See `name`.
        items: Its rows.
        columns: Heading and template of each column.
        about: What the numbers are, in words, below the title.
        epochs: Epochs that the paper trains for; 0 where nothing is trained.
        epochs_of: Whose epochs these are, for a sentence.
        length: Epochs where the user does not say, if not `epochs`: what fits in about an hour of one core a row.
        seeds: Trainings of a row where the user does not say.
        notes: Sentences below the table.
        remark: Says what the rows together say, as a sentence; empty where there is nothing to say.
        lead: The same as the page's first paragraph: for a question of our own, no table of a paper.
        figures: Each gives a figure of the whole result in numbers, None where there is nothing to show, by its name.
    """

    name: str
    summary: str
    source: str
    items: tuple[TableRow[R], ...]
    columns: Sequence[tuple[str, str]]
    about: str
    epochs: int = 100
    epochs_of: str = "the paper's"
    length: int | None = None
    seeds: int = 3
    notes: Sequence[str] = ()
    remark: Callable[[Sequence[R]], str] | None = None
    lead: Callable[[Sequence[R]], str] | None = None
    figures: Mapping[str, Callable[[TableResult[R]], PaperFigure | None]] = field(default_factory=dict)

    def result(self, rows: Sequence[R], setting: Setting, skipped: Mapping[str, str]) -> TableResult[R]:
        """Return the result of this table's `rows` under `setting`; `skipped` says by label why others are missing."""
        return TableResult(
            table=self.name,
            source=self.source,
            epochs=setting.epochs,
            paper_epochs=self.epochs,
            seeds=setting.seeds,
            records=setting.records,
            seed=setting.seed,
            rows=list(rows),
            **({"skipped": dict(skipped)} if skipped else {}),
            notes=list(self.notes),
        )


def interval_of(measurement: object) -> Interval:
    """Return the measurement that a row holds as JSON."""
    return TypeAdapter(Interval).validate_python(measurement)
