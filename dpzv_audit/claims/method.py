"""Claims on one of the tool's training methods: of an epsilon, or of an attack's success."""

from dataclasses import replace
from functools import partial
from typing import Any

from mechanisms import METHODS, TrainingConfig
from mechanisms.core.config import check_plan, check_sizes
from mechanisms.core.context import Deployment
from mechanisms.core.defence import label_release
from mechanisms.core.method import MethodSpec
from mechanisms.core.scalars import scalar_config
from mechanisms.presets import dataset_defaults

from ..base.errors import InputError
from ..base.findings import STRONGEST
from ..evidence.choosing import named
from ..evidence.games import games_of, label_game, plan_of_simulation, theory_of
from ..evidence.gathering import Subject
from ..evidence.verdict import Theory
from ..games.labels import LabelTrials, private_labels
from .access import Access
from .attack import attacked
from .data import facts_of, loaded, sizes_of
from .file import (
    MethodAttackClaim,
    MethodClaim,
    TrainedClaim,
)

TRIALS_A_BLOCK = 4
POSITIVE_BLOCKS = 16
"""Blocks of trainings of a method that the positive control is in."""


def planned_simulation(claim: MethodClaim, access: Access) -> Subject | None:
    """Return the plan of the transcripts that are simulated for a claim, of which nothing can be drawn.

    None where another game is played, as on private labels, or where a schedule must be made to know.
    """
    trusting = replace(access, trust_code=True)
    records, clients = _sizes(claim, trusting)
    spec, config = _setting(claim, trusting, records=records, clients=clients)
    noised = scalar_config(spec, config)
    if noised is None or noised.calibration == "none" or noised.sigma == 0.0:
        return None
    if label_release(config.defences) is not None:
        return None
    against: dict[str, Any] = {"adversary": claim.adversary, "neighbours": claim.neighbours}
    return plan_of_simulation(spec, noised, records, **against, beside_trainings=claim.records is None)


def _sizes(claim: TrainedClaim, access: Access) -> tuple[int, int]:
    """Return the records and the clients of a training: those that are simulated, or those of its data."""
    return sizes_of(claim, access) if claim.records is None else (claim.records, claim.clients or 1)


def check_trained(claim: TrainedClaim, access: Access) -> None:
    """Raise `InputError` naming the key at fault where a claim on a method cannot be run.

    Plans, keeps and trains nothing, not even a few blank records: what the tool's own methods draw is known.
    """
    records, clients = _sizes(claim, access)
    _setting(claim, access, records=records, clients=clients)


def _setting(claim: TrainedClaim, access: Access, *, records: int, clients: int) -> tuple[MethodSpec, TrainingConfig]:
    """Return the method of a claim on `records` and `clients`, configured; takes no more time the larger they are.

    Raises `InputError` naming the key at fault.
    """
    options = dict(claim.config)
    if claim.kind == "attack":
        mounted = named(claim.attack, claim.adversary)
        if claim.attack != STRONGEST:
            options = mounted[0][0].check(claim.adversary, options)
    else:
        options = _calibrated(claim, options)
    transformer = access.transformer(claim)
    if transformer is not None:
        options["transformer"] = transformer
    spec = METHODS.named(claim.method, "method")
    trains = claim.records is None
    if trains:
        options = {**dataset_defaults("csv" if claim.csv else claim.dataset, spec), **options}
    config = spec.configure(**options)
    if config.defences and label_release(config.defences) is None and claim.kind != "attack":
        names = ", ".join(defence.name for defence in config.defences)
        raise InputError("leave it out: what it does promises no epsilon", "config.defences", names)
    try:
        if trains:
            check_sizes(config, records=records, clients=clients)
        check_plan(config, records=records, clients=clients)
    except InputError as error:
        if error.field not in claim.config:
            raise
        raise InputError(error.rule, f"config.{error.field}", error.value) from None
    return spec, config


def _calibrated(claim: MethodClaim, options: dict[str, Any]) -> dict[str, Any]:
    """Return `options` with the claim's epsilon and delta, from which noise follows that they do not give."""
    fields = METHODS[claim.method].config.model_fields if claim.method in METHODS else {}
    undefended = "dp" in fields and options.get("dp", "none") == "none"
    if undefended or options.get("dp_sigma") is not None:
        return options
    return {key: getattr(claim, key) for key in ("epsilon", "delta") if key in fields} | options


def epsilon_subject(claim: MethodClaim, access: Access, seed: int) -> Subject:
    """Return what an (epsilon, delta) claim is about: every accountant's bound, and the games on its scalars."""
    data = loaded(claim, access) if claim.records is None else None
    records = len(data.train) if data is not None else claim.records or 0
    clients = data.clients if data is not None else claim.clients or 1
    spec, config = _setting(claim, access, records=records, clients=clients)
    spec.check_noise(config, clients=clients)
    side = data is not None and bool(data.fitted)
    deployment = Deployment(records=records, clients=clients, seed=seed, data_dependent_side=side)
    against: dict[str, Any] = {"adversary": claim.adversary, "neighbours": claim.neighbours}
    theory = partial(theory_of, spec, config, deployment, delta=claim.delta, enough=claim.epsilon, **against)
    facts: dict[str, Any] = {"config": config.model_dump(mode="json"), "records": records, "clients": clients}
    facts["protects"] = spec.protects(config)
    if data is not None:
        facts["data"] = facts_of(data)
    labels = label_release(config.defences)
    if labels is not None:
        bound = labels.bound(claim.adversary, claim.neighbours, claim.delta)
        subject = Subject(unaudited="labels are released of records: name a dataset, not records")
        if bound.gap is not None:
            subject = Subject(unaudited=bound.note)
        elif data is not None:
            subject = label_game(LabelTrials(private_labels(config.defences), data, seed))
        return replace(subject, theory=lambda: Theory(applies=True, bounds=(bound,)), facts={**facts, **subject.facts})
    noised = scalar_config(spec, config)
    if noised is None:
        games = spec.games(config)
        unaudited = games.why_not if games.played else f"no game is played on the channel of {spec.name}"
    elif noised.calibration == "none" or noised.sigma == 0.0:
        unaudited = spec.protection(config).not_released or "no noise is added, so there is no epsilon to test"
    else:
        played = games_of(spec, noised, data, deployment, **against, device=access.device)
        return replace(played, theory=theory, facts={**facts, **played.facts})
    return Subject(theory=theory, facts=facts, unaudited=unaudited)


def attack_subject(claim: MethodAttackClaim, access: Access, seed: int) -> Subject:
    """Return what a claim about an attack on a method is about; see `attacked`."""
    from attacks import AttackSetting

    data = loaded(claim, access)
    method, config = _setting(claim, access, records=len(data.train), clients=data.clients)
    method.check_noise(config, clients=data.clients)
    setting = AttackSetting(
        method=method,
        config=config,
        dataset=data,
        adversary=claim.adversary,
        queries=claim.queries,
        trials=TRIALS_A_BLOCK,
        seed=seed,
        device=access.device,
    )
    return attacked(claim, setting, positives=POSITIVE_BLOCKS)
