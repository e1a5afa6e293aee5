"""Published tables (Adult, bank marketing): how the rows of one become records cut over clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpzv_audit.data.table import Column, Layout, Table, column_runs, label_classes, read_table
from dpzv_audit.data.vertical import LabelArray
from dpzv_audit.errors import InputError, check_count

PARTITIONS = ("groups", "columns")


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A table's columns and public constants: encodings, the groups they come in, label and its classes."""

    name: str
    columns: tuple[Column, ...]
    groups: Mapping[str, tuple[str, ...]]
    label: str
    classes: Mapping[str, int]


@dataclass(frozen=True)
class Cut:
    """Which columns each client holds, and the same in words."""

    groups: tuple[tuple[str, ...], ...]
    words: str


def choose_cut(table: PublishedTable, clients: int | None, partition: str | None) -> Cut:
    """Return the columns of each client: the table's own groups, or runs of whole columns in the file's order.

    "groups" is the default where `clients` is None or their number; "columns" takes any number of clients up to
    the columns. Raises `InputError` for others.
    """
    own = len(table.groups)
    kind = partition or ("groups" if clients in (None, own) else "columns")
    if kind not in PARTITIONS:
        raise InputError(f"partition is {partition!r}, {table.name} has: {', '.join(PARTITIONS)}")
    count = own if clients is None else check_count("clients", clients)
    if kind == "groups":
        if count != own:
            raise InputError(f"clients is {count}, must be {own} for groups ({', '.join(table.groups)})")
        words = "; ".join(f"{name} ({', '.join(columns)})" for name, columns in table.groups.items())
        return Cut(tuple(table.groups.values()), f"{count} clients, groups: {words}")
    runs = column_runs([column.name for column in table.columns], count)
    return Cut(runs, f"{count} clients, columns: {'; '.join(', '.join(run) for run in runs)}")


def read_published(path: Path, layout: Layout, table: PublishedTable) -> tuple[Table, LabelArray]:
    """Return the encoded rows of `path` and their classes; raises what `read_table` and `label_classes` raise."""
    read = read_table(path, layout, table.columns, table.label)
    return read, label_classes(path, read, table.classes)


def check_rows(path: Path, labels: LabelArray, right: Sequence[int], *, hint: str) -> None:
    """Raise `InputError` unless class c has `right[c]` rows, as in the published file."""
    found = np.bincount(labels, minlength=len(right)).tolist()
    if found != list(right):
        raise InputError(f"{path}: has {found} rows by class, the original has {list(right)}; {hint}")
