"""The section of a report on a matrix: a heat map of methods against attacks, and its cells sorted by damage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports import svg
from reports.epsilon_figures import epsilon_figures, method_of
from reports.model import Block, Column, Picture, Prose, Section, Table
from reports.svg import label_of
from reports.text import MISSING, clean, lower_bound, number, proportion, within

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Mapped = Mapping[str, Any]


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
            "perfect one (1). A dash: the attack does not apply. An exclamation mark: the cell failed."
        )
        blocks.append(Picture(name="figure-matrix", svg=drawing, alt=label_of(drawing), caption=caption))
    blocks += _by_epsilon(known)
    blocks.append(_measured(cells))
    blocks += _others(cells)
    blocks += _negative_controls(known.get("negative_controls") or {})
    blocks += _self_checks(known.get("self_checks") or [])
    return Section(anchor="matrix", title="Methods against attacks", blocks=tuple(blocks))


def _by_epsilon(known: Mapped) -> list[Block]:
    """A figure of success against epsilon for each attack that was measured at two or more of them."""
    caption = (
        "success against the epsilon from which the noise follows; faint bars are intervals, level lines methods "
        "without noise, the dotted line the best that needs no attack."
    )
    return [
        Picture(
            name=f"figure-{name}",
            svg=drawing,
            alt=label_of(drawing),
            caption=f"{name.replace('-', ' by the ', 1)}: {caption}",
        )
        for name, drawing in epsilon_figures(known).items()
    ]


def _column(cell: Mapped) -> str:
    epsilon = cell.get("epsilon")
    return method_of(cell) + ("" if epsilon is None else f", ε {number(epsilon)}")


def _row(cell: Mapped) -> str:
    return f"{clean(cell.get('attack') or '')}, {clean(cell.get('adversary') or '')}"


def _measured(cells: Sequence[Mapped]) -> Table:
    done = [c for c in cells if c.get("state") == "measured"]
    order = sorted(done, key=lambda c: (-(within(c.get("damage"), 0.0, 1.0) or 0.0), _row(c), _column(c)))
    rows = tuple(
        (
            _row(c),
            _column(c),
            proportion(c.get("damage"), 3),
            proportion(c.get("success"), 3),
            f"{proportion(c.get('low'), 3)} to {proportion(c.get('high'), 3)}",
            proportion(c.get("reference"), 3),
            clean(c.get("metric") or MISSING),
            lower_bound(c.get("certified")),
            "hold" if c.get("controls_hold") else "missed",
            proportion(c.get("accuracy"), 3),
            clean(c.get("run") or MISSING),
        )
        for c in order
    )
    columns = (
        Column(title="attack"),
        Column(title="method"),
        Column(title="damage", kind="number"),
        Column(title="success", kind="number"),
        Column(title="interval", kind="number"),
        Column(title="without an attack", kind="number"),
        Column(title="measure"),
        Column(title="ε certified", kind="number"),
        Column(title="controls"),
        Column(title="accuracy", kind="number"),
        Column(title="run", kind="link"),
    )
    return Table(caption="Cells by damage, the worst first", columns=columns, rows=rows)


def _others(cells: Sequence[Mapped]) -> list[Block]:
    blocks: list[Block] = []
    for state, caption in (("failed", "Cells that failed"), ("does not apply", "Attacks that do not apply")):
        rows = tuple((_row(c), _column(c), clean(c.get("reason") or "")) for c in cells if c.get("state") == state)
        if rows:
            columns = (Column(title="attack"), Column(title="method"), Column(title="why"))
            blocks.append(Table(caption=caption, columns=columns, rows=rows))
    return blocks


def _negative_controls(found: Mapped) -> list[Block]:
    if found.get("tests") is None:
        return []
    verdict = "All are at chance" if found.get("hold") else "They are NOT all at chance: no number here can be trusted"
    text = (
        f"{number(found['tests'])} negative controls, tested together at a false-alarm rate of "
        f"{number(found.get('false_alarm'))}. {verdict}: the smallest p-value is {number(found.get('smallest_p'))} "
        f"({clean(found.get('worst') or '')}), which among so many is one of {number(found.get('together_p'))}."
    )
    return [Prose(text=text)]


def _self_checks(checks: Sequence[Mapped]) -> list[Block]:
    if not checks:
        return []
    rows = tuple(
        (
            clean(c.get("attack") or ""),
            clean(c.get("what") or ""),
            proportion(c.get("value"), 3),
            "holds" if c.get("holds") else "FAILED",
        )
        for c in checks
    )
    columns = (Column(title="attack"), Column(title="what"), Column(title="value", kind="number"), Column(title=""))
    words = "Each attack where it must succeed: a matrix of low numbers means nothing if these fail."
    return [Prose(text=words), Table(caption="Positive controls", columns=columns, rows=rows)]


_MOST_ACROSS = 14
"""More columns than this have no room for their numbers: the map is then turned."""


def heat_map(known: Mapped) -> str:
    """Return the damage of every cell as SVG; "" where nothing was measured.

    Attacks down and methods across, or the other way where there are many more methods than attacks.
    """
    cells = known.get("cells") or []
    if not any(c.get("state") == "measured" for c in cells):
        return ""
    attacks, methods = list(dict.fromkeys(map(_row, cells))), list(dict.fromkeys(map(_column, cells)))
    turned = len(methods) > max(_MOST_ACROSS, len(attacks))
    rows, columns = (methods, attacks) if turned else (attacks, methods)
    place = {(_column(c), _row(c)) if turned else (_row(c), _column(c)): c for c in cells}

    def paint(axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        for y, row in enumerate(rows):
            for x, column in enumerate(columns):
                cell = place.get((row, column), {})
                damage = within(cell.get("damage"), 0.0, 1.0)
                if cell.get("state") == "measured" and damage is not None:
                    axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=svg.ACCENT, alpha=damage, lw=0))
                axes.text(x, y, _in_cell(cell, damage), ha="center", va="center", fontsize=7.0, color=svg.INK)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=7.5)
        axes.set_yticks(range(len(rows)), rows, fontsize=7.5)
        for spine in axes.spines.values():
            spine.set_visible(False)

    worst = sorted(
        (c for c in cells if c.get("state") == "measured"), key=lambda c: -(within(c.get("damage"), 0.0, 1.0) or 0.0)
    )[:5]
    alt = "Damage of attacks on methods; the worst: " + "; ".join(
        f"{_row(c)} on {_column(c)} {proportion(c.get('damage'), 3)}" for c in worst
    )
    # Columns are named along a slope below the map: the longest name sets its room.
    names = max(0.7, 0.062 * max(len(column) for column in columns))
    return svg.draw("figure-matrix", alt, 0.6 + names + (0.2 if turned else 0.24) * len(rows), paint)


def _in_cell(cell: Mapped, damage: float | None) -> str:
    """Two decimals without the leading zero, a whole 1, a dash or an exclamation mark."""
    if cell.get("state") != "measured" or damage is None:
        return "!" if cell.get("state") == "failed" else "–"
    return "1" if damage >= 0.995 else f"{damage:.2f}".removeprefix("0")
