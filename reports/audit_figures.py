"""Figures of an audit as SVG: the certified epsilon by number of runs, and the wealth of the betting test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reports import svg
from reports.figures import LARGEST
from reports.text import clean, number, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpzv_audit.results import BoundByRuns, Wealth


def runs_figure(rows: Sequence[BoundByRuns], claimed: float | None) -> str:
    """Return the lower bound of each estimator by runs in each world as SVG; "" without two numbers of runs.

    The horizontal axis is logarithmic; the level line is the claim. Bounds that rest on an assumption are faint.
    """
    lines: dict[str, list[tuple[float, float]]] = {}
    assumed = set()
    for row in rows:
        runs, epsilon = within(row.runs, 1.0, LARGEST), within(row.epsilon_lower, 0.0, LARGEST)
        if runs is None or epsilon is None or not row.estimator:
            continue
        name = clean(row.estimator)
        lines.setdefault(name, []).append((runs, epsilon))
        if row.assumes:
            assumed.add(name)
    lines = {name: sorted(points) for name, points in lines.items() if len({runs for runs, _ in points}) > 1}
    if not lines:
        return ""
    level = within(claimed, 0.0, LARGEST)

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        svg.plain_ticks(axes.xaxis)
        if level is not None:
            axes.axhline(level, color=svg.INK, linestyle=svg.DASHED, label=f"claimed {number(level)}")
        for index, (name, points) in enumerate(lines.items()):
            colour = svg.MUTED if name in assumed else svg.ACCENT
            words = f"{name} (assumes)" if name in assumed else name
            dashes = ("-", *svg.DASHES[1:])[index % len(svg.DASHES)]
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=dashes, label=words)
        axes.set_ylim(bottom=0)
        axes.set(xlabel="runs in each world", ylabel="certified ε")
        axes.grid(axis="y")
        svg.legend_above(axes)

    ends = "; ".join(f"{name} {number(points[-1][1])} from {number(points[-1][0])}" for name, points in lines.items())
    return svg.draw("figure-runs", f"Certified epsilon by number of runs: {ends} runs", 3.2, paint)


def wealth_figure(wealth: Wealth | None) -> str:
    """Return log10 of the wealth against the claim by pairs of runs as SVG; "" without two points.

    The level line is where the claim is refuted at the stated confidence, at whatever pair it is reached (auditing.md,
    `sequential`).
    """
    if wealth is None:
        return ""
    columns = zip(wealth.pairs, wealth.log10_wealth, strict=False)
    read = [(within(pairs, 1.0, LARGEST), within(value, -LARGEST, LARGEST)) for pairs, value in columns]
    points = [(pairs, value) for pairs, value in read if pairs is not None and value is not None]
    goal, claimed = within(wealth.goal, 0.0, LARGEST), within(wealth.epsilon, 0.0, LARGEST)
    if len(points) < 2 or goal is None or claimed is None:
        return ""
    at = within(wealth.refuted_at, 1.0, LARGEST)

    def paint(axes: Axes) -> None:
        axes.axhline(goal, color=svg.INK, linestyle=svg.DASHED, label="refuted from here on")
        axes.plot(*zip(*points, strict=True), color=svg.ACCENT, label=f"wealth against ε = {number(claimed)}")
        if at is not None:
            axes.axvline(at, color=svg.MUTED, linestyle=svg.DOTTED, label=f"reached at pair {number(at)}")
        axes.set(xlabel="pairs of runs, in the order of the runs", ylabel="log10 of the wealth")
        axes.grid(axis="y")
        svg.legend_above(axes)

    found = f"reached at pair {number(at)}" if at is not None else "never reached"
    words = f"Wealth of the betting test against epsilon {number(claimed)}: the level that refutes it is {found}"
    return svg.draw("figure-wealth", words, 3.2, paint)
