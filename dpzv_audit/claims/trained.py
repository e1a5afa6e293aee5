"""Subjects that take torch: the tool's training methods, attacks on them, and mechanisms that are wrong on purpose."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from attacks.core.contract import DoesNotApply
from mechanisms import METHODS, TrainingConfig
from mechanisms.core.config import check_plan, check_sizes
from mechanisms.core.context import Deployment
from mechanisms.core.defence import label_release
from mechanisms.core.method import MethodSpec
from mechanisms.methods.dpzv import scalar_config
from mechanisms.presets import dataset_defaults

from ..base.errors import InputError, with_options
from ..base.files import confined_to
from ..base.findings import STRONGEST, Control, Interval
from ..data import DATASETS, count_csv, load, load_csv
from ..data.vertical import VerticalDataset
from ..evidence.choosing import applicable, named, strongest, worst_client
from ..evidence.games import TRAINED_BLOCK, games_of, label_game, scored_block, theory_of
from ..evidence.gathering import CUT_SHARE, FIT_PAIRS, Pool, Stage, Subject, Success, two_stages
from ..evidence.verdict import Theory
from ..games.fitting import FittedScore, fit_score
from ..games.labels import LabelTrials, private_labels
from ..games.planted import Planted, Trials, planted_named
from ..games.real import RealTrials
from ..games.scores import GameScores, scored_by
from ..games.transcript import DrawnTrials
from .access import Access
from .file import (
    TABLE,
    AttackClaim,
    MechanismClaim,
    MethodAttackClaim,
    MethodClaim,
    OwnClaim,
    TrainedClaim,
    said_by,
)

if TYPE_CHECKING:
    from attacks import AttackSetting, AttackSpec

ATTACKED = "trainings"
TRIALS_A_BLOCK = 4
POSITIVE_BLOCKS = 16
"""Blocks of trainings of a method that the positive control is in."""
MOST_BLOCKS = 10**6
_alive: WeakValueDictionary[str, VerticalDataset] = WeakValueDictionary()
_sizes: dict[str, tuple[int, int]] = {}


def check_trained(claim: TrainedClaim, access: Access) -> None:
    """Raise `InputError` naming the key at fault where a claim on a method cannot be run.

    Plans, keeps and trains nothing, not even a few blank records: what the tool's own methods draw is known.
    """
    if claim.records is not None:
        records = claim.records
        clients = claim.clients or 1
    else:
        records, clients = sizes_of(claim, access)
    _setting(claim, access, records=records, clients=clients)


def _setting(claim: TrainedClaim, access: Access, *, records: int, clients: int) -> tuple[MethodSpec, TrainingConfig]:
    """Return the method of a claim on `records` and `clients`, configured; takes no more time the larger they are.

    Raises `InputError` naming the key at fault.
    """
    options = dict(claim.config)
    if isinstance(claim, AttackClaim):
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
    if config.defences and label_release(config.defences) is None and not isinstance(claim, AttackClaim):
        names = ", ".join(defence.name for defence in config.defences)
        raise InputError("must be left out: what it does promises no epsilon", "config.defences", names)
    if config.batch_size > records:
        right = f"the {records} records" if trains else f"records = {records}"
        raise InputError(f"must be at most {right}", "config.batch_size", config.batch_size)
    if trains:
        check_sizes(config, records=records, clients=clients)
    check_plan(config, records=records, clients=clients)
    return spec, config


def _calibrated(claim: MethodClaim, options: dict[str, Any]) -> dict[str, Any]:
    """Return `options` with the claim's epsilon and delta, from which noise follows that they do not give."""
    fields = METHODS[claim.method].config.model_fields if claim.method in METHODS else {}
    undefended = "dp" in fields and options.get("dp", "none") == "none"
    if undefended or options.get("dp_sigma") is not None:
        return options
    return {key: getattr(claim, key) for key in ("epsilon", "delta") if key in fields} | options


def sizes_of(claim: TrainedClaim | OwnClaim, access: Access) -> tuple[int, int]:
    """Return the training records and the clients of the data that a claim names, which are counted, not loaded.

    Raises `InputError` for data that are absent or do not go with the claim.
    """
    key = _data_named(claim, access)
    if key not in _sizes:
        with access.data_folder(claim) as folder:
            if claim.csv is None:
                spec = DATASETS.named(claim.dataset or "digits", "dataset")
                _sizes[key] = spec.count(clients=claim.clients, data_dir=folder)
            else:
                path, *test = access.tables(claim)
                with confined_to(access.root):
                    _sizes[key] = count_csv(
                        path,
                        label=claim.label or "",
                        clients=claim.clients,
                        groups=claim.columns or None,
                        categories=claim.categories,
                        scales=claim.scales,
                        drop=claim.drop,
                        test=test[0] if test else None,
                        separator=claim.separator or ",",
                    )
    return _sizes[key]


def loaded(claim: TrainedClaim | OwnClaim, access: Access) -> VerticalDataset:
    """Return the data that a claim names, digits where none, the same object for all claims that are on them.

    Twenty copies would fill the memory. Raises `InputError` for data that cannot be read, and those out of bounds.
    """
    key = _data_named(claim, access)
    data = _alive.get(key)
    if data is None:
        data = _alive[key] = _read(claim, access)
    return data


def facts_of(data: VerticalDataset) -> dict[str, object]:
    """Return what a claim's evidence says of its data: digests, partition and, where there are any, hints."""
    hints = {"hints": [with_options(hint) for hint in data.hints]} if data.hints else {}
    return {"digests": data.digests, "partition": data.partition, **hints}


def _data_named(claim: TrainedClaim | OwnClaim, access: Access) -> str:
    """Return what tells the data of a claim from those of others: what it says of them, and where files lie."""
    said = said_by(claim)
    return str([access.folder, access.root, {key: said.get(key) for key in ("dataset", "data_dir", "clients", *TABLE)}])


def _read(claim: TrainedClaim | OwnClaim, access: Access) -> VerticalDataset:
    with access.data_folder(claim) as folder:
        if claim.csv is None:
            return load(claim.dataset or "digits", clients=claim.clients, data_dir=folder)
        path, *test = access.tables(claim)
        with confined_to(access.root):
            return load_csv(
                path,
                label=claim.label or "",
                clients=claim.clients,
                groups=claim.columns or None,
                categories=claim.categories,
                scales=claim.scales,
                classes=claim.classes or None,
                drop=claim.drop,
                test=test[0] if test else None,
                separator=claim.separator or ",",
            )


def method_subject(claim: MethodClaim, access: Access, seed: int) -> Subject:
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
        unaudited = f"no game is played on the channel of {spec.name}"
    elif noised.calibration == "none" or noised.sigma == 0.0:
        unaudited = spec.protection(config).not_released or "no noise is added, so there is no epsilon to test"
    else:
        games = games_of(spec, noised, data, deployment, **against, device=access.device)
        return replace(games, theory=theory, facts={**facts, **games.facts})
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


def attacked(claim: AttackClaim, setting: "AttackSetting", *, positives: int) -> Subject:
    """Return what a claim about an attack is about: blocks of `setting.trials` trainings.

    An e-process bets on the success of each training. The positive control, which is the same whatever is attacked, is
    in the first `positives` blocks. A pilot, on trainings of its own, says which client looks, and where the claim is
    about the strongest attack which that is. The claim is about each of them: where it may be held, every other attack
    and client is mounted too, from pools of their own.
    """

    mounted = [(spec, replace(setting, adversary=by)) for spec, by in named(claim.attack, claim.adversary)]
    every = claim.attack == STRONGEST
    candidates = {words_of(spec, one): (spec, one) for spec, one in applicable(mounted, every=every)}

    @cache
    def chosen() -> "tuple[AttackSpec, AttackSetting]":
        if every:
            spec, one, _ = strongest(mounted, claimed=claim.success_at_most)
            return spec, one
        spec, one = mounted[0]
        return spec, worst_client(spec, one)[0]

    def draw(number: int) -> Success:
        return success_of(*chosen(), number, with_positive=number < positives)

    def draw_other(words: str, number: int) -> Success:
        try:
            return success_of(
                *candidates[words],
                number,
                with_positive=number == 0,
                most_chance=claim.success_at_most if every else None,
            )
        except DoesNotApply as error:
            return Success(rates=(), baselines={}, controls={}, mounted=words, excluded=error.words)

    draws: dict[str, Callable[[int], Success]] = {ATTACKED: draw}
    if len(candidates) > 1:
        draws |= {words: partial(draw_other, words) for words in candidates}
    return Subject(
        stages=tuple(
            Stage(name=name, pool=name, blocks=MOST_BLOCKS, sequential=float(name == ATTACKED), stops=True)
            for name in draws
        ),
        pools={name: Pool(draw=one, trials=setting.trials, stored=True) for name, one in draws.items()},
        facts={
            "config": setting.config.model_dump(mode="json"),
            "data": facts_of(setting.dataset),
            "set_up": mounted[0][0].requires_because if not every else "",
        },
    )


def words_of(spec: "AttackSpec", setting: "AttackSetting") -> str:
    """Return an attack and by whom it is mounted, in words that no other attack or client has."""
    if not setting.looks.clients:
        return spec.name
    return f"{spec.name} by {setting.adversary.replace('-', ' ')} {', '.join(map(str, setting.parties))}"


def success_of(
    spec: "AttackSpec",
    setting: "AttackSetting",
    number: int,
    *,
    with_positive: bool,
    most_chance: float | None = None,
) -> Success:
    """Return the success of an attack on block `number` of trainings.

    Where knowing nothing finds more than `most_chance`, the block says that it is excluded.
    """
    from ..evidence.sections import not_learnt, utility_section

    one = replace(setting, seed=setting.seed + number, with_positive=with_positive)
    settings = [one]
    if spec.reveals == "membership":
        # Targets of one mount share its shadow models: only one of them is independent of the others.
        first = setting.seed + number * setting.trials
        alone = replace(one, trials=1)
        settings = [
            replace(alone, seed=first + i, with_positive=with_positive and i == 0) for i in range(setting.trials)
        ]
    outcomes = [spec.mount(each) for each in settings]
    rates: list[float] = []
    for outcome in outcomes:
        rates += outcome.by_trial.get("success", (outcome.success.value,))
    baselines = _means_of(outcome.baselines for outcome in outcomes)
    controls: dict[str, tuple[Control, ...]] = {}
    for outcome in outcomes:
        for name, control in outcome.controls.items():
            controls[name] = (*controls.get(name, ()), control)
    excluded = ""
    chance = outcomes[0].chance
    if most_chance is not None and chance > most_chance:
        excluded = f"knowing nothing finds {chance:.3f} already"
    return Success(
        rates=tuple(rates),
        baselines=baselines,
        controls=controls,
        mounted=words_of(spec, setting),
        excluded=excluded,
        warnings=tuple(not_learnt(utility_section(outcomes[0].trained, setting.dataset, {}, setting.confidence))),
    )


def _means_of(rows: "Iterable[Mapping[str, float | Interval]]") -> dict[str, float]:
    """Return the mean over rows of each value by name."""
    every = list(rows)
    values = {name: [row[name] for row in every if name in row] for name in every[0]}
    return {
        name: float(np.mean([one if isinstance(one, float | int) else one.value for one in column]))
        for name, column in values.items()
    }


def check_planted(claim: MechanismClaim) -> Planted:
    """Return the planted mechanism that a claim names.

    Raises `InputError` for an unknown name, and for keys that do not go with the mechanism.
    """
    planted = planted_named(claim.planted)
    for key in ("adversary", "neighbours"):
        value = getattr(claim, key)
        own = getattr(planted, key)
        if value != own:
            raise InputError(f"must be {own!r} with {claim.mechanism}", key, value)
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
    stages: tuple[Stage, ...] = ()
    pools: dict[str, Pool] = {}
    for name, trials in case.games.items():
        pool = name or planted.name
        pairs = TRAINED_BLOCK if isinstance(trials, RealTrials) else 1024
        # Twice the runs that suffice for a verdict at 95%: a gate errs far less often.
        blocks = max(2, math.ceil(2 * planted.runs / pairs))
        stages += two_stages(pool, first=1, rest=blocks - 1, share=(1.0 - CUT_SHARE) / len(case.games))
        pools[pool] = _planted_pool(trials, pairs, blocks)

    def theory() -> Theory:
        claimed = replace(case, epsilon=claim.epsilon, delta=claim.delta)
        return Theory(applies=True, bounds=tuple(planted.upper_bounds(claimed)))

    return Subject(
        theory=theory,
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
        first = number * pairs
        last = (number + 1) * pairs
        arrays = trials(first, last) if isinstance(trials, DrawnTrials) else {}
        if "in_features" in arrays:
            return scored_by(fitted(), arrays)
        return scored_block(trials, first, last)

    return Pool(
        draw=draw,
        pairs=pairs,
        trials=2 * pairs,
        gaussian=trials.exactly_gaussian if isinstance(trials, DrawnTrials) else trials.game.knows_ids,
        stored=isinstance(trials, RealTrials),
    )
