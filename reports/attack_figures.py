"""Figures of single attacks as SVG: cosines of gradient estimates by queries, and reconstructed records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.figures import LARGEST
from reports.text import clean, number, proportion, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpzv_audit.results import Reconstructions

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
