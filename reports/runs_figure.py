"""Draws the certified epsilon by number of runs, one line an estimator, against the claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.shape import split_result
from reports.text import clean, number, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LARGEST = 1e12
_DASHES: tuple[Any, ...] = ("-", (0, (1, 1.6)), (0, (6, 2, 1, 2)), (0, (3, 4)))


def runs_figure(result: Mapping[str, Any]) -> str:
    """Return the lower bound of each estimator by runs in each world as SVG; "" without two numbers of runs.

    The horizontal axis is logarithmic; the level line is the claim. Bounds that rest on an assumption are faint.
    """
    known = split_result(result)[0]
    lines: dict[str, list[tuple[float, float]]] = {}
    assumed = set()
    for row in known.get("by_runs") or []:
        runs, epsilon = within(row.get("runs"), 1.0, _LARGEST), within(row.get("epsilon_lower"), 0.0, _LARGEST)
        if runs is None or epsilon is None or not row.get("estimator"):
            continue
        name = clean(row["estimator"])
        lines.setdefault(name, []).append((runs, epsilon))
        if row.get("assumes"):
            assumed.add(name)
    lines = {name: sorted(points) for name, points in lines.items() if len({runs for runs, _ in points}) > 1}
    if not lines:
        return ""
    claimed = within((known.get("privacy") or {}).get("claimed"), 0.0, _LARGEST)

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        # The default writes powers as mathematics, which a drawing with plain text shows as its source.
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        if claimed is not None:
            axes.axhline(claimed, color=svg.INK, linestyle=(0, (5, 2.5)), label=f"claimed {number(claimed)}")
        for index, (name, points) in enumerate(lines.items()):
            colour = svg.MUTED if name in assumed else svg.ACCENT
            words = f"{name} (assumes)" if name in assumed else name
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=_DASHES[index % len(_DASHES)], label=words)
        axes.set_ylim(bottom=0)
        axes.set(xlabel="runs in each world", ylabel="certified ε")
        axes.grid(axis="y")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=2.6, ncols=1)

    ends = "; ".join(f"{name} {number(points[-1][1])} from {number(points[-1][0])}" for name, points in lines.items())
    return svg.draw("figure-runs", f"Certified epsilon by number of runs: {ends} runs", 3.2, paint)
