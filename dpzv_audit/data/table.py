"""Tables of numbers and categories: reads separated values and encodes each row by public constants alone.

A number is divided by a constant, a category becomes a one-hot of a fixed list of values (all zeros for any
other value) or of hash buckets. No row's encoding depends on another row.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Protocol, TextIO

import numpy as np

from dpzv_audit.data.files import check_size, memory_available, unreadable
from dpzv_audit.data.vertical import FloatArray, LabelArray
from dpzv_audit.errors import InputError, check_count, check_positive
from dpzv_audit.plain_files import first_not_utf8, open_plain

FILE_LIMIT = 2 << 30
FEATURE_LIMIT = 2 << 30
"""The most bytes that the features of one file may take, as float32."""

LOADING = 3.5
"""Loading takes so many times the features' own bytes at its height (pieces, columns, blocks, parts) ..."""

ROW_BYTES = 100
"""... and so many for a row's label and line number."""

LINE_LIMIT = 1 << 20
CHUNK = 8192
ADVICE = "use a sample of its rows, or fewer columns"
LARGEST = float(np.finfo(np.float32).max)
NO_NUMBER = "is no number, must be one such as 1000 or -1.5e3"
TOO_LARGE = f"is too large, must be at most {LARGEST:.2g} over the scale of its column"
_WORDS = "‹categories› is for columns of words, ‹drop› leaves one out"


class Column(Protocol):
    """How the cells of one column become features."""

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int: ...

    def encode(self, cell: str) -> Sequence[float]:
        """Return `width` features; `ValueError`, with a reason, for a cell that has none."""
        ...


@dataclass(frozen=True)
class Number:
    """A number, divided by the public constant `scale`."""

    name: str
    scale: float = 1.0
    own: bool = False
    """Whether the column is of the user's own table, where other options would help."""

    def __post_init__(self) -> None:
        check_positive(f"scale of column {self.name!r}", self.scale)

    @property
    def width(self) -> int:
        """One feature."""
        return 1

    def encode(self, cell: str) -> Sequence[float]:
        """Return the number over `scale`; `ValueError` unless it is finite (in float32 too)."""
        # float() would also take 1_000 and digits of other scripts
        if "_" in cell or not cell.isascii():
            raise ValueError(self._advised(NO_NUMBER, _WORDS))
        try:
            value = float(cell)
        except ValueError:
            raise ValueError(self._advised(NO_NUMBER, _WORDS)) from None
        if math.isnan(value) or "inf" in cell.lower():
            raise ValueError("is no finite number")
        if abs(value / self.scale) > LARGEST:
            raise ValueError(self._advised(TOO_LARGE, "‹scales› gives it"))
        return (value / self.scale,)

    def _advised(self, wrong: str, advice: str) -> str:
        return f"{wrong}; {advice}" if self.own else wrong

    def encode_all(self, cells: Sequence[str]) -> FloatArray | None:
        """Return what `encode` gives for each of `cells`, (n, 1), several times as fast; None if it refuses any."""
        together = "".join(cells)
        if "_" in together or not together.isascii():
            return None
        try:
            with np.errstate(over="ignore"):  # what overflows is refused below
                values = np.array([float(cell) for cell in cells], dtype=np.float64) / self.scale
        except ValueError:
            return None
        if not (np.abs(values) <= LARGEST).all():  # also false for nan
            return None
        encoded: FloatArray = values.astype(np.float32)[:, None]
        return encoded


@dataclass(frozen=True)
class Category:
    """One of a fixed public list of values, as a one-hot in its order; any other value is all zeros."""

    name: str
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """A feature a value."""
        return len(self.values)

    def encode(self, cell: str) -> Sequence[float]:
        """Return the one-hot of `cell`."""
        return [float(cell == value) for value in self.values]


@dataclass(frozen=True)
class Hashed:
    """A category without a list of its values: the one-hot of one of `buckets`, by a fixed hash of name and value."""

    name: str
    buckets: int

    def __post_init__(self) -> None:
        check_count(f"buckets of column {self.name!r}", self.buckets, least=2)

    @property
    def width(self) -> int:
        """A feature a bucket."""
        return self.buckets

    def encode(self, cell: str) -> Sequence[float]:
        """Return the one-hot of the bucket of `cell`."""
        digest = hashlib.blake2b(f"{self.name}\0{cell}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        features = [0.0] * self.buckets
        features[int.from_bytes(digest, "big") % self.buckets] = 1.0
        return features


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a file is written: separator, column names (None: its first line has them), and lines to pass over.

    `header` says whether the first line has names; with `names` given they must be the same. Lines that open with
    `comment`, and empty ones, are passed over. Spaces after a separator are dropped.
    """

    separator: str = ","
    names: tuple[str, ...] | None = None
    header: bool = True
    comment: str | None = None


@dataclass(frozen=True, eq=False)
class Table:
    """Encoded rows: `blocks[name]`, float32 (N, width), for each column; label cells as they stand; line numbers."""

    blocks: dict[str, FloatArray]
    labels: tuple[str, ...]
    lines: tuple[int, ...]


def read_table(path: Path, layout: Layout, columns: Sequence[Column], label: str) -> Table:
    """Return the rows of `path`: `columns` encoded, and the cells of column `label`.

    Raises `InputError` naming the file, and the line and the column where there is one, for a file that is
    missing, too large (itself, a line of it, or its features, also for the memory that is free; as early as its first
    rows can tell), empty or no UTF-8, for other columns, a line of another length, and a cell that its column refuses.
    """
    size = check_size(path, FILE_LIMIT, advice=ADVICE)
    rows = _rows(path, layout)
    names = next(rows)[1]
    places = {name: place for place, name in enumerate(names)}
    for name in (*(column.name for column in columns), label):
        if name not in places:
            raise InputError(f"{path}: has no column {name!r}; its columns are {', '.join(names)}")
    parts: dict[str, list[FloatArray]] = {column.name: [] for column in columns}
    labels: list[str] = []
    classes: dict[str, str] = {}  # one string a class, not one a row
    lines: list[int] = []
    width = sum(column.width for column in columns)
    free = memory_available()
    while chunk := list(islice(rows, CHUNK)):
        if not labels:
            characters = sum(len(cell) + 1 for _, row in chunk for cell in row)
            _check_features(path, len(chunk) * size // (2 * characters), width, free)  # half: an estimate may be wrong
        _check_features(path, len(labels) + len(chunk), width, free)
        for column in columns:
            parts[column.name].append(_encoded(path, column, places[column.name], chunk))
        labels.extend(classes.setdefault(cell, cell) for cell in (row[places[label]] for _, row in chunk))
        lines.extend(line for line, _ in chunk)
    if not labels:
        raise InputError(f"{path}: has no rows, must have at least one")
    return Table({name: np.concatenate(blocks) for name, blocks in parts.items()}, tuple(labels), tuple(lines))


def _check_features(path: Path, rows: int, width: int, free: int | None) -> None:
    needed = 4 * rows * width
    found = f"{path}: has {rows:,} rows or more of {width} features each"
    if needed > FEATURE_LIMIT:
        most = f"must have {FEATURE_LIMIT / 1e9:.1f} GB at most"
        raise InputError(f"{found}, {needed / 1e9:,.1f} GB in memory, {most}; {ADVICE}")
    loading = rows * (LOADING * 4 * width + ROW_BYTES)
    if free is not None and loading > free:
        raise InputError(f"{found}, {loading / 1e9:,.1f} GB to load, and {free / 1e9:,.1f} GB is free; {ADVICE}")


def header_of(path: Path, layout: Layout) -> tuple[str, ...]:
    """Return the column names of `path`; raises what `read_table` raises for its first line."""
    check_size(path, FILE_LIMIT, advice=ADVICE)
    return tuple(next(_rows(path, layout))[1])


def label_classes(path: Path, table: Table, classes: Mapping[str, int]) -> LabelArray:
    """Return the class of each row, int64 (N,); `InputError` naming the line whose label has no class."""
    found = [classes.get(cell, -1) for cell in table.labels]
    if -1 in found:
        row = found.index(-1)
        right = ", ".join(repr(name) for name in list(classes)[:20])
        raise InputError(
            f"{path}: line {table.lines[row]} has label {table.labels[row][:40]!r}, must be one of {right}"
        )
    return np.array(found, dtype=np.int64)


def join_columns(blocks: Mapping[str, FloatArray], groups: Sequence[Sequence[str]]) -> tuple[FloatArray, ...]:
    """Return a block a group of columns, float32 (N, sum of their widths), in the order given."""
    return tuple(np.ascontiguousarray(np.hstack([blocks[name] for name in group])) for group in groups)


def column_runs(names: Sequence[str], clients: int) -> tuple[tuple[str, ...], ...]:
    """Cut `names` into `clients` runs whose lengths differ by one at most, the longer ones first.

    Raises `InputError` unless there is a column for each client.
    """
    if check_count("clients", clients) > len(names):
        raise InputError(f"must be at most the {len(names)} columns", "clients", clients)
    least, more = divmod(len(names), clients)
    bounds = [client * least + min(client, more) for client in range(clients + 1)]
    return tuple(tuple(names[start:end]) for start, end in pairwise(bounds))


def _encoded(path: Path, column: Column, place: int, chunk: list[tuple[int, list[str]]]) -> FloatArray:
    if isinstance(column, Number):
        numbers = column.encode_all([row[place] for _, row in chunk])
        if numbers is not None:
            return numbers
    known: dict[str, Sequence[float]] = {}  # most cells of a chunk repeat
    for line, row in chunk:
        cell = row[place]
        if cell not in known:
            try:
                known[cell] = column.encode(cell)
            except ValueError as error:
                raise InputError(f"{path}: line {line}, column {column.name!r}: {cell[:40]!r} {error}") from error
    return np.array([known[row[place]] for _, row in chunk], dtype=np.float32)


def _rows(path: Path, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Yield (0, column names), then (line number, cells) of each row, as many cells as names."""
    try:
        with io.TextIOWrapper(open_plain(path), encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_lines(path, file), delimiter=layout.separator, skipinitialspace=True, strict=True)
            names = list(layout.names or ())
            if layout.header:
                names = _header(path, next(reader, []), layout)
            yield 0, names
            for row in reader:
                if not row or (layout.comment and row[0].startswith(layout.comment)):
                    continue
                if len(row) != len(names):
                    found = f"{path}: line {reader.line_num} has {len(row)} columns"
                    raise InputError(f"{found}, must have {len(names)}, separated by {layout.separator!r}")
                yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num} cannot be read ({error})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {first_not_utf8(path) + 1} is not UTF-8 text ({error.reason})") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    number = 0
    while line := file.readline(LINE_LIMIT + 1):
        number += 1
        if len(line) > LINE_LIMIT:
            most = f"must have {LINE_LIMIT} at most"
            raise InputError(f"{path}: line {number} has more than {LINE_LIMIT} characters, {most}")
        yield line


def _header(path: Path, row: list[str], layout: Layout) -> list[str]:
    names = [name.strip() for name in row]
    if layout.names is not None and names != list(layout.names):
        found = ", ".join(names)[:120] or "nothing"
        raise InputError(f"{path}: line 1 names {found}, must name {', '.join(layout.names)}")
    twice = [name for place, name in enumerate(names) if not name or name in names[:place]]
    if not names or twice:
        found = f"names {twice[0]!r} twice or not at all" if twice else "is empty"
        raise InputError(f"{path}: line 1 {found}, must name each column once")
    return names
