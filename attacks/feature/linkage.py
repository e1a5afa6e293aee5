"""Linkage of embeddings to records: the server knows many records' features and asks which of them one is of.

It learns a surrogate of the client's model on the records whose embeddings it knows too (`surrogates`), and takes the
candidate that would have had the most similar embedding: matching in the space of embeddings loses less than decoding
them. An embedding that is linked names its record, and with it all else that is known of it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dpzv_audit.base.findings import Interval
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.files import check_memory
from dpzv_audit.data.vertical import Records
from mechanisms.core.channel import View
from mechanisms.core.context import TrainedStack, TrainingData

from ..core import needs
from ..core.controls import at_chance, by_pairing
from ..core.knowledge import Knowledge, ServerLabels
from ..core.metrics import Floats, Ints, shared_rate, t_interval
from ..core.run import attacked_run
from ..core.setting import COLLUDING, AttackSetting
from ..core.spec import AttackOutcome, AttackSpec, Goal, Needs, Positive, Setup
from .decoders import LEAST_KNOWN
from .mount import (
    BOTH,
    LABEL,
    READS,
    RECORDED,
    UNTRAINED,
    as_sent,
    embeddings_shown,
    labels_known,
    memory_of_messages,
    other_records,
    others_than,
    reach_of,
    recorded_control,
    side_by_side,
    stand_ins,
    with_more,
)
from .quality import GROUPS
from .surrogates import Surrogate, Surrogates
from .uploads import READ, open_targets, sent_embeddings, target_of

RANDOM = "a random candidate"
TWINS = "of raw features, where only twins cannot be told apart"
CHANCE = "with known features in another order"
RANK = "mean rank"
OF_TWO = "right of two candidates that differ"


@dataclass(frozen=True)
class Candidates:
    """Records that an adversary knows at a `client`: `features` (m, d) of `known` (m,), and candidates (c, d).

    The embeddings of the records `ids` (c,) are each of one of the candidates, whose order tells nothing. `others` are
    the clients whose embeddings of the same records stand beside.
    """

    client: int
    others: tuple[int, ...]
    known: Ints
    features: Floats
    ids: Ints
    candidates: Floats


@dataclass(frozen=True)
class Linking:
    """Squared `distances` (c, c) of embeddings from candidates in one training, by which surrogate.

    It is fitted on embeddings (m, w) of the `known` records; `asked` (c, w) are those in question.
    """

    by: Surrogate
    known: Floats
    asked: Floats
    distances: Floats


@dataclass(frozen=True)
class Linked:
    """Squared distances (K, c, c) of the embeddings of records `ids` (c,) from each candidate, in K trainings.

    `won` says which surrogate was taken in each, `first` is that of the first training. `less` has the same adversary
    with less to go by.
    """

    ids: Ints
    distances: Floats
    won: tuple[str, ...]
    first: Linking
    less: "Mapping[str, Linked]" = field(default_factory=dict)

    @classmethod
    def of(cls, ids: Ints, linkings: list[Linking]) -> "Linked":
        """Return the linkings of all trainings of the records `ids`."""
        by = [link.by for link in linkings]
        won = tuple(f"{one.inputs}, width {one.width:g}, penalty {one.penalty:g}" for one in by)
        return cls(ids, np.stack([link.distances for link in linkings]), won, linkings[0])


@dataclass(frozen=True)
class Truth:
    """The `places` (c,) among the candidates of the records in question, and how many of them have its features.

    `twins` (c,) counts the record itself.
    """

    places: Ints
    twins: Ints


def infer(view: View, known: Knowledge) -> Linked:
    """Compare the embeddings of every record in question with all candidates.

    `less` does so with what the others sent of the same records and the label, for features of the attacked client.
    """
    some = known.granted(Candidates)
    surrogates = Surrogates(some.features)
    label = labels_known(view, known)
    sent = as_sent(view, known.clients)
    others = some.others
    tried: dict[str, list[Linking]] = {}
    for k in range(len(known.replicas)):
        read = {"": sent_embeddings(sent, known, k, some.client)}
        read |= {BOTH: with_more(side_by_side(sent, known, k, others), label)} if others else {LABEL: {LABEL: label}}
        for name, inputs in read.items():
            tried.setdefault(name, []).append(linking(some, surrogates, inputs))
    linked = {name: Linked.of(some.ids, linkings) for name, linkings in tried.items()}
    return replace(linked.pop(""), less=linked)


def linking(some: Candidates, surrogates: Surrogates, inputs: Mapping[str, Floats]) -> Linking:
    """Return the best surrogate of embeddings (N, w), by name, and what it says of those in question."""
    best = surrogates.best({name: rows[some.known] for name, rows in inputs.items()})
    rows = inputs[best.inputs]
    return Linking(best, rows[some.known], rows[some.ids], best.distances(rows[some.ids], some.candidates))


def mount_linkage(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, link, and compare; the control trains on the records in another order."""
    needed = memory_of_messages(setting, target_of(setting), of_all=True)
    check_memory(needed, f"{spec.name} over {setting.trials} trainings")
    confidence = setting.confidence
    run = attacked_run(spec, setting)
    linked = spec.infer(run.view, run.known)
    truth = true_places(setting)
    scored = score(linked.distances, truth, confidence)
    count = len(linked.ids)
    outcome = AttackOutcome(
        success=scored.success,
        baselines={
            RANDOM: 1.0 / count,
            **{name: score(one.distances, truth, confidence).success for name, one in linked.less.items()},
        },
        controls={},
        trained=run.trained,
        plan=run.plan,
        metric=f"linkage among {count:,} records",
        chance=1.0 / count,
        measures=scored.measures,
        curves={"surrogates": [{"surrogate": name, "trainings": n} for name, n in Counter(linked.won).items()]},
        by_trial={"success": tuple(scored.by_training.tolist())},
        at_once=run.at_once,
    )
    if setting.pilot:
        return outcome
    some = run.known.granted(Candidates)
    measures = {
        **scored.measures,
        **references(setting, some, truth, run.trained),
        CHANCE: by_chance(linked.first, some, truth, run.known),
    }
    if not setting.method.capabilities.repeatable:
        guesses = scored.linked
        test = by_pairing(guesses, np.eye(count), stream(setting.seed, Purpose.CONTROL, 1))
        every = np.arange(count)
        control = recorded_control(spec, setting, test, count, lambda order: float(guesses[every, order].mean()))
        return replace(outcome, measures=measures, controls={"permuted_records": control}, no_game=RECORDED)
    at_once = run.at_once
    del run  # the messages of the control's trainings take as much memory again
    again, pairing = other_records(spec, setting, some.known, at_once)
    # Candidates are the records that have these ids in the order as it is.
    theirs = again.known.granted(Candidates)
    swapped = replace(theirs, candidates=some.candidates)
    grants = tuple(swapped if grant is theirs else grant for grant in again.known.grants)
    against = score(spec.infer(again.view, replace(again.known, grants=grants)).distances, truth, confidence)
    test = by_pairing(against.linked, np.eye(count), pairing)
    control = at_chance(
        against.success,
        what="trained on unknown records in another order, linked to those of the order as it is: must be at chance",
        expected=1.0 / count,
        test=test,
    )
    return replace(outcome, measures=measures, controls={"other_records": control}, at_once=again.at_once)


@dataclass(frozen=True)
class Scored:
    """Success of linkages: its interval, that of each training (K,), and further measures by name.

    `linked` (c, c) is how often, over trainings, the embedding of record i was linked to record j; ties count in parts.
    """

    success: Interval
    by_training: Floats
    measures: Mapping[str, Interval]
    linked: Floats


def score(distances: Floats, truth: Truth, confidence: float) -> Scored:
    """Compare distances (K, c, c) of embeddings from candidates with which candidate each embedding is of.

    Of candidates at one distance each is as likely to be named. Of two candidates the one in question is that of the
    embedding, and the other differs from it.
    """
    count = len(truth.places)
    rows = np.arange(count)
    linked = np.zeros((count, count))
    right, ranks, beaten = [], [], []
    for training in distances:
        own = training[rows, truth.places][:, None]
        least = training == training.min(1, keepdims=True)
        parts = least / least.sum(1, keepdims=True)
        linked += parts[:, truth.places] / len(distances)
        right.append(parts[rows, truth.places])
        nearer = (training < own).sum(1)
        as_near = (training == own).sum(1)
        ranks.append(nearer + 0.5 * (as_near + 1))
        # Twins are as near as the record itself, and no others.
        others = np.maximum(count - truth.twins, 1)
        beaten.append((count - nearer - as_near + 0.5 * (as_near - truth.twins)) / others)
    shares = np.array(right)
    return Scored(
        success=shared_rate(shares, confidence),
        by_training=shares.mean(1),
        measures={
            RANK: _by_records(np.mean(ranks, 0), confidence),
            OF_TWO: _by_records(np.mean(beaten, 0), confidence),
        },
        linked=linked,
    )


def _by_records(values: Floats, confidence: float) -> Interval:
    """Return the mean of values (c,) of records, with Student's interval over groups of them."""
    parts = np.array_split(values, min(GROUPS, len(values)))
    return t_interval([part.sum() * len(parts) / len(values) for part in parts], len(values), confidence)


def references(setting: AttackSetting, some: Candidates, truth: Truth, trained: TrainedStack) -> dict[str, Interval]:
    """Return the success on the client's embeddings before training, in the clear, and on its raw features.

    The first tells what training adds, and is left out where it moves no client's model; with the second only records
    with the same features are taken for each other.
    """
    found = {TWINS: shared_rate(1.0 / truth.twins[None], setting.confidence)}
    _, start = stand_ins(setting, trained, some.client)
    if start is not None:
        link = linking(some, Surrogates(some.features), {UNTRAINED: start})
        found[UNTRAINED] = score(link.distances[None], truth, setting.confidence).success
    return found


def by_chance(first: Linking, some: Candidates, truth: Truth, known: Knowledge) -> Interval:
    """Return the mean, least and largest success of the first training's surrogate of embeddings in other orders."""
    generator = stream(known.seed, Purpose.CONTROL, 2)
    found = []
    for _ in range(int(known.options["permutations"])):
        refit = first.by.refit(first.known[generator.permutation(len(first.known))])
        distances = refit.distances(first.asked, some.candidates)
        found.append(score(distances[None], truth, 0.95).success.value)
    return reach_of(found)


def some_records(data: TrainingData, setting: AttackSetting) -> tuple[Candidates, ServerLabels]:
    """Grant the features of `known_records` records with their ids, and of `candidates` others without.

    Both are drawn by the seed: known are at most half of all records. And the labels.
    """
    client = target_of(setting)
    known, ids, order = drawn(setting)
    block = setting.dataset.train.features[client - 1]
    flat = block.reshape(len(block), -1).astype(np.float64)
    candidates = Candidates(client, others_than(setting, client), known, flat[known], ids, flat[ids[order]])
    return candidates, ServerLabels(setting.labels)


def drawn(setting: AttackSetting) -> tuple[Ints, Ints, Ints]:
    """Return the known records (m,), those in question (c,), and the order (c,) in which these are candidates."""
    records = setting.records
    order = stream(setting.seed, Purpose.ATTACK, 7).permutation(records)
    count = min(SPEC.count(setting, "known_records"), records // 2)
    ids = order[count : count + SPEC.count(setting, "candidates")]
    return np.sort(order[:count]), np.sort(ids), np.argsort(np.argsort(ids))


def true_places(setting: AttackSetting) -> Truth:
    """Return which candidate each of the records in question is."""
    _, ids, order = drawn(setting)
    block = setting.dataset.train.features[target_of(setting) - 1]
    flat = block.reshape(len(block), -1)[ids]
    _, alike, counts = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
    return Truth(np.argsort(order), counts[alike.ravel()])


def records_to_link(setting: AttackSetting) -> str | None:
    """Need numbers or categories to compare, and enough records."""
    client = target_of(setting)
    if setting.dataset.train.features[client - 1].dtype != np.float32:
        return f"client {client} holds token ids, no features to compare"
    known, ids, _ = drawn(setting)
    if len(known) < LEAST_KNOWN or len(ids) < 2:
        return (
            f"of {setting.records} training records {len(known)} are known and {len(ids)} are candidates; "
            f"use {LEAST_KNOWN} and 2 at least"
        )
    if setting.adversary == COLLUDING and client in setting.parties:
        return f"client {client}, who is attacked, colludes; name other clients"
    return None


def planted(setting: AttackSetting) -> AttackSetting:
    """Return split learning of a client with eight numbers and embeddings four times as wide, in the clear."""
    generator = stream(setting.seed, Purpose.CONTROL, 0, 5)

    def numbers(records: Records) -> Records:
        blocks = generator.standard_normal((2, len(records), 8), np.float32)
        return Records(tuple(blocks), records.labels)

    data = setting.dataset
    train, test = numbers(data.train), numbers(data.test)
    data = replace(data, train=train, test=test, vocabulary=None, variables=(), columns=None)
    options = {"epochs": 2, "embedding": 32}
    return setting.on("split", options, dataset=data, adversary="server", trials=2, options={}, pilot=True)


SPEC = AttackSpec(
    name="record_linkage",
    summary="which of 1,000 known records an embedding is of, by a surrogate of the client's model from known pairs",
    adversaries=("server", COLLUDING),
    infer=infer,
    mounted_by=mount_linkage,
    goal=Goal(
        Positive("eight random numbers, embeddings of 32: must be 0.8 at least", planted, 0.8), reveals="features"
    ),
    needs=Needs(
        conditions=(embeddings_shown, needs.uploads_of(target_of), records_to_link, needs.one_batch_size),
        one_view=True,
        reads=READS,
        numbers=True,
    ),
    setup=Setup(
        options={"target": 1, "known_records": 1000, "candidates": 1000, "embeddings": "auto", "permutations": 40},
        choices={"embeddings": tuple(READ)},
        trials=8,
        targets=open_targets,
        grants=some_records,
    ),
)
