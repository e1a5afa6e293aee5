"""The sections of a report on all but epsilon and attacks: game, utility, bytes, how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from dpzv_audit.findings import Control, Interval
from dpzv_audit.results import Accuracy, AttackResult, Epoch, Result, Staleness, TrainResult
from reports.figures import control_label
from reports.model import Block, Prose, Section, Table, Tile, columns, hoisted, picture
from reports.text import MISSING, clean, exact, finite, number, percent, proportion
from reports.training_figures import accuracy_figure, bytes_figure, staleness_figure

_HISTORY_ROWS = 40


def measurement_row(name: str, role: str, measurement: Interval | float) -> tuple[str, ...]:
    """Return a row of `measurement_table`: an interval or a bare number with its name and role."""
    if isinstance(measurement, int | float):
        return (clean(name), role, proportion(measurement), MISSING, MISSING, MISSING, MISSING)
    return (
        clean(name),
        role,
        proportion(measurement.value),
        f"{proportion(measurement.low)} to {proportion(measurement.high)}",
        percent(measurement.confidence),
        number(measurement.n),
        _trainings(measurement),
    )


def _trainings(measurement: Interval) -> str:
    """How trainings differ: an interval over them, or of few the least and the most; and a control's p-value."""
    over = measurement.over_trainings
    parts = []
    if over is not None and over.low is not None:
        parts.append(f"{number(over.count)}: {proportion(over.low)} to {proportion(over.high)}")
    elif over is not None:
        reach = f", from {proportion(over.least)} to {proportion(over.most)}"
        parts.append(f"{number(over.count)}{'' if over.count == 1 else reach}")
    if isinstance(measurement, Control) and measurement.kind == "negative":
        p, by = measurement.p_value, clean(measurement.tested_by or "its interval")
        parts.append("too few to test" if p is None else f"p = {number(p)} by {by}")
    return "; ".join(parts) or MISSING


def measurement_table(caption: str, rows: list[tuple[str, ...]]) -> Table:
    """Return the table of rows that `measurement_row` made."""
    titles = ("what", "role", "value", "interval", "confidence", "n", "trainings")
    table = Table(
        caption=caption,
        columns=columns(*titles, numbers=("value", "interval", "confidence", "n")),
        rows=tuple(rows),
        strong=frozenset({0}),
    )
    return hoisted(table, often_blank=("confidence",))


def control_rows(controls: Mapping[str, Interval | float]) -> list[tuple[str, ...]]:
    """Return a row of `measurement_table` for each control."""
    return [measurement_row(control_label(k, v), "control", v) for k, v in controls.items()]


def accuracy_tile(accuracy: Interval | None) -> list[Tile]:
    """Return the trained model's test accuracy as a first-glance number."""
    if accuracy is None:
        return []
    note = f"{proportion(accuracy.low, 3)} to {proportion(accuracy.high, 3)}"
    return [Tile(label="Test accuracy", value=proportion(accuracy.value, 3), note=note)]


def game_section(game: Mapping[str, object]) -> Section | None:
    """Return the distinguishing game that an audit played; None where the result describes none."""
    rows = tuple((clean(k).replace("_", " "), number(v)) for k, v in game.items())
    table = Table(caption="The distinguishing game", columns=columns("part", "value"), rows=rows)
    return Section(anchor="game", title="The game", blocks=(table,)) if rows else None


def _history_table(history: Sequence[Epoch]) -> list[Block]:
    if not history:
        return []
    last = len(history) - 1
    stride = max(1, -(-len(history) // _HISTORY_ROWS))
    picks = [i for i in range(len(history)) if i % stride == 0 or i == last]
    shown = "every epoch" if len(picks) == len(history) else f"{len(picks)} of {len(history):,} epochs"
    titles = ("epoch", "test accuracy", "loss", "MB up", "MB down")
    rows = tuple(
        (
            number(row.epoch),
            proportion(row.test_accuracy),
            number(row.loss),
            _megabytes(row.bytes_up),
            _megabytes(row.bytes_down),
        )
        for row in (history[i] for i in picks)
    )
    return [Table(caption=f"Training, {shown}", columns=columns(*titles, numbers=titles), rows=rows)]


def _megabytes(value: float | None) -> str:
    size = finite(value)
    return MISSING if size is None else number(size / 1e6)


def _over(accuracy: Interval | None) -> str:
    """What the intervals of accuracies are over; "" where a result does not say how many trainings there were."""
    if not isinstance(accuracy, Accuracy):
        return ""
    models = "one model" if accuracy.trainings == 1 else f"{number(accuracy.trainings)} trainings"
    return f", of {models}: intervals are by test records"


def utility_section(trained: AttackResult | TrainResult) -> Section | None:
    """Return accuracy beside its controls, and the loss; None where the result has no utility."""
    utility = trained.utility
    accuracy = utility.test_accuracy
    rows = [] if accuracy is None else [measurement_row("test accuracy", "trained model", accuracy)]
    rows += control_rows(utility.controls)
    caption = "Test accuracy over training. The level lines are controls that train less, or nothing."
    blocks = picture("figure-accuracy", accuracy_figure(utility, trained.method), caption)
    if rows:
        blocks.append(measurement_table(f"Test accuracy beside its controls{_over(accuracy)}", rows))
    if utility.final_loss is not None:
        blocks.append(Prose(text=f"Loss at the end of training: {number(utility.final_loss)}."))
    blocks += _history_table(utility.history)
    return Section(anchor="utility", title="Utility", blocks=tuple(blocks)) if blocks else None


def bytes_section(trained: AttackResult | TrainResult, measured: Mapping[str, float]) -> Section | None:
    """Return bytes by direction and kind, rounds, time and memory; None where the result counts no bytes."""
    ledger = trained.bytes
    ways = (("clients to server", ledger.up), ("server to clients", ledger.down))
    rows = [(label, number(count)) for label, count in ways if count is not None]
    rows += [(f"messages of kind {clean(k)}", number(v)) for k, v in ledger.by_kind.items()]
    if not rows:
        return None
    caption = "Test accuracy against all that was sent by then, the first filling of the server's table included."
    titles = columns("channel", "bytes", numbers=("bytes",))
    blocks = [
        *picture("figure-bytes", bytes_figure(trained.utility, trained.method), caption),
        Table(caption="Bytes that parties exchanged", columns=titles, rows=tuple(rows)),
        *_machine_costs(trained.rounds, measured),
    ]
    return Section(anchor="bytes", title="Costs", blocks=tuple(blocks))


def _machine_costs(rounds: float | None, measured: Mapping[str, float]) -> list[Block]:
    """Return what the run took of the machine: rounds, time, memory; nothing where nobody measured."""
    resumed = measured.get("resumed_at_epoch") or 0
    since = f", from epoch {number(resumed)} on" if resumed else ""
    labels = {
        "wall_seconds": f"wall time of training and controls{since}, in seconds",
        "peak_memory_mb": "peak memory of the process, in MB",
    }
    rows = [(label, number(measured[key])) for key, label in labels.items() if key in measured]
    if not rows:
        return []
    titles = columns("what", "value", numbers=("value",))
    rows.insert(0, ("rounds", number(rounds)))
    return [Table(caption="What the run took of this machine", columns=titles, rows=tuple(rows))]


def staleness_section(staleness: Staleness | None) -> Section | None:
    """Return how old the rows were that the server read, by age and by client; None where none was ever stale."""
    if staleness is None or not staleness.model_fields_set:
        return None
    caption = (
        "In each round one client's rows are fresh; the others' are as old as shown. Ages are in rounds, in "
        "ranges that double, over all rows that the server read in the first training."
    )
    blocks = picture("figure-staleness", staleness_figure(staleness.distribution), caption)
    names = {"mean": "mean", "q10": "10%", "q50": "median", "q90": "90%", "q99": "99%", "largest": "largest"}
    found = {name: getattr(staleness, key) for key, name in names.items() if key in staleness.model_fields_set}
    found |= {f"mean, rows of {k}": v for k, v in staleness.mean_by_client.items()}
    titles = columns("statistic", "rounds", numbers=("rounds",))
    rows = tuple((name, number(value)) for name, value in found.items())
    blocks.append(Table(caption="Age of the rows that the server read", columns=titles, rows=rows))
    ages = tuple((f"{number(a.first)} to {number(a.last)}", proportion(a.share)) for a in staleness.distribution)
    if ages:
        titles = columns("age in rounds", "share", numbers=("share",))
        blocks.append(Table(caption="Rows that the server read, by age", columns=titles, rows=ages))
    return Section(anchor="staleness", title="Staleness", blocks=tuple(blocks))


def _flat(values: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return the entries of `values` with those of a dict in it one level up, as "packages: torch"."""
    rows: list[tuple[str, object]] = []
    for key, value in values.items():
        inside = isinstance(value, Mapping) and value
        rows += [(f"{key}: {inner}", v) for inner, v in inside.items()] if inside else [(key, value)]
    return rows


def _settings(caption: str, values: Mapping[str, object], title: str = "setting") -> list[Table]:
    rows = tuple((clean(k), exact(v)) for k, v in _flat(values))
    return [Table(caption=caption, columns=columns(title, "value", code=("value",)), rows=rows)] if rows else []


_OF_THE_RUN: tuple[str, ...] = ("method", "dataset", "attack", "adversary", "seed", "run", "delta", "confidence")
_OF_THE_RUN += ("exactly_gaussian", "family", "coin_flips", "rounds")


def repeat_section(result: Result) -> Section:
    """Return all that is needed to repeat the run: what ran, configuration, seed, versions, data hashes."""
    found = result.model_dump(exclude_unset=True)
    words = found.get("command_line")
    run = {"schema": result.SCHEMA, **({"command_line": shlex.join(words)} if words else {})}
    run |= {key: found[key] for key in _OF_THE_RUN if found.get(key) is not None}
    data = found.pop("data", {})
    digests, notes = data.pop("digests", {}), data.pop("notes", [])
    for part, values in (("scores", found.get("scores", {})), ("compute", found.get("compute", {})), ("data", data)):
        run |= {f"{part}: {key}": value for key, value in values.items() if value is not None}
    run |= {f"data: note {i}": note for i, note in enumerate(notes, start=1)}
    release = found.get("privacy", {}).get("release", {})
    tables = (
        *_settings("The run", run, "what"),
        *_settings("Configuration", found.get("config", {})),
        *_settings("The release that was accounted", release),
        *_settings("The attack's setting", found.get("attack_setting", {})),
        *_settings("Data files (SHA-256)", digests, "file"),
        *_settings("Versions", found.get("versions", {}), "software"),
    )
    return Section(anchor="repeat", title="Repeat this run", blocks=tables)
