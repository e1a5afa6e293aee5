"""Tables and figures of the source papers, ours beside theirs: each is data, a list of items with printed numbers.

Rows, settings, printed numbers and notes are read from `tables/*.toml`.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain
from pkgutil import resolve_name

from ..errors import InputError, check_names
from ..findings import to_jsonable
from . import attacks, memory, search, training
from .table import Item, PaperTable, Row, Setting, TableParts
from .words import data, filled, page

__all__ = ["TABLES", "PaperTable", "Setting", "TableParts", "reproduce", "table_named", "to_markdown", "with_rows"]

FILES = ("czofo", "cascaded", "completion", "dpzv", "soundness")
"""The papers, in the order in which their tables are listed."""

CODE = {"kind", "remark", "lead", "figure"}
"""Keys of a table that name a class or a function of this package."""

DERIVED = {
    "gains": lambda row: to_jsonable(attacks.gains(row)),
    "epochs_to_target": training.epochs_to_target,
    "megabytes_to_target": training.megabytes_to_target,
    "megabytes_per_epoch": training.megabytes_per_epoch,
    "peak_of_model": memory.peak_of_model,
}
"""Functions of a row that the cells of a table may call."""


def _table(entry: Row, paper: Row) -> PaperTable:
    values = dict(entry)
    text = data("text")
    values |= {key: resolve_name(f"{__name__}.{values[key]}") for key in CODE & set(values)}
    kind = values.pop("kind")
    each = values.pop("each")
    columns = chain(*(text["columns"][name] for name in values.pop("columns")))
    return PaperTable(
        about=" ".join(text["about"].get(part, part) for part in values.pop("about")),
        columns=tuple((heading, cell) for heading, cell in columns),
        items=tuple(_item(kind, each, row, paper) for row in values.pop("rows")),
        notes=tuple(values.pop("notes", ())),
        **values,
    )


def _item(kind: type[Item], each: Row, row: Row, paper: Row) -> Item:
    """Return a row: its options are named settings, the table's before its own, then its own options.

    What is no field of the kind is a tag.
    """
    found = {**each, **row}
    options: dict[str, object] = {}
    for name in (*each.get("settings", ()), *row.get("settings", ())):
        options |= paper["settings"][name]
    found["options"] = options | found.get("options", {})
    if "dataset" in found:
        found["dataset"] = paper["datasets"][found["dataset"]]
    if "tried" in found:
        own = found["trainer"]
        found["trainer"] = search.Federated(**own) if "method" in own else search.FrozenClients(**own)
        names = found.pop("names")
        found["tried"] = tuple(dict(zip(names, values, strict=True)) for values in found["tried"])
    found.pop("settings", None)
    own = {field.name for field in fields(kind)}
    tags = {name: found.pop(name) for name in [*found] if name not in own}
    return kind(**found, tags=tags)


TABLES = {entry["name"]: _table(entry, data(file)) for file in FILES for entry in data(file)["table"]}


def table_named(name: str) -> PaperTable:
    """Return the table called `name`; `InputError` suggesting the nearest known one otherwise."""
    check_names("table", [name], TABLES)
    return TABLES[name]


def with_rows(table: PaperTable, wanted: Sequence[str]) -> PaperTable:
    """Return `table` with only the rows whose label is or contains one of `wanted`; all where nothing is wanted.

    A label that is given whole stands for itself alone, whatever other labels it is part of.

    Raises:
        InputError: One of `wanted` is in no label.
    """
    if not wanted:
        return table
    labels = [item.label for item in table.items]
    chosen: set[str] = set()
    for text in wanted:
        found = {text} if text in labels else {label for label in labels if text in label}
        if not found:
            raise InputError(f"must be part of a row's label: {'; '.join(labels)}", "row", text)
        chosen |= found
    return replace(table, items=tuple(item for item in table.items if item.label in chosen))


def reproduce(table: PaperTable, setting: Setting) -> Row:
    """Compute every row of `table` under `setting`; a JSON-ready result, a function of its arguments alone.

    Rows whose data cannot be cut among so many clients are skipped, and the result says why.

    Raises:
        InputError: The data are absent, a kept part is damaged, or every row is skipped.
    """
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for item in table.items:
        try:
            rows.append({"label": item.label, **item.run(setting)})
        except InputError as error:
            if error.field != "clients":
                raise
            skipped[item.label] = str(error)
            if len(skipped) == len(table.items):
                raise error.placed(f"{item.label}: ") from error
    return {
        "schema": "dpzv-audit/reproduce/1",
        "table": table.name,
        "source": table.source,
        "epochs": setting.epochs,
        "paper_epochs": table.epochs,
        "seeds": setting.seeds,
        "records": setting.records,
        "seed": setting.seed,
        "rows": rows,
        **({"skipped": skipped} if skipped else {}),
        "notes": list(table.notes),
    }


def to_markdown(table: PaperTable, result: Row) -> str:
    """Return the reproduced `table` as Markdown: ours beside theirs."""
    lines = []
    for row in result["rows"]:
        values = {**DERIVED, **row, "row": row}
        lines.append([filled(cell, values) for _, cell in table.columns])
    return page(table=table, result=result, lines=lines)
