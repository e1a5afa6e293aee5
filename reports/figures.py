"""Figures of rows and pictures as SVG: attack success, epsilon, ages of rows, reconstructed records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from dpzv_audit.base.grouping import grouped
from dpzv_audit.base.rounding import interval

from . import svg
from .svg import ACCENT, INK, MUTED, RULE, WIDTH
from .text import as_claimed, clean, lower_bound, percent, proportion, upper_bound, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpzv_audit.base.findings import Interval
    from dpzv_audit.results import Ages, Reconstructions

_SHADES = 32
"""Shades of grey in a drawing of records."""
_Bar = tuple[float, float, float]


@dataclass(frozen=True)
class Mark:
    """One row of a dot plot: a proportion, its interval if it has one, and what it is."""

    label: str
    value: float
    ends: tuple[float, float] | None = None

    @property
    def text(self) -> str:
        """The row's numbers as printed beside it."""
        value = proportion(self.value, 3)
        return f"{value}  [{interval(*self.ends).replace(' to ', ', ')}]" if self.ends else value


def short(text: object, length: int) -> str:
    """Return `text` on one line, cut to `length` characters with an ellipsis."""
    line = " ".join(clean(text).split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def mark(label: str, measurement: "Interval | float | None", *, least: float = 0.0, length: int = 34) -> Mark | None:
    """Return the row for an interval or a bare number; None if it holds none in [`least`, 1].

    The label is cut to `length` characters.
    """
    low = high = None
    value = measurement
    if measurement is not None and not isinstance(measurement, int | float):
        over = measurement.over_trainings
        # Over trainings where there are enough of them, else by the records of these.
        limits = measurement if over is None or over.low is None else over
        low, high = (within(end, least, 1.0) for end in (limits.low, limits.high))
        value = measurement.value
    known = within(value, least, 1.0)
    ends = None if low is None or high is None else (low, high)
    return None if known is None else Mark(short(label, length), known, ends)


def control_label(name: str, measurement: "Interval | float") -> str:
    """Return what a control is in words: its name, and what it ran on where the result says so."""
    words = name.replace("_", " ")
    what = getattr(measurement, "what", None)
    return f"{words}: {what}" if what else words


def chance_level(baselines: "Mapping[str, Interval | float]") -> float | None:
    """Return the best success without seeing anything, the largest baseline; None where there is none."""
    marks = filter(None, map(mark, baselines, baselines.values()))
    return max((known.value for known in marks), default=None)


def alt_of(rows: Sequence[Mark]) -> str:
    """Return what rows say, in words."""
    return "; ".join(f"{row.label} {row.text}" for row in rows)


def _paint_rows(axes: "Axes", rows: Sequence[tuple[str, str]], strong: int, reference: float | None) -> None:
    """Stack rows from the top: a name and numbers as text over the marks of each, and one value marked on all."""
    axes.set(ylim=(len(rows) - 0.2, -0.62), yticks=[])
    axes.spines["left"].set_visible(False)
    look: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "bottom", "color": INK}
    for row, (left, right) in enumerate(rows):
        axes.axhline(row, color=RULE, lw=0.8, zorder=0.5)
        look["weight"] = "bold" if row == strong else "normal"
        axes.text(0.0, row - 0.26, left, ha="left", **look)
        axes.text(1.0, row - 0.26, right, ha="right", **look)
    if reference is not None:
        # Between the lines of text that it would otherwise strike through.
        places = np.arange(len(rows))
        axes.vlines([reference] * len(rows), places - 0.17, places + 0.17, color=INK, lw=1.3)


def success_figure(
    attack: str,
    success: "Interval | float | None",
    baselines: "Mapping[str, Interval | float]",
    controls: "Mapping[str, Interval | float]",
    metric: str = "",
    *,
    alarming: bool = True,
) -> str:
    """Return the attack's success beside baselines and controls as SVG; "" where there is no number.

    Each row has its value printed and its interval, over trainings or of few by their records; the upright stroke is
    the best that a guess reaches without seeing anything. All values are proportions, or cosines in [-1, 1]. Where the
    success is not `alarming`, it has the colour of text.
    """
    values = {
        **{f"baseline: {name}": value for name, value in baselines.items()},
        **{f"control: {name}": value for name, value in controls.items()},
    }
    measured = mark(attack or "attack", success, least=-1.0)
    marks = [measured, *(mark(name.replace("_", " "), value, least=-1.0) for name, value in values.items())]
    rows = [row for row in marks if row is not None]
    if not rows:
        return ""
    across = "\n".join(wrap(short(metric or "labels found", 104), 52))
    least = min(0.0, *(min(row.ends or (row.value,)) for row in rows))

    def paint(axes: "Axes") -> None:
        texts = [(row.label, row.text) for row in rows]
        _paint_rows(axes, texts, -1 if measured is None else 0, chance_level(baselines))
        ticks = [tick / 4 for tick in range(-4, 5) if tick / 4 >= least]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set(xlim=(least - 0.01, 1.01), xlabel=across)
        for index, row in enumerate(rows):
            colour = MUTED if row is not measured else ACCENT if alarming else INK
            if row.ends is None:
                axes.plot(row.value, index, "D", color=colour, ms=5.5, mfc="none", mew=1.5)
                continue
            axes.plot(row.ends, [index, index], color=colour, lw=5, alpha=0.45)
            axes.plot(row.value, index, "o", color=colour, ms=7, clip_on=False)

    height = 0.66 + 0.5 * len(rows) + (0.18 if "\n" in across else 0.0)
    return svg.draw("success", f"Attack success: {alt_of(rows)}", height, paint)


def epsilon_figure(claimed: float | None, lower: float | None, upper: float | None) -> str:
    """Return what the claim, the audit and the theory each say about epsilon, as SVG on one scale.

    A claim and an audit whose bars share no value contradict each other. "" where there are fewer than two of the
    three numbers.
    """
    # No axis reaches an infinite epsilon.
    claimed, lower, upper = (within(value, 0.0, 1e100) for value in (claimed, lower, upper))
    known = (
        (claimed, "the claim", f"ε ≤ {as_claimed(claimed)}"),
        (lower, "the audit, from below", f"ε ≥ {lower_bound(lower, claimed)}"),
        (upper, "the theory, from above", f"ε ≤ {upper_bound(upper, claimed)}"),
    )
    values = {(label, text): value for value, label, text in known if value is not None}
    if len(values) < 2:
        return ""
    floor = max(claimed or 0.0, lower or 0.0)
    # An upper bound far out would squeeze everything else against zero: its bar then runs off the axis.
    far = upper or 0.0
    end = 1.25 * max(floor, min(far, 5 * floor) if floor > 0 else far, 1e-6)

    def paint(axes: "Axes") -> None:
        strong = -1 if lower is None else int(claimed is not None)
        refuted = lower is not None and claimed is not None and lower > claimed
        _paint_rows(axes, [*values], strong, claimed)
        axes.set(xlim=(0, end), xlabel="ε")
        for index, value in enumerate(values.values()):
            low, high = (value, end) if index == strong else (0.0, min(value, end))
            colour = MUTED if index != strong else ACCENT if refuted else INK
            axes.barh(index, high - low, left=low, height=0.2, color=colour)
            if high >= end:
                axes.plot(end, index, ">", color=colour, ms=9, clip_on=False)

    alt = f"What is known about epsilon: {'; '.join(map(' '.join, values))}"
    return svg.draw("epsilon", alt, 0.66 + 0.5 * len(values), paint)


def staleness_figure(distribution: "Sequence[Ages]") -> str:
    """Return the shares of the rows that the server read by their age in rounds, as SVG; "" where there are none.

    Ages come in ranges that double, as the result has them.
    """
    bars = {}
    for row in distribution:
        last = "" if row.first == row.last else f" to {row.last:.0f}"
        text = "less than 0.1%" if 0 < row.share < 0.001 else percent(round(row.share, 3))
        bars[f"{row.first:.0f}{last}"] = row.share, text
    if not bars:
        return ""
    subject = "Age of the rows that the server read, in rounds: "
    across = "share of the rows that the server read"
    return bars_figure("staleness", subject, bars, xlabel=across, ylabel="age in rounds")


def bars_figure(
    name: str, subject: str, bars: Mapping[str, tuple[float, str]], *, level: float | None = None, **names: str
) -> str:
    """Return values of at least 0 as bars from the left, each with its text, and one dashed `level`, as SVG."""
    values = [value for value, _ in bars.values()]
    alt = f"{subject}{'; '.join(f'{label} {text.strip()}' for label, (_, text) in bars.items())}"

    def paint(axes: "Axes") -> None:
        places = range(len(bars))
        axes.barh(places, values, height=0.62, color=ACCENT if level is None else MUTED)
        if level is not None:
            axes.axvline(level, color=ACCENT, ls="--", lw=1.4)
        for place, (value, text) in enumerate(bars.values()):
            axes.text(value + 0.012, place, text, va="center", ha="left", color=INK)
        axes.set_yticks(places, [*bars])
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set(xlim=(0, 1.12 * max(values) + 0.02), ylim=(len(bars) - 0.4, -0.6), **names)

    return svg.draw(name, alt, 0.7 + 0.32 * len(bars), paint)


def records_figure(pictures: "Reconstructions") -> str:
    """Return reconstructed records beside the originals and the mean record as SVG; "" where there are none.

    `pictures` holds the (height, width) of a record, and rows of records, each a flat list of greys in [0, 1].
    """
    if len(pictures.shape) != 2 or not all(1 <= side <= 10_000 for side in pictures.shape):
        return ""
    height, width = pictures.shape
    rows = []
    for row in pictures.rows:
        if records := [record for record in row.records if len(record) == height * width]:
            rows.append((clean(row.what), records))
    if not rows:
        return ""
    count = max(len(records) for _, records in rows)
    gap = max(1.0, 0.12 * width)
    across = count * (width + gap) - gap
    # Text is as high in every drawing, whatever the units of the records.
    line = 0.26 * across / WIDTH
    pitch = height + 2.3 * line

    def paint(axes: "Axes") -> None:
        from matplotlib.patches import Rectangle

        bars: list[tuple[int, _Bar]] = []
        for place, (kind, records) in enumerate(rows):
            top = place * pitch
            axes.text(0.0, top - 0.45 * line, kind, ha="left", va="bottom", color=INK)
            for index, record in enumerate(records):
                left = index * (width + gap)
                bars += _bars(record, width, left, top)
                axes.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=MUTED, lw=0.6, zorder=2))
        _paint_bars(axes, grouped(bars))
        axes.set(xlim=(-0.01 * across, 1.01 * across), ylim=(len(rows) * pitch - 2.0 * line, -1.6 * line))
        axes.set_aspect("equal")
        axes.set_axis_off()

    inches = WIDTH * (len(rows) * pitch - 0.4 * line) / (1.02 * across)
    alt = f"{count} records, row by row: {'; '.join(kind for kind, _ in rows)}"
    return svg.draw("records", alt, inches + 0.1, paint)


def _bars(record: Sequence[float], width: int, left: float, top: float) -> Iterator[tuple[int, _Bar]]:
    """Yield shade and bar of every run of equal greys in a row of a record: (left, right, top) in units of pixels."""
    shades = [round(value * (_SHADES - 1)) for value in record]
    for y in range(len(shades) // width):
        start = left
        for shade, run in groupby(shades[y * width : (y + 1) * width]):
            end = start + len(list(run))
            yield shade, (start, end, top + y)
            start = end


def _paint_bars(axes: "Axes", bars: Mapping[int, Sequence[_Bar]]) -> None:
    """Draw all bars of a shade as one shape: a picture without a bitmap, which a page that loads nothing shows too."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    for shade, places in sorted(bars.items()):
        corners = ([(x, y), (end, y), (end, y + 1), (x, y + 1), (x, y)] for x, end, y in places)
        shape = Path.make_compound_path(*(Path(outline, closed=True) for outline in corners))
        # The thin edge closes the seams that a browser leaves between shapes that touch.
        axes.add_patch(PathPatch(shape, color=str(shade / (_SHADES - 1)), lw=0.2))
