"""The section of a report on an attack: success beside baselines and controls, pictures, the epsilon it certifies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpzv_audit.results import AttackResult, CertifiedBound
from reports.attack_figures import GRADIENTS, gradient_figure, records_figure
from reports.figures import chance_level, success_figure
from reports.measured import control_rows, measurement_row, measurement_table
from reports.model import Block, Column, Prose, Section, Table, Tile, picture
from reports.text import clean, lower_bound, number, percent, proportion


def success_tile(attack: AttackResult) -> list[Tile]:
    """Return the attack's success as a first-glance number, its interval and the blind guess beside it."""
    success = attack.success
    if success is None:
        return []
    notes = [f"{proportion(success.low, 3)} to {proportion(success.high, 3)} by records"]
    over = success.over_trainings
    if over is not None and over.low is not None:
        notes.append(f"over {number(over.count)} trainings: {proportion(over.low, 3)} to {proportion(over.high, 3)}")
    elif over is not None and over.count > 1:
        notes.append(f"{number(over.count)} trainings: {proportion(over.least, 3)} to {proportion(over.most, 3)}")
    chance = chance_level(attack.baselines)
    if chance is not None:
        notes.append(f"a blind guess: {proportion(chance, 3)}")
    return [Tile(label="Attack success", value=proportion(success.value, 3), note="; ".join(notes), strong=True)]


def success_section(attack: AttackResult) -> Section | None:
    """Return attack success beside baselines and controls; None where the result has no attack."""
    name = f"attack {attack.attack}".strip()
    rows = [] if attack.success is None else [measurement_row(name, "attack", attack.success)]
    rows += [measurement_row(k.replace("_", " "), "baseline", v) for k, v in attack.baselines.items()]
    rows += control_rows(attack.controls)
    rows += [measurement_row(k, "measure", v) for k, v in attack.measures.items()]
    if not rows:
        return None
    drawing = success_figure(attack.attack, attack.success, attack.baselines, attack.controls, attack.metric)
    caption = (
        "Success of the attack beside what needs no attack at all (baselines) and what shows that the "
        "attack measures what it should (controls). Bars are intervals over trainings, or of fewer than eight by "
        "their records. The upright stroke marks the best guess that sees nothing."
    )
    gradients = (
        "Cosine of estimated with true gradients by the number of queries about a batch; faint bars are intervals "
        "over trials. Without the noise the same training is repeated with nothing added to the scalars."
    )
    records = (
        "The first records that the server did not know, what it made of them, and the mean of all records, "
        "which needs no attack. Numbers in the headings are over all reconstructed records."
    )
    blocks = [
        *picture("figure-success", drawing, caption),
        measurement_table(f"Attack success: {clean(attack.metric)}", rows),
        *picture("figure-gradients", gradient_figure(attack.curves.get(GRADIENTS, [])), gradients),
        *picture("figure-records", records_figure(attack.reconstructions), records),
        *(_curve(clean(name), points) for name, points in attack.curves.items() if points),
        *_certified(attack.certified, attack.not_certified),
    ]
    return Section(anchor="attack", title="The attack", blocks=tuple(blocks))


def _curve(caption: str, rows: Sequence[Mapping[str, object]]) -> Table:
    """A table of a curve: a column for each key of its rows, the two ends of an interval in one."""
    both = {"low", "high"} <= set(rows[0])
    keys = [k for k in rows[0] if not (both and k == "high")]
    cells = tuple(
        tuple(
            f"{number(row.get('low'))} to {number(row.get('high'))}" if both and k == "low" else number(row.get(k))
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
    return Table(caption=caption, columns=columns, rows=cells)


def _certified(bound: CertifiedBound | None, reason: str | None) -> list[Block]:
    """The epsilon that the attack's scores certify and by which game, or why they certify none."""
    if bound is None:
        return [Prose(text=f"The attack's own scores certify no epsilon: {clean(reason)}.")] if reason else []
    text = (
        f"Epsilon that the attack's own scores certify: at least {lower_bound(bound.epsilon_lower)} at delta "
        f"{number(bound.delta)} and {percent(bound.confidence)} confidence, relation {clean(bound.neighbours)}; so "
        f"many scores could certify at most {lower_bound(bound.ceiling)}. The game: {clean(bound.game)}. The rule: "
        f"{clean(bound.threshold_rule)}."
    )
    return [Prose(text=text)]
