"""Subjects that take torch: the tool's training methods, attacks on them, and mechanisms that are wrong on purpose."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from dpzv_audit.claims.file import PLANTED_PREFIX, AttackClaim, MechanismClaim, MethodClaim
from dpzv_audit.claims.subjects import Place, data_folder, transformer_of
from dpzv_audit.data import load
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.evidence.games import TRAINED_BLOCK, games_of, scored_block, theory_of
from dpzv_audit.evidence.gathering import CUT_SHARE, FIT_PAIRS, Pool, Stage, Subject, Success, two_stages
from dpzv_audit.evidence.verdict import Theory
from dpzv_audit.files import confined_to
from dpzv_audit.findings import Interval
from dpzv_audit.games.fitting import FittedScore, fit_score
from dpzv_audit.games.outcome import Trials
from dpzv_audit.games.planted import Planted, planted_named
from dpzv_audit.games.real import RealTrials
from dpzv_audit.games.scores import GameScores, scored_by
from dpzv_audit.games.transcript import DrawnTrials
from dpzv_audit.training_defaults import dataset_defaults
from mechanisms import METHODS, TrainingConfig
from mechanisms.core.config import check_plan, check_sizes
from mechanisms.core.context import Deployment
from mechanisms.core.method import MethodSpec
from mechanisms.methods.dpzv import scalar_config

ATTACKED = "trainings"
TRIALS_A_BLOCK = 4
ATTACK_BLOCKS = 16
_alive: WeakValueDictionary[tuple[str, int | None, Path | None], VerticalDataset] = WeakValueDictionary()
_BLOCK = 1024
_MORE = 2
"""So many times the runs that suffice for a verdict at 95%: a gate errs far less often."""


def check_trained(claim: MethodClaim | AttackClaim, place: Place) -> None:
    """Raise `InputError` naming the key at fault where a claim on a method cannot be run; plans and keeps nothing."""
    if isinstance(claim, MethodClaim) and claim.records is not None:
        _setting(claim, place, records=claim.records, clients=claim.clients or 1)
    else:
        folder = data_folder(claim, place)
        with confined_to(None if folder is None else place.root):
            records, clients = _sizes(claim.dataset, claim.clients, folder)
        _setting(claim, place, records=records, clients=clients)


def _setting(
    claim: MethodClaim | AttackClaim, place: Place, *, records: int, clients: int
) -> tuple[MethodSpec, TrainingConfig]:
    """Return the method of a claim on `records` and `clients`, configured; takes no more time the larger they are.

    Raises `InputError` naming the key at fault.
    """
    options = _attack_options(claim) if isinstance(claim, AttackClaim) else _method_options(claim)
    transformer = transformer_of(claim, place)
    if transformer is not None:
        options["transformer"] = transformer
    spec = METHODS.named(claim.method, "method")
    trains = not isinstance(claim, MethodClaim) or claim.records is None
    if trains:
        options = {**dataset_defaults(claim.dataset, spec), **options}
    config = spec.configure(**options)
    if config.batch_size > records:
        right = f"the {records} records" if trains else f"records = {records}"
        raise InputError(f"must be at most {right}", "config.batch_size", config.batch_size)
    if trains:
        check_sizes(config, records=records, clients=clients)
    check_plan(config, records=records, clients=clients)
    spec.check_noise(config, clients=clients)
    return spec, config


def _method_options(claim: MethodClaim) -> dict[str, Any]:
    """Return a claim's configuration with its epsilon and delta, from which noise follows that it does not give."""
    options = dict(claim.config)
    fields = METHODS[claim.method].config.model_fields if claim.method in METHODS else {}
    noise_given = options.get("dp_sigma") is not None or ("dp" in fields and options.get("dp", "none") == "none")
    for key in ("epsilon", "delta"):
        if key in fields and not noise_given:
            options.setdefault(key, getattr(claim, key))
    return options


def _attack_options(claim: AttackClaim) -> dict[str, Any]:
    """Return a claim's configuration with what its attack requires and suggests."""
    from attacks import ATTACKS

    spec = ATTACKS.named(claim.attack, "attack")
    return spec.check(claim.adversary, dict(claim.config))


@cache
def _sizes(name: str, clients: int | None, data_dir: Path | None) -> tuple[int, int]:
    """Return the training records and the clients of a data set, which is let go again."""
    data = _loaded(name, clients, data_dir)
    return len(data.train), data.clients


def _data_of(claim: MethodClaim | AttackClaim, place: Place) -> VerticalDataset:
    """Return the data set of a claim; where the claim names their folder, files outside the root are refused."""
    folder = data_folder(claim, place)
    with confined_to(None if folder is None else place.root):
        return _loaded(claim.dataset, claim.clients, folder)


def _loaded(name: str, clients: int | None, data_dir: Path | None) -> VerticalDataset:
    """Return a data set, the same object for all claims that are on it: twenty copies would fill the memory."""
    key = (name, clients, data_dir)
    data = _alive.get(key)
    if data is None:
        data = _alive[key] = load(name, clients=clients, data_dir=data_dir)
    return data


def method_subject(claim: MethodClaim, place: Place, seed: int) -> Subject:
    """Return what an (epsilon, delta) claim is about: every accountant's bound, and the games on its scalars."""
    data = _data_of(claim, place) if claim.records is None else None
    records = len(data.train) if data is not None else claim.records or 0
    clients = data.clients if data is not None else claim.clients or 1
    spec, config = _setting(claim, place, records=records, clients=clients)
    side = data is not None and bool(data.fitted)
    deployment = Deployment(records=records, clients=clients, seed=seed, data_dependent_side=side)
    against: dict[str, Any] = {"adversary": claim.adversary, "neighbours": claim.neighbours}
    theory = partial(theory_of, spec, config, deployment, delta=claim.delta, enough=claim.epsilon, **against)
    facts: dict[str, Any] = {"config": config.model_dump(mode="json"), "records": records, "clients": clients}
    if data is not None:
        facts["data"] = {"digests": data.digests, "partition": data.partition}
    noised = scalar_config(spec, config)
    if noised is None:
        return Subject(theory=theory, facts=facts, unaudited=f"no game is played on the channel of {spec.name}")
    if noised.calibration == "none" or noised.sigma == 0.0:
        return Subject(theory=theory, facts=facts, unaudited="no noise is added, so there is no epsilon to test")
    games = games_of(spec, noised, data, deployment, **against, device=place.device)
    return replace(games, theory=theory, facts={**facts, **games.facts})


def attack_subject(claim: AttackClaim, place: Place, seed: int) -> Subject:
    """Return what a claim about an attack is about: blocks of trainings, on whose success an e-process bets."""
    from attacks import ATTACKS
    from attacks.core.contract import AttackSetting

    data = _data_of(claim, place)
    spec = ATTACKS[claim.attack]
    method, config = _setting(claim, place, records=len(data.train), clients=data.clients)

    def draw(number: int) -> Success:
        setting = AttackSetting(
            method=method,
            config=config,
            dataset=data,
            adversary=claim.adversary,
            queries=claim.queries,
            trials=TRIALS_A_BLOCK,
            seed=seed + number,
            device=place.device,
        )
        outcome = spec.mount(setting)
        return Success(
            rate=outcome.success.value,
            baselines={
                name: found.value if isinstance(found, Interval) else found for name, found in outcome.baselines.items()
            },
            controls={name: control.value for name, control in outcome.controls.items()},
        )

    return Subject(
        stages=(Stage(name=ATTACKED, pool=ATTACKED, blocks=ATTACK_BLOCKS, sequential=1.0, stops=True),),
        pools={ATTACKED: Pool(draw=draw, trials=TRIALS_A_BLOCK, stored=True)},
        facts={
            "config": config.model_dump(mode="json"),
            "data": {"digests": data.digests, "partition": data.partition},
            "set_up": spec.requires_because,
        },
    )


def check_planted(claim: MechanismClaim) -> Planted:
    """Return the planted mechanism that a claim names.

    Raises `InputError` for an unknown name, and for keys that do not go with the mechanism.
    """
    planted = planted_named(claim.mechanism.removeprefix(PLANTED_PREFIX))
    for key in ("adversary", "neighbours"):
        given, own = getattr(claim, key), getattr(planted, key)
        if given != own:
            raise InputError(f"must be {own!r} with {claim.mechanism}", key, given)
    if claim.exactly_gaussian:
        raise InputError(f"does not go with {claim.mechanism}, which knows what its scores are", "exactly_gaussian")
    if claim.depends:
        raise InputError(f"does not go with {claim.mechanism}, which reads no file", "depends")
    return planted


def planted_subject(claim: MechanismClaim, seed: int) -> Subject:
    """Return the planted mechanism that a claim names; nothing is imported but the tool's own code.

    Raises `InputError` as `check_planted`.
    """
    planted = check_planted(claim)
    case = planted.build(seed)
    games = {name or planted.name: trials for name, trials in case.games.items()}
    stages: tuple[Stage, ...] = ()
    pools: dict[str, Pool] = {}
    for name, trials in games.items():
        pairs = TRAINED_BLOCK if isinstance(trials, RealTrials) else _BLOCK
        blocks = max(2, -(-_MORE * planted.runs // pairs))
        stages += two_stages(name, first=1, rest=blocks - 1, share=(1.0 - CUT_SHARE) / len(games))
        pools[name] = _planted_pool(trials, pairs, blocks)
    return Subject(
        theory=lambda: Theory(
            applies=True, bounds=tuple(planted.upper_bounds(replace(case, epsilon=claim.epsilon, delta=claim.delta)))
        ),
        stages=tuple(sorted(stages, key=lambda stage: not stage.stops)),
        pools=pools,
        facts={"planted": planted.name, "what": planted.summary, "score": planted.score},
    )


def _planted_pool(trials: Trials, pairs: int, blocks: int) -> Pool:
    """Return `blocks` blocks of `pairs` pairs; a score is fitted to pairs beyond the last that is tested."""

    @cache
    def fitted() -> FittedScore:
        arrays = trials(blocks * pairs, blocks * pairs + FIT_PAIRS)
        return fit_score(arrays["in_features"], arrays["out_features"])

    def draw(number: int) -> GameScores:
        first, last = number * pairs, (number + 1) * pairs
        arrays = trials(first, last) if isinstance(trials, DrawnTrials) else {}
        return scored_by(fitted(), arrays) if "in_features" in arrays else scored_block(trials, first, last)

    return Pool(
        draw=draw,
        pairs=pairs,
        trials=2 * pairs,
        gaussian=trials.exactly_gaussian if isinstance(trials, DrawnTrials) else trials.game.knows_ids,
        stored=isinstance(trials, RealTrials),
    )
