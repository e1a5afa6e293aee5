"""Figures of reproduced tables, as SVG: each is a function of the whole result."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from textwrap import wrap

from attacks.label.completion import RAW, UNTRAINED
from reports.figures import bars_figure
from reports.svg import ACCENT, DASHED, INK, LINES, MUTED, Chart

from ..base.findings import Interval
from ..base.grouping import grouped
from .attacks import AttackRow
from .memory import MemoryRow
from .search import PrivateRow, SearchRow, of_kind
from .table import R, TableResult, interval_of
from .training import TrainingRow
from .words import shown

Points = Sequence[tuple[float, float]]
_COLOURS = (INK, ACCENT, MUTED)


def accuracy_by_epoch(result: TableResult[TrainingRow]) -> str:
    """Draw accuracy in percent against the paper's epochs, a line a row."""
    chart = Chart("epoch, as the paper counts them", "test accuracy, %")
    lines = {row.label: row.curve() for row in result.rows}
    return line_figure(result, chart, lines, f"Test accuracy by epoch, {result.source}")


def megabytes_by_accuracy(result: TableResult[TrainingRow]) -> str:
    """Draw accuracy against megabytes sent in both directions, a line a row."""
    lines = {row.label: row.curve(row.megabytes_per_epoch()) for row in result.rows}
    chart = Chart("messages in both directions, MB", "test accuracy, %")
    return line_figure(result, chart, lines, f"Test accuracy against bytes sent, {result.source}")


def accuracy_by_epsilon(result: TableResult[TrainingRow]) -> str:
    """Draw accuracy against the claimed epsilon, a line a method; no noise stands at the right, at infinity."""
    claims = sorted({row.epsilon for row in result.rows if row.epsilon is not None})
    infinity = 4.0 * max(claims, default=1.0)
    lines = grouped(
        (row.series, (infinity if row.epsilon is None else row.epsilon, 100 * row.accuracy.value))
        for row in result.rows
    )
    chart = Chart("claimed ε at δ = 0.001; ∞: no noise", "test accuracy, %", "log")
    chart.settings |= {"xticks": [*claims, infinity], "xticklabels": [*map("{:g}".format, claims), "∞"]}
    subject = f"Test accuracy against claimed epsilon after {result.epochs} epochs"
    return line_figure(result, chart, {name: sorted(points) for name, points in lines.items()}, subject)


def accuracy_by_megabytes(result: TableResult[TrainingRow | PrivateRow]) -> str:
    """Draw accuracy against megabytes in both directions, the first table included, of true labels and at epsilon 1."""
    rows = [row for row in result.rows if row.epsilon in (None, 1.0)]
    lines = {row.series or row.label: row.by_megabytes() for row in rows}
    chart = Chart("all messages, MB", "test accuracy, %", "log")
    return line_figure(result, chart, lines, "Test accuracy against bytes sent, at epsilon 1 and with true labels")


def accuracy_by_label_epsilon(result: TableResult[TrainingRow | PrivateRow]) -> str:
    """Draw accuracy, or of two classes the area under the ROC curve, against epsilon; true labels as levels."""
    areas = any(row.auc is not None for row in result.rows)
    values = [(row, 100 * (row.accuracy.value if row.auc is None else row.auc)) for row in result.rows]
    levels = {row.label: value for row, value in values if row.epsilon is None}
    lines = grouped((row.series, (row.epsilon, value)) for row, value in values if row.epsilon is not None)
    metric = "area under the ROC curve, %" if areas else "test accuracy, %"
    chart = Chart("ε of each label, replace-label", metric, "log")
    epsilons = sorted({row.epsilon for row in result.rows if row.epsilon is not None})
    chart.settings |= {"xticks": epsilons, "xticklabels": [*map("{:g}".format, epsilons)]}
    for index, (label, value) in enumerate(levels.items()):
        chart.level(_named(label, value), value, color=INK, ls=LINES[1 + index % (len(LINES) - 1)], lw=1.0)
    drawn = {name: sorted(points) for name, points in lines.items()}
    return line_figure(result, chart, drawn, f"{metric} by epsilon", levels=levels)


def _named(label: str, value: float) -> str:
    """Return the name of a line with its last value, folded where it is long."""
    return "\n".join(wrap(f"{label}  {value:.1f}", 48, break_on_hyphens=False))


def line_figure(
    result: TableResult[R], chart: Chart, lines: Mapping[str, Points], subject: str, *, levels: Iterable[str] = ()
) -> str:
    """Return lines of accuracies on `chart`, which has `levels` by name, as SVG, each by its name and last value."""
    drawn = {label: points for label, points in lines.items() if points}
    if not drawn:
        return ""
    for index, (label, points) in enumerate(drawn.items()):
        turn, place = divmod(index, len(LINES))
        marker = "osD^"[turn % 4] if len(points) < 8 else ""
        look = {"color": _COLOURS[(index + turn) % 3], "ls": LINES[place], "lw": 1.5, "marker": marker}
        chart.line(_named(label, points[-1][1]), points, ms=4, **look)
    ends = "; ".join(f"{label} {points[-1][1]:.1f}" for label, points in drawn.items())
    rows = sum(1 + (len(label) > 42) for label in (*drawn, *levels))
    return chart.draw(result.table, f"{subject}. At the right end: {ends}", 2.8 + 0.2 * rows)


def interval_figure(result: TableResult[AttackRow], rows: Mapping[str, Mapping[str, Interval]], subject: str) -> str:
    """Draw intervals on one scale beside their row's name: the first series filled, others open; chance dashed.

    Args:
        result: What is drawn; its first row says what guessing gives.
        rows: Intervals by series of each row; a series may be missing in some.
        subject: First words of the drawing's accessible name.
    """
    chance = result.rows[0].prior
    chart = Chart("share of labels found; dashed: guessing", "", bottom=len(rows) - 0.4, top=-0.4)
    chart.settings |= {"xlim": (-0.02, 1.02), "yticks": range(len(rows))}
    chart.settings["yticklabels"] = ["\n".join(wrap(label, 26)) for label in rows]
    chart.level(None, chance, upright=True, color=MUTED, ls="--", lw=1.0)
    names = [*dict.fromkeys(chain(*rows.values()))]
    for index, name in enumerate(names):
        points = []
        for place, series in enumerate(rows.values()):
            if each := series.get(name):
                points.append((place + 0.2 * index, each.value, each.low, each.high))
        look = {"color": INK, "mfc": "none"} if index else {"color": ACCENT}
        chart.line(name, points, upright=True, ls="", marker="oDs"[index % 3], ms=4.5, **look)
    texts = []
    for label, series in rows.items():
        values = (f"{name} {interval.value:.3f}" for name, interval in series.items())
        texts.append(f"{label}: {', '.join(values)}")
    alt = f"{subject}. Chance is {chance:.3f}. {'; '.join(texts)}"
    legend = {"ncols": len(names), "columnspacing": 0.8, "handlelength": 1.0, "handletextpad": 0.4}
    return chart.draw(result.table, alt, 0.5 * len(rows) + 1.0, **legend)


def both_adversaries(result: TableResult[AttackRow]) -> str:
    """Draw success against chance, a line a method with both adversaries on it."""
    lines: dict[str, dict[str, Interval]] = {}
    for row in result.rows:
        who = "curious client" if row.adversary == "client" else row.adversary
        lines.setdefault(row.line, {})[who] = row.success
    return interval_figure(result, lines, f"Direct label inference, {result.source}")


def beside_baselines(result: TableResult[AttackRow]) -> str:
    """Draw the trained bottom model beside both baselines, row by row."""
    lines = {}
    for row in result.rows:
        raw, untrained = (interval_of(row.baselines[name]) for name in (RAW, UNTRAINED))
        lines[row.label] = {"trained": row.success, "raw features": raw, "untrained": untrained}
    return interval_figure(result, lines, f"Label inference by model completion, {result.source}")


def memory_bars(result: TableResult[MemoryRow]) -> str:
    """Draw peaks as multiples of the model, a bar a method; the dashed line is the model itself."""
    peaks = {row.label: row.peak_of_model() for row in result.rows}
    subject = "Peak memory of a training round as a multiple of the client's ResNet-18. "
    bars = {label: (peak, f" {peak:.2f}") for label, peak in peaks.items()}
    return bars_figure(result.table, subject, bars, level=1.0, xlabel="peak of a round / client model")


def tried_settings(result: TableResult[SearchRow]) -> str:
    """Draw held-out accuracy of every setting tried by its rounds, a mark a row; the control's choice as a line."""
    rows = [row for row in result.rows if row.kind != "control"]
    if not rows:
        return ""
    chart = Chart("rounds, all clients together", "held-out accuracy, %", "log")
    for control in of_kind(result.rows, "control")[:1]:
        label = f"{control.label}, {shown(control.validation, '.1p')}"
        chart.level(label, 100 * control.validation, color=INK, ls=DASHED)
    for index, row in enumerate(rows):
        points = [(trial.rounds, 100 * trial.accuracy) for trial in row.tried]
        colour = MUTED if row.kind == "claimed" else ACCENT
        label = f"{row.label}, best {shown(row.validation, '.1p')}"
        chart.line(label, points, color=colour, ls="", marker="os^xD"[index % 5], ms=5)
    words = "; ".join(f"{row.label} at best {shown(row.validation, '.1p')}" for row in result.rows)
    return chart.draw(result.table, f"Held-out accuracy of every setting tried, by its rounds: {words}", 4.4)
