"""Figures of a matrix as SVG: success of each attack against epsilon, a line a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.figures import LARGEST, short
from reports.text import clean, number, proportion, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpzv_audit.results import Cell

_Point = tuple[float, float, float, float]
_COLOURS = (svg.ACCENT, svg.INK, svg.MUTED)
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)), (0, (3, 1.5)), (0, (8, 2, 1, 2, 1, 2)))
_MARKERS = "osD^vP*"
_LINE = 0.18
"""Height of a line of the legend, in inches."""


def method_of(cell: Cell) -> str:
    """Return a cell's method with the channel that carries its noise."""
    return clean(cell.method) + (f" + {clean(cell.noise)} noise" if cell.noise else "")


def epsilon_figures(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the SVG of success against epsilon by `ATTACK-ADVERSARY`, of all measured at two epsilons or more."""
    measured: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.state == "measured":
            measured.setdefault(f"{clean(cell.attack)}-{clean(cell.adversary)}", []).append(cell)
    figures = {name: _epsilon_figure(name, found) for name, found in measured.items()}
    return {name: drawing for name, drawing in figures.items() if drawing}


def _numbers(cell: Cell) -> tuple[float, float, float] | None:
    """Success and its interval, over trainings or of few by their records, each in [-1, 1]."""
    ends = (cell.low, cell.high) if cell.over_low is None else (cell.over_low, cell.over_high)
    value, low, high = (within(found, -1.0, 1.0) for found in (cell.success, *ends))
    return None if value is None or low is None or high is None else (value, low, high)


def _lines(cells: Sequence[Cell]) -> tuple[dict[str, list[_Point]], dict[str, float]]:
    """Points (epsilon, success, low, high) by method, and the success of methods without an epsilon."""
    curves: dict[str, list[_Point]] = {}
    levels: dict[str, float] = {}
    for cell in cells:
        measured, epsilon = _numbers(cell), within(cell.epsilon, 1e-12, LARGEST)
        if measured is None:
            continue
        if epsilon is None:
            levels[method_of(cell)] = measured[0]
        else:
            curves.setdefault(method_of(cell), []).append((epsilon, *measured))
    return _merged({name: sorted(points) for name, points in curves.items()}), levels


def _merged(curves: Mapping[str, list[_Point]]) -> dict[str, list[_Point]]:
    """Curves by name; those of one channel of noise that no eye tells apart (0.005) are drawn as the first of them."""
    alike: dict[tuple[str, tuple[tuple[float, float], ...]], list[str]] = {}
    for name, points in curves.items():
        noise = name.partition(" + ")[2]
        alike.setdefault((noise, tuple((x, round(y, 2)) for x, y, _, _ in points)), []).append(name)
    merged = {}
    for (noise, _), names in alike.items():
        methods = ", ".join(name.partition(" + ")[0] for name in names)
        merged[f"{methods} + {noise}" if noise else methods] = curves[names[0]]
    return merged


def _epsilon_figure(name: str, cells: Sequence[Cell]) -> str:
    curves, levels = _lines(cells)
    if not any(len(points) > 1 for points in curves.values()):
        return ""
    together: dict[float, list[str]] = {}
    for method, value in levels.items():
        together.setdefault(round(value, 2), []).append(method)
    reference = [r for c in cells if (r := within(c.reference, -1.0, 1.0)) is not None]
    chance = max(reference, default=None)
    metric = short(next((c.metric for c in cells if c.metric), "success"), 44)

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        svg.plain_ticks(axes.xaxis)
        for index, (method, points) in enumerate(curves.items()):
            xs, ys, lows, highs = zip(*points, strict=True)
            colour = _COLOURS[index % len(_COLOURS)]
            axes.vlines(xs, lows, highs, color=colour, linewidth=4, alpha=0.3)
            axes.plot(
                xs,
                ys,
                color=colour,
                linestyle=_DASHES[index // len(_COLOURS) % len(_DASHES)],
                marker=_MARKERS[index % len(_MARKERS)],
                markersize=4.5,
                linewidth=1.6,
                label=method,
            )
        for index, (value, methods) in enumerate(together.items()):
            dashes = _DASHES[1 + index % (len(_DASHES) - 1)]
            words = f"no noise: {short(', '.join(methods), 60)}"
            axes.axhline(value, color=svg.MUTED, linestyle=dashes, linewidth=1.0, label=words)
        if chance is not None:
            axes.axhline(chance, color=svg.INK, linestyle=(0, (1, 2.5)), linewidth=1.0, label="without an attack")
        bottom = min([0.0, *(low - 0.02 for points in curves.values() for _, _, low, _ in points)])
        axes.set(ylim=(bottom, 1.04), xlabel="ε from which the noise follows", ylabel=metric)
        axes.grid(axis="y")
        svg.legend_above(axes, handles=3.4, fontsize=9)

    entries = len(curves) + len(together) + (chance is not None)
    ends = "; ".join(
        f"{method} {proportion(points[0][1], 3)} at {number(points[0][0])}, "
        f"{proportion(points[-1][1], 3)} at {number(points[-1][0])}"
        for method, points in curves.items()
    )
    without = "".join(f"; {method} without noise {proportion(value, 3)}" for method, value in levels.items())
    guess = "" if chance is None else f"; without an attack {proportion(chance, 3)}"
    alt = f"{metric} against epsilon, {name.replace('-', ' by the ', 1)}: {ends}{without}{guess}"
    return svg.draw(f"figure-{name}", alt, 2.9 + _LINE * entries, paint)
