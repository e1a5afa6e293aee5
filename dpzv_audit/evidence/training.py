"""Trains one configuration beside its controls, alone or under attack: the `result.json` of `train` and `attack`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from attacks import AttackSpec, attack_named
from attacks.core import needs
from attacks.core.run import continuous
from attacks.core.setting import AttackSetting
from mechanisms import MethodSpec, Training, TrainingConfig
from mechanisms.controls import rates_tried, tuned_frozen_clients
from mechanisms.core.channel import Message, Observer, StalenessObserver
from mechanisms.core.checkpoints import FileCheckpoints
from mechanisms.core.context import RunContext, TrainedStack
from mechanisms.core.defence import defended
from mechanisms.core.training import NoiseSource, Progress, train_in_stacks

from ..base.errors import InputError, check_count, check_positive, check_probability
from ..base.findings import LEAST_TRAININGS, adversary_named, damage
from ..base.signals import TRIAL_SECONDS
from ..base.store import Store
from ..data import load
from ..data.vertical import VerticalDataset
from ..results import (
    Accuracy,
    AttackResult,
    ControlAccuracy,
    Staleness,
    TrainResult,
    Tried,
)
from ..statistics.panel import Panel
from ..systems import Recorder, Task
from ..systems.recorded import seen_by
from ..systems.run import prepared
from ..systems.stated import data_of, system_of
from ..systems.task import dataset_of
from .bounding import AuditPlan, Reporter, silent
from .choosing import possible, target_in, worst_client
from .games import voids_of
from .mounting import mounted
from .privacy import privacy_sections
from .sections import (
    Seeded,
    bytes_of,
    control_section,
    noise_of_training,
    not_learnt,
    provenance,
    published_by_training,
    published_simulation,
    utility_section,
)
from .sentences import said


class RoundWatcher:
    """Tells `progress` of rounds while an epoch is under way, about a thousand times in a training of `rounds`."""

    def __init__(self, progress: Progress, rounds: int) -> None:
        self._progress = progress
        self._every = max(1, rounds // 1000)
        self._next = 0

    def on_message(self, message: Message) -> None:
        """Report the rounds before the message's, now and then."""
        if message.round >= self._next:
            self._progress(message.round)
            self._next = message.round + self._every


def train_result(
    method: MethodSpec,
    config: TrainingConfig,
    dataset: VerticalDataset,
    *,
    seed: int = 0,
    trials: int = 1,
    controls: bool = True,
    device: str = "cpu",
    confidence: float = 0.95,
    checkpoints: FileCheckpoints | None = None,
    reporter: Reporter = silent,
    noise_seed: int | None = None,
) -> tuple[TrainResult, TrainedStack]:
    """Train alone, with both frozen-client controls; schema `dpzv-audit/train/1`. Also returns the models.

    What is returned is meant to leave, so noise comes from the operating system, and what else a bound counts on does
    too (`mechanisms.train`): results differ between runs of one seed. With `noise_seed` noise follows from that, and
    batches from the seed, and no bound is sound (gaps `seeded-noise`, `seeded-batches`); nor is one where a method did
    not draw from the operating system. A system draws from the seeds that it is given, and has no clients that could be
    frozen: its control is the majority.

    With `checkpoints` the run is saved after every epoch and may be taken up again: the result is then that of a run
    that was never interrupted. Where memory runs out, ever fewer trainings go on at a time, to the same numbers.

    Raises:
        InputError: The configuration does not fit the data, or `noise_seed` is given and no noise is drawn.
        MemoryError: Not even one training, or the models of all, would fit; `RuntimeError` where torch says so.
    """
    check_probability("confidence", confidence)
    training = Training(method=method, config=config, dataset=dataset, seed=seed, device=device)
    method.check_noise(config, clients=dataset.clients)
    draws = method.draws(config)
    if noise_seed is not None and not draws:
        raise InputError(f"leave it out: {method.name} adds no noise as configured", "noise_seed", noise_seed)
    own = not method.capabilities.simulated
    if not method.capabilities.predicts:
        rule = 'returns nothing that predicts, so it has no accuracy: let it return {"predict": predict}'
        raise InputError(f"{method.name} {rule}")
    source: NoiseSource | None = (noise_seed if noise_seed is not None else "os") if draws and not own else None
    trained, at_once, staleness = _trained(training, trials, source, checkpoints, reporter)
    learning = not own and config.clients_learn
    frozen = _frozen_clients(training, trials, at_once, confidence, reporter) if controls and learning else {}
    utility = utility_section(trained, dataset, frozen, confidence)
    secrets = method.secrets(config, training.deployment())
    seeded: set[Seeded] = set()
    if draws and not trained.secret_noise:
        seeded.add("noise")
    if draws and not trained.secret_draws.issuperset(secrets):
        seeded.add("batches")
    deployment = training.deployment(**({} if own else {f"seeded_{drawn}": True for drawn in seeded}))
    faced = method.protection(config).faced
    plan = method.plan(config, training.deployment())  # as the training made it, which knows of no seed
    # The accuracy stands outside the privacy section, which tells of no record and may leave.
    privacy, tradeoff = privacy_sections(training, faced, plan, AuditPlan(runs=0), deployment=deployment)
    # Whoever learns the seed can draw a system's noise again, and its batches: no bound is one on these very models.
    gap = ",".join(f"seeded-{drawn}" for drawn in sorted(seeded, reverse=True))
    here = privacy.model_copy(update={"upper": None, "gap": gap}) if own and draws else privacy
    accuracy = utility.test_accuracy
    assert isinstance(accuracy, Accuracy)
    diverged = utility.final_loss is None and not own
    noise = None if source is None else noise_of_training(source, seed, trained, secrets)
    result = TrainResult(
        utility=utility,
        privacy=privacy,
        published=published_by_training(here, trainings=trials, seeded=seeded, config=config),
        sentence=said("train", method.name, accuracy, frozen.get("frozen-clients-tuned"), diverged, privacy),
        warnings=not_learnt(utility),
        tradeoff=tradeoff,
        staleness=staleness,
        bytes=bytes_of(trained),
        rounds=trained.rounds,
        **provenance(training, at_once=at_once, noise=noise),
    )
    return result, trained


def _trained(
    training: Training,
    trials: int,
    source: NoiseSource | None,
    checkpoints: FileCheckpoints | None,
    reporter: Reporter,
) -> tuple[TrainedStack, int | None, Staleness | None]:
    """Train, and return how many trainings memory sufficed for at a time, and how old the rows were that were read."""
    method, rounds = training.method, training.rounds
    own = not method.capabilities.simulated
    stage = reporter(f"train {method.name}", rounds)
    staleness: dict[int, StalenessObserver] = {}

    def observe(first: int, share: Progress) -> tuple[Observer, ...]:
        if own:  # its rounds are its own
            return ()
        staleness[first] = StalenessObserver(training.records, training.dataset.clients, rounds)
        return staleness[first], RoundWatcher(share, rounds)

    trained, at_once = train_in_stacks(
        method,
        training.data(),
        training.config,
        RunContext(seed=training.seed, replicas=range(trials), device=training.device, progress=stage),
        observe=observe,
        on_epoch=lambda note: stage(note=note),
        checkpoints=lambda first, last: checkpoints.of_stack(first, last, trials) if checkpoints else None,
        noise_from=source,
    )
    return trained, at_once, None if own else staleness[0].summary()


def _frozen_clients(
    training: Training, trials: int, at_once: int | None, confidence: float, reporter: Reporter
) -> dict[str, ControlAccuracy]:
    """Return the accuracy under frozen clients: at the server's own rate, and at the best of a grid."""
    config = training.config
    context = RunContext(seed=training.seed, replicas=range(trials), device=training.device)
    data = defended(training.data(), config.defences, context)
    stage = reporter("controls", len(rates_tried(config)))
    both = tuned_frozen_clients(data, config, context, progress=stage, at_once=at_once)
    names = ("frozen-clients", "frozen-clients-tuned")
    return {
        name: control_section(control.server_rate, control.correct, confidence)
        for name, control in zip(names, both, strict=True)
    }


def attack_result(
    spec: AttackSpec, setting: AttackSetting, audit: AuditPlan, store: Store | None = None
) -> AttackResult:
    """Train, attack, audit and account; schema `dpzv-audit/attack/1`.

    Where one client looks and the setting does not say which, it is the one that finds most: by a pilot, and of a
    recorded training, which has none, of all at one error rate for all. The `store` keeps each step as it is done, and
    gives those that were done before.

    Raises:
        InputError: The attack does not apply, or the configuration does not fit the data.
    """
    settings = possible(spec, setting)
    if len(settings) > 1 and not setting.method.capabilities.repeatable:
        each = Panel(settings).confidence(setting.confidence)

        def success(of: AttackSetting) -> float:
            # What a client finds in one recorded training is the same without the controls and others' messages.
            alone = replace(of, pilot=True, with_positive=False)
            if of.looks.clients:
                alone = replace(alone, method=seen_by(of.method, of.client))
            outcome = spec.mount(alone)
            return damage(outcome.success.value, outcome.chance)

        worst = max(settings, key=success)
        return attacked_result(spec, replace(worst, confidence=each), replace(audit, confidence=each))
    chosen, tried = worst_client(spec, setting, audit.reporter, store)
    return attacked_result(spec, chosen, audit, tried, store)


def attacked_result(
    spec: AttackSpec,
    setting: AttackSetting,
    audit: AuditPlan,
    tried: Sequence[Tried] = (),
    store: Store | None = None,
) -> AttackResult:
    """Do the same by the clients of the setting, which pilots that were `tried` may have chosen."""
    done = audit.reporter(f"{spec.name} and its control", spec.setup.rounds(spec, setting))
    setting = replace(setting, progress=continuous(done))
    measured = mounted(spec, setting, store)
    if store is not None:
        audit = replace(audit, folder=store.folder / "audit", resume=True)
    warnings = not_learnt(measured.utility)
    privacy, tradeoff = privacy_sections(
        replace(setting, dataset=spec.setup.trains_on(spec, setting)),
        adversary_named(setting.adversary),
        measured.plan,
        audit,
        repeats=setting.queries if setting.adversary == "client" else 1,
        warnings=warnings,
    )
    unread = voids_of(setting.method, setting.dataset.clients, needs.read_by([spec]))
    more = {name: getattr(measured, name) for name in ("not_certified", "reconstructions")}
    set_up = {}
    if spec.needs.requires:
        set_up = {"set_up": f"{_required(spec)}: {spec.needs.requires_because}"}
    result = AttackResult(
        attack=spec.name,
        adversary=setting.adversary,
        clients=list(setting.looks.clients),
        tried=list(tried),
        metric=measured.metric,
        success=measured.success,
        baselines=measured.baselines,
        controls=measured.controls,
        measures=measured.measures,
        curves=measured.curves,
        certified=measured.certified,
        privacy=privacy,
        sentence=said(
            "attack", spec.name, _who(setting, tried), measured, measured.certified, LEAST_TRAININGS, privacy
        ),
        warnings=[*warnings, *(void.words for void in unread)],
        tradeoff=tradeoff,
        utility=measured.utility,
        bytes=measured.bytes,
        rounds=measured.rounds,
        attack_setting={
            "queries": setting.queries,
            "rule": "argmin",
            "estimator": "ridge",
            "trials": setting.trials,
            **spec.own_options(setting),
            **set_up,
        },
        **{name: value for name, value in more.items() if value is not None},
        **provenance(setting, chunk=audit.chunk, at_once=measured.at_once),
    )
    return published_simulation(result)


def _required(spec: AttackSpec) -> str:
    """Return the options that an attack requires in words, as "without a top model"."""
    switches = {True: "with a", False: "without a"}
    options = spec.needs.requires.items()
    return ", ".join(
        f"{switches[value]} {key.replace('_', ' ')}" if isinstance(value, bool) else f"with {key} {value}"
        for key, value in options
    )


def _who(setting: AttackSetting, tried: Sequence[Tried]) -> str:
    """Return who looks in words, with the client where pilots said which, or which is attacked."""
    target = target_in(setting)
    if target is not None and not setting.method.capabilities.simulated:
        how = ", chosen in a trial run" if tried else ""
        return f"{setting.adversary} (on client {target} of {setting.dataset.clients}{how})"
    if not tried or len(setting.parties) > 1:
        return setting.adversary
    return f"{setting.adversary} (no. {setting.client} of {setting.dataset.clients}, chosen in a trial run)"


def attack_system(
    train: Callable[[Task, Recorder, int], object],
    attack: str = "label_direction",
    *,
    data: VerticalDataset | Mapping[str, object] | None = None,
    trials: int = 8,
    seed: int = 0,
    trial_seconds: float = TRIAL_SECONDS,
) -> AttackResult:
    """Attack a training of your own, with controls and an audit, as the command `attack` does with a system.

    What the module of the function, or the notebook, states beside it counts as there: `data()`, `release` or
    `releases(task)`, `top_model`, `random`.

    Args:
        train: A function train(task, record, seed) that trains once and records what its parties send.
        attack: Name of the attack, see `dpzv-audit list attacks`.
        data: What it trains on: a data set of `load_dataset`, or a dictionary of arrays, `features` (one (N, ...) for
            each client), `labels` (N,) and optionally `test_features`, `test_labels` and `classes`. By default what
            `data()` gives, or else digits in two blocks.
        trials: Number of trainings that are attacked; as many again serve the negative control.
        seed: Every random number follows from it.
        trial_seconds: Most seconds that one training may take.

    Raises:
        InputError: The attack does not apply or has no such name, the data are wrong, or the training recorded what
            cannot be.
        AuditError: The training raised, or took too long.
    """
    if not callable(train):
        raise InputError(f"use a function train(task, record, seed), not of type {type(train).__name__}", "train")
    check_count("trials", trials)
    check_positive("trial_seconds", trial_seconds)
    spec = attack_named(attack)
    home = getattr(train, "__module__", "given")
    system = system_of(train, f"{home}:{getattr(train, '__name__', type(train).__name__)}", trial_seconds)
    if data is None:
        data = data_of(system) or load("digits", clients=2)
    dataset = data if isinstance(data, VerticalDataset) else dataset_of(data, "data")
    spec.check(spec.adversaries[0], {"top_model": system.top_model})
    method, config = prepared(system, dataset, seed)
    setting = AttackSetting(
        method=method, config=config, dataset=dataset, adversary=spec.adversaries[0], trials=trials, seed=seed
    )
    return attack_result(spec, setting, AuditPlan())
