"""One cell of a matrix out of an attack's result, and the whole out of its cells: the `result.json` of `matrix`."""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from ..base.findings import FALSE_ALARM, LEAST_TRAININGS, Control, damage, value_of
from ..results import AttackResult, Cell, CellKey, CellSummary, MatrixResult, NegativeControls, Noise, SelfCheck
from ..statistics.comparison import compared, of_these_trainings
from .sections import not_learnt
from .sentences import said


def measured_cell(key: CellKey, result: AttackResult, run: str, chosen: str | None = None) -> Cell:
    """Return the cell of a key with the summary of its result, whose report is at `run`.

    A cell of the strongest attack says which one was `chosen`.
    """
    facts = {**key.to_json(), **summary_of(result).to_json(), **({"chosen": chosen} if chosen else {})}
    cell = Cell(**facts, state="measured", clients=list(result.clients))
    return cell.model_copy(update={"run": run})  # not validated: a plug-in's attack may have any name


def summary_of(result: AttackResult) -> CellSummary:
    """Return an attack's success, the best without an attack, and the damage.

    What needs no attack is chance, and baselines such as the raw features; damage is at least 0. `low` and `high` are
    by the records of these trainings, which reach `least` to `most`; `over_low` and `over_high` over trainings, None
    where there are too few. `clear` says that success lies above all that needs no attack: in all of these trainings
    and by their records, or over trainings. `reference_high` is the highest limit of any baseline in these trainings.
    """
    success, certified = result.success, result.certified
    accuracy = result.utility.test_accuracy
    assert success is not None
    baselines = list(result.baselines.values())
    spread = {} if success.over_trainings is None else vars(success.over_trainings)
    reference = max(map(value_of, baselines), default=0.0)
    controls = [control for control in result.controls.values() if isinstance(control, Control)]
    return CellSummary(
        metric=result.metric,
        success=success.value,
        unit=success.unit,
        low=success.low,
        high=success.high,
        reference=reference,
        trainings=spread.get("count"),
        least=spread.get("least"),
        most=spread.get("most"),
        over_low=spread.get("low"),
        over_high=spread.get("high"),
        reference_high=max((of_these_trainings(b)[1] for b in baselines), default=0.0),
        clear=all(compared(success, b).side == "above" for b in baselines or (0.0,)),
        damage=min(1.0, max(0.0, damage(success.value, reference))),
        control=_negative(controls),
        certified=None if certified is None else certified.epsilon_lower,
        neighbours=None if certified is None else certified.neighbours,
        controls_hold=all(control.holds for control in controls),
        control_p=_least_p(controls, "negative"),
        permutation_p=_least_p(controls, "permutation"),
        accuracy=None if accuracy is None else accuracy.value,
        learnt=None if accuracy is None else not not_learnt(result.utility),
        frozen=getattr(result.utility.controls.get("frozen-clients"), "value", None),
        upper=result.privacy.upper,
        bytes=None if result.bytes.up is None else result.bytes.up + (result.bytes.down or 0),
    )


def _negative(controls: Sequence[Control]) -> float | None:
    """Return what the attack finds where there is nothing, of several the farthest off; None without such a run."""
    negative = [c for c in controls if c.kind == "negative"]
    return max(negative, key=lambda c: abs(c.value - c.expected)).value if negative else None


def _least_p(controls: Sequence[Control], kind: str) -> float | None:
    return min((c.p_value for c in controls if c.kind == kind and c.p_value is not None), default=None)


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
    on = " + ".join(filter(None, (worst.method, worst.noise, worst.defence)))
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
    """Return all cells as one result; schema `dpzv-audit/matrix/1`."""
    noised = any(cell.epsilon is not None for cell in cells)
    controls = negative_controls(cells)
    measured = [cell for cell in cells if cell.state == "measured"]
    # What was chosen for its size in one training is told by another, where there is one.
    heads = [cell for cell in measured if cell.chosen] or measured
    worst = max(heads, key=attrgetter("harm"), default=None)
    return MatrixResult(
        dataset=dataset,
        sentence=said("matrix", cells, measured, worst, seeds, controls, LEAST_TRAININGS),
        noise=Noise.of_simulation(seed) if noised else None,
        negative_controls=controls,
        cells=list(cells),
        self_checks=list(self_checks),
        attack_setting={"seeds": seeds, **facts},
        seed=seed,
    )
