"""The sections of a report on all but epsilon: attack, game, utility, bytes, what may leave, how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from dpzv_audit.findings import Control, Interval
from dpzv_audit.results import (
    Accuracy,
    AttackResult,
    CertifiedBound,
    Epoch,
    Noise,
    Published,
    Result,
    Staleness,
    TrainResult,
)
from reports.curves import accuracy_figure, bytes_figure, staleness_figure
from reports.figures import GRADIENTS, chance_level, control_label, gradient_figure, records_figure, success_figure
from reports.model import Block, Column, Prose, Section, Table, Tile, columns, hoisted, picture
from reports.text import MISSING, clean, exact, finite, lower_bound, number, percent, proportion

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


def success_tile(attack: AttackResult) -> list[Tile]:
    """Return the attack's success as a first-glance number, its interval and the blind guess beside it."""
    success = attack.success
    if success is None:
        return []
    notes = [f"{proportion(success.low, 3)} to {proportion(success.high, 3)} by records"]
    over = success.over_trainings
    if over is not None and over.low is not None:
        notes.append(f"over {number(over.count)} trainings: {proportion(over.low, 3)} to {proportion(over.high, 3)}")
    elif over is not None and over.count > 1:
        notes.append(f"{number(over.count)} trainings: {proportion(over.least, 3)} to {proportion(over.most, 3)}")
    chance = chance_level(attack.baselines)
    if chance is not None:
        notes.append(f"a blind guess: {proportion(chance, 3)}")
    return [Tile(label="Attack success", value=proportion(success.value, 3), note="; ".join(notes), strong=True)]


def success_section(attack: AttackResult) -> Section | None:
    """Return attack success beside baselines and controls; None where the result has no attack."""
    name = f"attack {attack.attack}".strip()
    rows = [] if attack.success is None else [measurement_row(name, "attack", attack.success)]
    rows += [measurement_row(k.replace("_", " "), "baseline", v) for k, v in attack.baselines.items()]
    rows += control_rows(attack.controls)
    rows += [measurement_row(k, "measure", v) for k, v in attack.measures.items()]
    if not rows:
        return None
    drawing = success_figure(attack.attack, attack.success, attack.baselines, attack.controls, attack.metric)
    caption = (
        "Success of the attack beside what needs no attack at all (baselines) and what shows that the "
        "attack measures what it should (controls). Bars are intervals over trainings, or of fewer than eight by "
        "their records. The upright stroke marks the best guess that sees nothing."
    )
    gradients = (
        "Cosine of estimated with true gradients by the number of queries about a batch; faint bars are intervals "
        "over trials. Without the noise the same training is repeated with nothing added to the scalars."
    )
    records = (
        "The first records that the server did not know, what it made of them, and the mean of all records, "
        "which needs no attack. Numbers in the headings are over all reconstructed records."
    )
    blocks = [
        *picture("figure-success", drawing, caption),
        measurement_table(f"Attack success: {clean(attack.metric)}", rows),
        *picture("figure-gradients", gradient_figure(attack.curves.get(GRADIENTS, [])), gradients),
        *picture("figure-records", records_figure(attack.reconstructions), records),
        *(_curve(clean(name), points) for name, points in attack.curves.items() if points),
        *_certified(attack.certified, attack.not_certified),
    ]
    return Section(anchor="attack", title="The attack", blocks=tuple(blocks))


def _curve(caption: str, rows: Sequence[Mapping[str, object]]) -> Table:
    """A table of a curve: a column for each key of its rows, the two ends of an interval in one."""
    both = {"low", "high"} <= set(rows[0])
    keys = [k for k in rows[0] if not (both and k == "high")]
    cells = tuple(
        tuple(
            f"{number(row.get('low'))} to {number(row.get('high'))}" if both and k == "low" else number(row.get(k))
            for k in keys
        )
        for row in rows
    )
    columns = tuple(
        Column(
            title="interval" if both and k == "low" else clean(k),
            kind="text" if isinstance(rows[0][k], str) else "number",
        )
        for k in keys
    )
    return Table(caption=caption, columns=columns, rows=cells)


def _certified(bound: CertifiedBound | None, reason: str | None) -> list[Block]:
    """The epsilon that the attack's scores certify and by which game, or why they certify none."""
    if bound is None:
        return [Prose(text=f"The attack's own scores certify no epsilon: {clean(reason)}.")] if reason else []
    text = (
        f"Epsilon that the attack's own scores certify: at least {lower_bound(bound.epsilon_lower)} at delta "
        f"{number(bound.delta)} and {percent(bound.confidence)} confidence, relation {clean(bound.neighbours)}; so "
        f"many scores could certify at most {lower_bound(bound.ceiling)}. The game: {clean(bound.game)}. The rule: "
        f"{clean(bound.threshold_rule)}."
    )
    return [Prose(text=text)]


def published_section(noise: Noise | None, published: Published) -> Section | None:
    """Return where the noise came from and what the bound covers; None where the result says neither."""
    blocks: list[Block] = [Prose(text=clean(part.words)) for part in (noise, published) if part and part.words]
    rows = [
        (clean(part), covered, clean(why))
        for parts, covered in ((published.inside_bound, "yes"), (published.not_inside, "no"))
        for part, why in parts.items()
    ]
    if rows:
        note = f"{len(published.of_no_record)} further parts of result.json depend on no record"
        titles = columns("part", "covered", "why", code=("part",))
        blocks.append(Table(caption="Parts of this folder, by the bound", columns=titles, rows=tuple(rows), note=note))
    return Section(anchor="published", title="What the bound covers", blocks=tuple(blocks)) if blocks else None
