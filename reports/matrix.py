"""The section of a report on a matrix: a heat map of methods against attacks, and its cells sorted by damage."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.model import Block, Column, Picture, Prose, Section, Table
from reports.svg import label_of
from reports.text import MISSING, clean, finite, number, proportion, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Mapped = Mapping[str, Any]
MANY = 14
"""Columns from which on the numbers in the heat map are smaller."""
DARK = 0.55
"""Damage above which the text on its colour is light."""
_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*")


def section(known: Mapped) -> Section | None:
    """Return heat map, sorted table and what failed; None where the result is no matrix."""
    cells = known.get("cells") or []
    if not cells:
        return None
    blocks: list[Block] = []
    drawing = heat_map(known)
    if drawing:
        caption = (
            "Damage of each attack, darker the more: how far its success lies between what needs no attack (0) and a "
            "perfect one (1); bold where the whole interval lies above what needs no attack. A dash: the attack does "
            "not apply. An exclamation mark: the cell failed. Each number leads to its run."
        )
        idle = _never_applied(cells)
        if idle:
            caption += f" Left out, since no method here is open to them: {'; '.join(idle)}."
        blocks.append(Picture(name="figure-matrix", svg=drawing, alt=label_of(drawing), caption=caption))
    blocks += _measured(cells)
    blocks += _others(cells)
    blocks += _self_checks(known.get("self_checks") or [])
    return Section(anchor="matrix", title="Methods against attacks", blocks=tuple(blocks))


def _never_applied(cells: Sequence[Mapped]) -> list[str]:
    """Rows whose attack applies to none of the methods."""
    rows = dict.fromkeys(map(_row, cells))
    applied = {_row(c) for c in cells if c.get("state") != "does not apply"}
    return [row for row in rows if row not in applied]


def _link(cell: Mapped) -> str:
    """The path of the cell's report below the matrix's folder; a dash where it is none."""
    path = str(cell.get("run") or "")
    inside = _PATH.fullmatch(path) and ".." not in path.split("/")
    return path if inside else MISSING


def _column(cell: Mapped) -> str:
    epsilon = cell.get("epsilon")
    return clean(cell.get("method") or "") + ("" if epsilon is None else f", ε {number(epsilon)}")


def _row(cell: Mapped) -> str:
    return f"{clean(cell.get('attack') or '')}, {clean(cell.get('adversary') or '')}"


def _measured(cells: Sequence[Mapped]) -> list[Block]:
    done = [c for c in cells if c.get("state") == "measured"]
    if not done:
        return []
    order = sorted(done, key=lambda c: (-(within(c.get("damage"), 0.0, 1.0) or 0.0), _row(c), _column(c)))
    rows = tuple(
        (
            _row(c),
            _column(c),
            proportion(c.get("damage"), 3),
            f"{proportion(c.get('success'), 3)} ({proportion(c.get('low'), 3)} to {proportion(c.get('high'), 3)})",
            proportion(c.get("reference"), 3),
            proportion(c.get("accuracy"), 3),
            "hold" if c.get("controls_hold") else "missed",
            _link(c),
        )
        for c in order
    )
    columns = (
        Column(title="attack"),
        Column(title="method"),
        Column(title="damage", kind="number"),
        Column(title="success", kind="number"),
        Column(title="no attack", kind="number"),
        Column(title="accuracy", kind="number"),
        Column(title="controls"),
        Column(title="run", kind="link"),
    )
    by_metric: dict[str, dict[str, None]] = {}
    for cell in done:
        by_metric.setdefault(clean(cell.get("metric") or MISSING), {})[clean(cell.get("attack") or "")] = None
    words = "; ".join(f"{metric} ({', '.join(attacks)})" for metric, attacks in by_metric.items())
    return [
        Table(caption="Cells by damage, the worst first", columns=columns, rows=rows),
        Prose(
            text=f"Success is: {words}. What needs no attack is the best of the baselines. Accuracy is the method's on "
            "test records, as the attack had it trained."
        ),
    ]


def _others(cells: Sequence[Mapped]) -> list[Block]:
    blocks: list[Block] = []
    methods = len(dict.fromkeys(map(_column, cells)))
    for state, caption in (("failed", "Cells that failed"), ("does not apply", "Attacks that do not apply")):
        of: dict[tuple[str, str], list[str]] = {}
        for cell in cells:
            if cell.get("state") == state:
                of.setdefault((_row(cell), _reason(cell)), []).append(_column(cell))
        rows = tuple(
            (row, "all" if len(names) == methods else "; ".join(names), why) for (row, why), names in of.items()
        )
        if rows:
            columns = (Column(title="attack"), Column(title="method"), Column(title="why"))
            blocks.append(Table(caption=caption, columns=columns, rows=rows))
    return blocks


def _reason(cell: Mapped) -> str:
    """Why there is no number, without the names that stand beside it."""
    reason = str(cell.get("reason") or "")
    return clean(reason.removeprefix(f"{cell.get('attack')} does not apply to {cell.get('method')}: "))


def _self_checks(checks: Sequence[Mapped]) -> list[Block]:
    if not checks:
        return []
    rows = tuple(
        (
            clean(c.get("attack") or ""),
            clean(c.get("what") or ""),
            proportion(c.get("value"), 3),
            "holds" if c.get("holds") else "FAILED" if c.get("holds") is False else MISSING,
        )
        for c in checks
    )
    columns = (Column(title="attack"), Column(title="what"), Column(title="value", kind="number"), Column(title=""))
    words = "Each attack where it must succeed: a matrix of low numbers means nothing if these fail."
    return [Prose(text=words), Table(caption="Positive controls", columns=columns, rows=rows)]


def heat_map(known: Mapped) -> str:
    """Return the damage of every cell as SVG, attacks down and methods across; "" where nothing was measured."""
    cells = known.get("cells") or []
    idle = set(_never_applied(cells))
    rows = [row for row in dict.fromkeys(map(_row, cells)) if row not in idle]
    columns = list(dict.fromkeys(map(_column, cells)))
    if not any(c.get("state") == "measured" for c in cells):
        return ""
    place = {(_row(c), _column(c)): c for c in cells}

    def paint(axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        for y, row in enumerate(rows):
            for x, column in enumerate(columns):
                cell = place.get((row, column), {})
                damage = within(cell.get("damage"), 0.0, 1.0)
                measured = cell.get("state") == "measured" and damage is not None
                if measured:
                    axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=svg.ACCENT, alpha=damage, lw=0))
                failed = cell.get("state") == "failed"
                words = f"{damage:.2f}".lstrip("0") if measured else "!" if failed else "–"
                certain = measured and (finite(cell.get("low")) or 0.0) > (finite(cell.get("reference")) or 0.0)
                axes.text(
                    x,
                    y,
                    words,
                    ha="center",
                    va="center",
                    fontsize=7.0 if len(columns) < MANY else 5.5,
                    color=svg.ON_ACCENT if measured and (damage or 0.0) > DARK else svg.INK,
                    fontweight="bold" if certain or failed else "normal",
                    url=_link(cell) if measured and _link(cell) != MISSING else None,
                )
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=7.5)
        axes.set_yticks(range(len(rows)), rows, fontsize=7.5)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)

    worst = sorted(
        (c for c in cells if c.get("state") == "measured"), key=lambda c: -(within(c.get("damage"), 0.0, 1.0) or 0.0)
    )[:5]
    alt = "Damage of attacks on methods; the worst: " + "; ".join(
        f"{_row(c)} on {_column(c)} {proportion(c.get('damage'), 3)}" for c in worst
    )
    return svg.draw("figure-matrix", alt, 1.3 + 0.24 * len(rows), paint)
