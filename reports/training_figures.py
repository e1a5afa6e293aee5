"""Figures of a training as SVG: accuracy by epoch and by bytes, and how old the server's table was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.figures import LARGEST, Mark, alt_of, control_label, mark, short
from reports.shape import split_result
from reports.text import number, percent, proportion, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LONGEST_LEVEL = 44
_DASHES = [(0, (5, 2.5)), (0, (1, 1.6)), (0, (6, 2, 1, 2)), (0, (3, 4))]


def accuracy_figure(result: Mapping[str, Any]) -> str:
    """Return test accuracy by epoch with the controls as level lines, as SVG; "" without two epochs of it."""
    known = split_result(result)[0]
    points = [
        (epoch, accuracy)
        for row in _history(known)
        if (epoch := _count(row, "epoch")) is not None
        for accuracy in _accuracies(row)
    ]
    return _accuracy("figure-accuracy", known, points, "epoch", "over training")


def bytes_figure(result: Mapping[str, Any]) -> str:
    """Return test accuracy by megabytes sent so far, both directions, as SVG; "" without two epochs of it."""
    known = split_result(result)[0]
    points = [
        ((up + down) / 1e6, accuracy)
        for row in _history(known)
        if (up := _count(row, "bytes_up")) is not None and (down := _count(row, "bytes_down")) is not None
        for accuracy in _accuracies(row)
    ]
    words = f"by {number(points[-1][0])} MB sent" if points else ""
    return _accuracy("figure-bytes", known, points, "MB sent so far, up and down", words)


def staleness_figure(result: Mapping[str, Any]) -> str:
    """Return the shares of the rows that the server read by their age in rounds, as SVG; "" where there are none.

    Ages come in ranges that double, as the result has them.
    """
    staleness = split_result(result)[0].get("staleness") or {}
    rows = [
        (low, high, share)
        for row in staleness.get("distribution") or []
        if (low := _count(row, "from")) is not None
        and (high := _count(row, "to")) is not None
        and (share := within(row.get("share"), 0.0, 1.0)) is not None
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


def _history(known: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return (known.get("utility") or {}).get("history") or []


def _count(row: Mapping[str, Any], key: str) -> float | None:
    return within(row.get(key), 0.0, LARGEST)


def _accuracies(row: Mapping[str, Any]) -> list[float]:
    accuracy = within(row.get("test_accuracy"), 0.0, 1.0)
    return [] if accuracy is None else [accuracy]


def _levels(known: Mapping[str, Any]) -> list[Mark]:
    controls = (known.get("utility") or {}).get("controls") or {}
    marks = {control_label(k, v): mark(k, v) for k, v in controls.items()}
    # a line of the legend has more room than a row of a plot
    return [replace(level, label=short(label, _LONGEST_LEVEL)) for label, level in marks.items() if level]


def _accuracy(name: str, known: Mapping[str, Any], points: list[tuple[float, float]], across: str, words: str) -> str:
    if len(points) < 2:
        return ""
    levels = _levels(known)
    method = short(known.get("method") or "test accuracy")

    def paint(axes: Axes) -> None:
        for index, level in enumerate(levels):
            label = f"{level.label} {proportion(level.value, 3)}"
            axes.axhline(level.value, color=svg.MUTED, linestyle=_DASHES[index % len(_DASHES)], label=label)
        places, accuracies = zip(*points, strict=True)
        axes.plot(places, accuracies, color=svg.ACCENT, linewidth=2.2, label=method)
        axes.set(ylim=(0, 1), xlabel=across, ylabel="test accuracy")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(axis="y")
        # Lines of accuracy may run anywhere: the legend stands above the axes, where it hides none of them.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=2.6, ncols=1)

    first, last = (proportion(points[i][1], 3) for i in (0, -1))
    alt = f"Test accuracy of {method} from {first} to {last} {words}"
    alt += f"; {alt_of(levels)}" if levels else ""
    return svg.draw(name, alt, 3.0 + 0.2 * len(levels), paint)
