"""One cell of a matrix out of an attack's result, and the whole out of its cells: the `result.json` of `matrix`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpzv_audit.evaluation.sentences import compared, of_these_trainings
from dpzv_audit.findings import LEAST_TRAININGS, Control, Interval
from dpzv_audit.results import AttackResult, Cell, MatrixResult, NegativeControls, Noise, SelfCheck


def measured_cell(cell: Cell, result: AttackResult, run: str) -> Cell:
    """Return `cell` with its attack's success, the best without an attack, and the damage.

    Damage is how far success lies between the best that needs no attack (0; chance, and baselines such as the raw
    features) and a perfect one (1); below 0 it is 0. `low` and `high` are by the records of these trainings, which
    reach `least` to `most`; `over_low` and `over_high` over trainings, None where there are too few. `clear` says that
    success lies above all that needs no attack: in all of these trainings and by their records, or over trainings.
    `reference_high` is the highest limit of any baseline in these trainings.
    """
    success, accuracy = result.success, result.utility.test_accuracy
    assert success is not None
    assert accuracy is not None
    over, baselines = success.over_trainings, list(result.baselines.values())
    highest = max((of_these_trainings(b)[1] for b in baselines), default=0.0)
    reference = max((b.value if isinstance(b, Interval) else b for b in baselines), default=0.0)
    damage = (success.value - reference) / (1.0 - reference) if reference < 1.0 else 0.0
    controls = [control for control in result.controls.values() if isinstance(control, Control)]
    found: dict[str, object] = {
        "state": "measured",
        "metric": result.metric,
        "success": success.value,
        "low": success.low,
        "high": success.high,
        "reference": reference,
        "trainings": None if over is None else over.count,
        "least": None if over is None else over.least,
        "most": None if over is None else over.most,
        "over_low": None if over is None else over.low,
        "over_high": None if over is None else over.high,
        "reference_high": highest,
        "clear": all(compared(success, b).side == "above" for b in baselines or (0.0,)),
        "damage": min(1.0, max(0.0, damage)),
        "control": _negative(controls),
        "certified": None if result.certified is None else result.certified.epsilon_lower,
        "controls_hold": all(control.holds for control in controls),
        "control_p": min((c.p_value for c in controls if c.p_value is not None), default=None),
        "accuracy": accuracy.value,
        "run": run,
    }
    return cell.model_copy(update=found)


def _negative(controls: Sequence[Control]) -> float | None:
    """What the attack finds where there is nothing to find, of several the farthest off; None without such a run."""
    found = [c for c in controls if c.kind == "negative"]
    return max(found, key=lambda c: abs(c.value - c.expected)).value if found else None


FALSE_ALARM = 1e-3
"""Probability with which the negative controls of a correct build, all together, are found off chance."""


def negative_controls(cells: Sequence[Cell]) -> NegativeControls | None:
    """One test of all negative controls together: the smallest p-value times their number (Bonferroni).

    It holds its false-alarm rate however the controls depend on each other and whatever the shape of what varies
    between trainings (`attacks.core.controls`). None where no cell has a p-value: too few trainings.
    """
    tested = [(c.control_p, c) for c in cells if c.control_p is not None]
    if not tested:
        return None
    smallest, worst = min(tested, key=lambda pair: pair[0])
    together = min(1.0, len(tested) * smallest)
    on = " + ".join(part for part in (worst.method, worst.noise) if part)
    return NegativeControls(
        tests=len(tested),
        smallest_p=smallest,
        together_p=together,
        false_alarm=FALSE_ALARM,
        hold=together >= FALSE_ALARM,
        worst=f"{worst.attack} by the {worst.adversary} on {on}",
    )


def matrix_result(
    cells: Sequence[Cell],
    self_checks: Sequence[SelfCheck],
    *,
    dataset: str,
    seeds: int,
    seed: int,
    facts: Mapping[str, object],
) -> MatrixResult:
    """All cells as one result; schema `dpzv-audit/matrix/1`."""
    noised = any(cell.epsilon is not None for cell in cells)
    return MatrixResult(
        dataset=dataset,
        sentence=matrix_sentence(cells, seeds),
        noise=Noise.of_simulation(seed) if noised else None,
        negative_controls=negative_controls(cells),
        cells=list(cells),
        self_checks=list(self_checks),
        attack_setting={"seeds": seeds, **facts},
        seed=seed,
    )


def matrix_sentence(cells: Sequence[Cell], seeds: int) -> str:
    """The worst cell, how many leak for certain, how many failed, and whether controls are at chance, in words."""
    measured = [c for c in cells if c.state == "measured"]
    failed = sum(c.state == "failed" for c in cells)
    text = f"{len(measured)} cells measured, {sum(c.state == 'does not apply' for c in cells)} do not apply"
    text += f", {failed} FAILED" if failed else ", none failed"
    controls = negative_controls(measured)
    if controls is not None:
        words = "are at chance" if controls.hold else f"are NOT at chance (worst: {controls.worst})"
        untested = len(measured) - controls.tests
        some = f" of {len(measured)}" if untested else ""
        text += f"; the {controls.tests}{some} negative controls"
        text += " that so many trainings allow to test" if untested else ""
        text += f" together {words}, p = {controls.together_p:.2g}"
    if measured:
        worst = max(measured, key=lambda c: (bool(c.clear), c.damage or 0.0))
        on = worst.method + ("" if worst.epsilon is None else f" at epsilon {worst.epsilon:g}")
        few = seeds < LEAST_TRAININGS
        these = "this training" if seeds == 1 else f"all {seeds} trainings and by their records"
        these += "" if few else " or on average over trainings"
        clear = sum(bool(c.clear) for c in measured)
        text += (
            f". In {clear} of them the attack finds more than all that needs no attack, in "
            f"{these}. The worst is {worst.attack} by the {worst.adversary} on {on}: {worst.success:.3f} "
            f"({_interval(worst)}), "
            f"where {worst.reference:.3f} needs no attack"
        )
        if few:
            some = "One training a cell is" if seeds == 1 else f"{seeds} trainings a cell are"
            text += f". {some} too few to tell of others: give {LEAST_TRAININGS} trials"
    return text + "."


def _interval(cell: Cell) -> str:
    text = f"{cell.low:.3f} to {cell.high:.3f} by records"
    if cell.trainings not in (None, 1):
        text += f", {cell.least:.3f} to {cell.most:.3f} by training"
    if cell.over_low is not None:
        text += f", {cell.over_low:.3f} to {cell.over_high:.3f} over {cell.trainings} trainings"
    return text
