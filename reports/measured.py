"""The sections of a report on all but epsilon and attacks: game, utility, bytes, how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from reports.figures import control_label
from reports.model import Block, Column, Picture, Prose, Section, Table, Tile, hoisted
from reports.svg import label_of
from reports.text import MISSING, clean, exact, number, percent, proportion
from reports.training_figures import accuracy_figure, bytes_figure, staleness_figure

Mapped = Mapping[str, Any]

_HISTORY_ROWS = 40


def measurement_row(name: str, role: str, measurement: object) -> tuple[str, ...]:
    """Return a row of `measurement_table`: an interval or a bare number with its name and role."""
    if not isinstance(measurement, Mapping):
        return (clean(name), role, proportion(measurement), MISSING, MISSING, MISSING, MISSING)
    bounds = (proportion(measurement.get("low")), proportion(measurement.get("high")))
    confidence = measurement.get("confidence")
    return (
        clean(name),
        role,
        proportion(measurement.get("value")),
        MISSING if bounds == (MISSING, MISSING) else f"{bounds[0]} to {bounds[1]}",
        MISSING if confidence is None else percent(confidence),
        number(measurement.get("n")),
        _trainings(measurement),
    )


def _trainings(measurement: Mapped) -> str:
    """How trainings differ: an interval over them, or of few the least and the most; and a control's p-value."""
    over = measurement.get("over_trainings") or {}
    parts = []
    if over.get("low") is not None:
        parts.append(f"{number(over['count'])}: {proportion(over['low'])} to {proportion(over['high'])}")
    elif over.get("count") == 1:
        parts.append("1")
    elif over.get("count") is not None:
        parts.append(f"{number(over['count'])}, from {proportion(over['least'])} to {proportion(over['most'])}")
    if measurement.get("kind") == "negative":
        p = measurement.get("p_value")
        by = clean(measurement.get("tested_by") or "its interval")
        parts.append("too few to test" if p is None else f"p = {number(p)} by {by}")
    return "; ".join(parts) or MISSING


def measurement_table(caption: str, rows: list[tuple[str, ...]]) -> Table:
    """Return the table of rows that `measurement_row` made."""
    table = Table(
        caption=caption,
        columns=(
            Column(title="what"),
            Column(title="role"),
            Column(title="value", kind="number"),
            Column(title="interval", kind="number"),
            Column(title="confidence", kind="number"),
            Column(title="n", kind="number"),
            Column(title="trainings"),
        ),
        rows=tuple(rows),
        strong=frozenset({0}),
    )
    return hoisted(table, blank=MISSING, often_blank=("confidence",))


def control_rows(controls: Mapped | None) -> list[tuple[str, ...]]:
    """Return a row of `measurement_table` for each control."""
    return [measurement_row(control_label(k, v), "control", v) for k, v in (controls or {}).items()]


def accuracy_tile(known: Mapped) -> list[Tile]:
    """Return the trained model's test accuracy as a first-glance number."""
    accuracy = (known.get("utility") or {}).get("test_accuracy")
    value = accuracy.get("value") if isinstance(accuracy, Mapping) else accuracy
    if value is None:
        return []
    note = ""
    if isinstance(accuracy, Mapping) and accuracy.get("low") is not None and accuracy.get("high") is not None:
        note = f"{proportion(accuracy['low'], 3)} to {proportion(accuracy['high'], 3)}"
    return [Tile(label="Test accuracy", value=proportion(value, 3), note=note)]


def game_section(known: Mapped) -> Section | None:
    """Return the distinguishing game that an audit played; None where the result describes none."""
    game = known.get("game") or {}
    if not game:
        return None
    rows = tuple(
        (clean(k).replace("_", " "), number(v) if not isinstance(v, str) else clean(v)) for k, v in game.items()
    )
    columns = (Column(title="part"), Column(title="value"))
    table = Table(caption="The distinguishing game", columns=columns, rows=rows)
    return Section(anchor="game", title="The game", blocks=(table,))


def _history_table(history: list[Mapped]) -> Table | None:
    if not history:
        return None
    last = len(history) - 1
    stride = max(1, -(-len(history) // _HISTORY_ROWS))
    picks = [i for i in range(len(history)) if i % stride == 0 or i == last]
    shown = "every epoch" if len(picks) == len(history) else f"{len(picks)} of {len(history):,} epochs"
    return Table(
        caption=f"Training, {shown}",
        columns=tuple(Column(title=t, kind="number") for t in ("epoch", "test accuracy", "loss", "MB up", "MB down")),
        rows=tuple(
            (
                number(row.get("epoch")),
                proportion(row.get("test_accuracy")),
                number(row.get("loss")),
                _megabytes(row.get("bytes_up")),
                _megabytes(row.get("bytes_down")),
            )
            for row in (history[i] for i in picks)
        ),
    )


def _megabytes(value: object) -> str:
    return number(value / 1e6) if isinstance(value, int | float) else MISSING


def _over(accuracy: object) -> str:
    """What the intervals of accuracies are over; "" where a result does not say how many trainings there were."""
    trainings = accuracy.get("trainings") if isinstance(accuracy, Mapping) else None
    if not isinstance(trainings, int):
        return ""
    if trainings == 1:
        return ", of one model: intervals are by test records"
    return f", of {number(trainings)} trainings: intervals are by test records"


def utility_section(known: Mapped) -> Section | None:
    """Return accuracy beside its controls, and the loss; None where the result has no utility."""
    utility = known.get("utility") or {}
    accuracy, final_loss = utility.get("test_accuracy"), utility.get("final_loss")
    rows = [] if accuracy is None else [measurement_row("test accuracy", "trained model", accuracy)]
    rows += control_rows(utility.get("controls"))
    blocks: list[Block] = []
    drawing = accuracy_figure(known)
    if drawing:
        caption = "Test accuracy over training. The level lines are controls that train less, or nothing."
        blocks.append(Picture(name="figure-accuracy", svg=drawing, alt=label_of(drawing), caption=caption))
    if rows:
        blocks.append(measurement_table(f"Test accuracy beside its controls{_over(accuracy)}", rows))
    if final_loss is not None:
        blocks.append(Prose(text=f"Loss at the end of training: {number(final_loss)}."))
    table = _history_table(utility.get("history") or [])
    blocks += [table] if table else []
    return Section(anchor="utility", title="Utility", blocks=tuple(blocks)) if blocks else None


def bytes_section(known: Mapped) -> Section | None:
    """Return bytes by direction and kind, rounds, time and memory; None where the result counts no bytes."""
    ledger = known.get("bytes") or {}
    names = {"up": "clients to server", "down": "server to clients"}
    rows = [(label, number(ledger[k])) for k, label in names.items() if ledger.get(k) is not None]
    rows += [(f"messages of kind {clean(k)}", number(v)) for k, v in (ledger.get("by_kind") or {}).items()]
    if not rows:
        return None
    blocks: list[Block] = []
    drawing = bytes_figure(known)
    if drawing:
        caption = "Test accuracy against all that was sent by then, the first filling of the server's table included."
        blocks.append(Picture(name="figure-bytes", svg=drawing, alt=label_of(drawing), caption=caption))
    columns = (Column(title="channel"), Column(title="bytes", kind="number"))
    blocks.append(Table(caption="Bytes that parties exchanged", columns=columns, rows=tuple(rows)))
    blocks += _machine_costs(known)
    return Section(anchor="bytes", title="Costs", blocks=tuple(blocks))


def _machine_costs(known: Mapped) -> list[Block]:
    """Return what the run took of the machine: rounds, time, memory; nothing where nobody measured."""
    measured = known.get("measured") or {}
    resumed = measured.get("resumed_at_epoch") or 0
    since = f", from epoch {number(resumed)} on" if resumed else ""
    labels = {
        "wall_seconds": f"wall time of training and controls{since}, in seconds",
        "peak_memory_mb": "peak memory of the process, in MB",
    }
    rows = [(label, number(measured[key])) for key, label in labels.items() if measured.get(key) is not None]
    if not rows:
        return []
    rows.insert(0, ("rounds", number(known.get("rounds"))))
    columns = (Column(title="what"), Column(title="value", kind="number"))
    return [Table(caption="What the run took of this machine", columns=columns, rows=tuple(rows))]


def staleness_section(known: Mapped) -> Section | None:
    """Return how old the rows were that the server read, by age and by client; None where none was ever stale."""
    staleness = known.get("staleness") or {}
    if not staleness:
        return None
    blocks: list[Block] = []
    drawing = staleness_figure(known)
    if drawing:
        caption = (
            "In each round one client's rows are fresh; the others' are as old as shown. Ages are in rounds, in "
            "ranges that double, over all rows that the server read in the first training."
        )
        blocks.append(Picture(name="figure-staleness", svg=drawing, alt=label_of(drawing), caption=caption))
    names = {"mean": "mean", "q10": "10%", "q50": "median", "q90": "90%", "q99": "99%", "largest": "largest"}
    rows = [(names.get(k, k), number(v)) for k, v in staleness.items() if k not in ("distribution", "mean_by_client")]
    rows += [(f"mean, rows of {k}", number(v)) for k, v in (staleness.get("mean_by_client") or {}).items()]
    columns = (Column(title="statistic"), Column(title="rounds", kind="number"))
    blocks.append(Table(caption="Age of the rows that the server read", columns=columns, rows=tuple(rows)))
    ages = [
        (f"{number(row.get('from'))} to {number(row.get('to'))}", proportion(row.get("share")))
        for row in staleness.get("distribution") or []
    ]
    if ages:
        columns = (Column(title="age in rounds"), Column(title="share", kind="number"))
        blocks.append(Table(caption="Rows that the server read, by age", columns=columns, rows=tuple(ages)))
    return Section(anchor="staleness", title="Staleness", blocks=tuple(blocks))


def _flat(values: Mapped) -> list[tuple[str, object]]:
    """Return the entries of `values` with those of a dict in it one level up, as "packages: torch"."""
    rows: list[tuple[str, object]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += [(f"{key}: {inner}", v) for inner, v in value.items()]
        else:
            rows.append((key, value))
    return rows


def _setting(key: str, value: object) -> str:
    if key == "command_line" and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return clean(shlex.join(value))
    return exact(value)


def _settings(caption: str, values: Mapped, title: str = "setting") -> Table | None:
    if not values:
        return None
    columns = (Column(title=title), Column(title="value", kind="code"))
    rows = tuple((clean(k), _setting(k, v)) for k, v in _flat(values))
    return Table(caption=caption, columns=columns, rows=rows)


def repeat_section(known: Mapped) -> Section | None:
    """Return all that is needed to repeat the run: what ran, configuration, seed, versions, data hashes."""
    labels: tuple[str, ...] = (
        "schema",
        "command_line",
        "method",
        "dataset",
        "attack",
        "adversary",
        "seed",
        "run",
    )
    labels += ("delta", "confidence", "exactly_gaussian", "rounds")
    data = known.get("data") or {}
    run = {k: known[k] for k in labels if known.get(k) is not None}
    run |= {f"scores: {k}": v for k, v in (known.get("scores") or {}).items() if v is not None}
    run |= {f"compute: {k}": v for k, v in (known.get("compute") or {}).items() if v is not None}
    run |= {f"data: {k}": v for k, v in data.items() if k not in ("digests", "notes") and v is not None}
    run |= {f"data: note {i}": note for i, note in enumerate(data.get("notes") or [], start=1)}
    tables = (
        _settings("The run", run, "what"),
        _settings("Configuration", known.get("config") or {}),
        _settings("The release that was accounted", (known.get("privacy") or {}).get("release") or {}),
        _settings("The attack's setting", known.get("attack_setting") or {}),
        _settings("Data files (SHA-256)", data.get("digests") or {}, "file"),
        _settings("Versions", known.get("versions") or {}, "software"),
        _settings("Environment", known.get("environment") or {}, "part"),
    )
    blocks = tuple(table for table in tables if table is not None)
    return Section(anchor="repeat", title="Repeat this run", blocks=blocks) if blocks else None
