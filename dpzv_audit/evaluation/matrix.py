"""One cell of a matrix out of an attack's result, and the whole out of its cells: the `result.json` of `matrix`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpzv_audit.evaluation.common import Result
from dpzv_audit.evaluation.comparing import compared, interval_of, of_these_trainings
from dpzv_audit.evidence import LEAST_TRAININGS, Interval
from dpzv_audit.seeds import noise_of_simulation


def measured_cell(result: Result, run: str) -> Result:
    """What a matrix shows of one attack's result: its success, the best without an attack, and the damage.

    Damage is how far success lies between the best that needs no attack (0; chance, and baselines such as the raw
    features) and a perfect one (1); below 0 it is 0. `low` and `high` are by the records of these trainings, which
    reach `least` to `most`; `over_low` and `over_high` over trainings, None where there are too few. `clear` says that
    success lies above all that needs no attack: in all of these trainings and by their records, or over trainings.
    `reference_high` is the highest limit of any baseline in these trainings.
    """
    success, over = interval_of(result["success"]), result["success"].get("over_trainings") or {}
    baselines = [interval_of(v) if isinstance(v, dict) else float(v) for v in result["baselines"].values()]
    highest = max((of_these_trainings(b)[1] for b in baselines), default=0.0)
    reference = max((b.value if isinstance(b, Interval) else b for b in baselines), default=0.0)
    damage = (success.value - reference) / (1.0 - reference) if reference < 1.0 else 0.0
    return {
        "state": "measured",
        "metric": result["metric"],
        "success": success.value,
        "low": success.low,
        "high": success.high,
        "reference": reference,
        "trainings": over.get("count"),
        "least": over.get("least"),
        "most": over.get("most"),
        "over_low": over.get("low"),
        "over_high": over.get("high"),
        "reference_high": highest,
        "clear": all(compared(success, b).side == "above" for b in baselines or (0.0,)),
        "damage": min(1.0, max(0.0, damage)),
        "control": _negative(result["controls"]),
        "certified": (result.get("certified") or {}).get("epsilon_lower"),
        "controls_hold": all(_holds(c) for c in result["controls"].values()),
        "control_p": min((p for c in result["controls"].values() if (p := c.get("p_value")) is not None), default=None),
        "accuracy": result["utility"]["test_accuracy"]["value"],
        "run": run,
    }


def _negative(controls: Mapping[str, Result]) -> float | None:
    """What the attack finds where there is nothing to find, of several the farthest off; None without such a run."""
    found = [c for c in controls.values() if c["kind"] == "negative"]
    if not found:
        return None
    value: float = max(found, key=lambda c: abs(c["value"] - c["expected"]))["value"]
    return value


def _holds(control: Result) -> bool:
    """As `attacks.core.controls.Control.holds`, of a control that was read back."""
    if control["kind"] == "positive":
        return float(control["value"]) >= float(control["expected"])
    p = control.get("p_value")
    return p is None or float(p) >= 1.0 - float(control["confidence"])


FALSE_ALARM = 1e-3
"""Probability with which the negative controls of a correct build, all together, are found off chance."""


def negative_controls(cells: Sequence[Result]) -> Result | None:
    """One test of all negative controls together: the smallest p-value times their number (Bonferroni).

    It holds its false-alarm rate however the controls depend on each other and whatever the shape of what varies
    between trainings (`attacks.core.chance`). None where no cell has a p-value: too few trainings.
    """
    tested = [c for c in cells if c.get("control_p") is not None]
    if not tested:
        return None
    worst = min(tested, key=lambda c: c["control_p"])
    together = min(1.0, len(tested) * worst["control_p"])
    on = " + ".join(part for part in (worst["method"], worst.get("noise")) if part)
    return {
        "tests": len(tested),
        "smallest_p": worst["control_p"],
        "together_p": together,
        "false_alarm": FALSE_ALARM,
        "hold": together >= FALSE_ALARM,
        "worst": f"{worst['attack']} by the {worst['adversary']} on {on}",
    }


def matrix_result(
    cells: Sequence[Result], self_checks: Sequence[Result], *, dataset: str, seeds: int, seed: int, facts: Result
) -> Result:
    """All cells as one result; schema `dpzv-audit/matrix/1`."""
    noised = any(cell.get("epsilon") is not None for cell in cells)
    return {
        "schema": "dpzv-audit/matrix/1",
        "dataset": dataset,
        "sentence": matrix_sentence(cells, seeds),
        "noise": noise_of_simulation(seed) if noised else None,
        "negative_controls": negative_controls(cells),
        "cells": list(cells),
        "self_checks": list(self_checks),
        "attack_setting": {"seeds": seeds, **facts},
        "seed": seed,
    }


def matrix_sentence(cells: Sequence[Result], seeds: int) -> str:
    """The worst cell, how many leak for certain, how many failed, and whether controls are at chance, in words."""
    measured = [c for c in cells if c["state"] == "measured"]
    failed = sum(c["state"] == "failed" for c in cells)
    text = f"{len(measured)} cells measured, {sum(c['state'] == 'does not apply' for c in cells)} do not apply"
    text += f", {failed} FAILED" if failed else ", none failed"
    controls = negative_controls(measured)
    if controls is not None:
        words = "are at chance" if controls["hold"] else f"are NOT at chance (worst: {controls['worst']})"
        untested = len(measured) - controls["tests"]
        some = f" of {len(measured)}" if untested else ""
        text += f"; the {controls['tests']}{some} negative controls"
        text += " that so many trainings allow to test" if untested else ""
        text += f" together {words}, p = {controls['together_p']:.2g}"
    if measured:
        worst = max(measured, key=lambda c: (_clear(c), c["damage"]))
        on = worst["method"] + ("" if worst["epsilon"] is None else f" at epsilon {worst['epsilon']:g}")
        few = seeds < LEAST_TRAININGS
        these = "this training" if seeds == 1 else f"all {seeds} trainings and by their records"
        these += "" if few else " or on average over trainings"
        text += (
            f". In {sum(map(_clear, measured))} of them the attack finds more than all that needs no attack, in "
            f"{these}. The worst is {worst['attack']} by the {worst['adversary']} on {on}: {worst['success']:.3f} "
            f"({_interval(worst)}), "
            f"where {worst['reference']:.3f} needs no attack"
        )
        if few:
            some = "One training a cell is" if seeds == 1 else f"{seeds} trainings a cell are"
            text += f". {some} too few to tell of others: give {LEAST_TRAININGS} trials"
    return text + "."


def _interval(cell: Result) -> str:
    text = f"{cell['low']:.3f} to {cell['high']:.3f} by records"
    if cell["trainings"] not in (None, 1):
        text += f", {cell['least']:.3f} to {cell['most']:.3f} by training"
    if cell["over_low"] is not None:
        text += f", {cell['over_low']:.3f} to {cell['over_high']:.3f} over {cell['trainings']} trainings"
    return text


def _clear(cell: Result) -> bool:
    return bool(cell["clear"])


def unmeasured_cell(state: str, reason: str) -> dict[str, Any]:
    """A cell without a number: the attack does not apply, or something failed, and why."""
    return {"state": state, "reason": " ".join(reason.split())}
