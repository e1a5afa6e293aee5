"""Figures with curves as SVG: trade-offs, accuracy, bounds by runs and rounds, wealth, cosines, success by epsilon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.figures import LARGEST, alt_of, control_label, mark, short
from reports.text import clean, number, percent, proportion, upper_bound, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpzv_audit.results import BoundByRuns, Cell, ClaimCurves, Tradeoff, Utility, Wealth

GRADIENTS = "gradient estimates by number of queries"
"""Name of the curve that `gradient_figure` draws."""
_Point = tuple[float, ...]
"""Place, value, and the ends of the value's interval where it has one."""
_Lines = Mapping[str, Sequence[_Point]]
_LONGEST_LEVEL = 44
_LINE = 0.18
"""Height of a line of the legend of a matrix's figure, in inches."""
_LEGEND_FROM, _LEGEND_ABOVE = 0.58, 0.7
"""The corner of the trade-off figure that its legend takes: false positive rates from, false negative rates above."""
_TRADEOFF_LOOKS: Mapping[str, Mapping[str, Any]] = {
    "claimed": {"color": svg.INK, "linestyle": svg.DASHED},
    "recomputed": {"color": svg.MUTED, "linestyle": svg.DOTTED},
    "measured": {"color": svg.ACCENT, "linewidth": 2.2},
}
_GRADIENT_LOOKS: Mapping[str, Mapping[str, Any]] = {
    "ridge": {"color": svg.ACCENT, "linestyle": "-", "linewidth": 2.2},
    "ridge, without the noise": {"color": svg.INK, "linestyle": (0, (6, 2))},
    "ridge, directions unknown": {"color": svg.MUTED, "linestyle": (0, (1, 1.4))},
}
_STRONG: Mapping[str, Any] = {"color": svg.ACCENT, "linewidth": 2.2}
_DOTS = ((0, (1, 1.6)), (0, (6, 2, 1, 2)), (0, (3, 4)), (0, (8, 3)))
_COLOURS = (svg.ACCENT, svg.INK, svg.MUTED)
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)), (0, (3, 1.5)), (0, (8, 2, 1, 2, 1, 2)))
_MARKERS = "osD^vP*"


def _point(*values: float | None) -> _Point | None:
    """Return values as a point; None where one of them cannot be drawn."""
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def _ends(lines: _Lines) -> str:
    """Return where lines begin and end, in words."""
    said = []
    for name, points in lines.items():
        first, last = (f"{proportion(y, 3)} at {number(x)}" for x, y, *_ in (points[0], points[-1]))
        said.append(f"{name} {first}, {last}")
    return "; ".join(said)


def _paint_with_bars(axes: Axes, points: Sequence[_Point], *, faint: float, **look: Any) -> None:
    """Draw a line of points with a faint bar for the interval of each."""
    xs, ys, lows, highs = zip(*points, strict=True)
    axes.vlines(xs, lows, highs, color=look["color"], linewidth=4, alpha=faint)
    axes.plot(xs, ys, markersize=4.5, **look)


def tradeoff_figure(tradeoff: Tradeoff | ClaimCurves | None) -> str:
    """Return the trade-off curves (claimed, recomputed, measured with its band) as SVG; "" without any.

    Horizontal axis: false positive rate of the distinguishing test; vertical: its false negative rate; both
    proportions in [0, 1]. The thin diagonal is what a test reaches without any information.
    """
    if tradeoff is None:
        return ""
    alpha, confidence = tradeoff.alpha, tradeoff.confidence
    low, high = tradeoff.empirical_low, tradeoff.empirical_high
    curves = {
        "claimed": tradeoff.claimed,
        "recomputed": tradeoff.recomputed,
        "measured": tradeoff.empirical,
    }
    shown = {name: curve for name, curve in curves.items() if curve}
    if not alpha or not shown:
        return ""

    def paint(axes: Axes) -> None:
        svg.tradeoff_axes(axes)
        for name, look in _TRADEOFF_LOOKS.items():
            if name == "measured" and low and high:
                band = "band" if confidence is None else f"{percent(confidence)} band"
                axes.fill_between(alpha, low, high, color=svg.BAND, linewidth=0, zorder=1, label=band)
            if name in shown:
                axes.plot(alpha, shown[name], label=name, **look)
        if crowded:
            place = {"bbox_to_anchor": (-0.14, 1.0), "ncols": 3, "columnspacing": 1.0}
            axes.legend(loc="lower left", handlelength=2.0, **place)
        else:
            axes.legend(loc="upper right", handlelength=2.6, borderaxespad=0.3)

    # A curve, or the band, runs through the upper right corner, where the legend stands otherwise.
    corner = [i for i, rate in enumerate(alpha) if rate >= _LEGEND_FROM]
    drawn = [*shown.values(), *([high] if high else [])]
    crowded = any(curve[i] >= _LEGEND_ABOVE for curve in drawn for i in corner)
    alt = f"Trade-off curves. {_at_a_tenth(alpha, shown, ' the false negative rates are: ')}"
    return svg.draw("figure-tradeoff", alt, 5.1 if crowded else 4.7, paint)


def _at_a_tenth(alpha: Sequence[float], curves: Mapping[str, Sequence[float]], between: str) -> str:
    """Return the false negative rates near a false positive rate of 0.1, in words."""
    middle = min(range(len(alpha)), key=lambda i: abs(alpha[i] - 0.1))
    rates = "; ".join(f"{name} {proportion(curve[middle], 3)}" for name, curve in curves.items())
    return f"At a false positive rate of {proportion(alpha[middle], 3)}{between}{rates}"


def accuracy_figure(utility: Utility, method: str) -> str:
    """Return test accuracy by epoch with the controls as level lines, as SVG; "" without two epochs of it."""
    places = [within(row.epoch, 0.0, LARGEST) for row in utility.history]
    return _accuracy("accuracy", utility, method, places, "epoch")


def bytes_figure(utility: Utility, method: str) -> str:
    """Return test accuracy by megabytes sent so far, both directions, as SVG; "" without two epochs of it."""
    sent = [_point(within(row.bytes_up, 0.0, LARGEST), within(row.bytes_down, 0.0, LARGEST)) for row in utility.history]
    places = [None if both is None else sum(both) / 1e6 for both in sent]
    return _accuracy("bytes", utility, method, places, "MB sent so far, up and down")


def _accuracy(name: str, utility: Utility, method: str, places: Sequence[float | None], across: str) -> str:
    """Accuracy over `places` along `across`, with the controls as level lines."""
    found = (
        _point(place, within(row.test_accuracy, 0.0, 1.0)) for place, row in zip(places, utility.history, strict=True)
    )
    points = [point for point in found if point is not None]
    if len(points) < 2:
        return ""
    controls = {control_label(name, control): control for name, control in utility.controls.items()}
    marks = {label: mark(label, control) for label, control in controls.items()}
    # A line of the legend has more room than a row of a plot.
    levels = [replace(level, label=short(label, _LONGEST_LEVEL)) for label, level in marks.items() if level]
    method = short(method or "test accuracy")

    def paint(axes: Axes) -> None:
        for index, level in enumerate(levels):
            label = f"{level.label} {proportion(level.value, 3)}"
            dashes = svg.DASHES[index % len(svg.DASHES)]
            axes.axhline(level.value, color=svg.MUTED, linestyle=dashes, label=label)
        axes.plot(*zip(*points, strict=True), label=method, **_STRONG)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        svg.curve_axes(axes, across, "test accuracy", ylim=(0, 1))

    first, last = (proportion(points[i][1], 3) for i in (0, -1))
    span = "over training" if across == "epoch" else f"by {number(points[-1][0])} MB sent"
    alt = f"Test accuracy of {method} from {first} to {last} {span}"
    if levels:
        alt += f"; {alt_of(levels)}"
    return svg.draw(f"figure-{name}", alt, 3.0 + 0.2 * len(levels), paint)


def runs_figure(rows: Sequence[BoundByRuns], claimed: float | None) -> str:
    """Return the lower bound of each estimator by runs in each world as SVG; "" without two numbers of runs.

    The horizontal axis is logarithmic; the level line is the claim. Bounds that rest on an assumption are faint.
    """
    lines: dict[str, list[_Point]] = {}
    assumed = {clean(row.estimator) for row in rows if row.assumes}
    for row in rows:
        point = _point(within(row.runs, 1.0, LARGEST), within(row.epsilon_lower, 0.0, LARGEST))
        if point is not None and row.estimator:
            lines.setdefault(clean(row.estimator), []).append(point)
    lines = {name: sorted(points) for name, points in lines.items()}
    lines = {name: points for name, points in lines.items() if points[0][0] < points[-1][0]}
    if not lines:
        return ""
    level = within(claimed, 0.0, LARGEST)

    def paint(axes: Axes) -> None:
        svg.logarithmic(axes)
        if level is not None:
            label = f"claimed {number(level)}"
            axes.axhline(level, color=svg.INK, linestyle=svg.DASHED, label=label)
        for index, (name, points) in enumerate(lines.items()):
            colour = svg.MUTED if name in assumed else svg.ACCENT
            label = f"{name} (assumes)" if name in assumed else name
            dashes = ("-", *svg.DASHES[1:])[index % len(svg.DASHES)]
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=dashes, label=label)
        axes.set_ylim(bottom=0)
        svg.curve_axes(axes, "runs in each world", "certified ε")

    ends = (f"{name} {number(y)} from {number(x)}" for name, points in lines.items() for x, y in points[-1:])
    alt = f"Certified epsilon by number of runs: {'; '.join(ends)} runs"
    return svg.draw("figure-runs", alt, 3.2, paint)


def wealth_figure(wealth: Wealth | None) -> str:
    """Return log10 of the wealth against the claim by pairs of runs as SVG; "" without two points.

    The level line is where the claim is refuted at the stated confidence, at whatever pair it is reached (auditing.md,
    `sequential`).
    """
    if wealth is None:
        return ""
    path = zip(wealth.pairs, wealth.log10_wealth, strict=False)
    read = (_point(within(x, 1.0, LARGEST), within(y, -LARGEST, LARGEST)) for x, y in path)
    points = [point for point in read if point is not None]
    goal, claimed = within(wealth.goal, 0.0, LARGEST), within(wealth.epsilon, 0.0, LARGEST)
    if len(points) < 2 or goal is None or claimed is None:
        return ""
    at = within(wealth.refuted_at, 1.0, LARGEST)
    found = "never reached" if at is None else f"reached at pair {number(at)}"

    def paint(axes: Axes) -> None:
        axes.axhline(goal, color=svg.INK, linestyle=svg.DASHED, label="refuted from here on")
        label = f"wealth against ε = {number(claimed)}"
        axes.plot(*zip(*points, strict=True), color=svg.ACCENT, label=label)
        if at is not None:
            axes.axvline(at, color=svg.MUTED, linestyle=svg.DOTTED, label=found)
        svg.curve_axes(axes, "pairs of runs, in the order of the runs", "log10 of the wealth")

    subject = f"Wealth of the betting test against epsilon {number(claimed)}"
    alt = f"{subject}: the level that refutes it is {found}"
    return svg.draw("figure-wealth", alt, 3.2, paint)


def gradient_figure(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the cosine of estimated with true gradients by queries as SVG; "" where `rows` hold no such curve.

    Of all estimators ridge, with and without the noise, and with directions that nobody told; crosses are what
    theory expects. The horizontal axis is logarithmic.
    """
    lines: dict[str, list[_Point]] = {name: [] for name in _GRADIENT_LOOKS}
    theory: list[_Point] = []
    for row in rows:
        name, queries = str(row.get("estimator")), within(row.get("queries"), 1.0, LARGEST)
        point = _point(queries, *(within(row.get(key), -1.0, 1.0) for key in ("cosine", "low", "high")))
        if name not in lines or point is None:
            continue
        lines[name].append((int(point[0]), *point[1:]))
        expected = _point(queries, within(row.get("theory"), 0.0, 1.0))
        if expected is not None and "unknown" not in name:
            theory.append(expected)
    lines = {name: sorted(points) for name, points in lines.items() if points}
    if not lines:
        return ""
    lowest = min(point[2] for points in lines.values() for point in points)

    def paint(axes: Axes) -> None:
        svg.logarithmic(axes)
        axes.axhline(0.0, color=svg.RULE, linewidth=0.8)
        for name, points in lines.items():
            both = name == "ridge" and "ridge, without the noise" in lines
            label = "ridge, with the noise" if both else name
            _paint_with_bars(axes, points, faint=0.4, marker="o", label=label, **_GRADIENT_LOOKS[name])
        if theory:
            look: dict[str, Any] = {"markersize": 7, "mew": 1.3}
            xs, ys = zip(*theory, strict=True)
            axes.plot(xs, ys, "x", color=svg.INK, label="expected by theory", **look)
        ylim = (min(-0.05, lowest - 0.02), 1.04)
        svg.curve_axes(axes, "queries about one batch", "cosine with the true gradient", ylim=ylim)

    alt = f"Cosine of estimated with true gradients by number of queries: {_ends(lines)}"
    return svg.draw("figure-gradients", alt, 3.1 + 0.2 * len(lines), paint)


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
        svg.logarithmic(axes, both=True)
        for index, (name, points) in enumerate(shown.items()):
            axes.plot(*zip(*points, strict=True), label=name, **_bound_look(index, name == strong))
        svg.curve_axes(axes, "rounds, all clients together", "ε", handles=3.2)
        axes.grid(visible=True, axis="both", alpha=0.6)

    last = "; ".join(f"{name} {upper_bound(points[-1][1])}" for name, points in shown.items())
    end = max(points[-1][0] for points in shown.values())
    alt = clean(f"Upper bounds on epsilon against rounds, {subject}. After {end:,} rounds: {last}")
    return svg.draw("figure-epsilon-rounds", alt, 3.2 + 0.2 * len(shown), paint)


def _bound_look(index: int, strong: bool) -> Mapping[str, Any]:
    """Return the look of a line: solid in the accent colour where stressed, one of several dashes otherwise."""
    return _STRONG if strong else {"color": svg.INK, "linewidth": 1.6, "linestyle": _DOTS[index % len(_DOTS)]}


def curves_figure(
    alpha: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    *,
    subject: str,
    strong: str = "",
) -> str:
    """Return trade-off curves over false positive rates `alpha` in [0, 1], one a name of `curves`, as SVG.

    Values are the least false negative rates that each bound leaves to any test; "" without curves.
    """
    if not curves:
        return ""

    def paint(axes: Axes) -> None:
        svg.tradeoff_axes(axes)
        for index, (name, values) in enumerate(curves.items()):
            axes.plot(alpha, values, label=name, **_bound_look(index, name == strong))
        svg.legend_above(axes, handles=3.2)

    alt = f"Trade-off curves, {subject}. {_at_a_tenth(alpha, curves, ': ')}"
    return svg.draw("figure-curves", alt, 4.7 + 0.2 * len(curves), paint)


def method_of(cell: Cell) -> str:
    """Return a cell's method with the channel that carries its noise."""
    return clean(cell.method) + (f" + {clean(cell.noise)} noise" if cell.noise else "")


def epsilon_figures(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the SVG of success against epsilon by `ATTACK-ADVERSARY`, of all measured at two epsilons or more."""
    measured: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.state == "measured":
            name = f"{clean(cell.attack)}-{clean(cell.adversary)}"
            measured.setdefault(name, []).append(cell)
    figures = {name: _epsilon_figure(name, found) for name, found in measured.items()}
    return {name: drawing for name, drawing in figures.items() if drawing}


def _curves_and_levels(cells: Sequence[Cell]) -> tuple[_Lines, Mapping[str, float]]:
    """Return points by method, and the success of methods without an epsilon.

    Curves of one channel of noise that no eye tells apart (0.005) are drawn as the first of them.
    """
    found: dict[str, list[_Point]] = {}
    levels: dict[str, float] = {}
    for cell in cells:
        # Over trainings where there are enough of them, else by the records of these.
        ends = (cell.low, cell.high) if cell.over_low is None else (cell.over_low, cell.over_high)
        point = _point(*(within(value, -1.0, 1.0) for value in (cell.success, *ends)))
        epsilon = within(cell.epsilon, 1e-12, LARGEST)
        if point is None:
            continue
        if epsilon is None:
            levels[method_of(cell)] = point[0]
        else:
            found.setdefault(method_of(cell), []).append((epsilon, *point))
    alike: dict[tuple[object, ...], list[str]] = {}
    for name, points in found.items():
        points.sort()
        looks = ((x, round(y, 2)) for x, y, *_ in points)
        alike.setdefault((name.partition(" + ")[2], *looks), []).append(name)
    curves = {}
    for (noise, *_), names in alike.items():
        methods = ", ".join(name.partition(" + ")[0] for name in names)
        curves[f"{methods} + {noise}" if noise else methods] = found[names[0]]
    return curves, levels


def _epsilon_figure(name: str, cells: Sequence[Cell]) -> str:
    curves, levels = _curves_and_levels(cells)
    if not any(len(points) > 1 for points in curves.values()):
        return ""
    together: dict[float, list[str]] = {}
    for method, value in levels.items():
        together.setdefault(round(value, 2), []).append(method)
    references = (within(cell.reference, -1.0, 1.0) for cell in cells)
    chance = max((value for value in references if value is not None), default=None)
    metric = short(next((cell.metric for cell in cells if cell.metric), "success"), 44)
    lowest = min(point[2] for points in curves.values() for point in points)

    def paint(axes: Axes) -> None:
        svg.logarithmic(axes)
        for index, (method, points) in enumerate(curves.items()):
            look = {
                "color": _COLOURS[index % len(_COLOURS)],
                "linestyle": _DASHES[index // len(_COLOURS) % len(_DASHES)],
                "marker": _MARKERS[index % len(_MARKERS)],
            }
            _paint_with_bars(axes, points, faint=0.3, linewidth=1.6, label=method, **look)
        thin = {"linewidth": 1.0}
        for index, (value, methods) in enumerate(together.items()):
            dashes = _DASHES[1 + index % (len(_DASHES) - 1)]
            label = f"no noise: {short(', '.join(methods), 60)}"
            axes.axhline(value, color=svg.MUTED, linestyle=dashes, label=label, **thin)
        if chance is not None:
            dots = (0, (1, 2.5))
            axes.axhline(chance, color=svg.INK, linestyle=dots, label="without an attack", **thin)
        axes.set(ylim=(min(0.0, lowest - 0.02), 1.04), ylabel=metric)
        axes.set_xlabel("ε from which the noise follows")
        axes.grid(axis="y")
        svg.legend_above(axes, handles=3.4, fontsize=9)

    entries = len(curves) + len(together) + (chance is not None)
    alt = f"{metric} against epsilon, {name.replace('-', ' by the ', 1)}: {_ends(curves)}"
    for method, value in levels.items():
        alt += f"; {method} without noise {proportion(value, 3)}"
    if chance is not None:
        alt += f"; without an attack {proportion(chance, 3)}"
    return svg.draw(f"figure-{name}", alt, 2.9 + _LINE * entries, paint)
