"""One training under attack: the adversary plays its part, its view is recorded, and its knowledge is put together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.errors import InputError, check_probability
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.files import check_memory
from mechanisms.core.channel import BatchLog, View, ViewRecorder
from mechanisms.core.context import Behaviour, Plan, TrainedStack, TrainingData, dtype_of, repeats_of
from mechanisms.core.federation import architectures_of, pretrained
from mechanisms.core.joining import joined
from mechanisms.core.replicas import ParameterStack, evaluator_for

from .knowledge import FewLabels, Knowledge, OwnFeatures, OwnParty
from .metrics import Ints, class_shares
from .setting import AttackSetting, Progress
from .spec import AttackSpec, DoesNotApply

KNOWN_SHARE = "known_share"
"""Option of an attack that is granted a share of the labels of each class."""


@dataclass(frozen=True)
class AttackedRun:
    """Trainings that were attacked; `log` holds the true batch ids, and `watched` what else was kept: for scoring.

    `repeats` is how many answers the adversary got about each batch of its first pass; `watched` holds the further
    observer of each stack that trained, in the order of the replicas, and `at_once` how many trainings memory sufficed
    for at a time, None where for all.
    """

    view: View
    known: Knowledge
    log: BatchLog
    trained: TrainedStack
    plan: Plan | None
    repeats: int
    watched: tuple[Any, ...]
    at_once: int | None


def public_knowledge(spec: AttackSpec, setting: AttackSetting, plan: Plan | None) -> Knowledge:
    """Return the public parameters of trainings; `plan` is that of the scalars, None for methods without."""
    classes = setting.dataset.classes
    return Knowledge(
        method=setting.method,
        config=setting.config,
        classes=classes,
        records=setting.records,
        batches=setting.config.steps_per_pass(setting.records),
        sigma=plan.sigma if plan else 0.0,
        replicas=tuple(setting.replicas),
        seed=setting.seed,
        queries=setting.queries,
        options=spec.own_options(setting),
        client=setting.client,
        clients=setting.dataset.clients,
        shares=tuple(class_shares(setting.labels, classes).tolist()),
        values=None if setting.dataset.values is None else torch.from_numpy(setting.dataset.values).double(),
        pilot=setting.pilot,
    )


def attacked_run(
    spec: AttackSpec,
    setting: AttackSetting,
    *,
    labels: Ints | None = None,
    granted: FewLabels | None = None,
    watch: Callable[[AttackSetting, Tensor], Any] | None = None,
    models: bool = True,
) -> AttackedRun:
    """Train `setting.trials` replicas with the adversary in place, in ever smaller stacks where memory runs out.

    Under Poisson sampling, and where messages differ in number, views cannot be joined: always in one stack.

    Args:
        spec: The attack, which may play a client.
        setting: Its setting.
        labels: (trials, N) training labels in place of the true ones: labels permuted before training.
        granted: Labels that the threat model grants; by default drawn from those that are trained on.
        watch: Makes one more observer of a stack, which keeps the truth for scoring, of its setting and the labels
            (N,) or (K, N) that it trains on; its `finish` is called after the last message.
        models: Whether the trained models are of use; without, a training ends once all that the attack reads is sent.

    Raises:
        InputError: The configuration does not fit the attack or the data; `DoesNotApply` where a class has fewer
            records than labels are to be granted.
        MemoryError: Not even one training, or the log of batches of all, would fit; `RuntimeError` where torch says so.
    """
    config = setting.config
    rounds = setting.rounds
    # The least that a log holds: rounds are shared by the clients, and the first batches serve several.
    batches = max(1, rounds // setting.dataset.clients // setting.queries)
    places = setting.trials * batches * config.batch_size
    check_memory(8 * places, f"batch ids of {setting.trials} trainings")
    data = setting.data(labels)
    behaviours = spec.setup.behave(setting)
    plan = _plan(setting, behaviours)
    known = public_knowledge(spec, setting, plan)
    grants = list(spec.setup.grants(data, setting))
    if spec.setup.few_labels:
        grants.append(granted or few_labels(spec, data.labels, setting))

    enough = {}
    if spec.needs.first_pass and not models and setting.method.capabilities.simulated:
        # Who looks at all clients' answers reads no more than those of one pass of each.
        enough = dict.fromkeys(setting.everyone, setting.queries * known.batches)

    def work(stack: AttackSetting, places: slice) -> tuple[list[tuple[View, BatchLog, TrainedStack]], list[Any]]:
        recorders = [_recorder(spec, looking) for looking in together]
        logs = [_log(spec, looking) for looking in together]
        some = data.of_replicas(places.start, places.stop)
        watching = [watch(stack, some.labels)] if watch else []
        observers = *recorders, *logs, *watching
        trained = stack.train(some, behaviours=spec.setup.behave(stack), observers=observers, enough=enough)
        if stack.progress is not None:
            stack.progress(rounds)
        for observer in watching:
            observer.finish()
        return [(recorder.view, log, trained) for recorder, log in zip(recorders, logs, strict=True)], watching

    plain = labels is None and granted is None and watch is None
    together = setting.with_others(spec.setup.behave) if plain else (setting,)
    seen = setting.together.seen if len(together) > 1 and setting.together else {}
    watched: tuple[Any, ...] = ()
    if setting.key not in seen:
        # What adversaries see of batches that differ in size cannot be put side by side.
        differ = config.sampler == "poisson" or bool(setting.method.capabilities.control_flow)
        runs, at_once = setting.in_stacks(work, rounds, whole=differ)
        stacks, watched = zip(*runs, strict=True)
        by_setting = zip(together, zip(*stacks, strict=True), strict=True)
        seen |= {looking.key: (*joined(views), at_once) for looking, views in by_setting}
    view, log, trained, at_once = seen.pop(setting.key)
    if not setting.method.capabilities.simulated:
        known = replace(known, batches=batches_of(log))
    if setting.looks.clients:
        grants += own_party(data, setting, trained)
    return AttackedRun(
        view=view,
        known=replace(known, grants=tuple(grants)),
        log=log,
        trained=trained,
        plan=plan,
        repeats=repeats_of(behaviours).get(setting.client, 1),
        watched=tuple(chain(*watched)),
        at_once=at_once,
    )


def _recorder(spec: AttackSpec, setting: AttackSetting) -> ViewRecorder:
    """Return what records the view of an attack's adversary."""
    senders = None if spec.needs.reads_of is None else spec.needs.reads_of(setting)
    return ViewRecorder(setting.looks, kinds=spec.needs.reads, senders=senders)


def _log(spec: AttackSpec, setting: AttackSetting) -> BatchLog:
    """Return what logs the batches of the answers that an attack guesses about."""
    answers = spec.needs.answers or setting.downlink
    attacked = setting.looks.clients or answers in ("gradient", "prediction")
    return BatchLog(answers, setting.parties if attacked else None)


def _plan(setting: AttackSetting, behaviours: Mapping[int, Behaviour]) -> Plan | None:
    """Return schedule and noise of DPZV with the adversary in place; `InputError` where its rounds are too few."""
    plan = setting.plan(behaviours)
    if plan and behaviours:
        rounds = plan.rounds_by_client[setting.client - 1]
        if rounds < setting.queries:
            raise InputError(
                f"‹epochs› {setting.config.epochs} gives client {setting.client} {rounds} rounds, too few for "
                f"‹queries› {setting.queries}"
            )
    return plan


def batches_of(log: BatchLog) -> int:
    """Return how many of the first answers are one pass over the data."""
    return pass_length(log.stacked()) if log.ids else 1


def pass_length(ids: Tensor) -> int:
    """Return how many of the first batches `ids` (answers, K, B) are one pass over the data, in the median training.

    These are about different records. Where a record comes again before half of them came, as in Poisson batches, it is
    as many as name all records once on average.
    """
    return max(1, int(np.median([_first_pass(batches) for batches in ids.unbind(1)])))


def _first_pass(batches: Tensor) -> int:
    """Return the same of the batches (answers, B) of one training, where -1 is padding."""
    held = (batches >= 0).any(1).nonzero()
    if not len(held):
        return len(batches)
    batches = batches[: int(held[-1]) + 1]  # a training that stopped early has no more
    named = batches[batches >= 0]
    seen = torch.zeros(int(named.max()) + 1, dtype=torch.bool, device=batches.device)
    records = len(named.unique())
    for count, batch in enumerate(batches):
        some = batch[batch >= 0]
        if bool(seen[some].any()):
            early = 2 * int(seen.sum()) < records and not torch.equal(batch, batches[count - 1])
            return round(records * len(batches) / len(named)) if early else count
        seen[some] = True
    return len(batches)


def own_party(data: TrainingData, setting: AttackSetting, trained: TrainedStack) -> list[OwnParty]:
    """Return what each client that looks owns: its block of features and its model, before and after training.

    Nothing of a client whose model a system does not return.
    """
    own = bool(trained.architectures)
    models = trained.architectures if own else architectures_of(data, setting.config)[0]
    streams = setting.context().streams(dtype_of(setting.config))
    parties = []
    for client in setting.looks.clients:
        model = models[client - 1]
        if model is None:
            continue
        evaluator = evaluator_for(model, stack=setting.trials, device=setting.device)
        initial = partial(ParameterStack.initial, evaluator.layout, streams, party=client, pretrained=pretrained(model))
        party = OwnParty(
            features=data.features[client - 1],
            held_out=data.test_features[client - 1],
            evaluator=evaluator,
            trained=trained.clients[client - 1],
            initial=None if own else cache(initial),
        )
        parties.append(party)
    return parties


def own_features(data: TrainingData, setting: AttackSetting) -> tuple[OwnFeatures, ...]:
    """Return the features of those who look; a transcript holds none."""
    if not setting.method.capabilities.repeatable:
        return ()
    return tuple(OwnFeatures(data.features[client - 1]) for client in setting.looks.clients)


MANY_CLASSES = 20
"""Classes from which on some may be too small to grant labels of each."""
SHARE = 10
"""One record in so many has a label that is granted where classes are many, or where the target is a number."""
MOST_NUMBERS = 200
"""Numbers that are granted at most."""


def few_labels(spec: AttackSpec, labels: Tensor, setting: AttackSetting) -> FewLabels:
    """Return `labels_per_class` records of each class of the labels that were trained on, drawn for each replica.

    Of an attack with the option `known_share` instead that share of each class, at least one record, or of all records
    where the target is a number.

    A class without more records than that is left out, if two others have more: none of its labels are granted. Of more
    than 20 classes with such a one, a tenth of all records are granted, whatever their classes; of a target that is a
    number a tenth too, 200 at most. Where labels are granted among some records alone which lack a class, others of
    them stand in for it.

    Raises:
        DoesNotApply: Too few classes have more records than that, or there are not enough records.
    """
    if KNOWN_SHARE in spec.setup.options:
        return _share_of_labels(spec, labels, setting)
    per_class = spec.count(setting, "labels_per_class")
    data = setting.dataset
    classes = data.classes
    rows = labels.expand(setting.trials, -1).cpu()
    among = spec.setup.granted_among(setting).cpu() if spec.setup.granted_among else None
    sizes = torch.bincount(rows[0], minlength=classes).numpy()
    large = np.flatnonzero(sizes >= per_class if (sizes >= per_class).all() else sizes > per_class)
    tenth = 0
    if among is not None:
        most = (among.shape[1] - 1) // classes
        if per_class > most:
            rule = f"use at most {most}: a batch of {among.shape[1]} has to hold others too"
            raise DoesNotApply(rule, "option labels_per_class", per_class)
    elif data.values is not None:
        tenth = min(max(rows.shape[1] // SHARE, 2), MOST_NUMBERS)
    elif len(large) < classes > MANY_CLASSES:
        tenth = max(rows.shape[1] // SHARE, 1)
    elif len(large) < 2:
        rule = f"use at most {np.sort(sizes)[-2] - 1}: no two classes have more records"
        raise DoesNotApply(rule, "option labels_per_class", per_class)
    drawn = []
    for place, (row, replica) in enumerate(zip(rows.numpy(), setting.replicas, strict=True)):
        generator = stream(setting.seed, Purpose.ATTACK, replica, 1)
        if tenth:
            drawn.append(generator.choice(rows.shape[1], tenth, replace=False))
            continue
        if among is None:
            drawn += [generator.choice(np.flatnonzero(row == c), per_class, replace=False) for c in large]
            continue
        order = generator.permutation(among[place].numpy())
        first = np.concatenate([order[row[order] == c][:per_class] for c in range(classes)])
        drawn.append(np.concatenate((first, np.setdiff1d(order, first)))[: per_class * classes])
    ids = torch.from_numpy(np.concatenate(drawn)).view(setting.trials, -1)
    return FewLabels(ids.to(setting.device), rows.gather(1, ids).to(setting.device))


def _share_of_labels(spec: AttackSpec, labels: Tensor, setting: AttackSetting) -> FewLabels:
    share = check_probability(f"option {KNOWN_SHARE} of {spec.name}", float(spec.own_options(setting)[KNOWN_SHARE]))
    rows = labels.expand(setting.trials, -1).cpu()
    drawn = []
    for row, replica in zip(rows.numpy(), setting.replicas, strict=True):
        generator = stream(setting.seed, Purpose.ATTACK, replica, 1)
        numbers = setting.dataset.values is not None
        of_class = [np.arange(len(row))] if numbers else [np.flatnonzero(row == c) for c in np.unique(row)]
        drawn += [generator.choice(ids, max(1, round(share * len(ids))), replace=False) for ids in of_class]
    ids = torch.from_numpy(np.concatenate(drawn)).view(setting.trials, -1)
    return FewLabels(ids.to(setting.device), rows.gather(1, ids).to(setting.device))


def permuted_labels(setting: AttackSetting) -> Ints:
    """Return training labels (trials, N), permuted for each trial by a stream of its own, for negative controls."""
    return np.stack([stream(setting.seed, Purpose.CONTROL, k).permutation(setting.labels) for k in setting.replicas])


def continuous(done: Progress) -> Progress:
    """Return progress that `done` sees go on where the control's training counts its rounds anew."""
    before = total = 0

    def progress(rounds: int) -> None:
        nonlocal before, total
        total += before if rounds < before else 0
        before = rounds
        done(total + rounds)

    return progress
