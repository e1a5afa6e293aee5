"""Tables of numbers and categories, published ones (UCI Adult, bank marketing) and CSV files of one's own.

Separated values are read row by row, and each row is encoded by public constants alone: a number is divided by one, a
category becomes a one-hot of a fixed list of values (all zeros for any other value) or of hash buckets. No row's
encoding depends on another row. `sets/NAME.toml` declares a published table: columns, groups and rows of each class.
"""

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from sys import intern
from typing import Any, ClassVar

import numpy as np

from ..base.errors import InputError, check_count, check_positive, unknown_name
from ..base.files import first_not_utf8, open_plain
from .files import bounded_lines, check_size, file_digest, memory_available, reading
from .hints import hints_of, is_identifier
from .spec import DataRequest, declared
from .vertical import (
    TASKS,
    FloatArray,
    Records,
    TaskName,
    Variable,
    VerticalDataset,
    array_digest,
    distinct_numbers,
    equal_runs,
    split_records,
    train_count,
)

FILE_LIMIT = 2 << 30
FEATURE_LIMIT = 2 << 30
"""The most bytes that the features of one file may take, as float32."""

LOADING = 3.5
"""Loading takes so many times the features' own bytes at its height (pieces, columns, blocks, parts) ..."""
ROW_BYTES = 100
"""... and so many for a row's label and line number."""

LINE_LIMIT = 1 << 20
CHUNK = 8192
ADVICE = "; use a sample of its rows, or fewer columns"
LARGEST = float(np.finfo(np.float32).max)
Groups = Sequence[Sequence[str]]
"""Names of the columns that each client holds."""


@dataclass(frozen=True)
class NumberColumn:
    """A number, divided by the public constant `scale`; `own` in the user's own table, where options would help."""

    name: str
    scale: float = 1.0
    own: bool = False
    width: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_positive(f"scale of column {self.name!r}", self.scale)

    def encode(self, cells: Sequence[str]) -> FloatArray:
        """Return the numbers over `scale`, (n, 1); `ValueError` unless each is finite (in float32 too)."""
        together = "".join(cells)
        try:
            # float() would also take 1_000 and digits of other scripts
            plain = together.isascii() and "_" not in together
            values = np.array([float(cell if plain else "") for cell in cells])
        except ValueError:
            advice = "; ‹categories› is for text columns, ‹drop› leaves one out" if self.own else ""
            raise ValueError(f"is not a number; use one such as 1000 or -1.5e3{advice}") from None
        if np.isnan(values).any() or "inf" in together.lower():
            raise ValueError("is not a finite number")
        with np.errstate(over="ignore"):  # what overflows is refused
            values /= self.scale
        if (np.abs(values) > LARGEST).any():
            advice = "; ‹scales› gives it" if self.own else ""
            raise ValueError(f"is too large; use at most {LARGEST:.2g} over the scale of its column{advice}")
        return values.astype(np.float32)[:, None]


@dataclass(frozen=True)
class CategoryColumn:
    """One of a fixed public list of values, as a one-hot in its order; any other value is all zeros."""

    name: str
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """A feature a value."""
        return len(self.values)

    def encode(self, cells: Sequence[str]) -> FloatArray:
        """Return the one-hots of `cells`, (n, width)."""
        places = {value: place for place, value in enumerate(self.values)}
        return _one_hots([places.get(cell, self.width) for cell in cells], self.width)


@dataclass(frozen=True)
class Hashed:
    """A category without a list of its values: the one-hot of one of `width` buckets, by a hash of name and value."""

    name: str
    width: int

    def __post_init__(self) -> None:
        check_count(f"buckets of column {self.name!r}", self.width, least=2)

    def encode(self, cells: Sequence[str]) -> FloatArray:
        """Return the one-hots of the buckets of `cells`, (n, width)."""
        places = {}
        for cell in set(cells):  # most cells of a chunk repeat
            key = f"{self.name}\0{cell}".encode("utf-8", "surrogatepass")
            places[cell] = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) % self.width
        return _one_hots([places[cell] for cell in cells], self.width)


def _one_hots(places: Sequence[int], width: int) -> FloatArray:
    """Return one-hots (n, width) of `places` in 0 .. width; the last is all zeros."""
    rows = np.zeros((len(places), width + 1), np.float32)
    rows[np.arange(len(places)), places] = 1.0
    return rows[:, :width]


Line = tuple[int, list[str]]
"""Number and cells."""

Column = NumberColumn | CategoryColumn | Hashed
"""How cells of one column become `width` features each; `encode` raises `ValueError`, with a reason, where not."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a file: separator, column names (None: its first line has them), and lines to pass over.

    `header` says whether the first line has names; with `names` given they must be the same. Lines that open with
    `comment`, and empty ones, are passed over. Spaces after a separator are dropped.
    """

    separator: str = ","
    names: tuple[str, ...] | None = None
    header: bool = True
    comment: str | None = None


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Encoded rows of the file at `path`: `blocks[name]`, float32 (N, width), by column; label cells; line numbers.

    `identifiers` are the columns that look like identifiers by their first rows.
    """

    path: Path
    blocks: dict[str, FloatArray]
    labels: list[str]
    lines: list[int]
    identifiers: list[str]

    def numbers(self, name: str) -> FloatArray:
        """Return the cells of the label column `name` as numbers (N,); `InputError` naming the line of another."""
        with reading(self.path):
            return _encoded(NumberColumn(name), self.labels, self.lines)[:, 0]

    def records(self, groups: Groups, classes: Mapping[str, int]) -> Records:
        """Return a block for each group of columns, (N, sum of their widths), and the class of each row.

        Raises `InputError` naming the line whose label has no class.
        """
        numbers = [classes.get(cell, -1) for cell in self.labels]
        if -1 in numbers:
            row = numbers.index(-1)
            right = ", ".join(map(repr, [*classes][:20]))
            raise InputError(
                f"{self.path}: line {self.lines[row]} has label {self.labels[row][:40]!r}; use one of {right}"
            )
        blocks = (np.hstack([self.blocks[name] for name in group]) for group in groups)
        return Records(tuple(map(np.ascontiguousarray, blocks)), np.array(numbers, np.int64))


def read_table(path: Path, layout: Layout, columns: Sequence[Column], label: str) -> EncodedTable:
    """Return the rows of `path`: `columns` encoded, and the cells of column `label`.

    Raises `InputError` naming the file, and the line and the column where there is one. Refused are a file that is
    missing, too large, empty or no UTF-8, other columns, a line of another length, and a cell that its column refuses.
    Too large may be the file, a line, or the features, also for the memory that is free: the first rows tell.
    """
    size = check_size(path, FILE_LIMIT, hint=ADVICE)
    rows = _rows(path, layout)
    names = next(rows)[1]
    chunks: dict[str, list[FloatArray]] = {column.name: [] for column in columns}
    labels: list[str] = []
    lines: list[int] = []
    identifiers: list[str] = []
    width = sum(column.width for column in columns)
    free = memory_available()
    with reading(path):
        for name in (*chunks, label):
            if name not in names:
                raise ValueError(f"has no column {name!r}; its columns are {', '.join(names)}")
        while chunk := list(islice(rows, CHUNK)):
            if not labels:
                characters = sum(len(cell) + 1 for _, row in chunk for cell in row)
                # half: an estimate may be wrong
                _check_features(len(chunk) * size // (2 * characters), width, free)
            _check_features(len(labels) + len(chunk), width, free)
            for column in columns:
                name = column.name
                place = names.index(name)
                cells = [row[place] for _, row in chunk]
                chunks[name].append(_encoded(column, cells, [line for line, _ in chunk]))
                if not labels and is_identifier(name, cells, words=not isinstance(column, NumberColumn)):
                    identifiers.append(name)
            place = names.index(label)
            labels += (intern(row[place]) for _, row in chunk)  # one string a class, not one a row
            lines += (line for line, _ in chunk)
        if not labels:
            raise ValueError("has no rows; use at least one")
    blocks = {name: np.concatenate(blocks) for name, blocks in chunks.items()}
    return EncodedTable(path, blocks, labels, lines, identifiers)


MOST_VALUES = 1_000
"""Categories of a column, at most."""


def read_features(path: Path, *, without: str) -> tuple[FloatArray, tuple[Column, ...]]:
    """Return the rows (N, width) of a CSV file, and the columns that they encode: all but the one named `without`.

    A column is of categories where its first cell is no number. These are all that it holds, so an encoding depends on
    all rows: it is for the truth of a metric alone.

    Raises `InputError` as `read_table`, and for more than 1,000 categories in a column.
    """
    layout = Layout()
    check_size(path, FILE_LIMIT, hint=ADVICE)
    rows = _rows(path, layout)
    names = next(rows)[1]
    kept = {name: place for place, name in enumerate(names) if name != without}
    values: dict[str, set[str]] = {}
    with reading(path):
        if not kept:
            raise ValueError(f"has no column but {without!r}; use at least one feature")
        for number, (line, row) in enumerate(rows):
            if number == 0:
                values = {name: set() for name, place in kept.items() if not _is_number(row[place])}
            for name, found in values.items():
                found.add(intern(row[kept[name]]))
                if len(found) > MOST_VALUES:
                    raise ValueError(f"line {line}, column {name!r}: is category {len(found):,}; leave the column out")
    columns = tuple(
        CategoryColumn(name, tuple(sorted(values[name]))) if name in values else NumberColumn(name) for name in kept
    )
    table = read_table(path, layout, columns, names[0])
    return np.hstack([table.blocks[name] for name in kept]), columns


def _is_number(cell: str) -> bool:
    with suppress(ValueError):
        NumberColumn("").encode([cell])
        return True
    return False


def _check_features(rows: int, width: int, free: int | None) -> None:
    needed = 4 * rows * width
    loading = rows * (LOADING * 4 * width + ROW_BYTES)
    size = f"has {rows:,} rows or more of {width} features each"
    if needed > FEATURE_LIMIT:
        raise ValueError(f"{size}, {needed / 1e9:,.1f} GB in memory, more than {FEATURE_LIMIT / 1e9:.1f} GB{ADVICE}")
    if free is not None and loading > free:
        raise ValueError(f"{size}, {loading / 1e9:,.1f} GB to load, and {free / 1e9:,.1f} GB is free{ADVICE}")


def column_runs(names: Sequence[str], clients: int) -> Groups:
    """Cut `names` into `clients` runs whose lengths differ by one at most, the longer ones first.

    Raises `InputError` unless there is a column for each client.
    """
    if check_count("clients", clients) > len(names):
        raise InputError(f"use at most the {len(names)} columns", "clients", clients)
    # Places are cut, not the names: as an array these would lose trailing NULs, and each take the longest one's memory.
    return tuple(tuple(names[place] for place in run) for run in np.array_split(np.arange(len(names)), clients))


def variables_of(groups: Groups, columns: Iterable[Column]) -> tuple[Variable, ...]:
    """Return the variables of blocks that hold a group of `columns` each."""
    by_name = {column.name: column for column in columns}
    variables = []
    for client, group in enumerate(groups, start=1):
        start = 0
        for name in group:
            column = by_name[name]
            stop = start + column.width
            values = column.values if isinstance(column, CategoryColumn) else ()
            variables.append(Variable(name, client, slice(start, stop), values))
            start = stop
    return tuple(variables)


def _encoded(column: Column, cells: Sequence[str], lines: Sequence[int]) -> FloatArray:
    with suppress(ValueError):
        return column.encode(cells)
    for cell, line in zip(cells, lines, strict=True):
        try:
            column.encode([cell])
        except ValueError as error:
            raise ValueError(f"line {line}, column {column.name!r}: {cell[:40]!r} {error}") from error
    raise AssertionError(f"{column.name!r} refuses cells together that it takes one by one")


def _rows(path: Path, layout: Layout) -> Iterator[Line]:
    """Yield (0, column names), then (line number, cells) of each row, as many cells as names."""
    with reading(path), io.TextIOWrapper(open_plain(path), "utf-8-sig", newline="") as file:
        lines = bounded_lines(file, LINE_LIMIT, "characters")
        reader = csv.reader(
            _quoted_once(lines) if layout.header else lines,
            delimiter=layout.separator,
            skipinitialspace=True,
            strict=True,
        )
        try:
            names = [*(layout.names or ())]
            if layout.header:
                names = _header(next(reader, []), layout)
            yield 0, names
            for row in reader:
                if not row or (layout.comment and row[0].startswith(layout.comment)):
                    continue
                if len(row) != len(names):
                    raise ValueError(
                        f"line {reader.line_num} has {len(row)} columns; use {len(names)}, separated by "
                        f"{layout.separator!r}"
                    )
                yield reader.line_num, [cell.strip() for cell in row]
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num} cannot be read ({error})") from error
        except UnicodeDecodeError as error:
            place = first_not_utf8(path) + 1
            raise ValueError(f"byte {place} is not UTF-8 text ({error.reason})") from error


QUOTED_TWICE = re.compile(r"""(?:^|[,;\t|])\s*"?(""[^",;\t|]+"")(?=$|["\s,;\t|])""")


def _quoted_once(lines: Iterator[str]) -> Iterator[str]:
    """Yield `lines`; `ValueError` for a header whose names are quoted twice, as in a file that was exported twice."""
    for header in islice(lines, 1):
        if match := QUOTED_TWICE.search(header.strip()):
            name = match[1][2:-2]
            raise ValueError(
                f'line 1 quotes column names twice ({match[1]}); use {name} or "{name}"; '
                "remove the doubled quotes, there and in the rows below, or export the table again"
            )
        yield header
    yield from lines


def _header(row: list[str], layout: Layout) -> list[str]:
    names = [name.strip() for name in row]
    if layout.names is not None and names != list(layout.names):
        raise ValueError(f"line 1 names {', '.join(names)[:120] or 'nothing'}; use {', '.join(layout.names)}")
    counts = Counter(names)
    twice = [name for name in names if not name or counts[name] > 1]
    if not names or twice:
        reason = f"names {twice[0]!r} twice or not at all" if twice else "is empty"
        raise ValueError(f"line 1 {reason}; use each column once")
    return names


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A published table.

    Args:
        layout: How its files are written; columns without scale or values are not used.
        label: The column to predict, `classes` the number of each of its values.
        scales: What each number is divided by.
        values: The published values of each category; any other value is all zeros.
        groups: The columns of each client where they go by groups.
        rows: Rows of each class by file: train and test, or one file that a fixed split parts.
        sample: The file of `rows` that a subset is, where the source publishes one; without it a subset is any rows.
        notes: Sentences that whoever reads a result on the table should know.
    """

    layout: Layout
    label: str
    classes: Mapping[str, int]
    scales: Mapping[str, float]
    values: Mapping[str, tuple[str, ...]]
    groups: Mapping[str, tuple[str, ...]]
    rows: Mapping[str, tuple[int, ...]]
    sample: str = ""
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are features, in the files' order."""
        columns: list[Column] = []
        for name in self.layout.names or ():
            if name in self.scales:
                columns.append(NumberColumn(name, self.scales[name]))
            elif name in self.values:
                columns.append(CategoryColumn(name, self.values[name]))
        return tuple(columns)


def read_published_set(table: PublishedTable, request: DataRequest, *, subset: bool = False) -> VerticalDataset:
    """Return the rows of `table`, each client's columns as one block, float32 (N, width), 2 classes.

    "groups" are the table's own, "columns" are runs of whole columns in the file's order. With `subset` any rows will
    do, or those of the published sample. Raises `InputError` naming the file, the line and the column for whatever is
    malformed, and for files that have not the published rows of each class.
    """
    groups: Groups = [*table.groups.values()]
    held = [f"{name} ({', '.join(columns)})" for name, columns in table.groups.items()]
    if request.partition == "columns":
        groups = column_runs([column.name for column in table.columns], request.clients)
        held = [", ".join(columns) for columns in groups]
    parts = []
    sample = table.sample
    for name, rows in table.rows.items():
        if (name == sample) != (subset and bool(sample)):
            continue
        path = request.find(name)
        records = read_table(path, table.layout, table.columns, table.label).records(groups, table.classes)
        parts.append(records)
        counts = np.bincount(records.labels, minlength=2).tolist()
        if counts != [*rows] and (sample or not subset):
            hint = f"use the original {name}" if sample else "give ‹subset› to use what is there"
            raise InputError(f"{path}: has {counts} rows by class, the original has {[*rows]}; {hint}")
    total = sum(map(len, parts))
    original = sum(sum(rows) for name, rows in table.rows.items() if name != sample)
    notes = table.notes
    if total != original:
        of_sample = "the source's sample of " if sample else ""
        notes += (f"a subset: {of_sample}{total:,} of {original:,} rows",)
    train, test = parts if len(parts) == 2 else request.split(parts[0])
    return request.dataset(train, test, "; ".join(held), notes=notes, variables=variables_of(groups, table.columns))


MOST_CLASSES = 1_000
SEPARATORS = {"tab": "\t", "\\t": "\t"}
"""What a character is called that a command line can hardly hold."""


# Its parameters are the options of a table on the command line and in claims.
def load_csv(
    path: Path | str,
    *,
    label: str,
    clients: int | None = None,
    groups: Groups | None = None,
    categories: Sequence[str] = (),
    buckets: int = 16,
    scales: Mapping[str, float] | None = None,
    classes: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    test: Path | str | None = None,
    separator: str = ",",
    task: TaskName = "classification",
) -> VerticalDataset:
    """Return the rows of the CSV file `path`, whose first line names its columns, cut by columns.

    `separator` stands between cells; `tab` is one too.

    The columns but `label` and `drop` go to `clients` (default 2) in runs of whole columns in the file's order,
    or to a client a group where `groups` lists columns. Columns in `categories` become one-hots of `buckets`
    hash buckets; all others must be numbers, which are divided by their constant in `scales`, or used as they
    are: nothing is ever scaled by what the file holds, since that would leak from it unaccounted. `classes` lists
    the labels in the order of their numbers; without it they are the distinct cells of the label column, sorted
    (as numbers if all are): then one record can change what they are, and `fitted` of the data set says so. Where
    `task` is "regression" labels are numbers, which systems of the user's own learn; see `VerticalDataset.values`.
    `test` is a second file with the same columns; without it a fixed split by position makes the parts. Blocks are
    float32 (N, width).

    Raises `InputError` naming the file, and the line and the column where there is one, for whatever is
    malformed; a column that is in none or several groups, or that does not exist, is named too.
    """
    return CsvTable(
        path, label, clients, groups, categories, scales or {}, drop, test, separator, classes, buckets, task
    ).load()


@dataclass(frozen=True)
class CsvTable:
    """A table of one's own, as `load_csv` describes it; `InputError` for what its first line shows to be wrong."""

    path: Path | str
    label: str
    clients: int | None
    groups: Groups | None
    categories: Sequence[str]
    scales: Mapping[str, float]
    drop: Sequence[str]
    test: Path | str | None
    separator: str
    classes: Sequence[str] | None = None
    buckets: int = 16
    task: TaskName = "classification"

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(f"use {' or '.join(TASKS)}", "task", self.task)
        if self.task == "regression" and self.classes:
            raise InputError(": leave them out where ‹task› is regression: the label is a number", "classes")
        separator = self.layout.separator
        if len(separator) != 1 or separator in '" \r\n':
            raise InputError("use one character such as ',' or ';', or tab", "separator", separator)
        for source in self.sources:
            if not source.is_file():
                reason = "is not a file" if source.exists() else "no such file"
                raise InputError(f"{source}: {reason}; use a CSV file whose first line names its columns")
        first = self.sources[0]
        names = self.names
        for mark in ",;\t|":
            if len(names) == 1 and mark in next(iter(names)) and mark != separator:
                raise InputError(f"but line 1 of {first} is cut into columns by {mark!r}", "separator", separator)
        named = {"label": [self.label], "drop": self.drop, "categories": self.categories, "scales": [*self.scales]}
        for option, columns in named.items():
            for name in columns:
                if name not in names:
                    raise unknown_name(option, name, names, f" of {first}")
                if name == self.label and option != "label":
                    raise InputError(f"the label; use another column of {first}", option, name)
        if len(names) == 1 + len({*self.drop}):
            raise InputError(f"{first}: has no column but {', '.join(names)}; use at least one feature")
        for name in self.categories:
            if name in self.scales:
                raise InputError(
                    f": column {name!r} is in categories and in scales; name it in one of them ({first})", "scales"
                )

    @property
    def layout(self) -> Layout:
        """The layout of the files."""
        return Layout(separator=SEPARATORS.get(self.separator, self.separator))

    @property
    def sources(self) -> list[Path]:
        """The file, and the second one where there is one."""
        return [Path(path) for path in (self.path, self.test) if path is not None]

    @property
    def names(self) -> dict[str, None]:
        """The columns that the first line names; looking one up takes no time however many there are."""
        first = self.sources[0]
        return _names(first, self.layout, _version(first))

    def count(self) -> tuple[int, int]:
        """Return how many rows would train, and the clients; rows are counted, and none is kept.

        Raises `InputError` for a row of another length.
        """
        clients = len(self.held())
        counts = [_count_rows(source, self.layout, _version(source)) for source in self.sources]
        return (counts[0] if len(counts) == 2 else train_count(counts[0])), clients

    def load(self) -> VerticalDataset:
        """Return the data set, as `load_csv` says."""
        first = self.sources[0]
        hashed = {*self.categories}
        columns: list[Column] = [
            Hashed(name, self.buckets) if name in hashed else NumberColumn(name, self.scales.get(name, 1.0), own=True)
            for name in self.features()
        ]
        held = self.held()
        tables = [read_table(source, self.layout, columns, self.label) for source in self.sources]
        for table in tables:
            if "" in table.labels:
                line = table.lines[table.labels.index("")]
                raise InputError(f"{table.path}: line {line}, column {self.label!r}: is empty; use a label")
        numbers, values = self._labels(tables)
        parts = [table.records(held, numbers) for table in tables]
        train, rest = parts if len(parts) == 2 else split_records(parts[0], seed=1)
        numeric = [column.name for column in columns if isinstance(column, NumberColumn)]
        plain = ", ".join(name for name in numeric if name not in self.scales)
        largest = {name: max(float(np.abs(table.blocks[name]).max()) for table in tables) for name in numeric}
        named_files = zip(("csv", "test"), self.sources, strict=False)
        return VerticalDataset(
            name=f"csv:{first.name}",
            train=train,
            test=rest,
            classes=len(numbers) if values is None else len(values),
            partition=f"{len(held)} clients, columns: {'; '.join(map(', '.join, held))}",
            digests={f"{option}/{path.name}": file_digest(path) for option, path in named_files},
            notes=(f"used as they are, for want of a scaling constant: {plain}",) if plain else (),
            hints=hints_of(tables[0].identifiers, largest, self.scales),
            fitted=()
            if self.classes or values is not None
            else (f"the set of classes was read off the label column {self.label!r}",),
            variables=variables_of(held, columns),
            values=values,
        )

    def _labels(self, tables: Sequence[EncodedTable]) -> tuple[dict[str, int], FloatArray | None]:
        """Return the class of each label cell, and where the target is a number what classes stand for."""
        cells = {cell for table in tables for cell in table.labels}
        if self.task == "classification":
            return _classes(self.sources[0], self.label, cells, self.classes), None
        numbers = [table.numbers(self.label) for table in tables]
        with reading(self.sources[0]):
            values = distinct_numbers(np.concatenate(numbers))
        of_cells = {
            cell: int(place)
            for table, own in zip(tables, numbers, strict=True)
            for cell, place in zip(table.labels, np.searchsorted(values, own), strict=True)
        }
        return of_cells, values

    def features(self) -> list[str]:
        """Return the columns but the label and those that are dropped."""
        left_out = {self.label, *self.drop}
        return [name for name in self.names if name not in left_out]

    def held(self) -> Groups:
        """Return the columns of each client; `InputError` for groups that do not have each feature once."""
        path = self.path
        known = self.features()
        if self.groups is None:
            return column_runs(known, 2 if self.clients is None else self.clients)
        if self.clients is not None and check_count("clients", self.clients) != len(self.groups):
            raise InputError(f"use {len(self.groups)}, the number of groups", "clients", self.clients)
        counts = Counter(chain.from_iterable(self.groups))
        features = {*known}
        for name in counts:
            if name not in features:
                raise unknown_name("groups", name, known, f" of {path}")
        for name, count in counts.items():
            if count > 1:
                raise InputError(f": column {name!r} is in several groups; put it in one ({path})", "groups")
        for name in known:
            if name not in counts:
                raise InputError(
                    f": column {name!r} is in no client's group; put it in one (‹groups›) or leave it out (‹drop›) "
                    f"({path})",
                    "groups",
                )
        if not all(self.groups):
            raise InputError("a group is empty; use at least one column")
        return self.groups


def _version(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@lru_cache
def _names(path: Path, layout: Layout, version: tuple[int, ...]) -> dict[str, None]:
    return dict.fromkeys(next(_rows(path, layout))[1])


@lru_cache
def _count_rows(path: Path, layout: Layout, version: tuple[int, ...]) -> int:
    check_size(path, FILE_LIMIT, hint=ADVICE)
    count = sum(1 for _ in _rows(path, layout)) - 1
    if not count:
        raise InputError(f"{path}: has no rows; use at least one")
    return count


def _classes(path: Path, label: str, cells: set[str], classes: Sequence[str] | None) -> dict[str, int]:
    names = [*(cells if classes is None else classes)]
    if classes is None:
        try:
            names.sort(key=lambda name: (float(name), name))
        except ValueError:
            names.sort()
    count = len(set(names))
    if not 2 <= count == len(names) <= MOST_CLASSES:
        values = "value" if count == 1 else "values"
        right = f"use 2 to {MOST_CLASSES}, one a class"
        if count > MOST_CLASSES:
            right += ", or ‹task› regression where the label is a number"
        raise InputError(f"{path}: label column {label!r} has {count} distinct {values}; {right}")
    return {name: number for number, name in enumerate(names)}


def read_breast_cancer(request: DataRequest) -> VerticalDataset:
    """Return scikit-learn's breast cancer (448 train, 121 test records, 2 classes: 0 malignant, 1 benign).

    Blocks are 30 / clients neighbouring columns, in [0, 1]: (N, 30 / clients).
    """
    from sklearn import datasets

    bunch: Any = datasets.load_breast_cancer()
    source = np.ascontiguousarray(bunch.data, np.float64)
    labels = np.ascontiguousarray(bunch.target, np.int64)
    scales = declared("breast-cancer", "scales", tuple[float, ...])
    blocks = equal_runs((source / scales).astype(np.float32), request.clients)
    train, test = request.split(Records(blocks, labels))
    digests = {
        "breast-cancer/data": array_digest(source),
        "breast-cancer/target": array_digest(labels.astype(np.uint8)),
    }
    return request.dataset(train, test, f"{30 // request.clients} of the 30 columns each", digests=digests)
