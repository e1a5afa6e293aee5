"""The report on a matrix: its cells in words, the heat map of methods against attacks, and the front of defences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from dpzv_audit.base.findings import SERVERS
from dpzv_audit.base.grouping import grouped
from dpzv_audit.results import Cell

from . import svg
from .curves import look_of, method_of
from .document import Row
from .figures import bars_figure
from .svg import ACCENT, INK, ON_ACCENT
from .text import as_claimed, clean, proportion

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DARK = 0.6
"""Damage above which a cell of the heat map is dark."""
ROOMY = 14
"""Columns of the heat map that leave room for their numbers; with more the map is turned, or its numbers smaller."""


def never_applied(cells: Sequence[Cell], name: Callable[[Cell], str]) -> list[str]:
    """Return rows or columns, as `name` calls them, without a cell in which an attack applies to a method."""
    applied = {name(cell) for cell in cells if cell.state != "does not apply"}
    return [each for each in dict.fromkeys(map(name, cells)) if each not in applied]


def column_of_cell(cell: Cell) -> str:
    """Return what the cell is about: a method, its noise, and the epsilon from which that follows."""
    epsilon = "" if cell.epsilon is None else f", ε {as_claimed(cell.epsilon)}"
    return f"{method_of(cell)}{epsilon}"


def row_of_cell(cell: Cell) -> str:
    """Return who attacks."""
    return f"{clean(cell.attack)}, {clean(cell.adversary)}"


def mounted(cell: Cell) -> str | None:
    """Return which attack the strongest is, and which client looks; None where there is nothing to say."""
    who = f"by client {cell.clients[0]}" if len(cell.clients) == 1 else None
    return " ".join(filter(None, (cell.chosen and clean(cell.chosen), who))) or None


def worst_first(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that were measured: first those that find more than any baseline, both by damage."""
    return sorted([cell for cell in cells if cell.state == "measured"], key=attrgetter("harm"), reverse=True)


def worst_of_each(cells: Sequence[Cell]) -> list[Cell]:
    """Return the measured cell in which each attack finds most, the worst first."""
    worst: dict[str, Cell] = {}
    for cell in worst_first(cells):
        worst.setdefault(attack_of(cell), cell)
    return [*worst.values()]


def attack_of(cell: Cell) -> str:
    """Return the name of the attack of a cell: that of the strongest is the one that was chosen."""
    return clean(cell.chosen or cell.attack)


def reasons(cells: Sequence[Cell], state: str) -> list[Row]:
    """Return why cells in a state have no number, the methods of one attack that share a reason in one row."""
    methods = len(set(map(column_of_cell, cells)))
    columns = grouped(((row_of_cell(cell), _why(cell)), column_of_cell(cell)) for cell in cells if cell.state == state)
    return [
        {"attack": row, "method": "all" if len(names) == methods else "; ".join(names), "why": why}
        for (row, why), names in columns.items()
    ]


def _why(cell: Cell) -> str:
    """Return the reason of a cell without the names that stand beside it."""
    why = cell.reason or ""
    for subject in (cell.attack, f"{cell.noise} noise"):
        why = why.removeprefix(f"{subject} does not apply to {cell.method}: ")
    return why


@dataclass(frozen=True)
class Defended:
    """A method under a defence, or without, and the worst cell of the strongest attacks on it."""

    name: str
    epsilon: float | None
    worst: Cell


def defended(cells: Sequence[Cell]) -> list[Defended]:
    """Return one for each method and defence that was measured; [] for a matrix without defences.

    The server is none of the adversaries: it holds the labels. Where the strongest attacks were not mounted once more,
    all cells take their place.
    """
    measured = [c for c in cells if c.state == "measured" and c.accuracy is not None and c.adversary not in SERVERS]
    if not any(cell.defence for cell in measured):
        return []
    heads = [cell for cell in measured if cell.chosen] or measured
    groups = grouped(((method_of(cell), cell.epsilon), cell) for cell in heads)
    return [Defended(*key, max(own, key=lambda cell: cell.damage or 0.0)) for key, own in groups.items()]


def on_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (damage, accuracy) than which no other has both less damage and more accuracy, by damage."""
    front: list[tuple[float, float]] = []
    for damage, accuracy in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or accuracy > front[-1][1]:
            front.append((damage, accuracy))
    return front


def pareto(cells: Sequence[Cell]) -> str:
    """Return accuracy against the damage of the strongest attack as SVG, a mark for each defence; "" without any."""
    rows = defended(cells)
    if not rows:
        return ""
    chart = svg.Chart("advantage of the strongest attack", "test accuracy")
    by_name = grouped((row.name, (row.worst.damage or 0.0, row.worst.accuracy or 0.0)) for row in rows)
    front = on_front([point for points in by_name.values() for point in points])
    chart.line(
        "no defence has less advantage and more accuracy", front, color=svg.MUTED, lw=1.0, drawstyle="steps-post"
    )
    for index, (name, points) in enumerate(by_name.items()):
        chart.line(name, points, **(look_of(index) | {"ls": "none"}), ms=6)
    ends = (
        f"{row.name} {as_claimed(row.epsilon)}".removesuffix(" -")
        + f" {proportion(row.worst.accuracy, 3)} at advantage "
        f"{proportion(row.worst.damage, 3)}"
        for row in rows[:12]
    )
    alt = f"Accuracy by the advantage of the strongest attack, by defence: {'; '.join(ends)}"
    return chart.draw("defences", alt, 3.1 + 0.18 * (len(by_name) + 1), fontsize=9)


def heat_map(cells: Sequence[Cell]) -> str:
    """Return the damage of every cell as SVG; "" where nothing was measured.

    Attacks down and methods across, or the other way where there are many more methods than attacks. Attacks that
    apply to no method are left out, and so are methods to which none applies.
    """
    worst = worst_first(cells)[:5]
    if not worst:
        return ""
    idle = {*never_applied(cells, row_of_cell), *never_applied(cells, method_of)}
    shown = [cell for cell in cells if idle.isdisjoint((row_of_cell(cell), method_of(cell)))]
    rows = [*dict.fromkeys(map(row_of_cell, shown))]
    across = [*dict.fromkeys(map(column_of_cell, shown))]
    turned = len(across) > max(ROOMY, len(rows))
    if turned:
        rows, across = across, rows

    def paint(axes: "Axes") -> None:
        size = 7.0 if len(across) <= ROOMY else 5.5
        by_name = {(row_of_cell(cell), column_of_cell(cell)): cell for cell in shown}
        for y, row in enumerate(rows):
            for x, column in enumerate(across):
                cell = by_name.get((column, row) if turned else (row, column), Cell())
                _paint_cell(axes, x, y, cell, size)
        axes.set(xlim=(-0.5, len(across) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        axes.set_xticks(range(len(across)), across, rotation=60, ha="right", fontsize=7.5)
        axes.set_yticks(range(len(rows)), rows, fontsize=7.5)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    ranks = (f"{row_of_cell(cell)} on {column_of_cell(cell)} {proportion(cell.damage, 3)}" for cell in worst)
    alt = f"Advantage of attacks on methods; the worst: {'; '.join(ranks)}"
    # Columns are named along a slope below the map: the longest name sets its room.
    room = max(0.7, 0.062 * max(map(len, across)))
    row_height = 0.2 if turned else 0.24
    return svg.draw("matrix", alt, 0.6 + room + row_height * len(rows), paint)


def damages(cells: Sequence[Cell]) -> str:
    """Return the damage of attacks on one training as bars, the worst first, as SVG; "" where none was measured."""
    worst = worst_first(cells)[:12]
    if not worst:
        return ""
    bars = {row_of_cell(cell): (max(0.0, cell.damage or 0.0), proportion(cell.damage, 3)) for cell in worst}
    return bars_figure("attacks", "Advantage of attacks, the worst first: ", bars, xlabel="advantage over the baseline")


def shade_of(damage: float) -> float:
    """Return how strongly the cell of a damage in [0, 1] is coloured: never between 0.5 and 0.9.

    In between neither dark nor light text would have a contrast of 4.5 to 1, on a light page or a dark one.
    """
    if damage <= DARK:
        return 0.5 * damage / DARK
    return 0.9 + 0.1 * (damage - DARK) / (1.0 - DARK)


def _paint_cell(axes: "Axes", x: int, y: int, cell: Cell, size: float) -> None:
    """Colour and number of the cell at (x, y), which leads to its run; bold for what is certain, or failed."""
    from matplotlib.patches import Rectangle

    damage = cell.damage if cell.state == "measured" else None
    text = "×" if cell.state == "failed" else "–"
    if damage is not None:
        axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=ACCENT, alpha=shade_of(damage), lw=0))
        # Two decimals without the leading zero, or a whole 1.
        text = "1" if damage >= 0.995 else f"{damage:.2f}".removeprefix("0")
    bold = text == "×" or (damage is not None and cell.clear is True)
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize=size,
        color=ON_ACCENT if damage is not None and damage > DARK else INK,
        fontweight="bold" if bold else "normal",
        url=None if damage is None else cell.run,
    )
