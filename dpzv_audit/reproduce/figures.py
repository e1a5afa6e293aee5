"""Figures of reproduced tables in numbers: each is a function of the whole result, and None where nothing is shown.

`reports.tabular.paper_figure` draws them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from attacks.label.completion import RAW, UNTRAINED

from ..base.findings import Interval
from ..base.grouping import grouped
from ..results import PaperFigure
from .attacks import AttackRow
from .convergence import RateRow
from .costs import ClockRow, WorkRow
from .memory import MemoryRow
from .pretrained import TextRow
from .search import PrivateRow, SearchRow, of_kind
from .table import TableResult, interval_of
from .training import TrainingRow
from .words import shown

Points = Iterable[tuple[float, float]]
EPOCHS = "epoch, as the paper counts them"
ACCURACY = "test accuracy, %"


def accuracy_by_epoch(result: TableResult[TrainingRow]) -> PaperFigure | None:
    """Return accuracy in percent by the paper's epochs, a line a row."""
    lines = {row.label: row.curve() for row in result.rows}
    return _lines(lines, f"Test accuracy by epoch, {result.source}", across=EPOCHS, up=ACCURACY)


def looser_claim(result: TableResult[TrainingRow]) -> PaperFigure | None:
    """Return accuracy by epoch of the rows of the largest claimed epsilon."""
    return _of_claim(result, max)


def tighter_claim(result: TableResult[TrainingRow]) -> PaperFigure | None:
    """Return accuracy by epoch of the rows of the smallest claimed epsilon; None where there is only one."""
    return _of_claim(result, min) if len(_claims(result.rows)) > 1 else None


def _of_claim(result: TableResult[TrainingRow], chosen: Callable[[list[float]], float]) -> PaperFigure | None:
    claims = _claims(result.rows)
    lines = {row.label: row.curve() for row in result.rows if claims and row.epsilon == chosen(claims)}
    return _lines(lines, f"Test accuracy by epoch, {result.source}", across=EPOCHS, up=ACCURACY)


def _claims(rows: Iterable[TrainingRow]) -> list[float]:
    """Return the epsilons that rows claim, the smallest first."""
    return sorted({row.epsilon for row in rows if row.epsilon is not None})


def loss_by_epoch(result: TableResult[TrainingRow]) -> PaperFigure | None:
    """Return the test loss by the paper's epochs, a line a row without noise."""
    rows = [row for row in result.rows if row.epsilon is None]
    lines = {row.label: [(point.epoch, point.loss) for point in row.history if point.loss is not None] for row in rows}
    return _lines(lines, f"Test loss by epoch without noise, {result.source}", across=EPOCHS, up="test loss")


def accuracy_by_clients(result: TableResult[TrainingRow]) -> PaperFigure | None:
    """Return the last accuracy by the number of clients, a line a method."""
    return _by_size(result, "number of clients", lambda row: row.to_json()["clients"])


def accuracy_by_width(result: TableResult[TrainingRow]) -> PaperFigure | None:
    """Return the last accuracy by the width of the server's first layer, a line a method."""
    return _by_size(result, "width of the server's first layer", lambda row: _option(row, "hidden"), scale="log")


def accuracy_by_server_rate(result: TableResult[TrainingRow]) -> PaperFigure | None:
    """Return the last accuracy by the learning rate of the server, a line a method."""
    return _by_size(result, "learning rate of the server", lambda row: _option(row, "server_rate"))


def _option(row: TrainingRow, name: str) -> Any:
    options: Any = row.to_json()["options"]
    return options[name]


def _by_size(
    result: TableResult[TrainingRow], across: str, size: Callable[[TrainingRow], Any], **more: Any
) -> PaperFigure | None:
    points = grouped((row.series, (float(size(row)), 100 * row.accuracy.value)) for row in result.rows)
    return _lines(
        {name: sorted(own) for name, own in points.items()},
        f"Test accuracy by {across}, {result.source}",
        across=across,
        up=ACCURACY,
        ticks={f"{place:g}": place for place in sorted({place for own in points.values() for place, _ in own})},
        **more,
    )


def accuracy_by_megabytes_down(result: TableResult[TrainingRow]) -> PaperFigure | None:
    """Return accuracy by megabytes that clients received until then, a line a row."""
    axes = {"across": "messages to clients, MB", "up": ACCURACY, "scale": "log"}
    lines = {row.label: row.curve(row.megabytes_down / row.history[-1].epoch) for row in result.rows}
    return _lines(lines, f"Test accuracy against bytes sent to clients, {result.source}", **axes)


def megabytes_by_accuracy(result: TableResult[TrainingRow]) -> PaperFigure | None:
    """Return accuracy by megabytes sent in both directions, a line a row."""
    axes = {"across": "messages in both directions, MB", "up": ACCURACY}
    lines = {
        row.label: row.by_megabytes() if row.uploads_once else row.curve(row.megabytes_per_epoch())
        for row in result.rows
    }
    return _lines(lines, f"Test accuracy against bytes sent, {result.source}", **axes)


def accuracy_by_epsilon(result: TableResult[TrainingRow]) -> PaperFigure | None:
    """Return accuracy by the claimed epsilon, a line a series; no noise stands at the right, at infinity."""
    values = [(row, 100 * row.accuracy.value) for row in result.rows]
    return _by_claim(values, f"Test accuracy against claimed epsilon after {result.epochs} epochs")


def accuracy_at_budget(result: TableResult[TrainingRow]) -> PaperFigure | None:
    """Return accuracy by the claimed epsilon as `accuracy_by_epsilon` does, at the row's budget of megabytes."""
    points = [(row, row.within_budget()) for row in result.rows]
    values = [(row, 100 * point.accuracy) for row, point in points if point is not None]
    return _by_claim(values, "Test accuracy against claimed epsilon at equal megabytes")


def _by_claim(values: Sequence[tuple[TrainingRow, float]], subject: str) -> PaperFigure | None:
    """Return values by the claimed epsilon, a line a series; a row without noise ends all lines of its method."""
    claims = _claims(row for row, _ in values)
    infinity = 4.0 * max(claims, default=1.0)
    lines = grouped((row.series, (row.epsilon, value)) for row, value in values if row.epsilon is not None)
    methods = {row.series: row.method for row, _ in values if row.epsilon is not None}
    for row, value in values:
        if row.epsilon is None:
            for series in [name for name, method in methods.items() if method == row.method] or [row.series]:
                lines.setdefault(series, []).append((infinity, value))
    return _lines(
        {name: sorted(points) for name, points in lines.items()},
        subject,
        across="claimed ε at δ = 0.001; ∞: no noise",
        up=ACCURACY,
        scale="log",
        ticks={**{f"{claim:g}": claim for claim in claims}, "∞": infinity},
    )


def accuracy_by_megabytes(result: TableResult[TrainingRow | PrivateRow]) -> PaperFigure | None:
    """Return accuracy by megabytes in both directions, the first table included, of true labels and at epsilon 1."""
    rows = [row for row in result.rows if row.epsilon in (None, 1.0)]
    lines = {row.series or row.label: row.by_megabytes() for row in rows}
    subject = "Test accuracy against bytes sent, at epsilon 1 and with true labels"
    return _lines(lines, subject, across="all messages, MB", up=ACCURACY, scale="log")


def accuracy_by_label_epsilon(result: TableResult[TrainingRow | PrivateRow]) -> PaperFigure | None:
    """Return accuracy, or of two classes the area under the ROC curve, by epsilon; true labels as levels."""
    return _by_private_epsilon(result, "ε of each label, replace-label")


def accuracy_by_record_epsilon(result: TableResult[TrainingRow | PrivateRow]) -> PaperFigure | None:
    """Return the same where whole records are private."""
    return _by_private_epsilon(result, "ε of each record, replace-record")


def _by_private_epsilon(result: TableResult[TrainingRow | PrivateRow], across: str) -> PaperFigure | None:
    areas = any(row.auc is not None for row in result.rows)
    values = [(row, 100 * (row.accuracy.value if row.auc is None else row.auc)) for row in result.rows]
    lines = grouped((row.series, (row.epsilon, value)) for row, value in values if row.epsilon is not None)
    metric = "area under the ROC curve, %" if areas else ACCURACY
    epsilons = sorted({row.epsilon for row in result.rows if row.epsilon is not None})
    return _lines(
        {name: sorted(points) for name, points in lines.items()},
        f"{metric} by epsilon",
        across=across,
        up=metric,
        scale="log",
        ticks={f"{epsilon:g}": epsilon for epsilon in epsilons},
        levels={row.label: value for row, value in values if row.epsilon is None},
    )


def _lines(lines: Mapping[str, Points], subject: str, **more: Any) -> PaperFigure | None:
    """Return the lines that have points; None without any."""
    series = {label: [[*point] for point in points] for label, points in lines.items()}
    drawn = {label: points for label, points in series.items() if points}
    return PaperFigure(kind="lines", subject=subject, series=drawn, **more) if drawn else None


def _intervals(
    rows: Mapping[str, Mapping[str, Interval]], subject: str, across: str, levels: Mapping[str, float]
) -> PaperFigure:
    """Return intervals on one scale by series, each at the place of its row; a series may be missing in some."""
    series: dict[str, list[list[float]]] = {name: [] for name in chain(*rows.values())}
    for place, row in enumerate(rows.values()):
        for name, interval in row.items():
            series[name].append([place, interval.value, interval.low, interval.high])
    return PaperFigure(
        kind="intervals",
        subject=subject,
        across=across,
        ticks={label: place for place, label in enumerate(rows)},
        series=series,
        levels=dict(levels),
    )


def _labels_found(
    result: TableResult[AttackRow], rows: Mapping[str, Mapping[str, Interval]], subject: str
) -> PaperFigure:
    """Return shares of labels found as intervals, beside guessing."""
    return _intervals(rows, subject, "share of labels found; dashed: guessing", {"guessing": result.rows[0].prior})


def both_adversaries(result: TableResult[AttackRow]) -> PaperFigure:
    """Return success beside guessing, a row a method with both adversaries in it."""
    lines: dict[str, dict[str, Interval]] = {}
    for row in result.rows:
        who = "curious client" if row.adversary == "client" else row.adversary
        lines.setdefault(row.line, {})[who] = row.success
    return _labels_found(result, lines, f"Direct label inference, {result.source}")


def beside_baselines(result: TableResult[AttackRow]) -> PaperFigure:
    """Return the trained bottom model beside both baselines, row by row."""
    lines = {}
    for row in result.rows:
        raw, untrained = (interval_of(row.baselines[name]) for name in (RAW, UNTRAINED))
        lines[row.label] = {"trained": row.success, "raw features": raw, "untrained": untrained}
    return _labels_found(result, lines, f"Label inference by model completion, {result.source}")


def accuracy_and_leak(result: TableResult[TextRow]) -> PaperFigure:
    """Return test accuracy and the labels that the strongest attack finds, row by row."""
    lines = {}
    for row in result.rows:
        lines[row.label] = {"test accuracy": row.accuracy}
        if row.success is not None:
            lines[row.label]["labels found"] = row.success
    return _intervals(
        lines,
        "Test accuracy and labels found by one curious client",
        "share; dashed: guessing",
        {"guessing one of two classes": 0.5},
    )


def memory_bars(result: TableResult[MemoryRow]) -> PaperFigure:
    """Return peaks as multiples of the model, a bar a method; the level is the model itself."""
    subject = "Peak memory of a training round as a multiple of the client's model"
    values = {row.label: row.peak_of_model() for row in result.rows}
    return _bars("peak", values, subject, across="peak of a round / client model", levels={"the model": 1.0})


def gradient_by_rounds(result: TableResult[RateRow]) -> PaperFigure | None:
    """Return the logarithm of gradient over fall by rounds, a line a theorem, beside a slope of -1/2."""
    lines = {}
    for row in result.rows:
        if row.label.endswith("rounds T"):
            lines[row.label] = [(point.value, math.log10(point.over_fall)) for point in row.points if point.fall > 0.0]
    start = next((points[0] for points in lines.values() if points), None)
    if start is not None:
        places = sorted({place for points in lines.values() for place, _ in points})
        lines["slope -1/2"] = [(place, start[1] - 0.5 * math.log10(place / start[0])) for place in places]
    axes = {"across": "rounds T", "up": "log10 of gradient over fall", "scale": "log"}
    return _lines(lines, "Mean squared gradient over the fall of the loss, by rounds", **axes)


def server_work_bars(result: TableResult[WorkRow]) -> PaperFigure:
    """Return the server's operations of a training as multiples of VAFL's, a bar a method."""
    subject = "Operations of the server in a training as a multiple of VAFL's"
    values = {row.label: row.server_times for row in result.rows}
    return _bars("work", values, subject, across="operations / those of VAFL", levels={"VAFL": 1.0})


def waiting_bars(result: TableResult[ClockRow]) -> PaperFigure:
    """Return the share of the time in which clients wait, a bar a row."""
    values = {row.label: row.clients_wait for row in result.rows}
    return _bars("waiting", values, "Share of the time in which clients wait", across="share of the time")


def _bars(name: str, values: Mapping[str, float], subject: str, **more: Any) -> PaperFigure:
    ticks = {label: place for place, label in enumerate(values)}
    series = {name: [[place, values[label]] for label, place in ticks.items()]}
    return PaperFigure(kind="bars", subject=subject, ticks=ticks, series=series, **more)


def tried_settings(result: TableResult[SearchRow]) -> PaperFigure | None:
    """Return held-out accuracy of every setting tried by its rounds, a mark each; the control's choice as a level."""
    rows = [row for row in result.rows if row.kind != "control"]
    if not rows:
        return None
    series = {_best(row): [[trial.rounds, 100 * trial.accuracy] for trial in row.tried] for row in rows}
    controls: Sequence[SearchRow] = of_kind(result.rows, "control")[:1]
    words = "; ".join(f"{row.label} at best {shown(row.validation, '.1p')}" for row in result.rows)
    return PaperFigure(
        kind="marks",
        subject=f"Held-out accuracy of every setting tried, by its rounds: {words}",
        across="rounds, all clients together",
        up="held-out accuracy, %",
        scale="log",
        series=series,
        levels={f"{row.label}, {shown(row.validation, '.1p')}": 100 * row.validation for row in controls},
        faint=[_best(row) for row in rows if row.kind == "claimed"],
    )


def _best(row: SearchRow) -> str:
    return f"{row.label}, best {shown(row.validation, '.1p')}"
