"""The section of a report on an attack: success beside baselines and controls, pictures, the epsilon it certifies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.attack_figures import gradient_figure, records_figure
from reports.figures import chance_level, success_figure
from reports.measured import control_rows, measurement_row, measurement_table
from reports.model import Block, Column, Picture, Prose, Section, Table, Tile
from reports.svg import label_of
from reports.text import clean, lower_bound, number, percent, proportion

Mapped = Mapping[str, Any]


def success_tile(known: Mapped) -> list[Tile]:
    """Return the attack's success as a first-glance number, its interval and the blind guess beside it."""
    success = known.get("success") or {}
    if success.get("value") is None:
        return []
    chance = chance_level(known)
    notes = []
    if success.get("low") is not None and success.get("high") is not None:
        over = success.get("over_trainings") or {}
        notes.append(f"{proportion(success['low'], 3)} to {proportion(success['high'], 3)} by records")
        if over.get("low") is not None:
            limits = f"{proportion(over['low'], 3)} to {proportion(over['high'], 3)}"
            notes.append(f"over {number(over.get('count'))} trainings: {limits}")
        elif over.get("count", 1) > 1:
            reach = f"{proportion(over.get('least'), 3)} to {proportion(over.get('most'), 3)}"
            notes.append(f"{number(over['count'])} trainings: {reach}")
    if chance is not None:
        notes.append(f"a blind guess: {proportion(chance, 3)}")
    return [Tile(label="Attack success", value=proportion(success["value"], 3), note="; ".join(notes), strong=True)]


def success_section(known: Mapped) -> Section | None:
    """Return attack success beside baselines and controls; None where the result has no attack."""
    rows = (
        [measurement_row(f"attack {known.get('attack') or ''}".strip(), "attack", known["success"])]
        if known.get("success")
        else []
    )
    rows += [measurement_row(k.replace("_", " "), "baseline", v) for k, v in (known.get("baselines") or {}).items()]
    rows += control_rows(known.get("controls"))
    rows += [measurement_row(k, "measure", v) for k, v in (known.get("measures") or {}).items()]
    if not rows:
        return None
    blocks: list[Block] = []
    drawing = success_figure(known)
    if drawing:
        caption = (
            "Success of the attack beside what needs no attack at all (baselines) and what shows that the "
            "attack measures what it should (controls). Bars are intervals over trainings, or of fewer than eight by "
            "their records. The upright stroke marks the best guess that sees nothing."
        )
        blocks.append(Picture(name="figure-success", svg=drawing, alt=label_of(drawing), caption=caption))
    metric = clean(known.get("metric") or "labels found")
    blocks.append(measurement_table(f"Attack success: {metric}", rows))
    blocks += _pictures(known)
    blocks += _curves(known.get("curves") or {})
    blocks += _certified(known)
    return Section(anchor="attack", title="The attack", blocks=tuple(blocks))


def _pictures(known: Mapped) -> list[Block]:
    """The pictures that only some attacks have: cosines by queries, and reconstructed records."""
    blocks: list[Block] = []
    gradients, records = gradient_figure(known), records_figure(known)
    if gradients:
        caption = (
            "Cosine of estimated with true gradients by the number of queries about a batch; faint bars are intervals "
            "over trials. Without the noise the same training is repeated with nothing added to the scalars."
        )
        blocks.append(Picture(name="figure-gradients", svg=gradients, alt=label_of(gradients), caption=caption))
    if records:
        caption = (
            "The first records that the server did not know, what it made of them, and the mean of all records, "
            "which needs no attack. Numbers in the headings are over all reconstructed records."
        )
        blocks.append(Picture(name="figure-records", svg=records, alt=label_of(records), caption=caption))
    return blocks


def _curves(curves: Mapped) -> list[Block]:
    """A table of each curve: a column a key of its rows, the two ends of an interval in one."""
    blocks: list[Block] = []
    for name, rows in curves.items():
        if not rows:
            continue
        both = {"low", "high"} <= set(rows[0])
        keys = [k for k in rows[0] if not (both and k == "high")]
        cells = tuple(
            tuple(
                f"{_cell(row.get('low'))} to {_cell(row.get('high'))}" if both and k == "low" else _cell(row.get(k))
                for k in keys
            )
            for row in rows
        )
        columns = tuple(
            Column(
                title="interval" if both and k == "low" else clean(k),
                kind="text" if isinstance(rows[0][k], str) else "number",
            )
            for k in keys
        )
        blocks.append(Table(caption=clean(name), columns=columns, rows=cells))
    return blocks


def _cell(value: object) -> str:
    return clean(value) if isinstance(value, str) else number(value)


def _certified(known: Mapped) -> list[Block]:
    """The epsilon that the attack's scores certify and by which game, or why they certify none."""
    bound = known.get("certified") or {}
    if bound.get("epsilon_lower") is None:
        reason = known.get("not_certified")
        return [Prose(text=f"The attack's own scores certify no epsilon: {clean(reason)}.")] if reason else []
    text = (
        f"Epsilon that the attack's own scores certify: at least {lower_bound(bound['epsilon_lower'])} at delta "
        f"{number(bound.get('delta'))} and {percent(bound.get('confidence'))} confidence"
    )
    text += f", relation {clean(bound['neighbours'])}" if bound.get("neighbours") else ""
    text += f"; so many scores could certify at most {lower_bound(bound.get('ceiling'))}."
    text += f" The game: {clean(bound['game'])}." if bound.get("game") else ""
    text += f" The rule: {clean(bound['threshold_rule'])}." if bound.get("threshold_rule") else ""
    return [Prose(text=text)]
