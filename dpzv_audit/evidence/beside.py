"""Mounts two comparisons for an attack that noise stops: the strongest other attack, and the same one without noise.

What `label_direct` finds of a system that sends noised scalars says little by itself: another attack may find more of
the same system, trained with the same seeds, and without noise `label_direct` finds every label.
"""

from collections.abc import Iterator
from dataclasses import replace

from attacks import ATTACKS, AttackSpec, attack_named
from attacks.core.setting import AttackSetting
from attacks.core.spec import DoesNotApply
from mechanisms import method_named
from mechanisms.presets import dataset_defaults

from ..base.store import Store
from ..results import AttackResult, Cell, CellKey
from .bounding import AuditPlan
from .choosing import strongest
from .matrix import measured_cell
from .sections import published_simulation
from .sentences import said
from .training import attack_result, attacked_result

SHOWN_BESIDE = "label_direct"
"""The attack that noise stops."""
WITHOUT_NOISE = "split"
"""The method that sends gradients as they are."""


def with_beside(result: AttackResult, cells: list[Cell]) -> AttackResult:
    """Return the result with what stands beside it, in its table, in its words, and among what may not leave."""
    more = said("stands_beside", result.attack, result.method, cells)
    return published_simulation(result.model_copy(update={"beside": cells, "sentence": f"{result.sentence} {more}"}))


def stands_beside(
    attack: str, setting: AttackSetting, confidence: float, store: Store | None = None
) -> dict[str, tuple[Cell, AttackResult]]:
    """Return, by the folder of its report, what is measured beside the attack of a name.

    The strongest other attack that reveals labels, and is granted none, is chosen by a pilot of each that applies. The
    attack itself is mounted on split learning with the settings of the data set. The `store` keeps each step that is
    done.

    Raises:
        InputError: The configuration does not fit the data.
    """
    plan = AuditPlan(runs=0, confidence=confidence)
    beside = {}
    for result, chosen in _mounted(attack_named(attack), setting, plan, store):
        folder = f"{result.attack}-{result.method}"
        key = CellKey(attack=result.attack, adversary=result.adversary, method=result.method)
        beside[folder] = (measured_cell(key, result, f"{folder}/report.html", chosen), result)
    return beside


def _mounted(
    spec: AttackSpec, setting: AttackSetting, plan: AuditPlan, store: Store | None
) -> Iterator[tuple[AttackResult, str | None]]:
    """Yield the results, the first with the name of the attack that a pilot chose."""
    kept = {name: store and Store(store.folder / name) for name in ("strongest", WITHOUT_NOISE)}
    plain = replace(setting, clients=(), options={})
    others = [
        (other, replace(plain, queries=other.setup.queries, trials=min(setting.trials, other.setup.trials)))
        for other in (ATTACKS[name] for name in ATTACKS)
        if other is not spec
        and other.goal.reveals == spec.goal.reveals
        and other.setup.few_labels == spec.setup.few_labels
        and setting.adversary in other.adversaries
    ]
    try:
        other, chosen, tried = strongest(others, plan.reporter, kept["strongest"])
    except DoesNotApply:
        pass
    else:
        yield attacked_result(other, chosen, plan, tried, kept["strongest"]), other.name
    method = method_named(WITHOUT_NOISE)
    required = {**spec.needs.requires, "batch_size": setting.config.batch_size}
    config = method.configure(**dataset_defaults(setting.dataset.name, method) | required)
    without = replace(setting, method=method, config=config, clients=(), queries=1)
    yield attack_result(spec, without, plan, kept[WITHOUT_NOISE]), None
