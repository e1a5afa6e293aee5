"""Figures of reproduced tables: accuracy by epoch, every line named at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from reports import svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Line = tuple[str, Sequence[tuple[float, float]]]
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)), (0, (3, 1.5)), (0, (8, 2, 1, 2, 1, 2)))


def accuracy_by_epoch(result: dict[str, Any]) -> str:
    """Accuracy in percent against the paper's epochs, a line a row; the paper's value, after all its epochs, beside."""
    lines = [
        (row["label"], [(point["epoch"], 100 * point["accuracy"]) for point in row["history"]])
        for row in result["rows"]
    ]
    return line_figure(
        f"figure-{result['table']}",
        lines,
        x_label="epoch, as the paper counts them",
        y_label="test accuracy, %",
        subject=f"Test accuracy by epoch, {result['source']}",
    )


def line_figure(
    name: str,
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    subject: str,
    log_x: bool = False,
    finish: Callable[[Axes], None] | None = None,
) -> str:
    """Lines of (x, y) points as SVG, each with its name and last value at its right end; `finish` adds to the axes."""
    shown = [(label, points) for label, points in lines if points]
    if not shown:
        return ""

    def paint(axes: Axes) -> None:
        for index, (_, points) in enumerate(shown):
            xs, ys = zip(*points, strict=True)
            marker = "o" if len(points) < 8 else ""
            axes.plot(
                xs,
                ys,
                color=(svg.INK, svg.ACCENT, svg.MUTED)[index % 3],
                linestyle=_DASHES[index % len(_DASHES)],
                linewidth=1.5,
                marker=marker,
                markersize=4,
            )
        if log_x:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.grid(alpha=0.5)
        if finish is not None:
            finish(axes)
        low, high = axes.get_ylim()
        for (label, points), (index, at) in zip(shown, _spread([p[-1][1] for _, p in shown], low, high), strict=True):
            axes.annotate(
                f"{label}  {points[-1][1]:.1f}",
                (1.02, (at - low) / (high - low)),
                xycoords="axes fraction",
                va="center",
                fontsize=8.5,
                color=(svg.INK, svg.ACCENT, svg.MUTED)[index % 3],
                annotation_clip=False,
            )

    ends = "; ".join(f"{label} {points[-1][1]:.1f}" for label, points in shown)
    return svg.draw(name, f"{subject}. At the right end: {ends}", max(2.8, 0.28 * len(shown) + 1.2), paint)


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
