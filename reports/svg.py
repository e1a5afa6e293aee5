"""Draws matplotlib figures as deterministic SVG that reads on light and dark pages and in print."""

import html
import io
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from .text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Each colour of a figure has one meaning; the dark page gives the same meaning another colour. The light
# colours stand in the drawing itself, so that a program without style sheets still draws all of it.
INK = "#1b1d22"
MUTED = "#6a6e78"
RULE = "#d5d8df"
ACCENT = "#b83a08"
BAND = "#f3cdb8"
ON_ACCENT = "#fefefe"
"""Text on `ACCENT`."""
TAKES_FIGURE: ContextVar["Callable[[Callable[[], Figure]], str] | None"] = ContextVar("TAKES_FIGURE", default=None)
"""Takes what makes each figure, and returns what stands in the place of its SVG; None where SVG is wanted."""
DASHED = (0, (5, 2.5))
DOTTED = (0, (1, 1.6))
DASHES: tuple[Any, ...] = (DASHED, DOTTED, (0, (6, 2, 1, 2)), (0, (3, 4)))
"""Looks of the lines of a figure that colour does not tell apart."""
LINES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)), (0, (3, 1.5)), (0, (8, 2, 1, 2, 1, 2)))
"""Looks of the lines of a figure of several colours."""
_DARK = {INK: "#eceef3", MUTED: "#a3a8b4", RULE: "#3b404b", ACCENT: "#ff9460", BAND: "#5c3220", ON_ACCENT: "#1b0d05"}

WIDTH = 5.0
"""Width of a figure in inches; 360 units of the drawing, close to a phone's width in pixels."""
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', 'DejaVu Sans', sans-serif"
_RC: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 10.0,
    "ytick.labelsize": 10.0,
    "grid.color": RULE,
    "legend.frameon": False,
    "legend.fontsize": 10.0,
    "lines.linewidth": 1.8,
    "path.simplify": False,
}
# matplotlib's settings and the filters of warnings are the process's own. One block may stand in another.
_one_at_a_time = threading.RLock()


def _dark_rules() -> str:
    # No ancestor in the selector: markers live in shadow trees, where none would be found.
    rules = ""
    for light, dark in _DARK.items():
        for role in ("fill", "stroke"):
            rules += f'[style*="{role}: {light}"]{{{role}:{dark}!important}}'
    return f"@media screen and (prefers-color-scheme:dark){{{rules}}}"


def _own_ids(tag: str, name: str) -> str:
    """Return one tag with every id in it prefixed by `name`, in the reader's fonts, not matplotlib's."""
    tag = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", tag)
    return re.sub(r"font-family: [^;\"]*", f"font-family: {_FONT}", tag)


def _tidy(source: str, name: str, alt: str) -> str:
    """Return matplotlib's SVG as one element that can stand in a page, in both colour schemes."""
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", source[source.index("<svg") :], flags=re.DOTALL)
    body = body.replace(' target="_blank"', "")
    body = re.sub(r"<[^>]+>", lambda tag: _own_ids(tag.group(), name), body)
    head, _, rest = body.removeprefix("<svg ").partition(">\n")
    # What is in an image is hidden from who cannot see it: links must not be.
    role = "group" if "<a " in rest else "img"
    return (
        f'<svg class="dpzv-figure" role="{role}" aria-label="{html.escape(clean(alt))}" {head}>\n<style>'
        f"{_dark_rules()}</style>\n{rest.rstrip()}\n"
    )


class Chart:
    """Collects lines and levels of a figure, and draws them with their names above, where they hide none.

    `scale` is linear, "plain" with plain numbers along, "log" along, or "loglog": the default writes powers as
    mathematics, so these have plain numbers too.
    """

    def __init__(
        self,
        across: str,
        up: str,
        scale: str = "linear",
        *,
        bottom: float | None = None,
        top: float | None = None,
    ) -> None:
        self.settings = {"xlabel": across, "ylabel": up, "ylim": (bottom, top)}
        self.painters: list[Callable[[Axes], object]] = [lambda axes: _set_scale(axes, scale)]

    @classmethod
    def of_tests(cls) -> "Chart":
        """Return a chart for trade-off curves, with the line of what a test reaches without any information."""
        chart = cls("false positive rate", "false negative rate", "rates", bottom=0, top=1)
        chart.line("no information", [(0, 1), (1, 0)], color=MUTED, lw=0.8)
        return chart

    def line(self, label: str, points: Sequence[tuple[float, ...]], *, upright: bool = False, **look: Any) -> None:
        """Add a line through (place, value), with faint bars where the ends of each value's interval follow.

        Where it is `upright`, places go down the figure, and values across.
        """
        places, values, *ends = zip(*points, strict=True)
        name, along = ("hlines", (values, places)) if upright else ("vlines", (places, values))
        if ends:
            bars = {"color": look["color"], "lw": 4, "alpha": 0.35}
            self.painters.append(lambda axes: getattr(axes, name)(places, *ends, **bars))
        self.painters.append(lambda axes: axes.plot(*along, label=label, **look))

    def band(self, label: str, places: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
        """Add the area between two curves, below all lines."""
        look: dict[str, Any] = {"color": BAND, "lw": 0, "zorder": 1, "label": label}
        self.painters.append(lambda axes: axes.fill_between(places, low, high, **look))

    def level(self, label: str | None, at: float, *, upright: bool = False, **look: Any) -> None:
        """Add a straight line through the whole figure, at a value or, `upright`, at a place."""
        name = "axvline" if upright else "axhline"
        self.painters.append(lambda axes: getattr(axes, name)(at, label=label, **look))

    def draw(self, name: str, alt: str, height: float, **legend: Any) -> str:
        """Return the SVG, as `draw` says."""
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "ncols": 1, "handlelength": 2.6, **legend}

        def paint(axes: "Axes") -> None:
            for painter in self.painters:
                painter(axes)
            axes.set(**self.settings)
            axes.legend(**place)

        return draw(name, alt, height, paint)


def _set_scale(axes: "Axes", scale: str) -> None:
    if scale == "rates":
        axes.set(aspect="equal", xlim=(0, 1))
        for ticks in (axes.set_xticks, axes.set_yticks):
            ticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
        axes.grid(alpha=0.6)
        return
    both = scale == "loglog"
    if both:
        axes.set_yscale("log")
    if both or scale == "log":
        axes.set_xscale("log")
    for axis in (axes.xaxis, axes.yaxis)[: (scale != "linear") + both]:
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.set_minor_formatter(lambda value, _: "")
    axes.grid(axis="both" if both else "y", alpha=0.6 if both else 1.0)


def label_of(drawing: str) -> str:
    """Return the accessible name in a drawing that `draw` made, as plain text."""
    return html.unescape(drawing.split('aria-label="', 1)[1].split('"', 1)[0])


def figure_of(name: str, height: float, paint: "Callable[[Axes], None]") -> "Figure":
    """Return the figure that `paint` draws on one pair of axes, `WIDTH` by `height` inches."""
    from matplotlib.figure import Figure

    with _own_settings(name):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure.add_subplot())
    return figure


@contextmanager
def _own_settings(name: str) -> Iterator[None]:
    import matplotlib

    with _one_at_a_time, matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # whatever a user's own matplotlibrc says
        matplotlib.rcParams.update(cast(Any, {**_RC, "svg.hashsalt": name}))
        # The reader's fonts draw what matplotlib's own lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def draw(name: str, alt: str, height: float, paint: "Callable[[Axes], None]") -> str:
    """Return the SVG that `paint` draws on one pair of axes, `WIDTH` by `height` inches.

    The same call gives the same bytes. Text stays text in the reader's own fonts, the background is
    transparent, and `alt` is the drawing's accessible name. `figure-NAME` prefixes every id in it.
    """
    name = f"figure-{name}"
    take = TAKES_FIGURE.get()
    if take is not None:
        return take(partial(figure_of, name, height, paint))
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with _own_settings(name):
        figure = figure_of(name, height, paint)
        FigureCanvasSVG(figure)
        buffer = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    return _tidy(buffer.getvalue(), name, alt)
