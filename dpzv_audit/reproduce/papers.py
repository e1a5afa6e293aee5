"""Reads the tables of the papers from `tables/*.toml`: rows, settings, printed numbers and notes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dpzv_audit.findings import to_jsonable
from dpzv_audit.reproduce import figures, search, training
from dpzv_audit.reproduce.attacks import Completion, Direct, gains, remarks, verdicts
from dpzv_audit.reproduce.implicit import ImplicitNoise
from dpzv_audit.reproduce.memory import PeakMemory, peak_of_both, peak_of_model
from dpzv_audit.reproduce.search import Federated, FrozenClients, Searched
from dpzv_audit.reproduce.table import Column, Item, PaperTable, Row, cell, data

FILES = ("czofo", "cascaded", "completion", "dpzv", "soundness")
"""The papers, in the order in which their tables are listed."""

FIGURES: Mapping[str, Callable[[Row], str]] = {
    "accuracy-by-epoch": figures.accuracy_by_epoch,
    "accuracy-by-epsilon": figures.accuracy_by_epsilon,
    "megabytes-by-accuracy": figures.megabytes_by_accuracy,
    "both-adversaries": figures.both_adversaries,
    "beside-baselines": figures.beside_baselines,
    "memory-bars": figures.memory_bars,
    "tried-settings": figures.tried_settings,
}
REMARKS: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "below-control": training.below_control,
    "direct": verdicts,
    "completion": remarks,
    "what-costs": search.what_costs,
    "who-wins": search.who_wins,
}
DERIVED: Mapping[str, Callable[[Row], object]] = {
    "percent": training.percent,
    "percent_of_attacked": lambda row: training.percent(row["training"]),
    "epochs_to_target": lambda row: training.first_epoch_at(row, training.TARGET),
    "megabytes_to_target": training.megabytes_to_target,
    "megabytes_per_epoch": training.megabytes_per_epoch,
    "noise": lambda row: row["noise_std"] or None,
    "gains": lambda row: to_jsonable(gains(row)),
    "peak_of_model": peak_of_model,
    "peak_of_both": peak_of_both,
    "upper": search.upper,
    "settings_tried": lambda row: len(row["tried"]),
    "chosen_settings": search.chosen,
    "noiseless": lambda row: row["variants"].get("noiseless"),
    "frozen": lambda row: row["variants"].get("frozen"),
}
"""What the cells of a table may name beside the values of its rows."""


def _searched(
    *, trainer: Mapping[str, Any], names: Sequence[str], tried: Sequence[Sequence[Any]], **row: Any
) -> Searched:
    """Return a row of a search: its trainer is a method, or without one the frozen control."""
    settings = tuple(dict(zip(names, values, strict=True)) for values in tried)
    kind = Federated if "method" in trainer else FrozenClients
    return Searched(trainer=kind(**trainer), tried=settings, **row)


KINDS: Mapping[str, Callable[..., Item]] = {
    "training": training.Training,
    "implicit-noise": ImplicitNoise,
    "direct": Direct,
    "completion": Completion,
    "memory": PeakMemory,
    "search": _searched,
}


def tables() -> Iterator[PaperTable]:
    """Yield every table, in order."""
    for name in FILES:
        for entry in data(name)["table"]:
            yield _table(entry, data(name))


def _table(entry: Mapping[str, Any], paper: Mapping[str, Any]) -> PaperTable:
    values = dict(entry)
    make, each = KINDS[values.pop("kind")], values.pop("each")
    for key, known in (("figure", FIGURES), ("remark", REMARKS), ("lead", REMARKS)):
        if key in values:
            values[key] = known[values[key]]
    columns = [column for name in values.pop("columns") for column in data("text")["columns"][name]]
    return PaperTable(
        about=" ".join(data("text")["about"].get(part, part) for part in values.pop("about")),
        columns=tuple(Column(heading, cell(template, DERIVED)) for heading, template in columns),
        items=tuple(make(**_row(each, row, paper)) for row in values.pop("rows")),
        notes=tuple(values.pop("notes", ())),
        **values,
    )


def _row(each: Mapping[str, Any], row: Mapping[str, Any], paper: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row: its options are named settings, the table's before its own, then its own options."""
    found = {**each, **row}
    settings = [*each.get("settings", ()), *row.get("settings", ())]
    if found.pop("settings", ()):
        own = found.get("options", {})
        found["options"] = _plain(
            {k: v for part in [*(paper["settings"][s] for s in settings), own] for k, v in part.items()}
        )
    if "dataset" in found:
        found["dataset"] = paper["datasets"][found["dataset"]]
    if "tags" in found:
        found["tags"] = _plain(found["tags"])
    return found


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with None for what is infinite: an epsilon that nothing claims."""
    return {key: None if value == math.inf else value for key, value in values.items()}
