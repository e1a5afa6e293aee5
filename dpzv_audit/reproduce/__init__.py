"""Tables and figures of the source papers, ours beside theirs: each is data, a list of items with printed numbers.

Rows, settings, printed numbers and notes are read from `tables/*.toml`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from itertools import chain
from pkgutil import resolve_name
from typing import Any

from ..base.errors import InputError, check_names
from . import search
from .table import PaperTable, R, Row, Setting, TableParts, TableResult, TableRow
from .words import filled, page

__all__ = ["TABLES", "PaperTable", "Setting", "TableParts", "reproduce", "table_named", "to_markdown", "with_rows"]

FILES = ("czofo", "cascaded", "completion", "dpzv", "soundness", "labels")
"""The papers, in the order in which their tables are listed."""

CODE = {"kind", "remark", "lead"}
"""Keys of a table that name a class or a function of this package; `figures` name several."""

_Toml = Mapping[str, Any]


@cache
def _data(name: str) -> _Toml:
    """Return what stands in `tables/NAME.toml`, with None for what is infinite: an epsilon that nothing claims."""
    text = (files(__name__) / f"tables/{name}.toml").read_text("utf-8")
    return tomllib.loads(text, parse_float=lambda number: None if number == "inf" else float(number))


def _table(entry: _Toml, paper: _Toml) -> PaperTable[Row]:
    """Return a table, whose rows are those of the groups that it names, then its own."""
    values = dict(entry)
    text = _data("text")
    values |= {key: _code(values[key]) for key in CODE & set(values)}
    values["figures"] = {name: _code(figure) for name, figure in values.get("figures", {}).items()}
    groups = [paper["groups"][name] for name in values.pop("groups", ())]
    rows = chain(*groups, values.pop("rows", ()))
    kind, each = values.pop("kind"), values.pop("each")
    return PaperTable(
        about=" ".join(text["about"].get(sentence, sentence) for sentence in values.pop("about")),
        columns=[(heading, cell) for name in values.pop("columns") for heading, cell in text["columns"][name]],
        items=tuple(_item(kind, each, row, paper, entry) for row in chain.from_iterable(map(_by_epsilon, rows))),
        **values,
    )


def _code(name: str) -> Any:
    return resolve_name(f"{__name__}.{name}")


def _by_epsilon(row: _Toml) -> list[_Toml]:
    """Return a row for each of its `epsilons`, which label and defence, or trainer, then have; or the row as it is."""
    if "epsilons" not in row:
        return [row]
    series = {key: value for key, value in row.items() if key not in ("epsilons", "defence")}
    rows: list[_Toml] = []
    for epsilon in row["epsilons"]:
        point = {**series, "label": f"{row['label']}, epsilon {epsilon:g}", "series": row["label"], "epsilon": epsilon}
        if "defence" in row:
            point["options"] = {**row.get("options", {}), "defences": [{**row["defence"], "epsilon": epsilon}]}
        else:
            point["trainer"] = {**row["trainer"], "epsilon": epsilon}
        rows.append(point)
    return rows


def _item(kind: type[TableRow[Row]], each: _Toml, row: _Toml, paper: _Toml, table: _Toml) -> TableRow[Row]:
    """Return a row, of the kind that it is `made_by` if not of the table's.

    Its options are named settings, the table's before its own, then its own options; a trainer's are its own alone.
    What is no field of the kind is a tag.
    """
    values = {**each, **row}
    kind = _code(values.pop("made_by")) if "made_by" in values else kind
    options: dict[str, object] = {}
    for name in (*each.get("settings", ()), *row.get("settings", ())):
        options |= paper["settings"][name]
    if "dataset" in values:
        values["dataset"] = paper["datasets"][values["dataset"]]
    if "trainer" in values:
        trainer = search.Federated if "method" in values["trainer"] else search.FrozenClients
        values["trainer"] = trainer(**values["trainer"])
    else:
        values["options"] = options | values.get("options", {})
    if "tried" in values:
        names = values.pop("names")
        values["tried"] = tuple(dict(zip(names, setting, strict=True)) for setting in values["tried"])
    values.pop("settings", None)
    own = {field.name for field in fields(kind)}
    if "whole" in own:
        values["whole"] = table["epochs"]
    tags = {name: values.pop(name) for name in [*values] if name not in own}
    return kind(**values, tags=tags)


TABLES = {entry["name"]: _table(entry, _data(file)) for file in FILES for entry in _data(file)["table"]}


def table_named(name: str) -> PaperTable[Row]:
    """Return the table called `name`; `InputError` suggesting the nearest known one otherwise."""
    check_names("table", [name], TABLES, "tables")
    return TABLES[name]


def with_rows(table: PaperTable[R], wanted: Sequence[str]) -> PaperTable[R]:
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
        matches = {text} if text in labels else {label for label in labels if text in label}
        if not matches:
            raise InputError(f"use part of a row's label: {'; '.join(labels)}", "row", text)
        chosen |= matches
    return replace(table, items=tuple(item for item in table.items if item.label in chosen))


def reproduce(table: PaperTable[R], setting: Setting) -> TableResult[R]:
    """Compute every row of `table` under `setting`; the result is a function of its arguments alone.

    Rows whose data cannot be cut among so many clients are skipped, and the result says why.

    Raises:
        InputError: The data are absent, a kept part is damaged, or every row is skipped.
    """
    rows: list[R] = []
    skipped: dict[str, str] = {}
    for item in table.items:
        try:
            rows.append(item.run(setting))
        except InputError as error:
            if error.field != "clients":
                raise
            skipped[item.label] = str(error)
            if len(skipped) == len(table.items):
                raise error.placed(f"{item.label}: ") from error
    return TableResult(
        table=table.name,
        source=table.source,
        epochs=setting.epochs,
        paper_epochs=table.epochs,
        seeds=setting.seeds,
        records=setting.records,
        seed=setting.seed,
        rows=rows,
        **({"skipped": skipped} if skipped else {}),
        notes=list(table.notes),
    )


def to_markdown(table: PaperTable[R], result: TableResult[R]) -> str:
    """Return the reproduced `table` as Markdown: ours beside theirs."""
    rows = [{**row.to_json(), "row": row} for row in result.rows]
    lines = [[filled(cell, values) for _, cell in table.columns] for values in rows]
    return page(table=table, result=result, lines=lines)
