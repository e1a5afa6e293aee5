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
    Utility,
)
from reports.curves import GRADIENTS, accuracy_figure, bytes_figure, gradient_figure
from reports.document import Block, Row, Section, Tile, pairs, picture, section, table
from reports.figures import chance_level, control_label, records_figure, staleness_figure, success_figure
from reports.text import exact, finite, lower_bound, number, percent, proportion

_HISTORY_ROWS = 40


def _span(low: float | None, high: float | None, digits: int = 4) -> str:
    return f"{proportion(low, digits)} to {proportion(high, digits)}"


def success_tile(attack: AttackResult) -> list[Tile]:
    """Return the attack's success as a first-glance number, its interval and the blind guess beside it."""
    success = attack.success
    if success is None:
        return []
    notes = [f"{_span(success.low, success.high, 3)} by records"]
    over = success.over_trainings
    if over is not None and over.low is not None:
        notes.append(f"over {number(over.count)} trainings: {_span(over.low, over.high, 3)}")
    elif over is not None and over.count > 1:
        notes.append(f"{number(over.count)} trainings: {_span(over.least, over.most, 3)}")
    chance = chance_level(attack.baselines)
    if chance is not None:
        notes.append(f"a blind guess: {proportion(chance, 3)}")
    value = proportion(success.value, 3)
    return [Tile(label="Attack success", value=value, note="; ".join(notes), strong=True)]


def accuracy_tile(utility: Utility) -> list[Tile]:
    """Return the trained model's test accuracy as a first-glance number."""
    found = utility.test_accuracy
    if found is None:
        return []
    note = _span(found.low, found.high, 3)
    return [Tile(label="Test accuracy", value=proportion(found.value, 3), note=note)]


def _measured_row(name: str, role: str, found: Interval | float) -> Row:
    """Return a row of `_measured_table`: an interval or a bare number with its name and role."""
    row = {"what": name, "role": role}
    if isinstance(found, int | float):
        none = dict.fromkeys(("interval", "confidence", "n", "trainings"))
        return {**row, "value": proportion(found), **none}
    return {
        **row,
        "value": proportion(found.value),
        "interval": _span(found.low, found.high),
        "confidence": percent(found.confidence),
        "n": found.n,
        "trainings": _trainings(found),
    }


def _trainings(measurement: Interval) -> str:
    """How trainings differ: an interval over them, or of few the least and the most; and a control's p-value."""
    over = measurement.over_trainings
    parts = []
    if over is not None and over.low is not None:
        parts.append(f"{number(over.count)}: {_span(over.low, over.high)}")
    elif over is not None:
        reach = "" if over.count == 1 else f", from {_span(over.least, over.most)}"
        parts.append(f"{number(over.count)}{reach}")
    if isinstance(measurement, Control) and measurement.kind == "negative":
        p, by = measurement.p_value, measurement.tested_by or "its interval"
        parts.append("too few to test" if p is None else f"p = {number(p)} by {by}")
    return "; ".join(parts)


def _control_rows(controls: Mapping[str, Interval | float]) -> list[Row]:
    return [_measured_row(control_label(k, v), "control", v) for k, v in controls.items()]


def _measured_table(caption: str, rows: Sequence[Row]) -> list[Block]:
    numbers = ("value", "interval", "confidence", "n")
    return table(caption, rows, numbers=numbers, strong=(0,), hoist=True)


def attack_section(attack: AttackResult) -> list[Section]:
    """Return attack success beside baselines and controls; nothing where the result has no attack."""
    rows: list[Row] = []
    if attack.success is not None:
        rows.append(_measured_row(f"attack {attack.attack}".strip(), "attack", attack.success))
    baselines = {name.replace("_", " "): found for name, found in attack.baselines.items()}
    rows += [_measured_row(name, "baseline", found) for name, found in baselines.items()]
    rows += _control_rows(attack.controls)
    rows += [_measured_row(name, "measure", found) for name, found in attack.measures.items()]
    if not rows:
        return []
    drawing = success_figure(attack.attack, attack.success, attack.baselines, attack.controls, attack.metric)
    blocks = picture("success", drawing)
    blocks += _measured_table(f"Attack success: {attack.metric}", rows)
    blocks += picture("gradients", gradient_figure(attack.curves.get(GRADIENTS, [])))
    blocks += picture("records", records_figure(attack.reconstructions))
    for name, points in attack.curves.items():
        blocks += _curve(name, points)
    if attack.certified is not None:
        blocks.append(_certified(attack.certified))
    elif attack.not_certified:
        blocks.append(f"The attack's own scores certify no epsilon: {attack.not_certified}.")
    return section("attack", "The attack", blocks)


def _curve(caption: str, points: Sequence[Row]) -> list[Block]:
    """A table of a curve: a column for each key of its rows, the two ends of an interval in one."""
    first = points[0] if points else {}
    both = {"low", "high"} <= set(first)
    rows = []
    for point in points:
        row = {key: number(point.get(key)) for key in first}
        if both:
            row["low"] += f" to {row.pop('high')}"
        rows.append({"interval" if both and key == "low" else key: text for key, text in row.items()})
    texts = {key for key, value in first.items() if isinstance(value, str)}
    return table(caption, rows, numbers={*first, "interval"} - texts)


def _certified(bound: CertifiedBound) -> str:
    """Return the epsilon that the attack's scores certify, and by which game."""
    return (
        "Epsilon that the attack's own scores certify: at least "
        f"{lower_bound(bound.epsilon_lower)} at delta {number(bound.delta)} and "
        f"{percent(bound.confidence)} confidence, relation {bound.neighbours}; so many scores could "
        f"certify at most {lower_bound(bound.ceiling)}. The game: {bound.game}. The rule: "
        f"{bound.threshold_rule}."
    )


def game_section(game: Mapping[str, object]) -> list[Section]:
    """Return the distinguishing game that an audit played; nothing where the result describes none."""
    named = {key.replace("_", " "): value for key, value in game.items()}
    return section("game", "The game", pairs("The distinguishing game", ("part", "value"), named))


def utility_section(trained: AttackResult | TrainResult) -> list[Section]:
    """Return accuracy beside its controls, and the loss; nothing where the result has no utility."""
    utility = trained.utility
    accuracy = utility.test_accuracy
    rows = [] if accuracy is None else [_measured_row("test accuracy", "trained model", accuracy)]
    rows += _control_rows(utility.controls)
    over = ""
    # Of an older file it is not known how many trainings there were.
    if isinstance(accuracy, Accuracy):
        models = "one model" if accuracy.trainings == 1 else f"{number(accuracy.trainings)} trainings"
        over = f", of {models}: intervals are by test records"
    blocks = picture("accuracy", accuracy_figure(utility, trained.method))
    blocks += _measured_table(f"Test accuracy beside its controls{over}", rows)
    if utility.final_loss is not None:
        blocks.append(f"Loss at the end of training: {number(utility.final_loss)}.")
    return section("utility", "Utility", blocks + _history_table(utility.history))


def _history_table(history: Sequence[Epoch]) -> list[Block]:
    stride = max(1, -(-len(history) // _HISTORY_ROWS))
    picks = [*history[::stride]]
    if (len(history) - 1) % stride:
        picks.append(history[-1])
    rows = [
        {
            "epoch": row.epoch,
            "test accuracy": proportion(row.test_accuracy),
            "loss": row.loss,
            "MB up": _megabytes(row.bytes_up),
            "MB down": _megabytes(row.bytes_down),
        }
        for row in picks
    ]
    every = len(rows) == len(history)
    shown = "every epoch" if every else f"{len(rows)} of {len(history):,} epochs"
    return table(f"Training, {shown}", rows, numbers=rows[0] if rows else ())


def _megabytes(value: float | None) -> float | None:
    size = finite(value)
    return None if size is None else size / 1e6


def bytes_section(trained: AttackResult | TrainResult, measured: Mapping[str, float]) -> list[Section]:
    """Return bytes by direction and kind, rounds, time and memory; nothing where the result counts no bytes."""
    sent = trained.bytes
    ways = {"clients to server": sent.up, "server to clients": sent.down}
    counts = {way: count for way, count in ways.items() if count is not None}
    counts |= {f"messages of kind {kind}": count for kind, count in sent.by_kind.items()}
    if not counts:
        return []
    blocks = picture("bytes", bytes_figure(trained.utility, trained.method))
    blocks += pairs("Bytes that parties exchanged", ("channel", "bytes"), counts, kind="number")
    resumed = measured.get("resumed_at_epoch") or 0
    since = f", from epoch {number(resumed)} on" if resumed else ""
    labels = {
        "wall_seconds": f"wall time of training and controls{since}, in seconds",
        "peak_memory_mb": "peak memory of the process, in MB",
    }
    took = {label: measured[key] for key, label in labels.items() if key in measured}
    costs = {"rounds": trained.rounds, **took} if took else {}
    blocks += pairs("What the run took of this machine", ("what", "value"), costs, kind="number")
    return section("bytes", "Costs", blocks)


def staleness_section(staleness: Staleness | None) -> list[Section]:
    """Return how old the rows were that the server read, by age and by client; nothing where none was ever stale."""
    if staleness is None or not staleness.model_fields_set:
        return []
    names = {"mean": "mean", "q10": "10%", "q50": "median", "q90": "90%", "q99": "99%", "largest": "largest"}
    fields = {key: name for key, name in names.items() if key in staleness.model_fields_set}
    found = {name: getattr(staleness, key) for key, name in fields.items()}
    found |= {f"mean, rows of {client}": mean for client, mean in staleness.mean_by_client.items()}
    by_age = staleness.distribution
    shares = {f"{number(ages.first)} to {number(ages.last)}": proportion(ages.share) for ages in by_age}
    blocks = picture("staleness", staleness_figure(by_age))
    blocks += pairs("Age of the rows that the server read", ("statistic", "rounds"), found, kind="number")
    blocks += pairs("Rows that the server read, by age", ("age in rounds", "share"), shares, kind="number")
    return section("staleness", "Staleness", blocks)


def published_section(noise: Noise | None, published: Published) -> list[Section]:
    """Return where the noise came from and what the bound covers; nothing where the result says neither."""
    blocks: list[Block] = [part.words for part in (noise, published) if part and part.words]
    rows = [
        {"part": part, "covered": covered, "why": why}
        for covered, parts in (("yes", published.inside_bound), ("no", published.not_inside))
        for part, why in parts.items()
    ]
    note = f"{len(published.of_no_record)} further parts of result.json depend on no record"
    blocks += table("Parts of this folder, by the bound", rows, code=("part",), note=note)
    return section("published", "What the bound covers", blocks)


_OF_THE_RUN: tuple[str, ...] = ("method", "dataset", "attack", "adversary", "seed", "run")
_OF_THE_RUN += ("delta", "confidence", "exactly_gaussian", "family", "coin_flips", "rounds")


def repeat_section(result: Result) -> list[Section]:
    """Return all that is needed to repeat the run: what ran, configuration, seed, versions, data hashes."""
    found = result.model_dump(exclude_unset=True)
    line = found.get("command_line")
    run = {"schema": result.SCHEMA, "command_line": shlex.join(line) if line else None}
    run |= {key: found.get(key) for key in _OF_THE_RUN}
    data = found.get("data", {})
    digests, notes = data.pop("digests", {}), data.pop("notes", [])
    for part in ("scores", "compute", "data"):
        run |= {f"{part}: {key}": value for key, value in found.get(part, {}).items()}
    run |= {f"data: note {i}": note for i, note in enumerate(notes, start=1)}
    known = {key: value for key, value in run.items() if value is not None}
    release = found.get("privacy", {}).get("release", {})
    blocks = _settings("The run", "what", known)
    blocks += _settings("Configuration", "setting", found.get("config", {}))
    blocks += _settings("The release that was accounted", "setting", release)
    blocks += _settings("The attack's setting", "setting", found.get("attack_setting", {}))
    blocks += _settings("Data files (SHA-256)", "file", digests)
    blocks += _settings("Versions", "software", found.get("versions", {}))
    return section("repeat", "Repeat this run", blocks)


def _settings(caption: str, title: str, values: Mapping[str, object]) -> list[Block]:
    """Return settings as they must be typed, those of a dict in them one level up, as "packages: torch"."""
    rows: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            rows |= {f"{key}: {inner}": exact(v) for inner, v in value.items()}
        else:
            rows[key] = exact(value)
    return pairs(caption, (title, "value"), rows, kind="code")
