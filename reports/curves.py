"""Figures with curves as SVG: trade-offs, accuracy, bounds by runs and rounds, wealth, cosines, success by epsilon."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

from dpzv_audit.base.grouping import grouped

from .figures import alt_of, control_label, mark, short
from .svg import ACCENT, DASHED, DASHES, DOTTED, INK, LINES, MUTED, RULE, Chart
from .text import as_claimed, clean, number, percent, proportion, upper_bound, within

if TYPE_CHECKING:
    from dpzv_audit.results import BoundByRuns, Cell, Tradeoff, Utility, Wealth

GRADIENTS = "gradient estimates by number of queries"
"""Name of the curve that `gradient_figure` draws."""
Point = tuple[float, ...]
"""Place, value, and the ends of the value's interval where it has one."""


class CurveStyle(TypedDict, total=False):
    """Colour, line, width and marker of a curve, by matplotlib's names."""

    color: str
    ls: object
    lw: float
    marker: str


_CORNER = {"loc": "upper right", "bbox_to_anchor": None, "borderaxespad": 0.3}
_ABOVE = {"bbox_to_anchor": (-0.14, 1.0), "ncols": 3, "columnspacing": 1.0, "handlelength": 2.0}
_STRONG: CurveStyle = {"color": ACCENT, "lw": 2.2}
_TRADEOFFS: dict[str, CurveStyle] = {
    "claimed": {"color": INK, "ls": DASHED},
    "recomputed": {"color": MUTED, "ls": DOTTED},
    "measured": _STRONG,
}
_ESTIMATORS: dict[str, CurveStyle] = {
    "ridge": _STRONG,
    "ridge, without the noise": {"color": INK, "ls": LINES[1]},
    "ridge, directions unknown": {"color": MUTED, "ls": LINES[2]},
}
_COLOURS = (ACCENT, INK, MUTED)


def _known(points: Iterable[Sequence[float | None]]) -> list[Point]:
    """Return the points of which every number is known."""
    return [tuple(number for number in point if number is not None) for point in points if None not in point]


def _ends(lines: Mapping[str, Sequence[Point]]) -> str:
    """Return where lines begin and end, in words."""
    ends = []
    for name, points in lines.items():
        (first, start, *_), (last, end, *_) = points[0], points[-1]
        ends.append(f"{name} {proportion(start, 3)} at {number(first)}, {proportion(end, 3)} at {number(last)}")
    return "; ".join(ends)


def tradeoff_figure(tradeoff: "Tradeoff | None") -> str:
    """Return the trade-off curves (claimed, recomputed, measured with its band) as SVG; "" without any.

    Horizontal axis: false positive rate of the distinguishing test; vertical: its false negative rate; both
    proportions in [0, 1]. The thin diagonal is what a test reaches without any information.
    """
    if tradeoff is None or not tradeoff.alpha or not tradeoff.curves:
        return ""
    alpha, curves, confidence = tradeoff.alpha, tradeoff.curves, tradeoff.confidence
    low, high = tradeoff.empirical_low, tradeoff.empirical_high
    drawn = list(curves.values())
    chart = Chart.of_tests()
    for name, curve in curves.items():
        if name == "measured" and low and high:
            chart.band("band" if confidence is None else f"{percent(confidence)} band", alpha, low, high)
            drawn.append(high)
        chart.line(name, [*zip(alpha, curve, strict=True)], **_TRADEOFFS[name])
    # A curve, or the band, runs through the upper right corner, where the legend stands otherwise.
    corner = [i for i, rate in enumerate(alpha) if rate >= 0.58]
    crowded = any(curve[i] >= 0.7 for curve in drawn for i in corner)
    alt = f"Trade-off curves. {_at_a_tenth(alpha, curves, ' the false negative rates are: ')}"
    return chart.draw("tradeoff", alt, 5.1 if crowded else 4.7, **_ABOVE if crowded else _CORNER)


def _at_a_tenth(alpha: Sequence[float], curves: Mapping[str, Sequence[float]], between: str) -> str:
    """Return the false negative rates near a false positive rate of 0.1, in words."""
    middle = min(range(len(alpha)), key=lambda i: abs(alpha[i] - 0.1))
    rates = "; ".join(f"{name} {proportion(curve[middle], 3)}" for name, curve in curves.items())
    return f"At a false positive rate of {proportion(alpha[middle], 3)}{between}{rates}"


def accuracy_figure(utility: "Utility", method: str, *, by_bytes: bool = False) -> str:
    """Return test accuracy by epoch with the controls as level lines, as SVG; "" without two epochs of it.

    With `by_bytes` it stands over the megabytes sent so far, both directions.
    """
    history = utility.history
    points = _known((row.epoch, row.test_accuracy) for row in history)
    if by_bytes:
        sent = _known((row.bytes_up, row.bytes_down, row.test_accuracy) for row in history)
        points = [((up + down) / 1e6, accuracy) for up, down, accuracy in sent]
    if len(points) < 2:
        return ""
    # A line of the legend has more room than a row of a plot.
    marks = [mark(control_label(name, control), control, length=44) for name, control in utility.controls.items()]
    levels = [level for level in marks if level is not None]
    method = short(method or "test accuracy", 34)
    chart = Chart("MB sent so far, up and down" if by_bytes else "epoch", "test accuracy", "plain", bottom=0, top=1)
    for index, level in enumerate(levels):
        label = f"{level.label} {proportion(level.value, 3)}"
        chart.level(label, level.value, color=MUTED, ls=DASHES[index % len(DASHES)])
    chart.line(method, points, **_STRONG)
    first, last = (proportion(points[i][1], 3) for i in (0, -1))
    span = f"by {number(points[-1][0])} MB sent" if by_bytes else "over training"
    alt = "; ".join(filter(None, [f"Test accuracy of {method} from {first} to {last} {span}", alt_of(levels)]))
    return chart.draw("bytes" if by_bytes else "accuracy", alt, 3.0 + 0.2 * len(levels))


def runs_figure(rows: "Sequence[BoundByRuns]", claimed: float | None) -> str:
    """Return the lower bound of each estimator by runs in each world as SVG; "" without two numbers of runs.

    The horizontal axis is logarithmic; the level line is the claim. Bounds that rest on an assumption are faint.
    """
    assumed = {clean(row.estimator) for row in rows if row.assumes}
    by_name = grouped((clean(row.estimator), (row.runs, row.epsilon_lower)) for row in rows)
    lines = {name: sorted(points) for name, points in by_name.items() if min(points)[0] < max(points)[0]}
    if not lines:
        return ""
    chart = Chart("runs with the canary, and as many without", "certified ε", "log", bottom=0)
    if claimed is not None:
        chart.level(f"claimed {as_claimed(claimed)}", claimed, color=INK, ls=DASHED)
    ends = []
    for index, (name, points) in enumerate(lines.items()):
        label, colour = (f"{name} (assumes)", MUTED) if name in assumed else (name, ACCENT)
        chart.line(label, points, color=colour, ls=("-", *DASHES[1:])[index % len(DASHES)])
        ends.append(f"{name} {number(points[-1][1])} from {number(points[-1][0])}")
    return chart.draw("runs", f"Certified epsilon by number of runs: {'; '.join(ends)} runs", 3.2)


def wealth_figure(wealth: "Wealth | None") -> str:
    """Return log10 of the wealth against the claim by pairs of runs as SVG; "" without two points.

    The level line is where the claim is refuted at the stated confidence, at whatever pair it is reached (auditing.md,
    `sequential`).
    """
    if wealth is None or min(len(wealth.pairs), len(wealth.log10_wealth)) < 2:
        return ""
    at = wealth.refuted_at
    against = as_claimed(wealth.epsilon)
    outcome = "never reached" if at is None else f"reached at pair {number(at)}"
    chart = Chart("pairs of runs, in the order of the runs", "log10 of the wealth")
    chart.level("refuted from here on", wealth.goal, color=INK, ls=DASHED)
    chart.line(f"wealth against ε = {against}", [*zip(wealth.pairs, wealth.log10_wealth, strict=False)], color=ACCENT)
    if at is not None:
        chart.level(outcome, at, upright=True, color=MUTED, ls=DOTTED)
    return chart.draw(
        "wealth", f"Wealth of the betting test against epsilon {against}: the level that refutes it is {outcome}", 3.2
    )


def gradient_figure(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the cosine of estimated with true gradients by queries as SVG; "" where `rows` hold no such curve.

    Of all estimators ridge, with and without the noise, and with directions that nobody told; crosses are what
    theory expects. The horizontal axis is logarithmic.
    """
    lines: dict[str, list[Point]] = {}
    theory: list[Point] = []
    for name in _ESTIMATORS:
        own = [(within(row.get("queries"), 1.0, 1e12), row) for row in rows if row.get("estimator") == name]
        keys = ("cosine", "low", "high")
        if points := _known((place, *(within(row.get(key), -1.0, 1.0) for key in keys)) for place, row in own):
            lines[name] = sorted(points)
        if "unknown" not in name:
            theory += _known((place, within(row.get("theory"), 0.0, 1.0)) for place, row in own)
    if not lines:
        return ""
    lowest = min(point[2] for points in lines.values() for point in points)
    labels = ("queries about one batch", "cosine with the true gradient")
    chart = Chart(*labels, "log", bottom=min(-0.05, lowest - 0.02), top=1.04)
    chart.level(None, 0.0, color=RULE, lw=0.8)
    both = {"ridge", "ridge, without the noise"} <= set(lines)
    for name, line in lines.items():
        label = "ridge, with the noise" if name == "ridge" and both else name
        chart.line(label, line, marker="o", ms=4.5, **_ESTIMATORS[name])
    if theory:
        chart.line("expected by theory", theory, color=INK, ls="", marker="x", ms=7, mew=1.3)
    alt = f"Cosine of estimated with true gradients by number of queries: {_ends(lines)}"
    return chart.draw("gradients", alt, 3.1 + 0.2 * len(lines))


def rounds_figure(lines: Mapping[str, Sequence[tuple[int, float]]], *, subject: str, strong: str = "") -> str:
    """Return epsilon against rounds, one line a name of `lines` with its (rounds, upper epsilon), as SVG.

    Both axes are logarithmic; points at epsilon 0 are not drawn. `strong` names the line to stress; "" where no line
    has two points. `subject` says in words what was accounted for.
    """
    positive = {name: [point for point in points if point[1] > 0.0] for name, points in lines.items()}
    shown = {name: points for name, points in positive.items() if len(points) > 1}
    if not shown:
        return ""
    chart = Chart("rounds, all clients together", "ε", "loglog")
    for index, (name, points) in enumerate(shown.items()):
        chart.line(name, points, **_bound_look(index, name == strong))
    last = "; ".join(f"{name} {upper_bound(points[-1][1])}" for name, points in shown.items())
    end = max(points[-1][0] for points in shown.values())
    alt = clean(f"Upper bounds on epsilon against rounds, {subject}. After {end:,} rounds: {last}")
    return chart.draw("epsilon-rounds", alt, 3.2 + 0.2 * len(shown), handlelength=3.2)


def _bound_look(index: int, strong: bool) -> CurveStyle:
    """Return the look of a line: solid in the accent colour where stressed, one of several dashes otherwise."""
    dots = (*DASHES[1:], (0, (8, 3)))
    return _STRONG if strong else {"color": INK, "lw": 1.6, "ls": dots[index % len(dots)]}


def curves_figure(
    alpha: Sequence[float], curves: Mapping[str, Sequence[float]], *, subject: str, strong: str = ""
) -> str:
    """Return trade-off curves over false positive rates `alpha` in [0, 1], one a name of `curves`, as SVG.

    Values are the least false negative rates that each bound leaves to any test; "" without curves.
    """
    if not curves:
        return ""
    chart = Chart.of_tests()
    for index, (name, values) in enumerate(curves.items()):
        chart.line(name, [*zip(alpha, values, strict=True)], **_bound_look(index, name == strong))
    alt = f"Trade-off curves, {subject}. {_at_a_tenth(alpha, curves, ': ')}"
    return chart.draw("curves", alt, 4.7 + 0.2 * len(curves), handlelength=3.2)


def method_of(cell: "Cell") -> str:
    """Return a cell's method with the channel that carries its noise, and its defence."""
    names = (cell.method, cell.noise and f"{cell.noise} noise", cell.defence)
    return " + ".join(clean(name) for name in names if name)


def look_of(index: int) -> CurveStyle:
    """Return colour, line and marker of the curve of that number in a figure of many."""
    turn, colour = divmod(index, len(_COLOURS))
    return {"color": _COLOURS[colour], "ls": LINES[turn % len(LINES)], "marker": "osD^vP*"[index % 7]}


def epsilon_figures(cells: "Sequence[Cell]") -> dict[str, str]:
    """Return the SVG of success against epsilon by `ATTACK-ADVERSARY`, of all measured at two epsilons or more."""
    measured = (cell for cell in cells if cell.state == "measured")
    by_name = grouped((f"{clean(cell.attack)}-{clean(cell.adversary)}", cell) for cell in measured)
    figures = {name: _epsilon_figure(name, own) for name, own in by_name.items()}
    return {name: drawing for name, drawing in figures.items() if drawing}


def _curves_by_method(cells: "Sequence[Cell]") -> dict[str, list[Point]]:
    """Return (epsilon, success, low, high) by method.

    Curves of one channel of noise that no eye tells apart (0.005) are drawn as the first of them.
    """
    points = []
    for cell in cells:
        # Over trainings where there are enough of them, else by the records of these.
        ends = (cell.low, cell.high) if cell.over_low is None else (cell.over_low, cell.over_high)
        points += [(method_of(cell), point) for point in _known([(cell.epsilon, cell.success, *ends)])]
    by_method = {name: sorted(own) for name, own in grouped(points).items()}
    looks = []
    for name, own in by_method.items():
        method, plus, noise = name.partition(" + ")
        looks.append(((plus + noise, tuple((x, round(y, 2)) for x, y, *_ in own)), method))
    merged = ((methods, noise) for (noise, _), methods in grouped(looks).items())
    return {f"{', '.join(methods)}{noise}": by_method[f"{methods[0]}{noise}"] for methods, noise in merged}


def _epsilon_figure(name: str, cells: "Sequence[Cell]") -> str:
    curves = _curves_by_method(cells)
    if not any(len(points) > 1 for points in curves.values()):
        return ""
    metric = short(next((cell.metric for cell in cells if cell.metric), "success"), 44)
    alt = f"{metric} against epsilon, {name.replace('-', ' by the ', 1)}: {_ends(curves)}"
    lowest = min(point[2] for points in curves.values() for point in points)
    chart = Chart("ε that sets the noise", metric, "log", bottom=min(0.0, lowest - 0.02), top=1.04)
    for index, (method, points) in enumerate(curves.items()):
        chart.line(method, points, lw=1.6, ms=4.5, **look_of(index))
    noiseless = [(method_of(cell), cell.success) for cell in cells if cell.epsilon is None and cell.success is not None]
    alt += "".join(f"; {method} without noise {proportion(success, 3)}" for method, success in noiseless)
    alike = grouped((round(success, 2), method) for method, success in noiseless)
    for index, (value, methods) in enumerate(alike.items()):
        look = {"color": MUTED, "ls": LINES[1 + index % (len(LINES) - 1)], "lw": 1.0}
        chart.level(f"no noise: {short(', '.join(methods), 60)}", value, **look)
    chance = max((cell.reference for cell in cells if cell.reference is not None), default=None)
    if chance is not None:
        chart.level("baseline", chance, color=INK, ls=(0, (1, 2.5)), lw=1.0)
        alt += f"; baseline {proportion(chance, 3)}"
    entries = len(curves) + len(alike) + (chance is not None)
    return chart.draw(name, alt, 2.9 + 0.18 * entries, handlelength=3.4, fontsize=9)
