"""Any table of one's own: a CSV file with a header, a label column, and columns dealt out to clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpzv_audit.data.files import file_digest
from dpzv_audit.data.split import split_records
from dpzv_audit.data.table import (
    Column,
    Hashed,
    Layout,
    Number,
    Table,
    column_runs,
    header_of,
    join_columns,
    label_classes,
    read_table,
)
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError, check_count, unknown_name

SPLIT_SEED = 1
MOST_CLASSES = 1_000
_SEPARATORS = (",", ";", "\t", "|")


def load_csv(
    path: Path | str,
    *,
    label: str,
    clients: int | None = None,
    groups: Sequence[Sequence[str]] | None = None,
    categories: Sequence[str] = (),
    buckets: int = 16,
    scales: Mapping[str, float] | None = None,
    classes: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    test: Path | str | None = None,
    separator: str = ",",
) -> VerticalDataset:
    """Return the rows of the CSV file `path`, whose first line names its columns, cut by columns.

    The columns but `label` and `drop` go to `clients` (default 2) in runs of whole columns in the file's order,
    or to a client a group where `groups` lists columns. Columns in `categories` become one-hots of `buckets`
    hash buckets; all others must be numbers, which are divided by their constant in `scales`, or used as they
    are: nothing is ever scaled by what the file holds, since that would leak from it unaccounted. `classes` lists
    the labels in the order of their numbers; without it they are the distinct cells of the label column, sorted
    (as numbers if all are): then one record can change what they are, and `fitted` of the data set says so. `test` is
    a second file with the same columns; without it a fixed split by position makes the parts. Blocks are float32
    (N, width).

    Raises `InputError` naming the file, and the line and the column where there is one, for whatever is
    malformed; a column that is in none or several groups, or that does not exist, is named too.
    """
    layout = Layout(separator=_check_separator(separator))
    sources = [Path(path), *([] if test is None else [Path(test)])]
    for source in sources:
        if not source.is_file():
            found = "is no file" if source.exists() else "no such file"
            raise InputError(f"{source}: {found}; must be a CSV file whose first line names its columns")
    names = header_of(sources[0], layout)
    _check_header(sources[0], names, separator)
    scales = scales or {}
    known = _known(sources[0], names, label=label, drop=drop, categories=categories, scales=scales)
    columns = [_column(name, categories, buckets, scales) for name in known]
    held = _groups(sources[0], known, clients, groups)
    tables = [_read(source, layout, columns, label) for source in sources]
    numbers = _classes(sources[0], label, [cell for table in tables for cell in table.labels], classes)
    parts = [
        Records(features=join_columns(table.blocks, held), labels=label_classes(source, table, numbers))
        for source, table in zip(sources, tables, strict=True)
    ]
    train, rest = parts if len(parts) == 2 else split_records(parts[0], seed=SPLIT_SEED)
    return VerticalDataset(
        name=f"csv:{sources[0].name}",
        train=train,
        test=rest,
        classes=len(numbers),
        partition=f"{len(held)} clients, columns: {'; '.join(', '.join(group) for group in held)}",
        digests={
            f"{part}/{file.name}": file_digest(file) for part, file in zip(("csv", "test"), sources, strict=False)
        },
        notes=_notes(columns, scales),
        fitted=() if classes is not None else (f"the set of classes was read off the label column {label!r}",),
    )


def _read(path: Path, layout: Layout, columns: Sequence[Column], label: str) -> Table:
    table = read_table(path, layout, columns, label)
    if "" in table.labels:
        line = table.lines[table.labels.index("")]
        raise InputError(f"{path}: line {line}, column {label!r}: is empty, must be a label")
    return table


def _check_header(path: Path, names: Sequence[str], separator: str) -> None:
    """Raise `InputError` for a header of one name that another separator would cut into several."""
    other = next((mark for mark in _SEPARATORS if len(names) == 1 and mark != separator and mark in names[0]), None)
    if other is not None:
        raise InputError(f"but line 1 of {path} is cut into columns by {other!r}", "separator", separator)


def _check_separator(separator: str) -> str:
    if len(separator) != 1 or separator in '" \r\n':
        raise InputError("must be one character such as ',' or ';', or tab", "separator", separator)
    return separator


def _known(
    path: Path,
    names: Sequence[str],
    *,
    label: str,
    drop: Sequence[str],
    categories: Sequence[str],
    scales: Mapping[str, float],
) -> list[str]:
    for what, given in (("label", [label]), ("drop", drop), ("categories", categories), ("scales", scales)):
        for name in given:
            if name not in names:
                raise unknown_name(what, name, names, f" of {path}")
            if name == label and what != "label":
                raise InputError(f"the label; must be another column of {path}", what, name)
    left = [name for name in names if name != label and name not in drop]
    if not left:
        raise InputError(f"{path}: has no column but {', '.join(names)}, must have at least one feature")
    both = [name for name in categories if name in scales]
    if both:
        raise InputError(
            f": column {both[0]!r} is in categories and in scales, must be in one of them ({path})", "scales"
        )
    return left


def _column(name: str, categories: Sequence[str], buckets: int, scales: Mapping[str, float]) -> Column:
    return Hashed(name, buckets) if name in categories else Number(name, scales.get(name, 1.0), own=True)


def _groups(
    path: Path, known: list[str], clients: int | None, groups: Sequence[Sequence[str]] | None
) -> tuple[tuple[str, ...], ...]:
    if groups is None:
        return column_runs(known, 2 if clients is None else clients)
    chosen = tuple(tuple(group) for group in groups)
    if clients is not None and check_count("clients", clients) != len(chosen):
        raise InputError(f"must be {len(chosen)}, the number of groups", "clients", clients)
    listed = [name for group in chosen for name in group]
    for name in listed:
        if name not in known:
            raise unknown_name("groups", name, known, f" of {path}")
    twice = next((name for name in listed if listed.count(name) > 1), None)
    if twice is not None:
        raise InputError(f": column {twice!r} is in several groups, must be in one ({path})", "groups")
    missing = next((name for name in known if name not in listed), None)
    if missing is not None:
        right = "must be in one (‹groups›) or left out (‹drop›)"
        raise InputError(f": column {missing!r} is in no client's group, {right} ({path})", "groups")
    if not all(chosen):
        raise InputError("a group is empty, must hold at least one column")
    return chosen


def _classes(path: Path, label: str, cells: Sequence[str], classes: Sequence[str] | None) -> dict[str, int]:
    names = list(classes) if classes is not None else _sorted_labels(set(cells))
    if not 2 <= len(set(names)) == len(names) <= MOST_CLASSES:
        values = "1 distinct value" if len(set(names)) == 1 else f"{len(set(names))} distinct values"
        found = f"{path}: label column {label!r} has {values}"
        raise InputError(f"{found}, must have 2 to {MOST_CLASSES}, one a class")
    return {name: number for number, name in enumerate(names)}


def _sorted_labels(names: set[str]) -> list[str]:
    try:
        return sorted(names, key=lambda name: (float(name), name))
    except ValueError:
        return sorted(names)


def _notes(columns: Sequence[Column], scales: Mapping[str, float]) -> tuple[str, ...]:
    plain = [column.name for column in columns if isinstance(column, Number) and column.name not in scales]
    return (f"used as they are, for want of a scaling constant: {', '.join(plain)}",) if plain else ()
