"""Chooses which client looks, and which attack is mounted, by a pilot.

A pilot is a few trainings of a seed of their own, from which nothing but the choice is read. What is measured then, on
other trainings, is of one attack by one client, and owes nothing to having been the largest of many.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TypeVar

from attacks import ATTACKS, AttackSpec, attack_named
from attacks.core.run import continuous
from attacks.core.setting import ALONE, AttackSetting, Together, abilities
from attacks.core.spec import DoesNotApply

from ..base.errors import InputError
from ..base.findings import STRONGEST, damage, value_of
from ..base.seeds import Purpose, stream
from ..base.store import Store
from ..results import Tried
from .bounding import Reporter, silent

T = TypeVar("T")
Attack = tuple[AttackSpec, AttackSetting]
"""An attack and the setting in which it is mounted."""
PILOT = 4
"""Trainings of a pilot, at most."""


def named(attack: str, adversary: str) -> list[tuple[AttackSpec, str]]:
    """Return the attack of a name and who mounts it, or where it is `strongest` all within an adversary's reach.

    Whoever deviates or colludes can do what an honest client does. Attacks whose success is a correlation find nothing
    that could be counted. Raises `InputError` where there is none.
    """
    if attack != STRONGEST:
        return [(attack_named(attack), adversary)]
    every = [ATTACKS[name] for name in ATTACKS]
    reach = abilities(adversary)
    attacks = [
        (spec, by) for spec in every for by in reach if by in spec.adversaries and spec.goal.least_success >= 0.0
    ]
    if not attacks:
        raise InputError("mounts no attack", "adversary", adversary)
    return attacks


def possible(spec: AttackSpec, setting: AttackSetting) -> list[AttackSetting]:
    """Return the setting of each client that may mount an attack; that of the first where none can, or one is named.

    Which of them is strongest is not known where one client alone looks and nobody says which, or several are named
    that collude. So it is with the client that is attacked, of a server's attack on the features of one of a system.
    """
    targets = spec.setup.targets(setting)
    if targets:
        every = [replace(setting, options={**setting.options, "target": m}) for m in targets]
    elif setting.adversary not in ALONE or len(setting.clients) == 1:
        return [setting]
    else:
        every = [replace(setting, clients=(m,)) for m in setting.clients or setting.everyone]
    return [alone for alone in every if spec.needs.unmet(alone) is None] or every[:1]


def applicable(mounted: Iterable[Attack], *, every: bool) -> list[Attack]:
    """Return each attack with the setting of each client that may mount it.

    Where the claim is about `every` attack, those that do not apply to the training are left out.
    """
    settings = [(spec, possible(spec, setting)) for spec, setting in mounted]
    return [(spec, alone) for spec, of in settings if not every or unfit(spec, of[0]) is None for alone in of]


def unfit(spec: AttackSpec, setting: AttackSetting) -> str | None:
    """Return why the strongest attack cannot be this one; None if it can."""
    if spec.goal.reveals == "gradients":
        return "it finds gradients, which are about no record by themselves"
    return lacking(spec, setting)


def worst_client(
    spec: AttackSpec, setting: AttackSetting, reporter: Reporter = silent, store: Store | None = None
) -> tuple[AttackSetting, list[Tried]]:
    """Return the setting of the client whose pilot finds most, and what all pilots found; of equals the first.

    Nothing is tried where there is no choice, nor on one recorded training. The `store` keeps what each pilot found,
    and gives what was found before.

    Raises:
        InputError: The configuration does not fit the attack or the data; `DoesNotApply` where no client can mount it.
        AuditError: A training of a system failed.
    """
    settings = possible(spec, setting)
    if len(settings) == 1 or not setting.method.capabilities.repeatable:
        return settings[0], []
    together = _pilots_of(spec, settings)
    tried = [_piloted(spec, alone, reporter, store, together) for alone in settings]
    best, _ = max(zip(settings, tried, strict=True), key=lambda pair: _above_chance(pair[1]))
    return best, tried


def _above_chance(pilot: Tried) -> float:
    """Return how much more a pilot found than chance, which differs where clients hold different attributes."""
    return damage(pilot.success or 0.0, pilot.chance or 0.0)


def strongest(
    mounted: Iterable[Attack],
    reporter: Reporter = silent,
    store: Store | None = None,
    *,
    claimed: float | None = None,
) -> tuple[AttackSpec, AttackSetting, list[Tried]]:
    """Return the attack whose pilot does most harm, its setting with its worst client, and what all pilots found.

    Harm is success above all that needs no attack: of what is left to one, the share that it finds. For a claim that
    success is at most `claimed` it is success above chance, and an attack counts that chance alone does not refute.

    Args:
        mounted: Attacks, each with its own setting of one training.
        reporter: Hears how far each pilot is.
        store: Keeps what each pilot found, and gives what was found before.
        claimed: The success that a claim allows.

    Raises:
        InputError: No attack applies, or the configuration does not fit the data.
        AuditError: A training of a system failed.
    """
    harms = []
    tried = []
    for spec, setting in mounted:
        settings = possible(spec, setting)
        why = unfit(spec, settings[0])
        if why is not None:
            tried.append(_tried(spec, setting, reason=why))
            continue
        together = _pilots_of(spec, settings)
        for alone in settings:
            try:
                pilot = _piloted(spec, alone, reporter, store, together)
            except DoesNotApply as error:
                tried.append(_tried(spec, alone, reason=error.words))
                continue
            if claimed is not None and pilot.chance is not None and pilot.chance > claimed:
                pilot = pilot.model_copy(update={"reason": f"knowing nothing finds {pilot.chance:.3f} already"})
            tried.append(pilot)
            above = pilot.reference if claimed is None else pilot.chance
            if pilot.reason is None and pilot.success is not None and above is not None:
                harms.append((damage(pilot.success, above), spec, alone))
    if not harms:
        reasons = "; ".join(f"{pilot.attack}: {pilot.reason}" for pilot in tried)
        raise DoesNotApply(f"no attack applies: {reasons}")
    _, spec, setting = max(harms, key=itemgetter(0))
    return spec, setting, tried


def lacking(spec: AttackSpec, setting: AttackSetting) -> str | None:
    """Return in one line why an attack does not apply to a training as it is, and what unlocks it; None if it does."""
    why = spec.needs.unmet(setting)
    if why is not None:
        return why
    for key, needed in spec.needs.requires.items():
        value = getattr(setting.config, key, needed)
        if value != needed:
            unlock = f"set {key} to {needed}"
            if not setting.method.capabilities.simulated:
                manifest = "module" if setting.method.capabilities.repeatable else "manifest"
                unlock = f"a {manifest} whose server does so states {key} = {needed}"
            return f"{key} is {value}; use {needed}: {spec.needs.requires_because}; {unlock}"
    return None


def once(store: Store | None, name: str, kind: type[T], work: Callable[[], T], *, again: str) -> T:
    """Return what the `store` keeps under a name; without a store, or what it does not keep, is worked out."""
    return work() if store is None else store.once(name, kind, work, again=again)


def _pilots_of(spec: AttackSpec, settings: Sequence[AttackSetting]) -> Together:
    """Return the pilots of several clients, which train once where all of them follow the protocol."""
    return Together(tuple(pilot_of(spec, alone) for alone in settings))


def _piloted(
    spec: AttackSpec, setting: AttackSetting, reporter: Reporter, store: Store | None, together: Together
) -> Tried:
    """Return what a pilot finds: an attack on a few trainings of a seed of their own, without its controls.

    Raises `DoesNotApply` where it cannot be mounted.
    """

    def pilot() -> Tried:
        alone = pilot_of(spec, setting)
        who = f"client {setting.client}" if setting.adversary in ALONE else setting.adversary
        who += "" if target is None else f" on client {target}"
        stage = reporter(f"trial run of {spec.name}, {who}", spec.setup.rounds(spec, alone))
        outcome = spec.mount(replace(alone, progress=continuous(stage), together=together))
        return _tried(
            spec,
            setting,
            success=outcome.success.value,
            chance=outcome.chance,
            reference=max(map(value_of, outcome.baselines.values()), default=outcome.chance),
            trainings=alone.trials,
        )

    target = target_in(setting)
    clients = "-".join(map(str, setting.parties)) if target is None else f"on-{target}"
    name = f"pilot-{spec.name}-{setting.adversary}-{clients}.json"
    return once(store, name, Tried, pilot, again="its trial run is repeated")


def pilot_of(spec: AttackSpec, setting: AttackSetting) -> AttackSetting:
    """Return the setting of an attack's pilot."""
    return replace(
        setting,
        seed=pilot_seed(setting.seed),
        trials=min(PILOT, setting.trials),
        options={**spec.setup.in_pilot, **setting.options},
        with_positive=False,
        pilot=True,
    )


def _tried(spec: AttackSpec, setting: AttackSetting, **facts: object) -> Tried:
    clients = list(setting.parties) if setting.looks.clients and "reason" not in facts else []
    return Tried(attack=spec.name, adversary=setting.adversary, clients=clients, target=target_in(setting), **facts)


def target_in(setting: AttackSetting) -> int | None:
    """Return the client whose features are attacked, where the setting names one."""
    target = str(setting.options.get("target", ""))
    return int(target) if target.isdecimal() else None


def pilot_seed(seed: int) -> int:
    """Return the seed of pilots beside trainings of `seed`: one that nobody uses for anything else."""
    return int(stream(seed, Purpose.PILOT).integers(2**62))


def fresh_seed(seed: int) -> int:
    """Return the seed of trainings from which nothing was chosen, where those of `seed` and its pilots chose."""
    return int(stream(seed, Purpose.PILOT, 1).integers(2**62))
