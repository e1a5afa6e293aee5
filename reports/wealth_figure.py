"""Draws the wealth of the betting test against the claim, pair by pair (auditing.md, `sequential`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.shape import split_result
from reports.text import number, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LARGEST = 1e12


def wealth_figure(result: Mapping[str, Any]) -> str:
    """Return log10 of the wealth by pairs of runs as SVG; "" without two points.

    The level line is where the claim is refuted at the stated confidence, at whatever pair it is reached.
    """
    wealth = split_result(result)[0].get("wealth") or {}
    columns = zip(wealth.get("pairs") or (), wealth.get("log10_wealth") or (), strict=False)
    read = [(within(pairs, 1.0, _LARGEST), within(value, -_LARGEST, _LARGEST)) for pairs, value in columns]
    points = [(pairs, value) for pairs, value in read if pairs is not None and value is not None]
    goal, claimed = within(wealth.get("goal"), 0.0, _LARGEST), within(wealth.get("epsilon"), 0.0, _LARGEST)
    if len(points) < 2 or goal is None or claimed is None:
        return ""
    at = within(wealth.get("refuted_at"), 1.0, _LARGEST)

    def paint(axes: Axes) -> None:
        axes.axhline(goal, color=svg.INK, linestyle=(0, (5, 2.5)), label="refuted from here on")
        axes.plot(*zip(*points, strict=True), color=svg.ACCENT, label=f"wealth against ε = {number(claimed)}")
        if at is not None:
            axes.axvline(at, color=svg.MUTED, linestyle=(0, (1, 1.6)), label=f"reached at pair {number(at)}")
        axes.set(xlabel="pairs of runs, in the order of the runs", ylabel="log10 of the wealth")
        axes.grid(axis="y")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=2.6, ncols=1)

    found = f"reached at pair {number(at)}" if at is not None else "never reached"
    words = f"Wealth of the betting test against epsilon {number(claimed)}: the level that refutes it is {found}"
    return svg.draw("figure-wealth", words, 3.2, paint)
