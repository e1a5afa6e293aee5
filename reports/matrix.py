"""The section of a report on a matrix: a heat map of methods against attacks, and its cells sorted by damage."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dpzv_audit.results import Cell, MatrixResult, NegativeControls, SelfCheck
from reports import svg
from reports.curves import epsilon_figures, method_of
from reports.document import Block, Section, picture, section, table, words
from reports.text import MISSING, clean, lower_bound, number, proportion, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOMY = 14
"""Columns of the heat map that leave room for their numbers; with more the map is turned, or its numbers smaller."""
DARK = 0.55
"""Damage above which the text on its colour is light."""
_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*")


def matrix_section(matrix: MatrixResult) -> list[Section]:
    """Return heat map, sorted table and what failed; nothing where the result holds no cell."""
    cells = matrix.cells
    if not cells:
        return []
    caption = words("captions", "matrix")
    attacks, methods = _never_applied(cells, _row), _never_applied(cells, method_of)
    if attacks:
        caption += f" Left out, since they apply to no method on this data set: {'; '.join(attacks)}."
    if methods:
        caption += f" Left out, since no attack here applies to them: {'; '.join(methods)}."
    blocks = picture("matrix", heat_map(cells), caption)
    for name, drawing in epsilon_figures(cells).items():
        attack = name.replace("-", " by the ", 1)
        blocks += picture(name, drawing, words("captions", "by-epsilon", attack=attack))
    blocks += _measured(cells)
    blocks += _others(cells, "failed", "Cells that failed")
    blocks += _others(cells, "does not apply", "Attacks that do not apply")
    if matrix.negative_controls is not None:
        blocks.append(_negative_controls(matrix.negative_controls))
    blocks += _self_checks(matrix.self_checks)
    return section("matrix", "Methods against attacks", blocks)


def _never_applied(cells: Sequence[Cell], name: Callable[[Cell], str]) -> list[str]:
    """Rows or columns, as `name` calls them, without a cell in which an attack applies to a method."""
    applied = {name(c) for c in cells if c.state != "does not apply"}
    return [found for found in dict.fromkeys(map(name, cells)) if found not in applied]


def _link(cell: Cell) -> str | None:
    """The path of the cell's report below the matrix's folder; None where it is none."""
    path = cell.run or ""
    inside = _PATH.fullmatch(path) and ".." not in path.split("/")
    return path if inside else None


def _column(cell: Cell) -> str:
    return method_of(cell) + ("" if cell.epsilon is None else f", ε {number(cell.epsilon)}")


def _row(cell: Cell) -> str:
    return f"{clean(cell.attack)}, {clean(cell.adversary)}"


def _damage(cell: Cell) -> float:
    return within(cell.damage, 0.0, 1.0) or 0.0


def _worst_first(cells: Sequence[Cell]) -> list[Cell]:
    done = [cell for cell in cells if cell.state == "measured"]
    return sorted(done, key=lambda cell: -_damage(cell))


def _measured(cells: Sequence[Cell]) -> list[Block]:
    done = _worst_first(sorted(cells, key=lambda cell: (_row(cell), _column(cell))))
    if not done:
        return []
    rows = [
        {
            "attack": _row(cell),
            "method": _column(cell),
            "damage": proportion(cell.damage, 3) + ("" if cell.controls_hold else " !"),
            "success": _success(cell),
            "no attack": _no_attack(cell),
            "control": proportion(cell.control, 3),
            "ε certified": lower_bound(cell.certified),
            "accuracy": proportion(cell.accuracy, 3),
            "run": _link(cell),
        }
        for cell in done
    ]
    by_metric: dict[str, dict[str, None]] = {}
    for cell in done:
        by_metric.setdefault(cell.metric or MISSING, {})[cell.attack] = None
    metrics = "; ".join(f"{metric} ({', '.join(attacks)})" for metric, attacks in by_metric.items())
    numbers = list(rows[0])[2:-1]
    cells_table = table("Cells by damage, the worst first", rows, numbers=numbers, links=("run",))
    return [*cells_table, words("paragraphs", "cells", metrics=metrics)]


def _success(cell: Cell) -> str:
    """Success, its interval by records of these trainings, and one over trainings, or of few the least and the most."""
    text = f"{proportion(cell.success, 3)} ({_span(cell.low, cell.high)})"
    trainings = number(cell.trainings)
    if cell.over_low is not None:
        return f"{text}; {trainings} trainings: {_span(cell.over_low, cell.over_high)}"
    if cell.trainings in (None, 1):
        return text
    return f"{text}; {trainings} trainings, {_span(cell.least, cell.most)}"


def _span(low: float | None, high: float | None) -> str:
    return f"{proportion(low, 3)} to {proportion(high, 3)}"


def _no_attack(cell: Cell) -> str:
    """The best baseline, and how high any of them may be."""
    best = proportion(cell.reference, 3)
    if cell.reference_high in (None, cell.reference):
        return best
    return f"{best} (to {proportion(cell.reference_high, 3)})"


def _others(cells: Sequence[Cell], state: str, caption: str) -> list[Block]:
    """Return why cells have no number, the methods of one attack that share a reason in one row."""
    methods = len(set(map(_column, cells)))
    of: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.state == state:
            of.setdefault((_row(cell), _reason(cell)), []).append(_column(cell))
    rows = [
        {"attack": row, "method": "all" if len(names) == methods else "; ".join(names), "why": why}
        for (row, why), names in of.items()
    ]
    return table(caption, rows)


def _reason(cell: Cell) -> str:
    """Why there is no number, without the names that stand beside it."""
    reason = cell.reason or ""
    for what in (cell.attack, f"{cell.noise} noise"):
        reason = reason.removeprefix(f"{what} does not apply to {cell.method}: ")
    return reason


def _negative_controls(found: NegativeControls) -> str:
    verdict = "They are NOT all at chance: no number here can be trusted"
    if found.hold:
        verdict = "All are at chance"
    return (
        f"{number(found.tests)} negative controls, tested together at a false-alarm rate of "
        f"{number(found.false_alarm)}. {verdict}: the smallest p-value is {number(found.smallest_p)} "
        f"({found.worst}), which among so many is one of {number(found.together_p)}."
    )


def _self_checks(checks: Sequence[SelfCheck]) -> list[Block]:
    said = {True: "holds", False: "FAILED", None: MISSING}
    rows = [
        {
            "attack": check.attack,
            "what": check.what,
            "value": proportion(check.value, 3),
            "": said[check.holds],
        }
        for check in checks
    ]
    blocks = table("Positive controls", rows, numbers=("value",))
    return [words("paragraphs", "self-checks"), *blocks] if blocks else []


def heat_map(cells: Sequence[Cell]) -> str:
    """Return the damage of every cell as SVG; "" where nothing was measured.

    Attacks down and methods across, or the other way where there are many more methods than attacks. Attacks that
    apply to no method are left out, and so are methods to which none applies.
    """
    worst = _worst_first(cells)[:5]
    if not worst:
        return ""
    idle = {*_never_applied(cells, _row), *_never_applied(cells, method_of)}
    shown = [c for c in cells if idle.isdisjoint((_row(c), method_of(c)))]
    names = [list(dict.fromkeys(map(name, shown))) for name in (_row, _column)]
    turned = len(names[1]) > max(ROOMY, len(names[0]))
    rows, across = reversed(names) if turned else names

    def paint(axes: Axes) -> None:
        size = 7.0 if len(across) <= ROOMY else 5.5
        place = {(_row(cell), _column(cell)): cell for cell in shown}
        for y, row in enumerate(rows):
            for x, column in enumerate(across):
                cell = place.get((column, row) if turned else (row, column), Cell())
                _paint_cell(axes, x, y, cell, size)
        axes.set(xlim=(-0.5, len(across) - 0.5), ylim=(len(rows) - 0.5, -0.5))
        axes.set_xticks(range(len(across)), across, rotation=60, ha="right", fontsize=7.5)
        axes.set_yticks(range(len(rows)), rows, fontsize=7.5)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    said = (f"{_row(c)} on {_column(c)} {proportion(c.damage, 3)}" for c in worst)
    alt = f"Damage of attacks on methods; the worst: {'; '.join(said)}"
    # Columns are named along a slope below the map: the longest name sets its room.
    room = max(0.7, 0.062 * max(map(len, across)))
    return svg.draw("figure-matrix", alt, 0.6 + room + (0.2 if turned else 0.24) * len(rows), paint)


def _paint_cell(axes: Axes, x: int, y: int, cell: Cell, size: float) -> None:
    """Colour and number of the cell at (x, y), which leads to its run; bold for what is certain, or failed."""
    damage = within(cell.damage, 0.0, 1.0) if cell.state == "measured" else None
    failed = cell.state == "failed"
    text = "×" if failed else "–"
    if damage is not None:
        left, top = x - 0.48, y - 0.48
        svg.rectangle(axes, left, top, 0.96, 0.96, color=svg.ACCENT, alpha=damage, lw=0)
        # Two decimals without the leading zero, or a whole 1.
        text = "1" if damage >= 0.995 else f"{damage:.2f}".removeprefix("0")
    bold = failed or (damage is not None and cell.clear is True)
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        fontsize=size,
        color=svg.ON_ACCENT if (damage or 0.0) > DARK else svg.INK,
        fontweight="bold" if bold else "normal",
        url=None if damage is None else _link(cell),
    )
