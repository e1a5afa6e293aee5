"""One cell of a matrix out of an attack's result, and the whole out of its cells: the `result.json` of `matrix`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scipy.special import bdtrc

from dpzv_audit.evaluation.common import Result


def measured_cell(result: Result, run: str) -> Result:
    """What a matrix shows of one attack's result: its success, the best without an attack, and the damage.

    Damage is how far success lies between the best that needs no attack (0; chance, and baselines such as the raw
    features) and a perfect one (1); below 0 it is 0.
    """
    success = result["success"]
    known = [v["value"] if isinstance(v, dict) else v for v in result["baselines"].values()]
    reference = max(known, default=0.0)
    damage = (success["value"] - reference) / (1.0 - reference) if reference < 1.0 else 0.0
    return {
        "state": "measured",
        "metric": result["metric"],
        "success": success["value"],
        "low": success["low"],
        "high": success["high"],
        "reference": reference,
        "damage": min(1.0, max(0.0, damage)),
        "controls_hold": all(_holds(c) for c in result["controls"].values()),
        "accuracy": result["utility"]["test_accuracy"]["value"],
        "run": run,
    }


def _holds(control: Result) -> bool:
    reaches: bool = control["high"] >= control["expected"]
    return reaches and (control["kind"] == "positive" or control["low"] <= control["expected"])


def matrix_result(
    cells: Sequence[Result], self_checks: Sequence[Result], *, dataset: str, seeds: int, seed: int, facts: Result
) -> Result:
    """All cells as one result; schema `dpzv-audit/matrix/1`."""
    return {
        "schema": "dpzv-audit/matrix/1",
        "dataset": dataset,
        "sentence": matrix_sentence(cells, facts["confidence"]),
        "cells": list(cells),
        "self_checks": list(self_checks),
        "attack_setting": {"seeds": seeds, **facts},
        "seed": seed,
    }


def matrix_sentence(cells: Sequence[Result], confidence: float) -> str:
    """The worst cell, how many leak for certain, and how many failed, in words."""
    measured = [c for c in cells if c["state"] == "measured"]
    failed = sum(c["state"] == "failed" for c in cells)
    broken = sum(not c["controls_hold"] for c in measured)
    text = f"{len(measured)} cells measured, {sum(c['state'] == 'does not apply' for c in cells)} do not apply"
    text += f", {failed} FAILED" if failed else ", none failed"
    if broken:
        luck = 1.0 - confidence
        text += (
            f"; a control's interval misses its value in {broken} of them, as luck alone does in {100 * luck:.2g}%: in "
            f"so many or more with probability {as_many(broken, len(measured), luck):.2g}"
        )
    if measured:
        worst = max(measured, key=_damage)
        clear = sum(c["low"] > c["reference"] for c in measured)
        on = worst["method"] + ("" if worst["epsilon"] is None else f" at epsilon {worst['epsilon']:g}")
        text += (
            f". In {clear} the attack's whole interval lies above what needs no attack. The worst is "
            f"{worst['attack']} by the {worst['adversary']} on {on}: {worst['success']:.3f}, "
            f"where {worst['reference']:.3f} needs no attack"
        )
    return text + "."


def as_many(count: int, among: int, rate: float) -> float:
    """The probability of `count` or more of `among` independent events, each of probability `rate`."""
    return float(bdtrc(count - 1, among, rate)) if count else 1.0


def _damage(cell: Result) -> float:
    damage: float = cell["damage"]
    return damage


def unmeasured_cell(state: str, reason: str) -> dict[str, Any]:
    """A cell without a number: the attack does not apply, or something failed, and why."""
    return {"state": state, "reason": " ".join(reason.split())}
