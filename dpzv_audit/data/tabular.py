"""Published tables (UCI Adult, bank marketing) by what `sets/NAME.toml` declares of their columns and groups.

Every row is encoded by public constants alone: numbers are divided by one, categories are one-hots of a fixed list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpzv_audit.data.files import file_digest
from dpzv_audit.data.spec import DataRequest
from dpzv_audit.data.split import split_records
from dpzv_audit.data.table import Category, Column, Layout, Number, column_runs, join_columns, label_classes, read_table
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A published table.

    Args:
        layout: How its files are written; columns without scale or values are not used.
        label: The column to predict, `classes` the number of each of its values.
        scales: What each number is divided by.
        values: The published values of each category; any other value is all zeros.
        groups: The columns of each client where they go by groups.
        rows: Rows of each class by file: train and test, or one file that a fixed split by `split_seed` parts.
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
    split_seed: int = 0
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that are features, in the files' order."""
        used = (name for name in self.layout.names or () if name in self.scales or name in self.values)
        return tuple(
            Number(name, self.scales[name]) if name in self.scales else Category(name, self.values[name])
            for name in used
        )


def read_published_set(table: PublishedTable, request: DataRequest, *, subset: bool = False) -> VerticalDataset:
    """Return the rows of `table`, each client's columns as one block, float32 (N, width), 2 classes.

    "groups" are the table's own, "columns" are runs of whole columns in the file's order. With `subset` any rows will
    do, or those of the published sample. Raises `InputError` naming the file, the line and the column for whatever is
    malformed, and for files that have not the published rows of each class.
    """
    held, words = _columns_of_clients(table, request)
    names = [name for name in table.rows if (name == table.sample) == (subset and bool(table.sample))]
    parts, digests = [], {}
    for name in names:
        path = request.find(name)
        records = read_published(path, table, held)
        found = np.bincount(records.labels, minlength=2).tolist()
        if found != list(table.rows[name]) and not (subset and not table.sample):
            hint = f"it must be the original {name}" if table.sample else "give ‹subset› to use what is there"
            original = f"the original has {list(table.rows[name])}; {hint}"
            raise InputError(f"{path}: has {found} rows by class, {original}")
        parts.append(records)
        digests[name] = file_digest(path)
    total = sum(map(len, parts))
    right = sum(sum(rows) for name, rows in table.rows.items() if name != table.sample)
    train, test = parts if len(parts) == 2 else split_records(parts[0], seed=table.split_seed)
    of_sample = "the source's sample of " if table.sample else ""
    return VerticalDataset(
        name=request.spec.name,
        train=train,
        test=test,
        classes=2,
        partition=words,
        digests=digests,
        notes=table.notes if total == right else (*table.notes, f"a subset: {of_sample}{total:,} of {right:,} rows"),
    )


def read_published(path: Path, table: PublishedTable, groups: tuple[tuple[str, ...], ...]) -> Records:
    """Return the rows of `path`, a block for each of `groups`; raises what `read_table` and `label_classes` raise."""
    read = read_table(path, table.layout, table.columns, table.label)
    return Records(join_columns(read.blocks, groups), label_classes(path, read, table.classes))


def _columns_of_clients(table: PublishedTable, request: DataRequest) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Return the columns of each client, and the same in words."""
    if request.partition == "groups":
        words = "; ".join(f"{name} ({', '.join(columns)})" for name, columns in table.groups.items())
        return tuple(table.groups.values()), f"{request.clients} clients, groups: {words}"
    runs = column_runs([column.name for column in table.columns], request.clients)
    return runs, f"{request.clients} clients, columns: {'; '.join(', '.join(run) for run in runs)}"
