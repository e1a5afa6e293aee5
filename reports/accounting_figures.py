"""Figures of upper bounds as SVG: epsilon against rounds, and the trade-off curves that bounds stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.text import clean, upper_bound

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DOTS = [(0, (1, 1.6)), (0, (6, 2, 1, 2)), (0, (3, 4)), (0, (8, 3))]


def _style(index: int, *, strong: bool) -> dict[str, Any]:
    """Return the look of a line: solid in the accent colour where stressed, one of several dashes otherwise."""
    if strong:
        return {"color": svg.ACCENT, "linewidth": 2.2}
    return {"color": svg.INK, "linewidth": 1.6, "linestyle": _DOTS[index % len(_DOTS)]}


def rounds_figure(lines: Mapping[str, Sequence[tuple[int, float]]], *, subject: str, strong: str = "") -> str:
    """Return epsilon against rounds, one line a name of `lines` with its (rounds, upper epsilon), as SVG.

    Both axes are logarithmic; points at epsilon 0 are not drawn. `strong` names the line to stress; "" where no line
    has two points. `subject` says in words what was accounted for.
    """
    shown = {name: [(t, e) for t, e in points if e > 0.0] for name, points in lines.items()}
    shown = {name: points for name, points in shown.items() if len(points) > 1}
    if not shown:
        return ""

    def paint(axes: Axes) -> None:
        for index, (name, points) in enumerate(shown.items()):
            rounds, epsilons = zip(*points, strict=True)
            axes.loglog(rounds, epsilons, label=name, **_style(index, strong=name == strong))
        svg.plain_ticks(axes.xaxis, axes.yaxis)
        axes.set(xlabel="rounds, all clients together", ylabel="ε")
        axes.grid(alpha=0.6)
        svg.legend_above(axes, handles=3.2)

    last = "; ".join(f"{name} {upper_bound(points[-1][1])}" for name, points in shown.items())
    end = max(points[-1][0] for points in shown.values())
    alt = clean(f"Upper bounds on epsilon against rounds, {subject}. After {end:,} rounds: {last}")
    return svg.draw("figure-epsilon-rounds", alt, 3.2 + 0.2 * len(shown), paint)


def curves_figure(
    alpha: Sequence[float], curves: Mapping[str, Sequence[float]], *, subject: str, strong: str = ""
) -> str:
    """Return trade-off curves over false positive rates `alpha` in [0, 1], one a name of `curves`, as SVG.

    Values are the least false negative rates that each bound leaves to any test; "" without curves.
    """
    if not curves:
        return ""

    def paint(axes: Axes) -> None:
        svg.tradeoff_axes(axes)
        for index, (name, values) in enumerate(curves.items()):
            axes.plot(alpha, values, label=name, **_style(index, strong=name == strong))
        svg.legend_above(axes, handles=3.2)

    middle = min(range(len(alpha)), key=lambda i: abs(alpha[i] - 0.1))
    parts = "; ".join(f"{name} {values[middle]:.3f}" for name, values in curves.items())
    alt = clean(f"Trade-off curves, {subject}. At a false positive rate of {alpha[middle]:.3f}: {parts}")
    return svg.draw("figure-curves", alt, 4.7 + 0.2 * len(curves), paint)
