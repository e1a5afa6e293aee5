"""Figures of reproduced tables, as SVG: each is a function of the whole result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attacks.label.completion import RAW, UNTRAINED
from dpzv_audit.reproduce.memory import peak_of_model
from dpzv_audit.reproduce.search import of_kind
from dpzv_audit.reproduce.table import Row
from dpzv_audit.reproduce.training import megabytes_per_epoch
from dpzv_audit.reproduce.words import shown
from reports import svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Line = tuple[str, Sequence[tuple[float, float]]]
Series = Mapping[str, Mapping[str, float]]
"""Intervals of one row of a figure by name: `value`, `low` and `high`."""
_COLOURS = (svg.INK, svg.ACCENT, svg.MUTED)
_SHAPES = ("o", "D", "s")


def accuracy_by_epoch(result: Row) -> str:
    """Draw accuracy in percent against the paper's epochs, a line a row."""
    subject = f"Test accuracy by epoch, {result['source']}"
    return line_figure(result, _histories(result), "epoch, as the paper counts them", subject)


def megabytes_by_accuracy(result: Row) -> str:
    """Draw accuracy against megabytes sent in both directions, a line a row."""
    sizes = [megabytes_per_epoch(row) for row in result["rows"]]
    lines = [
        (label, [(size * epoch, accuracy) for epoch, accuracy in points])
        for size, (label, points) in zip(sizes, _histories(result), strict=True)
    ]
    subject = f"Test accuracy against bytes sent, {result['source']}"
    return line_figure(result, lines, "messages in both directions, MB", subject)


def _histories(result: Row) -> list[Line]:
    """Return the accuracy in percent of each row by the paper's epochs."""
    return [(row["label"], [(p["epoch"], 100 * p["accuracy"]) for p in row["history"]]) for row in result["rows"]]


def accuracy_by_epsilon(result: Row) -> str:
    """Draw accuracy against the claimed epsilon, a line a method; no noise stands at the right, at infinity."""
    claims = sorted({row["epsilon"] for row in result["rows"] if row["epsilon"] is not None})
    infinity = 4.0 * max(claims, default=1.0)
    series: dict[str, list[tuple[float, float]]] = {}
    for row in result["rows"]:
        at = infinity if row["epsilon"] is None else row["epsilon"]
        series.setdefault(row["series"], []).append((at, 100 * row["accuracy"]["value"]))
    ticks = {**{claim: f"{claim:g}" for claim in claims}, infinity: "∞"}
    lines = [(name, sorted(points)) for name, points in series.items()]
    subject = f"Test accuracy against claimed epsilon after {result['epochs']} epochs"
    return line_figure(result, lines, "claimed ε at δ = 0.001; ∞: no noise", subject, log_ticks=ticks)


def line_figure(
    result: Row, lines: Sequence[Line], x_label: str, subject: str, *, log_ticks: Mapping[float, str] | None = None
) -> str:
    """Return lines of accuracies as SVG, each with its name and last value at its right end.

    With `log_ticks`, places on a logarithmic axis and their names.
    """
    shown = [(label, points) for label, points in lines if points]
    if not shown:
        return ""

    def paint(axes: Axes) -> None:
        for index, (_, points) in enumerate(shown):
            xs, ys = zip(*points, strict=True)
            axes.plot(
                xs,
                ys,
                color=_COLOURS[index % 3],
                linestyle=svg.LINES[index % len(svg.LINES)],
                linewidth=1.5,
                marker="o" if len(points) < 8 else "",
                markersize=4,
            )
        if log_ticks is not None:
            _log_scale(axes, "{:g}")
        axes.set(xlabel=x_label, ylabel="test accuracy, %")
        axes.grid(alpha=0.5)
        if log_ticks is not None:
            axes.set_xticks([*log_ticks], [*log_ticks.values()])
        low, high = axes.get_ylim()
        for (label, points), (index, at) in zip(shown, _spread([p[-1][1] for _, p in shown], low, high), strict=True):
            axes.annotate(
                f"{label}  {points[-1][1]:.1f}",
                (1.02, (at - low) / (high - low)),
                xycoords="axes fraction",
                va="center",
                fontsize=8.5,
                color=_COLOURS[index % 3],
                annotation_clip=False,
            )

    ends = "; ".join(f"{label} {points[-1][1]:.1f}" for label, points in shown)
    return _drawn(result, f"{subject}. At the right end: {ends}", max(2.8, 0.28 * len(shown) + 1.2), paint)


def _log_scale(axes: Axes, form: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: form.format(value))
    axes.xaxis.set_minor_formatter(lambda value, _: "")


def _spread(ends: Sequence[float], low: float, high: float) -> list[tuple[int, float]]:
    """(index, height) of a label for each end, in the order given, at least a line of text apart."""
    gap = (high - low) / 13
    order = sorted(range(len(ends)), key=lambda i: ends[i])
    heights: dict[int, float] = {}
    floor = float("-inf")
    for i in order:
        heights[i] = floor = max(ends[i], floor + gap)
    # What was pushed above the top comes down again, and those below it with it.
    ceiling = high
    for i in reversed(order):
        heights[i] = ceiling = min(heights[i], ceiling)
        ceiling -= gap
    return [(i, heights[i]) for i in range(len(ends))]


def interval_figure(result: Row, rows: Sequence[tuple[str, Series]], subject: str) -> str:
    """Intervals on one scale from 0 to 1 below their row's name: the first series filled, others open; chance dashed.

    Args:
        result: What is drawn; its first row says what guessing gives.
        rows: Name and series of each row; a series may be missing in some.
        subject: First words of the drawing's accessible name.
    """
    chance = result["rows"][0]["baselines"]["prior"]
    names = list(dict.fromkeys(series for _, shown in rows for series in shown))
    heights = list(range(len(rows)))[::-1]

    def paint(axes: Axes) -> None:
        axes.axvline(chance, color=svg.MUTED, linestyle="--", linewidth=1.0)
        for index, series in enumerate(names):
            at = [height - 0.2 * index for height, (_, shown) in zip(heights, rows, strict=True) if series in shown]
            found = [shown[series] for _, shown in rows if series in shown]
            value, low, high = (np.array([each[name] for each in found]) for name in ("value", "low", "high"))
            axes.errorbar(
                value,
                at,
                xerr=[value - low, high - value],
                fmt=_SHAPES[index % len(_SHAPES)],
                markersize=4.5,
                markerfacecolor=svg.ACCENT if index == 0 else "none",
                color=svg.ACCENT if index == 0 else svg.INK,
                linewidth=1.2,
                label=series,
            )
        for height, (label, _) in zip(heights, rows, strict=True):
            axes.annotate(label, (chance + 0.02, height + 0.2), va="bottom", fontsize=9, color=svg.INK)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.3 - 0.2 * len(names), len(rows) - 0.2)
        axes.set(xlabel="share of labels found; dashed: guessing")
        if len(names) > 1:
            axes.legend(
                loc="lower center",
                bbox_to_anchor=(0.5, 1.0),
                ncols=len(names),
                fontsize=9,
                handletextpad=0.2,
                columnspacing=1.2,
            )

    said = "; ".join(
        f"{label}: " + ", ".join(f"{series} {found['value']:.3f}" for series, found in shown.items())
        for label, shown in rows
    )
    return _drawn(result, f"{subject}. Chance is {chance:.3f}. {said}", 0.5 * len(rows) + 1.0, paint)


def both_adversaries(result: Row) -> str:
    """Success against chance, a line a method with both adversaries on it."""
    lines: dict[str, dict[str, Mapping[str, float]]] = {}
    for row in result["rows"]:
        who = "curious client" if row["adversary"] == "client" else row["adversary"]
        lines.setdefault(row["line"], {})[who] = row["success"]
    return interval_figure(result, list(lines.items()), f"Direct label inference, {result['source']}")


def beside_baselines(result: Row) -> str:
    """Return the trained bottom model beside both baselines, row by row."""
    beside = {"raw features": RAW, "untrained": UNTRAINED}
    lines = [
        (row["label"], {"trained": row["success"], **{name: row["baselines"][of] for name, of in beside.items()}})
        for row in result["rows"]
    ]
    return interval_figure(result, lines, f"Label inference by model completion, {result['source']}")


def memory_bars(result: Row) -> str:
    """Peaks as multiples of the model, a bar a method; the dashed line is the model itself."""
    bars = [(row["label"], peak_of_model(row)) for row in result["rows"]]
    heights = list(range(len(bars)))[::-1]

    def paint(axes: Axes) -> None:
        axes.barh(heights, [peak for _, peak in bars], color=svg.MUTED, height=0.55)
        axes.axvline(1.0, color=svg.ACCENT, linestyle="--", linewidth=1.4)
        for height, (_, peak) in zip(heights, bars, strict=True):
            axes.annotate(f" {peak:.2f}", (peak, height), va="center", fontsize=9, color=svg.INK)
        axes.set_yticks(heights, [label for label, _ in bars])
        axes.set_xlim(0, 1.15 * max(peak for _, peak in bars))
        axes.set(xlabel="peak of a round / client model")

    said = "; ".join(f"{label} {peak:.2f}" for label, peak in bars)
    alt = f"Peak memory of a training round as a multiple of the client's ResNet-18. {said}"
    return _drawn(result, alt, 0.42 * len(bars) + 1.0, paint)


def tried_settings(result: Row) -> str:
    """Held-out accuracy of every setting tried against its rounds, a mark a row; the control's choice as a line."""
    rows = [row for row in result["rows"] if row["kind"] != "control"]
    control = next(iter(of_kind(result["rows"], "control")), None)
    if not rows:
        return ""

    def paint(axes: Axes) -> None:
        if control is not None:
            axes.axhline(
                100 * control["validation"],
                color=svg.INK,
                linestyle=(0, (5, 2.5)),
                label=f"{control['label']}, {shown(control['validation'], '.1p')}",
            )
        for index, row in enumerate(rows):
            xs = [trial["rounds"] for trial in row["tried"]]
            ys = [100 * trial["accuracy"] for trial in row["tried"]]
            colour = svg.MUTED if row["kind"] == "claimed" else svg.ACCENT
            best = f"{row['label']}, best {shown(row['validation'], '.1p')}"
            axes.plot(xs, ys, linestyle="", marker="os^xD"[index % 5], markersize=5, color=colour, label=best)
        _log_scale(axes, "{:,.0f}")
        axes.set(xlabel="rounds, all clients together", ylabel="held-out accuracy, %")
        axes.grid(alpha=0.5)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=1)

    words = "; ".join(f"{row['label']} at best {shown(row['validation'], '.1p')}" for row in result["rows"])
    return _drawn(result, f"Held-out accuracy of every setting tried, by its rounds: {words}", 4.4, paint)


def _drawn(result: Row, description: str, height: float, paint: Callable[[Axes], None]) -> str:
    return svg.draw(f"figure-{result['table']}", description, height, paint)
