"""Figures of a training as SVG: accuracy by epoch and by bytes, and how old the server's table was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from reports import svg
from reports.figures import LARGEST, alt_of, control_label, mark, short
from reports.text import number, percent, proportion, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpzv_audit.results import Ages, Utility

_LONGEST_LEVEL = 44


def accuracy_figure(utility: Utility, method: str) -> str:
    """Return test accuracy by epoch with the controls as level lines, as SVG; "" without two epochs of it."""
    points = [(within(row.epoch, 0.0, LARGEST), row.test_accuracy) for row in utility.history]
    return _accuracy("figure-accuracy", utility, method, points, "epoch")


def bytes_figure(utility: Utility, method: str) -> str:
    """Return test accuracy by megabytes sent so far, both directions, as SVG; "" without two epochs of it."""
    sent = [[within(way, 0.0, LARGEST) for way in (row.bytes_up, row.bytes_down)] for row in utility.history]
    points = [
        (None if up is None or down is None else (up + down) / 1e6, row.test_accuracy)
        for (up, down), row in zip(sent, utility.history, strict=True)
    ]
    return _accuracy("figure-bytes", utility, method, points, "MB sent so far, up and down")


def staleness_figure(distribution: Sequence[Ages]) -> str:
    """Return the shares of the rows that the server read by their age in rounds, as SVG; "" where there are none.

    Ages come in ranges that double, as the result has them.
    """
    rows = [
        (low, high, share)
        for row in distribution
        if (low := within(row.first, 0.0, LARGEST)) is not None
        and (high := within(row.last, 0.0, LARGEST)) is not None
        and (share := within(row.share, 0.0, 1.0)) is not None
    ]
    if not rows:
        return ""
    labels = [f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}" for low, high, _ in rows]

    def paint(axes: Axes) -> None:
        places = range(len(rows))
        axes.barh(places, [share for _, _, share in rows], height=0.62, color=svg.ACCENT)
        for place, (_, _, share) in zip(places, rows, strict=True):
            axes.text(share + 0.012, place, _share(share), va="center", ha="left", color=svg.INK)
        axes.set_yticks(places, labels)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, 1.12 * max(share for _, _, share in rows) + 0.02)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set_ylabel("age in rounds")
        axes.set_xlabel("share of the rows that the server read")

    alt = "Age of the rows that the server read, in rounds: "
    alt += "; ".join(f"{label} {_share(share)}" for label, (_, _, share) in zip(labels, rows, strict=True))
    return svg.draw("figure-staleness", alt, 0.7 + 0.32 * len(rows), paint)


def _share(share: float) -> str:
    return "less than 0.1%" if 0 < share < 0.001 else percent(round(share, 3))


def _accuracy(
    name: str, utility: Utility, method: str, found: Sequence[tuple[float | None, float | None]], across: str
) -> str:
    """Accuracy over `across`, of the (place, accuracy) that can be drawn, with the controls as level lines."""
    known = [(x, within(y, 0.0, 1.0)) for x, y in found]
    points = [(x, y) for x, y in known if x is not None and y is not None]
    if len(points) < 2:
        return ""
    marks = {control_label(k, v): mark(k, v) for k, v in utility.controls.items()}
    # A line of the legend has more room than a row of a plot.
    levels = [replace(level, label=short(label, _LONGEST_LEVEL)) for label, level in marks.items() if level]
    method = short(method or "test accuracy")

    def paint(axes: Axes) -> None:
        for index, level in enumerate(levels):
            label = f"{level.label} {proportion(level.value, 3)}"
            axes.axhline(level.value, color=svg.MUTED, linestyle=svg.DASHES[index % len(svg.DASHES)], label=label)
        places, accuracies = zip(*points, strict=True)
        axes.plot(places, accuracies, color=svg.ACCENT, linewidth=2.2, label=method)
        axes.set(ylim=(0, 1), xlabel=across, ylabel="test accuracy")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(axis="y")
        svg.legend_above(axes)

    first, last = (proportion(points[i][1], 3) for i in (0, -1))
    words = "over training" if across == "epoch" else f"by {number(points[-1][0])} MB sent"
    alt = f"Test accuracy of {method} from {first} to {last} {words}"
    alt += f"; {alt_of(levels)}" if levels else ""
    return svg.draw(name, alt, 3.0 + 0.2 * len(levels), paint)
