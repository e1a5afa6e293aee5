"""The section of a report on a matrix: a heat map of methods against attacks, and its cells sorted by damage."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dpzv_audit.results import Cell, MatrixResult, NegativeControls, SelfCheck
from reports import svg
from reports.curves import epsilon_figures, method_of
from reports.model import Block, Column, Prose, Section, Table, columns, picture
from reports.text import MISSING, clean, lower_bound, number, proportion, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOMY = 14
"""Columns of the heat map that leave room for their numbers; with more the map is turned, or its numbers smaller."""
DARK = 0.55
"""Damage above which the text on its colour is light."""
_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*")


def section(matrix: MatrixResult) -> Section | None:
    """Return heat map, sorted table and what failed; None where the result holds no cell."""
    cells = matrix.cells
    if not cells:
        return None
    caption = (
        "Damage of each attack, darker the more: how far its success lies between what needs no attack (0) "
        "and a perfect one (1); bold where it lies above all that needs no attack, in all of its trainings and "
        "by their records, or of eight trainings or more on average. A dash: the attack does not apply. A cross: "
        "the cell failed. Each number leads to its run."
    )
    attacks, methods = _never_applied(cells, _row), _never_applied(cells, method_of)
    if attacks:
        caption += f" Left out, since they apply to no method on this data set: {'; '.join(attacks)}."
    if methods:
        caption += f" Left out, since no attack here applies to them: {'; '.join(methods)}."
    by_epsilon = (
        "success against the epsilon from which the noise follows; faint bars are intervals, level lines methods "
        "without noise, the dotted line the best that needs no attack."
    )
    blocks = picture("figure-matrix", heat_map(cells), caption)
    for name, drawing in epsilon_figures(cells).items():
        blocks += picture(f"figure-{name}", drawing, f"{name.replace('-', ' by the ', 1)}: {by_epsilon}")
    blocks += _measured(cells)
    blocks += _others(cells)
    blocks += [] if matrix.negative_controls is None else [_negative_controls(matrix.negative_controls)]
    blocks += _self_checks(matrix.self_checks)
    return Section(anchor="matrix", title="Methods against attacks", blocks=tuple(blocks))


def _never_applied(cells: Sequence[Cell], name: Callable[[Cell], str]) -> list[str]:
    """Rows or columns, as `name` calls them, without a cell in which an attack applies to a method."""
    applied = {name(c) for c in cells if c.state != "does not apply"}
    return [found for found in dict.fromkeys(map(name, cells)) if found not in applied]


def _link(cell: Cell) -> str:
    """The path of the cell's report below the matrix's folder; a dash where it is none."""
    path = cell.run or ""
    inside = _PATH.fullmatch(path) and ".." not in path.split("/")
    return path if inside else MISSING


def _column(cell: Cell) -> str:
    return method_of(cell) + ("" if cell.epsilon is None else f", ε {number(cell.epsilon)}")


def _row(cell: Cell) -> str:
    return f"{clean(cell.attack)}, {clean(cell.adversary)}"


def _damage(cell: Cell) -> float:
    return within(cell.damage, 0.0, 1.0) or 0.0


def _measured(cells: Sequence[Cell]) -> list[Block]:
    done = [c for c in cells if c.state == "measured"]
    if not done:
        return []
    order = sorted(done, key=lambda c: (-_damage(c), _row(c), _column(c)))
    rows = tuple(
        (
            _row(c),
            _column(c),
            proportion(c.damage, 3) + ("" if c.controls_hold else " !"),
            _success(c),
            _no_attack(c),
            proportion(c.control, 3),
            lower_bound(c.certified),
            proportion(c.accuracy, 3),
            _link(c),
        )
        for c in order
    )
    numbers = ("damage", "success", "no attack", "control", "ε certified", "accuracy")
    titles = (*columns("attack", "method", *numbers, numbers=numbers), Column(title="run", kind="link"))
    by_metric: dict[str, dict[str, None]] = {}
    for cell in done:
        by_metric.setdefault(clean(cell.metric or MISSING), {})[clean(cell.attack)] = None
    words = "; ".join(f"{metric} ({', '.join(attacks)})" for metric, attacks in by_metric.items())
    return [
        Table(caption="Cells by damage, the worst first", columns=titles, rows=rows),
        Prose(
            text=f"Success is: {words}. In brackets stands its interval by the records of these trainings; behind it "
            "one over trainings, or of fewer than eight, which allow none, the least and the most. What needs no "
            "attack is the best of the baselines, with the highest limit of any where they are measured. The control "
            "is the same attack where there is nothing to find. Accuracy is the method's on test records, as the "
            "attack had it trained. An exclamation mark: a control is off its value at the confidence of the "
            "intervals, as luck alone makes some."
        ),
    ]


def _success(cell: Cell) -> str:
    """Success, its interval by records of these trainings, and one over trainings, or of few the least and the most."""
    text = f"{proportion(cell.success, 3)} ({_span(cell.low, cell.high)})"
    if cell.over_low is not None:
        return f"{text}; {number(cell.trainings)} trainings: {_span(cell.over_low, cell.over_high)}"
    if cell.trainings in (None, 1):
        return text
    return f"{text}; {number(cell.trainings)} trainings, {_span(cell.least, cell.most)}"


def _span(low: float | None, high: float | None) -> str:
    return f"{proportion(low, 3)} to {proportion(high, 3)}"


def _no_attack(cell: Cell) -> str:
    """The best baseline, and how high any of them may be."""
    wider = cell.reference_high not in (None, cell.reference)
    return proportion(cell.reference, 3) + (f" (to {proportion(cell.reference_high, 3)})" if wider else "")


def _others(cells: Sequence[Cell]) -> list[Block]:
    blocks: list[Block] = []
    methods = len(dict.fromkeys(map(_column, cells)))
    for state, caption in (("failed", "Cells that failed"), ("does not apply", "Attacks that do not apply")):
        of: dict[tuple[str, str], list[str]] = {}
        for cell in cells:
            if cell.state == state:
                of.setdefault((_row(cell), _reason(cell)), []).append(_column(cell))
        rows = tuple(
            (row, "all" if len(names) == methods else "; ".join(names), why) for (row, why), names in of.items()
        )
        if rows:
            blocks.append(Table(caption=caption, columns=columns("attack", "method", "why"), rows=rows))
    return blocks


def _negative_controls(found: NegativeControls) -> Prose:
    verdict = "All are at chance" if found.hold else "They are NOT all at chance: no number here can be trusted"
    text = (
        f"{number(found.tests)} negative controls, tested together at a false-alarm rate of "
        f"{number(found.false_alarm)}. {verdict}: the smallest p-value is {number(found.smallest_p)} "
        f"({clean(found.worst)}), which among so many is one of {number(found.together_p)}."
    )
    return Prose(text=text)


def _reason(cell: Cell) -> str:
    """Why there is no number, without the names that stand beside it."""
    reason = cell.reason or ""
    for what in (cell.attack, f"{cell.noise} noise"):
        reason = reason.removeprefix(f"{what} does not apply to {cell.method}: ")
    return clean(reason)


def _self_checks(checks: Sequence[SelfCheck]) -> list[Block]:
    if not checks:
        return []
    words = {True: "holds", False: "FAILED", None: MISSING}
    rows = tuple((clean(c.attack), clean(c.what), proportion(c.value, 3), words[c.holds]) for c in checks)
    titles = columns("attack", "what", "value", "", numbers=("value",))
    text = "Each attack where it must succeed: a matrix of low numbers means nothing if these fail."
    return [Prose(text=text), Table(caption="Positive controls", columns=titles, rows=rows)]


def heat_map(cells: Sequence[Cell]) -> str:
    """Return the damage of every cell as SVG; "" where nothing was measured.

    Attacks down and methods across, or the other way where there are many more methods than attacks. Attacks that
    apply to no method are left out, and so are methods to which none applies.
    """
    worst = sorted((c for c in cells if c.state == "measured"), key=lambda c: -_damage(c))[:5]
    if not worst:
        return ""
    idle = {*_never_applied(cells, _row), *_never_applied(cells, method_of)}
    shown = [c for c in cells if idle.isdisjoint((_row(c), method_of(c)))]
    attacks, methods = list(dict.fromkeys(map(_row, shown))), list(dict.fromkeys(map(_column, shown)))
    turned = len(methods) > max(ROOMY, len(attacks))
    rows, across = (methods, attacks) if turned else (attacks, methods)
    place = {(_column(c), _row(c)) if turned else (_row(c), _column(c)): c for c in shown}

    def paint(axes: Axes) -> None:
        size = 7.0 if len(across) <= ROOMY else 5.5
        for y, row in enumerate(rows):
            for x, column in enumerate(across):
                _paint_cell(axes, x, y, place.get((row, column), Cell()), size)
        axes.set_xlim(-0.5, len(across) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(len(across)), across, rotation=60, ha="right", fontsize=7.5)
        axes.set_yticks(range(len(rows)), rows, fontsize=7.5)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)

    alt = "Damage of attacks on methods; the worst: " + "; ".join(
        f"{_row(c)} on {_column(c)} {proportion(c.damage, 3)}" for c in worst
    )
    # Columns are named along a slope below the map: the longest name sets its room.
    names = max(0.7, 0.062 * max(len(column) for column in across))
    return svg.draw("figure-matrix", alt, 0.6 + names + (0.2 if turned else 0.24) * len(rows), paint)


def _paint_cell(axes: Axes, x: int, y: int, cell: Cell, size: float) -> None:
    """Colour and number of the cell at (x, y), which leads to its run; bold for what is certain, or failed."""
    from matplotlib.patches import Rectangle

    damage = within(cell.damage, 0.0, 1.0) if cell.state == "measured" else None
    if damage is not None:
        axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=svg.ACCENT, alpha=damage, lw=0))
    failed = cell.state == "failed"
    certain = damage is not None and cell.clear is True
    link = MISSING if damage is None else _link(cell)
    axes.text(
        x,
        y,
        ("×" if failed else "–") if damage is None else _two_decimals(damage),
        ha="center",
        va="center",
        fontsize=size,
        color=svg.ON_ACCENT if (damage or 0.0) > DARK else svg.INK,
        fontweight="bold" if certain or failed else "normal",
        url=None if link == MISSING else link,
    )


def _two_decimals(value: float) -> str:
    """Two decimals without the leading zero, or a whole 1."""
    return "1" if value >= 0.995 else f"{value:.2f}".removeprefix("0")
