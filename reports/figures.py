"""Figures of rows and pictures as SVG: attack success, epsilon, trade-off curve, gradients, reconstructed records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.text import clean, lower_bound, number, percent, proportion, upper_bound, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpzv_audit.findings import Interval
    from dpzv_audit.results import ClaimCurves, Tradeoff

    AnyTradeoff = Tradeoff | ClaimCurves
    from dpzv_audit.results import Reconstructions


_LONGEST_LABEL = 34
_AXIS_LINE = 52
LARGEST = 1e12
"""No axis reaches further: a number beyond it is printed, not drawn."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One row of a dot plot: a proportion, its interval if it has one, and what it is."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    measured: bool = False

    @property
    def text(self) -> str:
        """The row's numbers as printed beside it."""
        if self.low is None or self.high is None:
            return proportion(self.value, 3)
        return f"{proportion(self.value, 3)}  [{proportion(self.low, 3)}, {proportion(self.high, 3)}]"


def short(text: object, length: int = _LONGEST_LABEL) -> str:
    """Return `text` on one line, cut to `length` characters with an ellipsis."""
    line = " ".join(clean(text).split())
    return line if len(line) <= length else line[: length - 1] + "…"


def mark(
    label: str, measurement: Interval | float | None, *, measured: bool = False, least: float = 0.0
) -> Mark | None:
    """Return the row for an interval or a bare number; None if it holds none in [`least`, 1]."""
    if measurement is None or isinstance(measurement, int | float):
        value = within(measurement, least, 1.0)
        return None if value is None else Mark(label=short(label), value=value, measured=measured)
    value = within(measurement.value, least, 1.0)
    if value is None:
        return None
    over = measurement.over_trainings
    # Over trainings where there are enough of them, else by the records of these.
    limits = measurement if over is None or over.low is None else over
    low, high = within(limits.low, least, 1.0), within(limits.high, least, 1.0)
    return Mark(label=short(label), value=value, low=low, high=high, measured=measured)


def control_label(name: str, measurement: Interval | float) -> str:
    """Return what a control is in words: its name, and what it ran on where the result says so."""
    words = name.replace("_", " ")
    what = getattr(measurement, "what", None)
    return f"{words}: {what}" if what else words


def chance_level(baselines: Mapping[str, Interval | float]) -> float | None:
    """Return the best success without seeing anything, the largest baseline; None where there is none."""
    marks = (mark(k, v) for k, v in baselines.items())
    return max((found.value for found in marks if found is not None), default=None)


def alt_of(rows: Sequence[Mark]) -> str:
    """Return what rows say, in words."""
    return "; ".join(f"{row.label} {row.text}" for row in rows)


def _paint_rows(axes: Axes, count: int) -> None:
    """Set up axes on which `count` rows are stacked from the top, text over marks in each."""
    axes.set_ylim(count - 0.2, -0.62)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    for row in range(count):
        axes.axhline(row, color=svg.RULE, linewidth=0.8, zorder=0.5)


def _paint_label(axes: Axes, row: float, left: str, right: str, *, strong: bool) -> None:
    """Write a row's name at the left edge and its numbers at the right edge, above its marks."""
    place = axes.get_yaxis_transform()
    weight = "bold" if strong else "normal"
    for x, side, words in ((0.0, "left", left), (1.0, "right", right)):
        axes.text(x, row - 0.26, words, transform=place, ha=side, va="bottom", weight=weight, color=svg.INK)


def _paint_reference(axes: Axes, at: float, count: int) -> None:
    """Mark the value `at` on every row, between the lines of text that it would otherwise strike through."""
    rows = range(count)
    axes.vlines([at] * count, [r - 0.17 for r in rows], [r + 0.17 for r in rows], color=svg.INK, linewidth=1.3)


def success_figure(
    attack: str,
    success: Interval | float | None,
    baselines: Mapping[str, Interval | float],
    controls: Mapping[str, Interval | float],
    metric: str = "",
) -> str:
    """Return the attack's success beside baselines and controls as SVG; "" where there is no number.

    Each row has its value printed and its interval, over trainings or of few by their records; the upright stroke is
    the best that a guess reaches without seeing anything. All values are proportions, or cosines in [-1, 1].
    """
    named = {f"baseline: {k.replace('_', ' ')}": v for k, v in baselines.items()}
    named |= {f"control: {k.replace('_', ' ')}": v for k, v in controls.items()}
    found = [mark(attack or "attack", success, measured=True, least=-1.0)]
    rows = [row for row in (*found, *(mark(k, v, least=-1.0) for k, v in named.items())) if row is not None]
    if not rows:
        return ""
    chance = chance_level(baselines)

    def paint(axes: Axes) -> None:
        _paint_rows(axes, len(rows))
        least = min([0.0, *(row.value if row.low is None else row.low for row in rows)])
        axes.set_xlim(least - 0.01, 1.01)
        ticks = [t for t in (-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1) if t >= least]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel(across)
        if chance is not None:
            _paint_reference(axes, chance, len(rows))
        for index, row in enumerate(rows):
            colour = svg.ACCENT if row.measured else svg.MUTED
            _paint_label(axes, index, row.label, row.text, strong=row.measured)
            if row.low is not None and row.high is not None:
                axes.plot([row.low, row.high], [index, index], color=colour, linewidth=5, alpha=0.45)
                axes.plot(row.value, index, "o", color=colour, markersize=7, clip_on=False)
            else:
                axes.plot(row.value, index, "D", color=colour, markersize=5.5, mfc="none", mew=1.5)

    across = "\n".join(wrap(short(metric or "labels found", 2 * _AXIS_LINE), _AXIS_LINE))
    height = 0.66 + 0.5 * len(rows) + (0.18 if "\n" in across else 0.0)
    return svg.draw("figure-success", "Attack success: " + alt_of(rows), height, paint)


def epsilon_figure(claimed: float | None, lower: float | None, upper: float | None) -> str:
    """Return what the claim, the audit and the theory each say about epsilon, as SVG on one scale.

    A claim and an audit whose bars share no value contradict each other. "" where there are fewer than two of the
    three numbers.
    """
    claimed, lower, upper = (within(value, 0.0, LARGEST) for value in (claimed, lower, upper))
    rows = [
        ("the claim", claimed, f"ε ≤ {number(claimed)}", False),
        ("the audit, from below", lower, f"ε ≥ {lower_bound(lower)}", True),
        ("the theory, from above", upper, f"ε ≤ {upper_bound(upper)}", False),
    ]
    present = [(label, value, words, strong) for label, value, words, strong in rows if value is not None]
    if len(present) < 2:
        return ""
    floor = max([v for v in (claimed, lower) if v is not None], default=0.0)
    # An upper bound far out would squeeze everything else against zero: its bar then runs off the axis.
    end = 1.25 * max(floor, min(upper or 0.0, 5 * floor) if floor > 0 else upper or 0.0, 1e-6)

    def paint(axes: Axes) -> None:
        _paint_rows(axes, len(present))
        axes.set_xlim(0, end)
        axes.set_xlabel("ε")
        for index, (label, value, words, strong) in enumerate(present):
            _paint_label(axes, index, label, words, strong=strong)
            start, stop = (value, end) if strong else (0.0, min(value, end))
            colour = svg.ACCENT if strong else svg.MUTED
            axes.barh(index, stop - start, left=start, height=0.2, color=colour)
            if stop >= end:
                axes.plot(end, index, ">", color=colour, markersize=9, clip_on=False)
        if claimed is not None:
            _paint_reference(axes, claimed, len(present))

    alt = "What is known about epsilon: " + "; ".join(f"{label} {words}" for label, _, words, _ in present)
    return svg.draw("figure-epsilon", alt, 0.66 + 0.5 * len(present), paint)


_LEGEND_FROM, _LEGEND_ABOVE = 0.58, 0.7
"""The corner of the trade-off figure that its legend takes: false positive rates from, false negative rates above."""


def tradeoff_figure(tradeoff: AnyTradeoff | None) -> str:
    """Return the trade-off curves (claimed, recomputed, measured with its band) as SVG; "" without any.

    Horizontal axis: false positive rate of the distinguishing test; vertical: its false negative rate; both
    proportions in [0, 1]. The thin diagonal is what a test reaches without any information.
    """
    if tradeoff is None:
        return ""
    alpha, confidence = tradeoff.alpha, tradeoff.confidence
    curves = {"claimed": tradeoff.claimed, "recomputed": tradeoff.recomputed, "measured": tradeoff.empirical}
    shown = {name: curve for name, curve in curves.items() if curve}
    if not alpha or not shown:
        return ""
    looks: Mapping[str, Mapping[str, Any]] = {
        "claimed": {"color": svg.INK, "linestyle": svg.DASHED},
        "recomputed": {"color": svg.MUTED, "linestyle": svg.DOTTED},
        "measured": {"color": svg.ACCENT, "linewidth": 2.2},
    }

    def paint(axes: Axes) -> None:
        svg.tradeoff_axes(axes)
        for name in ("claimed", "recomputed", "band", "measured"):
            if name in shown:
                axes.plot(alpha, shown[name], label=name, **looks[name])
            elif name == "band" and tradeoff.empirical_low and tradeoff.empirical_high:
                words = name if confidence is None else f"{percent(confidence)} {name}"
                band = (tradeoff.empirical_low, tradeoff.empirical_high)
                axes.fill_between(alpha, *band, color=svg.BAND, linewidth=0, zorder=1, label=words)
        if crowded:
            axes.legend(loc="lower left", bbox_to_anchor=(-0.14, 1.0), handlelength=2.0, ncols=3, columnspacing=1.0)
        else:
            axes.legend(loc="upper right", handlelength=2.6, borderaxespad=0.3)

    # A curve, or the band, runs through the upper right corner, where the legend stands otherwise.
    crowded = any(
        a >= _LEGEND_FROM and y >= _LEGEND_ABOVE
        for curve in (*shown.values(), tradeoff.empirical_high or ())
        for a, y in zip(alpha, curve, strict=False)
    )
    middle = min(range(len(alpha)), key=lambda i: abs(alpha[i] - 0.1))
    alt = (
        f"Trade-off curves. At a false positive rate of {proportion(alpha[middle], 3)} the false negative rates are: "
        + "; ".join(f"{name} {proportion(curve[middle], 3)}" for name, curve in shown.items())
    )
    return svg.draw("figure-tradeoff", alt, 5.1 if crowded else 4.7, paint)


GRADIENTS = "gradient estimates by number of queries"
"""Name of the curve that `gradient_figure` draws."""
_Point = tuple[float, float, float, float, float | None]
_Bar = tuple[float, float, float]
_SHADES = 32
"""Shades of grey in a drawing of records."""
_LOOKS: Mapping[str, Mapping[str, Any]] = {
    "ridge": {"color": svg.ACCENT, "linestyle": "-", "linewidth": 2.2},
    "ridge, without the noise": {"color": svg.INK, "linestyle": (0, (6, 2))},
    "ridge, directions unknown": {"color": svg.MUTED, "linestyle": (0, (1, 1.4))},
}


def gradient_figure(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the cosine of estimated with true gradients by queries as SVG; "" where `rows` hold no such curve.

    Of all estimators ridge, with and without the noise, and with directions that nobody told; crosses are what
    theory expects. The horizontal axis is logarithmic.
    """
    lines: dict[str, list[_Point]] = {}
    for row in rows:
        name, queries = str(row.get("estimator")), within(row.get("queries"), 1.0, LARGEST)
        value, low, high = (within(row.get(k), -1.0, 1.0) for k in ("cosine", "low", "high"))
        if name in _LOOKS and queries is not None and value is not None and low is not None and high is not None:
            lines.setdefault(name, []).append((queries, value, low, high, within(row.get("theory"), 0.0, 1.0)))
    lines = {name: sorted(lines[name]) for name in _LOOKS if name in lines}
    if not lines:
        return ""

    both = [name for name in lines if "unknown" not in name]

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        svg.plain_ticks(axes.xaxis)
        axes.axhline(0.0, color=svg.RULE, linewidth=0.8)
        expected: list[tuple[float, float]] = []
        for name, points in lines.items():
            xs, ys, lows, highs, theory = zip(*points, strict=True)
            colour = _LOOKS[name]["color"]
            axes.vlines(xs, lows, highs, color=colour, linewidth=4, alpha=0.4)
            words = "ridge, with the noise" if name == "ridge" and len(both) == 2 else name
            axes.plot(xs, ys, marker="o", markersize=4.5, label=words, **_LOOKS[name])
            if name in both:
                expected += [(x, t) for x, t in zip(xs, theory, strict=True) if t is not None]
        if expected:
            axes.plot(
                *zip(*expected, strict=True), "x", color=svg.INK, markersize=7, mew=1.3, label="expected by theory"
            )
        axes.set_ylim(min(-0.05, min(low for p in lines.values() for _, _, low, _, _ in p) - 0.02), 1.04)
        axes.set(xlabel="queries about one batch", ylabel="cosine with the true gradient")
        axes.grid(axis="y")
        svg.legend_above(axes)

    alt = "Cosine of estimated with true gradients by number of queries: " + "; ".join(
        f"{name} {proportion(points[0][1], 3)} at {number(int(points[0][0]))}, "
        f"{proportion(points[-1][1], 3)} at {number(int(points[-1][0]))}"
        for name, points in lines.items()
    )
    return svg.draw("figure-gradients", alt, 3.1 + 0.2 * len(lines), paint)


def records_figure(found: Reconstructions) -> str:
    """Return reconstructed records beside the originals and the mean record as SVG; "" where there are none.

    `found` holds the (height, width) of a record, and rows of records, each a flat list of greys in [0, 1].
    """
    shape = found.shape if all(1 <= side <= 10_000 for side in found.shape) else []
    fitting = [(clean(row.what), [r for r in row.records if len(r) == math.prod(shape)]) for row in found.rows]
    rows = [(what, records) for what, records in fitting if records]
    if len(shape) != 2 or not rows:
        return ""
    height, width = shape
    count = max(len(records) for _, records in rows)
    gap = max(1.0, 0.12 * width)
    across = count * (width + gap) - gap
    # Text is as high in every drawing, whatever the units of the records.
    line = 0.26 * across / svg.WIDTH
    pitch = height + 2.3 * line

    def paint(axes: Axes) -> None:
        bars: dict[int, list[_Bar]] = {}
        for place, (what, records) in enumerate(rows):
            top = place * pitch
            axes.text(0.0, top - 0.45 * line, what, ha="left", va="bottom", color=svg.INK)
            for index, record in enumerate(records):
                left = index * (width + gap)
                for shade, bar in _bars(record, width, left, top):
                    bars.setdefault(shade, []).append(bar)
                _paint_frame(axes, left, top, width, height)
        _paint_bars(axes, bars)
        axes.set_xlim(-0.01 * across, 1.01 * across)
        axes.set_ylim(len(rows) * pitch - 2.0 * line, -1.6 * line)
        axes.set_aspect("equal")
        axes.set_axis_off()

    inches = svg.WIDTH * (len(rows) * pitch - 0.4 * line) / (1.02 * across)
    alt = f"{count} records, row by row: " + "; ".join(what for what, _ in rows)
    return svg.draw("figure-records", alt, inches + 0.1, paint)


def _bars(record: Sequence[float], width: int, left: float, top: float) -> Iterator[tuple[int, _Bar]]:
    """Shade and bar of every run of equal greys in a row of a record: (left, right, top) in units of pixels."""
    shades = [round(value * (_SHADES - 1)) for value in record]
    for y in range(len(shades) // width):
        start = 0
        for shade, run in groupby(shades[y * width : (y + 1) * width]):
            end = start + len(list(run))
            yield shade, (left + start, left + end, top + y)
            start = end


def _paint_bars(axes: Axes, bars: Mapping[int, Sequence[_Bar]]) -> None:
    """Draw all bars of a shade as one shape: a picture without a bitmap, which a page that loads nothing shows too."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    for shade, places in sorted(bars.items()):
        outlines = [Path([(x, y), (end, y), (end, y + 1), (x, y + 1), (x, y)], closed=True) for x, end, y in places]
        grey = str(shade / (_SHADES - 1))
        # The thin edge closes the seams that a browser leaves between shapes that touch.
        axes.add_patch(PathPatch(Path.make_compound_path(*outlines), facecolor=grey, edgecolor=grey, linewidth=0.2))


def _paint_frame(axes: Axes, left: float, top: float, width: int, height: int) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=svg.MUTED, linewidth=0.6, zorder=2))
