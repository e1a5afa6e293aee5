"""Figures with curves as SVG: accuracy by epoch, bounds by runs, wealth, epsilon by rounds, success by epsilon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.figures import LARGEST, alt_of, control_label, mark, short
from reports.text import clean, number, percent, proportion, upper_bound, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpzv_audit.results import Ages, BoundByRuns, Cell, Utility, Wealth


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
