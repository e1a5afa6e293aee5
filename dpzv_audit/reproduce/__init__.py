"""Tables and figures of the source papers, ours beside theirs: each is data, a list of items with printed numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpzv_audit.data.vertical import VerticalDataset, sample_of_training
from dpzv_audit.errors import InputError, unknown_name
from dpzv_audit.reproduce.papers import tables
from dpzv_audit.reproduce.table import PaperTable, Row, Setting, Stage, TableParts, no_stage

__all__ = ["TABLES", "PaperTable", "TableParts", "reproduce", "table_named", "to_markdown", "with_rows"]

TABLES: dict[str, PaperTable] = {table.name: table for table in tables()}


def table_named(name: str) -> PaperTable:
    """The table called `name`; `InputError` suggesting the nearest known one otherwise."""
    if name not in TABLES:
        raise unknown_name("table", name, TABLES)
    return TABLES[name]


def with_rows(table: PaperTable, wanted: Sequence[str]) -> PaperTable:
    """`table` with only the rows whose label is or contains one of `wanted`; all where nothing is wanted.

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


def reproduce(
    table: PaperTable,
    load: Callable[[Mapping[str, Any]], VerticalDataset],
    *,
    epochs: int,
    seeds: int,
    records: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    kept: TableParts | None = None,
    stage: Stage = no_stage,
) -> Row:
    """Compute every row of `table`; a JSON-ready result, a function of its arguments alone.

    Args:
        table: What to compute.
        load: Data set of the keywords of `dpzv_audit.data.load`.
        epochs: Epochs as the paper counts them.
        seeds: Trainings a row, run as one stack.
        records: Records of each data set to train on, the same for every seed; None for all.
        seed: Seed of every stream.
        device: `cpu` or `cuda`.
        kept: Where finished parts go, and come from when a run is taken up again.
        stage: Starts a stage of progress.

    Raises:
        InputError: The data are absent, or a kept part is damaged.
    """

    def loaded(keywords: Mapping[str, Any]) -> VerticalDataset:
        dataset = load(keywords)
        return dataset if records is None else sample_of_training(dataset, records)

    setting = Setting(
        epochs=epochs, seeds=seeds, seed=seed, load=loaded, kept=kept or TableParts(), device=device, stage=stage
    )
    rows = [item.run(setting) for item in table.items]
    return {
        "schema": "dpzv-audit/reproduce/1",
        "table": table.name,
        "source": table.source,
        "epochs": epochs,
        "paper_epochs": table.epochs,
        "seeds": seeds,
        "records": records,
        "seed": seed,
        "rows": rows,
        "notes": list(table.notes),
    }


def to_markdown(table: PaperTable, result: Row) -> str:
    """The reproduced `table` as Markdown: ours beside theirs."""
    seeds = f"{result['seeds']} {'seed' if result['seeds'] == 1 else 'seeds'}"
    trained = f"{result['epochs']} of {table.epochs_of} {result['paper_epochs']} epochs" if table.epochs else ""
    if trained and result["records"] is not None:
        trained += f" on {result['records']:,} records"
    length = f"{trained}, {seeds}. " if trained else ""
    lead = []
    if table.lead is not None:
        lead = [table.lead(result["rows"]), ""]
        data = "the data" if result["records"] is None else f"{result['records']:,} training records"
        length = f"Trainings of at most {result['epochs']} passes over {data}, {seeds} of a chosen setting. "
    lines = [
        f"# {table.name}: {table.source}",
        "",
        *lead,
        length + table.about,
        "",
        _line([column.heading for column in table.columns]),
        "|" + "---|" * len(table.columns),
        *(_line([column.cell(row) for column in table.columns]) for row in result["rows"]),
    ]
    remark = table.remark(result["rows"]) if table.remark is not None else ""
    short = [f"{row['label']}: memory {row['memory']}." for row in result["rows"] if row.get("memory")]
    lines += ["", *(f"- {note}" for note in (remark, *table.notes, *short) if note)]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
