"""Mounts every attack that applies to one training, at one error rate for all: the `result.json` of `attack` with all.

Of m attacks each has intervals and certified epsilons at confidence 1 - alpha / m (Bonferroni), so that all of them
hold together at 1 - alpha, and the largest may be read off as if it had been the only one.
"""

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from attacks.core import needs
from attacks.core.setting import AttackSetting
from attacks.core.spec import DoesNotApply

from ..base.errors import with_options
from ..base.files import LARGEST_STATE, read_plain
from ..base.findings import LEAST_TRAININGS
from ..base.store import Store, verified
from ..results import AttackResult, AttacksResult, Cell, CellKey, read
from ..statistics.panel import Panel
from .bounding import AuditPlan, Reporter, silent
from .choosing import Attack, lacking, possible, target_in
from .games import features_unread, voids_of
from .matrix import measured_cell, negative_controls
from .sections import provenance
from .sentences import said
from .training import attack_result

LENGTHS = "the number of messages changes with labels, which no attack reads: the command audit does"


def folder_of(key: CellKey) -> str:
    """Return the folder of an attack's own result, below that of all."""
    return f"{key.attack}-{key.adversary}"


def attacks_result(
    mounted: Iterable[Attack],
    base: AttackSetting,
    reporter: Reporter = silent,
    store: Store | None = None,
) -> tuple[AttacksResult, dict[str, AttackResult]]:
    """Mount each of the attacks that applies; schema `dpzv-audit/attacks/1`. Also returns their own results, by folder.

    Args:
        mounted: Attacks, each with its own setting of one training, at most one for each attack and adversary.
        base: What their settings share: the training, and the confidence in all of them together.
        reporter: Hears how far each attack is.
        store: Keeps the result of each attack as it is done, and gives those that were done before.

    Raises:
        InputError: The configuration does not fit the data, or a system recorded what cannot be.
        AuditError: A training of a system failed.
    """
    idle = []
    apply = []
    looked: set[int | None] = set()
    for spec, setting in mounted:
        key = CellKey(
            attack=spec.name, adversary=setting.adversary, method=setting.method.name, noise=None, epsilon=None
        )
        why = lacking(spec, possible(spec, setting)[0])
        if why is None:
            apply.append((spec, setting, key))
        else:
            idle.append(_without(key, why))
    each = Panel(apply).confidence(base.confidence)
    results = {}
    measured = []
    stage = reporter("attacks", len(apply))
    for number, (spec, setting, key) in enumerate(apply, start=1):
        stage(number - 1)
        plan = AuditPlan(runs=0, confidence=each, reporter=_below(f"attack {number} of {len(apply)}", reporter))
        folder = folder_of(key)
        name = f"{folder}.json"
        result = None if store is None else store.load(name, _read_result, again="it is mounted again")
        if result is None:
            try:
                result = attack_result(spec, replace(setting, confidence=each), plan)
            except DoesNotApply as error:
                idle.append(_without(key, error.words))
                continue
            if store is not None:
                store.write(name, result.to_json(), cure="make room and go on with ‹resume›")
        if spec.goal.reveals == "features":
            looked.update(target_in(alone) for alone in possible(spec, setting))
        results[folder] = result
        measured.append(measured_cell(key, result, f"{folder}/report.html"))
    stage(len(apply))
    measured.sort(key=attrgetter("harm"), reverse=True)
    controls = negative_controls(measured)
    sentence = said("attacks", base.method.name, measured, len(apply), each, base.confidence, controls, LEAST_TRAININGS)
    read = needs.read_by(spec for spec, _, _ in apply)
    missing = [void.words for void in voids_of(base.method, base.dataset.clients, read)]
    capabilities = base.method.capabilities
    if not capabilities.simulated:
        missing += capabilities.not_made
        if capabilities.lengths_tell:
            missing.append(LENGTHS)
        unread = features_unread(base, looked)
        # What nobody looked at for want of a file comes first: its owner may have it.
        missing = [*unread, *missing] if capabilities.featureless else [*missing, *unread]
    sentence += "".join(f" Not tested: {words}." for words in missing)
    everything = AttacksResult(
        sentence=sentence,
        not_tested=missing,
        attacks=[*measured, *idle],
        mounted=len(apply),
        confidence=base.confidence,
        confidence_each=each,
        negative_controls=controls,
        **provenance(base),
    )
    return everything, results


def _below(heading: str, reporter: Reporter) -> Reporter:
    """Return a reporter whose stages have a heading before their names."""
    return lambda name, total: reporter(f"{heading}: {name}", total)


def _read_result(path: Path) -> AttackResult:
    value = verified(read_plain(path, LARGEST_STATE))
    result, left = read(value) if isinstance(value, dict) else (None, {})
    if not isinstance(result, AttackResult) or left:
        raise ValueError("it holds no result of an attack")
    return result


def _without(key: CellKey, why: str) -> Cell:
    return Cell(**key.to_json(), state="does not apply", reason=with_options(why))
