"""Tables and figures of the source papers, ours beside theirs: each is data, a list of items with printed numbers.

Rows, settings, printed numbers and notes are read from `tables/*.toml`.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from itertools import chain
from pkgutil import resolve_name
from typing import Any, cast

from mechanisms.methods import method_named

from ..base.errors import InputError, check_names
from ..results import PaperFigure, ReproduceResult
from ..runs import versions
from . import search
from .kept import KeptRows, kept_result
from .planning import checked
from .table import PaperTable, R, Row, Setting, TableParts, TableResult, TableRow
from .training import beside_paper
from .words import filled, page, say

__all__ = [
    "TABLES",
    "KeptRows",
    "PaperTable",
    "Setting",
    "TableParts",
    "described",
    "kept_result",
    "reproduce",
    "table_named",
    "to_markdown",
    "with_rows",
]

FILES = ("czofo", "cascaded", "completion", "dpzv", "soundness", "labels", "convergence", "pretrained")
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
    values["figures"] = {name: _figure(figure) for name, figure in values.get("figures", {}).items()}
    groups = [paper["groups"][name] for name in values.pop("groups", ())]
    rows = chain(*groups, values.pop("rows", ()))
    claims = values.pop("epsilons", ())
    kind, each = values.pop("kind"), values.pop("each")
    return PaperTable(
        about=" ".join(text["about"].get(sentence, sentence) for sentence in values.pop("about")),
        columns=[(heading, cell) for name in values.pop("columns") for heading, cell in text["columns"][name]],
        items=tuple(_item(kind, each, point, paper, entry) for row in rows for point in _by_epsilon(row, claims)),
        **values,
    )


def _code(name: str) -> Any:
    return resolve_name(f"{__name__}.{name}")


def _figure(figure: str | _Toml) -> Callable[[TableResult[Row]], PaperFigure | None]:
    """Return the function that is named; where a table says so, of the rows with `rows` in their label alone."""
    if isinstance(figure, str):
        return cast("Callable[[TableResult[Row]], PaperFigure | None]", _code(figure))
    draw, part = _code(figure["draw"]), figure["rows"]

    def of_part(result: TableResult[Row]) -> PaperFigure | None:
        rows = [row for row in result.rows if part in row.label]
        drawn: PaperFigure | None = draw(result.model_copy(update={"rows": rows})) if rows else None
        return drawn and drawn.model_copy(update={"subject": f"{drawn.subject}, {part}"})

    return of_part


def _by_epsilon(row: _Toml, claims: Sequence[float]) -> list[_Toml]:
    """Return a row for each of its `epsilons`, of the table's `claims` where these are empty; else the row as it is.

    The epsilon goes into its label and its defence, its trainer or its options. `noise` says in its label how the
    noise follows from epsilon.
    """
    if "epsilons" not in row:
        return [row]
    apart = ("epsilons", "defence", "noise")
    series = {key: value for key, value in row.items() if key not in apart}
    noise = f", {row['noise']}" if "noise" in row else ""
    rows: list[_Toml] = []
    for epsilon in row["epsilons"] or claims:
        label = f"{row['label']}, epsilon {epsilon:g}{noise}"
        point = {**series, "label": label, "series": f"{row['label']}{noise}", "epsilon": epsilon}
        options = row.get("options", {})
        if "defence" in row:
            point["options"] = {**options, "defences": [{**row["defence"], "epsilon": epsilon}]}
        elif "trainer" in row:
            point["trainer"] = {**row["trainer"], "epsilon": epsilon}
        else:
            point["options"] = {**options, "epsilon": epsilon}
        rows.append(point)
    return rows


def _item(kind: type[TableRow[Row]], each: _Toml, row: _Toml, paper: _Toml, table: _Toml) -> TableRow[Row]:
    """Return a row, of the kind that it is `made_by` if not of the table's.

    Its options are named settings, the table's before its own, then its own options; a trainer's are its own alone. Of
    the table's, those that mean nothing to its method are left out. What is no field of the kind is a tag.
    """
    values = {**each, **row}
    kind = _code(values.pop("made_by")) if "made_by" in values else kind
    options: dict[str, object] = {}
    for name in each.get("settings", ()):
        options |= paper["settings"][name]
    if "method" in values:
        options = method_named(values["method"]).used(options)
    for name in row.get("settings", ()):
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


def reproduce(
    table: PaperTable[R],
    setting: Setting,
    begins: Callable[[int], object] = lambda row: None,
    kept: KeptRows | None = None,
) -> TableResult[R]:
    """Check all rows of `table` under `setting`, then compute them; the result is a function of its arguments alone.

    Rows whose data cannot be cut among so many clients are skipped, and the result says why. `begins` hears the number
    of each row, from 0, before it is computed. Rows that `kept` has on file are taken from there, others go there.

    Raises:
        InputError: The data are absent, a setting does not fit, a kept part is damaged, or every row is skipped.
    """
    plan = checked(table, setting)
    rows: list[R] = []
    for number, item in enumerate(plan.rows):
        begins(number)
        own = item.under(setting)
        rows.append(item.run(own) if kept is None else kept.compute(item, own))
    return table.result(rows, setting, plan.skipped)


def described(table: PaperTable[R], result: TableResult[R], *, whole: int | None = None) -> ReproduceResult:
    """Return the result of `reproduce`: the rows, the table of `columns` as it is shown, and its figures in numbers.

    `whole` is how many rows the table has in all, where `table` has some of them.
    """
    values = [{**row.to_json(), "row": row} for row in result.rows]
    lead = table.lead(result.rows) if table.lead else ""
    remark = table.remark(result.rows) if table.remark else ""
    figures = {name: figure(result) for name, figure in table.figures.items()}
    sentence = lead.replace("**", "").partition(". ")[0] or beside_paper(result.rows).rstrip(".") or remark
    return ReproduceResult(
        table=result.table,
        source=result.source,
        epochs=result.epochs,
        paper_epochs=result.paper_epochs,
        seeds=result.seeds,
        records=result.records,
        seed=result.seed,
        rows=[row.to_json() for row in result.rows],
        **({"skipped": result.skipped} if result.skipped else {}),
        notes=result.notes,
        rows_of_table=len(table.items) if whole is None else whole,
        sentence=f"{sentence[:1].upper()}{sentence[1:]}." if sentence else "",
        scope=say("scope", table=table, result=result),
        about=table.about,
        lead=lead,
        remark=remark,
        columns=[heading for heading, _ in table.columns],
        cells=[[filled(cell, row) for _, cell in table.columns] for row in values],
        figures={name: figure for name, figure in figures.items() if figure is not None},
        versions=versions(),
    )


def to_markdown(table: PaperTable[R], result: TableResult[R]) -> str:
    """Return the reproduced `table` as Markdown: ours beside theirs."""
    return page(described(table, result))
