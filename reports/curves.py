"""Figures with curves as SVG: trade-offs, accuracy, bounds by runs and rounds, wealth, cosines, success by epsilon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.figures import LARGEST, alt_of, control_label, mark, short, size
from reports.svg import ACCENT, DASHED, DASHES, DOTTED, INK, MUTED, Chart
from reports.text import clean, number, percent, proportion, upper_bound, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpzv_audit.results import BoundByRuns, Cell, Tradeoff, Utility, Wealth

GRADIENTS = "gradient estimates by number of queries"
"""Name of the curve that `gradient_figure` draws."""
_Point = tuple[float, ...]
"""Place, value, and the ends of the value's interval where it has one."""
_Look = Mapping[str, Any]
_LONGEST_LEVEL = 44
_LINE = 0.18
"""Height of a line of the legend of a matrix's figure, in inches."""
_LEGEND_FROM, _LEGEND_ABOVE = 0.58, 0.7
"""The corner of the trade-off figure that its legend takes: false positive rates from, false negative rates above."""
_STRONG: _Look = {"color": ACCENT, "linewidth": 2.2}
_TRADEOFFS: Mapping[str, _Look] = {
    "claimed": {"color": INK, "linestyle": DASHED},
    "recomputed": {"color": MUTED, "linestyle": DOTTED},
    "measured": _STRONG,
}
_ESTIMATORS: Mapping[str, _Look] = {
    "ridge": _STRONG,
    "ridge, without the noise": {"color": INK, "linestyle": (0, (6, 2))},
    "ridge, directions unknown": {"color": MUTED, "linestyle": (0, (1, 1.4))},
}
_CROSSES: _Look = {"color": INK, "linestyle": "", "marker": "x", "markersize": 7, "mew": 1.3}
_DOTS = ((0, (1, 1.6)), (0, (6, 2, 1, 2)), (0, (3, 4)), (0, (8, 3)))
_COLOURS = (ACCENT, INK, MUTED)
_LINES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)), (0, (3, 1.5)), (0, (8, 2, 1, 2, 1, 2)))
_MARKERS = "osD^vP*"


def _point(*values: float | None) -> _Point | None:
    """Return values as a point; None where one of them cannot be drawn."""
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def _ends(lines: Mapping[str, Sequence[_Point]]) -> str:
    """Return where lines begin and end, in words."""
    said = []
    for name, points in lines.items():
        (first, start, *_), (last, end, *_) = points[0], points[-1]
        begins = f"{proportion(start, 3)} at {number(first)}"
        said.append(f"{name} {begins}, {proportion(end, 3)} at {number(last)}")
    return "; ".join(said)


def tradeoff_figure(tradeoff: Tradeoff | None) -> str:
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
        for name, look in _TRADEOFFS.items():
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
    places = [size(row.epoch) for row in utility.history]
    return _accuracy("accuracy", utility, method, places, "epoch")


def bytes_figure(utility: Utility, method: str) -> str:
    """Return test accuracy by megabytes sent so far, both directions, as SVG; "" without two epochs of it."""
    sent = [_point(size(row.bytes_up), size(row.bytes_down)) for row in utility.history]
    places = [None if both is None else sum(both) / 1e6 for both in sent]
    return _accuracy("bytes", utility, method, places, "MB sent so far, up and down")


def _accuracy(name: str, utility: Utility, method: str, places: Sequence[float | None], across: str) -> str:
    """Return accuracy over `places` along `across`, with the controls as level lines."""
    accuracies = [within(row.test_accuracy, 0.0, 1.0) for row in utility.history]
    found = map(_point, places, accuracies)
    points = [point for point in found if point is not None]
    if len(points) < 2:
        return ""
    controls = {control_label(key, control): control for key, control in utility.controls.items()}
    marks = {label: mark(label, control) for label, control in controls.items()}
    # A line of the legend has more room than a row of a plot.
    levels = [replace(m, label=short(label, _LONGEST_LEVEL)) for label, m in marks.items() if m]
    method = short(method or "test accuracy")
    chart = Chart(across, "test accuracy", "plain", bottom=0, top=1)
    for index, level in enumerate(levels):
        label = f"{level.label} {proportion(level.value, 3)}"
        chart.level(label, level.value, color=MUTED, linestyle=DASHES[index % len(DASHES)])
    chart.line(method, points, **_STRONG)
    first, last = (proportion(points[i][1], 3) for i in (0, -1))
    span = "over training" if across == "epoch" else f"by {number(points[-1][0])} MB sent"
    alt = f"Test accuracy of {method} from {first} to {last} {span}"
    if levels:
        alt += f"; {alt_of(levels)}"
    return chart.draw(f"figure-{name}", alt, 3.0 + 0.2 * len(levels))


def runs_figure(rows: Sequence[BoundByRuns], claimed: float | None) -> str:
    """Return the lower bound of each estimator by runs in each world as SVG; "" without two numbers of runs.

    The horizontal axis is logarithmic; the level line is the claim. Bounds that rest on an assumption are faint.
    """
    lines: dict[str, list[_Point]] = {}
    assumed = {clean(row.estimator) for row in rows if row.assumes}
    for row in rows:
        point = _point(size(row.runs, 1.0), size(row.epsilon_lower))
        if point is not None and row.estimator:
            lines.setdefault(clean(row.estimator), []).append(point)
    lines = {name: sorted(points) for name, points in lines.items()}
    lines = {name: points for name, points in lines.items() if points[0][0] < points[-1][0]}
    if not lines:
        return ""
    chart = Chart("runs in each world", "certified ε", "log", bottom=0)
    level = size(claimed)
    if level is not None:
        chart.level(f"claimed {number(level)}", level, color=INK, linestyle=DASHED)
    said = []
    for index, (name, points) in enumerate(lines.items()):
        dashes = ("-", *DASHES[1:])[index % len(DASHES)]
        if name in assumed:
            chart.line(f"{name} (assumes)", points, color=MUTED, linestyle=dashes)
        else:
            chart.line(name, points, color=ACCENT, linestyle=dashes)
        said.append(f"{name} {number(points[-1][1])} from {number(points[-1][0])}")
    alt = f"Certified epsilon by number of runs: {'; '.join(said)} runs"
    return chart.draw("figure-runs", alt, 3.2)


def wealth_figure(wealth: Wealth | None) -> str:
    """Return log10 of the wealth against the claim by pairs of runs as SVG; "" without two points.

    The level line is where the claim is refuted at the stated confidence, at whatever pair it is reached (auditing.md,
    `sequential`).
    """
    if wealth is None:
        return ""
    path = zip(wealth.pairs, wealth.log10_wealth, strict=False)
    read = (_point(size(x, 1.0), within(y, -LARGEST, LARGEST)) for x, y in path)
    points = [point for point in read if point is not None]
    goal, claimed = size(wealth.goal), size(wealth.epsilon)
    if len(points) < 2 or goal is None or claimed is None:
        return ""
    at = size(wealth.refuted_at, 1.0)
    found = "never reached" if at is None else f"reached at pair {number(at)}"

    against = number(claimed)
    chart = Chart("pairs of runs, in the order of the runs", "log10 of the wealth")
    chart.level("refuted from here on", goal, color=INK, linestyle=DASHED)
    chart.line(f"wealth against ε = {against}", points, color=ACCENT)
    if at is not None:
        chart.level(found, at, upright=True, color=MUTED, linestyle=DOTTED)
    subject = f"Wealth of the betting test against epsilon {against}"
    return chart.draw("figure-wealth", f"{subject}: the level that refutes it is {found}", 3.2)


def gradient_figure(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the cosine of estimated with true gradients by queries as SVG; "" where `rows` hold no such curve.

    Of all estimators ridge, with and without the noise, and with directions that nobody told; crosses are what
    theory expects. The horizontal axis is logarithmic.
    """
    lines: dict[str, list[_Point]] = {name: [] for name in _ESTIMATORS}
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
    labels = ("queries about one batch", "cosine with the true gradient")
    chart = Chart(*labels, "log", bottom=min(-0.05, lowest - 0.02), top=1.04)
    chart.level(None, 0.0, color=svg.RULE, linewidth=0.8)
    both = {"ridge", "ridge, without the noise"} <= set(lines)
    for name, points in lines.items():
        label = "ridge, with the noise" if name == "ridge" and both else name
        chart.line(label, points, marker="o", markersize=4.5, **_ESTIMATORS[name])
    if theory:
        chart.line("expected by theory", theory, **_CROSSES)
    alt = f"Cosine of estimated with true gradients by number of queries: {_ends(lines)}"
    return chart.draw("figure-gradients", alt, 3.1 + 0.2 * len(lines))


def rounds_figure(lines: Mapping[str, Sequence[tuple[int, float]]], *, subject: str, strong: str = "") -> str:
    """Return epsilon against rounds, one line a name of `lines` with its (rounds, upper epsilon), as SVG.

    Both axes are logarithmic; points at epsilon 0 are not drawn. `strong` names the line to stress; "" where no line
    has two points. `subject` says in words what was accounted for.
    """
    shown = {name: [(t, e) for t, e in points if e > 0.0] for name, points in lines.items()}
    shown = {name: points for name, points in shown.items() if len(points) > 1}
    if not shown:
        return ""
    chart = Chart("rounds, all clients together", "ε", "loglog")
    for index, (name, points) in enumerate(shown.items()):
        chart.line(name, points, **_bound_look(index, name == strong))
    last = "; ".join(f"{name} {upper_bound(points[-1][1])}" for name, points in shown.items())
    end = max(points[-1][0] for points in shown.values())
    alt = clean(f"Upper bounds on epsilon against rounds, {subject}. After {end:,} rounds: {last}")
    return chart.draw("figure-epsilon-rounds", alt, 3.2 + 0.2 * len(shown), handles=3.2)


def _bound_look(index: int, strong: bool) -> Mapping[str, Any]:
    """Return the look of a line: solid in the accent colour where stressed, one of several dashes otherwise."""
    dashed = {"color": INK, "linewidth": 1.6, "linestyle": _DOTS[index % len(_DOTS)]}
    return _STRONG if strong else dashed


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


def _curves_and_levels(cells: Sequence[Cell]) -> tuple[Mapping[str, Sequence[_Point]], Mapping[str, float]]:
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
    metric = short(next((cell.metric for cell in cells if cell.metric), "success"), 44)
    alt = f"{metric} against epsilon, {name.replace('-', ' by the ', 1)}: {_ends(curves)}"
    lowest = min(point[2] for points in curves.values() for point in points)
    bottom = min(0.0, lowest - 0.02)
    chart = Chart("ε from which the noise follows", metric, "log", bottom=bottom, top=1.04)
    for index, (method, points) in enumerate(curves.items()):
        turn, colour = divmod(index, len(_COLOURS))
        chart.line(
            method,
            points,
            color=_COLOURS[colour],
            linestyle=_LINES[turn % len(_LINES)],
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=4.5,
            linewidth=1.6,
        )
    alike: dict[float, list[str]] = {}
    for method, value in levels.items():
        alike.setdefault(round(value, 2), []).append(method)
        alt += f"; {method} without noise {proportion(value, 3)}"
    for index, (value, methods) in enumerate(alike.items()):
        dashes = _LINES[1 + index % (len(_LINES) - 1)]
        label = f"no noise: {short(', '.join(methods), 60)}"
        chart.level(label, value, color=MUTED, linestyle=dashes, linewidth=1.0)
    known = (within(cell.reference, -1.0, 1.0) for cell in cells)
    chance = max((value for value in known if value is not None), default=None)
    if chance is not None:
        dots = (0, (1, 2.5))
        chart.level("without an attack", chance, color=INK, linestyle=dots, linewidth=1.0)
        alt += f"; without an attack {proportion(chance, 3)}"
    entries = len(curves) + len(alike) + (chance is not None)
    return chart.draw(f"figure-{name}", alt, 2.9 + _LINE * entries, handles=3.4, fontsize=9)
