"""Inference of an attribute of records, such as sex or race, from the embeddings that a client sends.

The server knows the attribute of a few records, every client's uploads and the labels (attribute inference from
representations: Song and Shmatikov, "Overlearning reveals sensitive attributes", ICLR 2020, section 3). What the other
clients and the label tell already stands beside: only what goes beyond comes from the client that is attacked.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.findings import Interval
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.files import check_memory
from dpzv_audit.data.vertical import Records
from mechanisms.core.channel import View
from mechanisms.core.context import TrainedStack, TrainingData

from ..core import needs
from ..core.controls import at_chance, by_pairing
from ..core.knowledge import Knowledge, ServerLabels
from ..core.metrics import Booleans, Floats, Ints, areas_interval, over_trainings, t_interval
from ..core.run import attacked_run
from ..core.setting import COLLUDING, AttackSetting
from ..core.spec import SECOND, AttackOutcome, AttackSpec, CoinGame, Goal, Needs, Positive, Setup
from .coins import dealt
from .decoders import LEAST_KNOWN, Decoder
from .mount import (
    BOTH,
    LABEL,
    OTHERS,
    PAIRED,
    RAW,
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
from .scorers import areas, best_scorer, ranks_of, standard_ranks
from .uploads import READ, open_targets, sent_embeddings
from .variables import AUTO, HOLDER, Attribute, attribute_named, client_named

# A category counts by itself where so many of the known records, and of the others, are of it, and so many are not.
LEAST_OF_A_KIND = 5
ALONE = "its embeddings"
ALL = "its embeddings, the others' and the label"
CONSTANT = "a constant score"
CHANCE = "with known attributes in another order"

ONE_VALUE = "all records hold one value of it, so that no coin can pick"
ELSEWHERE = "another client than the holder is attacked, who sends nothing of it"
NO_COINS = "all coins fell alike"

Inputs = Mapping[str, Floats]
"""What a classifier reads of all records, (N, w), by name."""


@dataclass(frozen=True)
class KnownAttribute:
    """The attribute of records `ids` (m,) that the adversary knows: `targets` (m, c).

    `kinds` are the categories that are told from all others, one per column; none of a number, which is its target.
    `client` is attacked, and `others` are the clients whose embeddings stand beside.
    """

    ids: Ints
    targets: Floats
    kinds: tuple[int, ...]
    client: int
    others: tuple[int, ...]


@dataclass(frozen=True)
class Guess:
    """Scores (n, c) of one training for the records that were not known, by whom, from which inputs (n, w)."""

    by: Decoder
    inputs: Floats
    scores: Floats


@dataclass(frozen=True)
class Inferred:
    """Scores (K, n, c) of the records `ids` (n,) that the adversary did not know, in K trainings.

    `kinds` are the categories that the columns are about; a number has none, and c = 1. `won` names who inferred in
    each training, `first` is who did in the first. `less` has the same adversary with less to go by.
    """

    ids: Ints
    scores: Floats
    kinds: tuple[int, ...]
    won: tuple[str, ...]
    first: Guess
    less: "Mapping[str, Inferred]" = field(default_factory=dict)

    @classmethod
    def of(cls, ids: Ints, kinds: tuple[int, ...], guesses: list[Guess]) -> "Inferred":
        """Return the guesses of all trainings about the records `ids`."""
        won = tuple(f"{guess.by.name}, from {guess.by.inputs}" for guess in guesses)
        return cls(ids, np.stack([guess.scores for guess in guesses]), kinds, won, guesses[0])


def infer(view: View, known: Knowledge) -> Inferred:
    """Score every record whose attribute is unknown, from the attacked client's embeddings and all that stands beside.

    `less` is the same without that client's embeddings.
    """
    some = known.granted(KnownAttribute)
    guesses: dict[str, list[Guess]] = {}
    for k in range(len(known.replicas)):
        for name, inputs in readings(view, known, some, k).items():
            guess = guessed(some, inputs, k)
            # The inputs of the first training stay, to fit again; those of all would be many.
            guesses.setdefault(name, []).append(guess if k == 0 else replace(guess, inputs=np.empty(0)))
    free = np.setdiff1d(np.arange(known.records), some.ids)
    inferred = {name: Inferred.of(free, some.kinds, rows) for name, rows in guesses.items()}
    return replace(inferred.pop(""), less=inferred)


def readings(view: View, known: Knowledge, some: KnownAttribute, k: int) -> dict[str, Inputs]:
    """Return what can be read of all records in training `k`: everything, and by name what stands beside it."""
    label = labels_known(view, known)
    sent = as_sent(view, known.clients)
    own = sent_embeddings(sent, known, k, some.client)
    others = side_by_side(sent, known, k, some.others)
    beside = with_more(others, label)
    return {"": everything(own, beside, label), **({OTHERS: others, BOTH: beside} if others else {})}


def everything(own: Inputs, beside: Inputs, label: Floats) -> Inputs:
    """Return each reading of the attacked client alone, and with what stands `beside` it, or with the label."""
    alone = {f"{ALONE}, {how}": rows for how, rows in own.items()}
    return alone | {f"{ALL}, {how}": np.concatenate((rows, beside.get(how, label)), 1) for how, rows in own.items()}


def guessed(some: KnownAttribute, inputs: Inputs, seed: int) -> Guess:
    """Return what the best classifier, or regression of a number, makes of the best of the inputs of all records."""
    rows = {name: values[some.ids] for name, values in inputs.items()}
    best = best_scorer(rows, some.targets, numbers=not some.kinds, seed=seed)
    free = np.delete(inputs[best.inputs], some.ids, axis=0)
    return Guess(best, free, best.predict(free))


def mount_attribute(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, infer, and compare; the control trains on the records in another order."""
    attribute = attribute_of(setting)
    needed = memory_of_messages(setting, attacked_client(setting, attribute), of_all=True)
    check_memory(needed, f"{spec.name} over {setting.trials} trainings")
    confidence = setting.confidence
    run = attacked_run(spec, setting)
    inferred = spec.infer(run.view, run.known)
    scored = score(attribute, inferred, confidence)
    some = run.known.granted(KnownAttribute)
    chance = 0.5 if some.kinds else 0.0
    label = labels_known(run.view, run.known)
    less = {
        LABEL: Inferred.of(inferred.ids, some.kinds, len(inferred.won) * [guessed(some, {LABEL: label}, 0)]),
        **inferred.less,
    }
    baselines = {name: score(attribute, one, confidence) for name, one in less.items()}
    what = "AUC" if some.kinds else "rank correlation"
    outcome = AttackOutcome(
        success=scored.success,
        baselines={CONSTANT: chance, **{name: one.success for name, one in baselines.items()}},
        controls={},
        trained=run.trained,
        plan=run.plan,
        metric=f"{what} of {attribute.name}",
        chance=chance,
        curves=_tables(attribute, some, inferred, {"success": scored, **baselines}),
        by_trial={"success": tuple(scored.by_training.tolist())},
        at_once=run.at_once,
    )
    if setting.pilot:
        return outcome
    measures = {
        **references(setting, attribute, run.view, run.known, run.trained),
        CHANCE: by_chance(attribute, inferred, some, run.known),
    }
    if not setting.method.capabilities.repeatable:
        test = by_pairing(scored.ranks[:PAIRED], scored.truth[:PAIRED], stream(setting.seed, Purpose.CONTROL, 1))
        ids = inferred.ids
        control = recorded_control(
            spec,
            setting,
            test,
            len(ids),
            lambda order: score(attribute, replace(inferred, ids=ids[order]), confidence).success.value,
        )
        return replace(outcome, measures=measures, controls={"permuted_records": control}, no_game=RECORDED)
    at_once = run.at_once
    del run  # the messages of the control's trainings take as much memory again
    again, pairing = other_records(spec, setting, some.ids, at_once)
    against = score(attribute, spec.infer(again.view, again.known), confidence)
    control = at_chance(
        against.success,
        what="trained on unknown records in another order, compared with the true attributes: must be at chance",
        expected=chance,
        test=by_pairing(against.ranks[:PAIRED], against.truth[:PAIRED], pairing),
    )
    game, no_game = coin_game(spec, setting, attribute)
    return replace(
        outcome,
        measures=measures,
        controls={"other_records": control},
        at_once=again.at_once,
        game=game,
        no_game=no_game,
    )


def coin_game(spec: AttackSpec, setting: AttackSetting, attribute: Attribute) -> tuple[CoinGame | None, str]:
    """Train once more on coins in the place of the attribute, and return the game that guesses of them play.

    None, and the reason, where all records hold one value or another client than the holder is attacked.
    """
    if attacked_client(setting, attribute) != attribute.holder:
        return None, ELSEWHERE
    coins = stream(setting.seed, Purpose.CONTROL, 6).integers(2, size=setting.records) == 1
    dataset = dealt(setting.dataset, attribute, coins)
    if dataset is None:
        return None, ONE_VALUE
    # The same columns by number: what has two values now might be named otherwise, or chosen for another.
    place = {"attribute": str(attribute.columns.start + 1), "target": str(attribute.holder)}
    alone = replace(setting.of_control(None), dataset=dataset, trials=1, options={**setting.options, **place})
    run = attacked_run(spec, alone)
    inferred = spec.infer(run.view, run.known)
    scores = inferred.scores[0, :, 0]
    # The classifier tells one category from the other; which of them a coin's 1 is, the data say.
    kind = inferred.kinds[0] if inferred.kinds else 1
    on_one = attribute_of(alone).values[inferred.ids] == kind
    words = f"{len(scores):,} records of one training, whose {attribute.name} is one of two by a fair coin; {SECOND}"
    return CoinGame.of(scores, on_one, "replace-record", words), NO_COINS


@dataclass(frozen=True)
class Scored:
    """Success of scores: its interval, that of each training (K,), and areas (c,) of each category.

    The scores of the records enter by their ranks alone: success is chance plus a sum of `ranks` (n, c), means over
    trainings, times `truth` (n, c).
    """

    success: Interval
    by_training: Floats
    areas: Floats
    ranks: Floats
    truth: Floats


def score(attribute: Attribute, inferred: Inferred, confidence: float) -> Scored:
    """Compare scores with the true attribute.

    A category's area counts as much as any other's. A rank correlation below 0, which helps nobody, counts as 0.
    """
    values = attribute.values[inferred.ids]
    if inferred.kinds:
        return _scored_kinds(values[:, None] == np.array(inferred.kinds), inferred.scores, confidence)
    return _scored_numbers(values, inferred.scores[..., 0], confidence)


def _scored_kinds(truth: Booleans, scores: Floats, confidence: float) -> Scored:
    """Return the success of scores (K, n, c) for the categories `truth` (n, c); one that is never there is left out."""
    some = np.asarray(truth.any(0) & ~truth.all(0))
    if not some.any():
        raise InputError("no unknown record is of a category that some of them have and others have not")
    kinds = truth[:, some].astype(float)
    by_kind = np.array([areas(training[:, some], kinds) for training in scores])
    counts = kinds.sum(0)
    fewer = int(np.minimum(counts, len(kinds) - counts).min())
    by_training = by_kind.mean(1)
    interval = areas_interval([by_training.mean()], fewer, len(kinds), confidence)
    ranks = ranks_of(scores[..., some]).mean(0)
    pairs = counts * (len(kinds) - counts) * len(counts)
    every = np.full(len(some), np.nan)
    every[some] = by_kind.mean(0)
    return Scored(
        success=replace(interval, over_trainings=over_trainings(by_training, confidence)),
        by_training=by_training,
        areas=every,
        ranks=(ranks - ranks.mean(0)) / pairs,
        truth=kinds,
    )


def _scored_numbers(values: Floats, scores: Floats, confidence: float) -> Scored:
    """Return the success of scores (K, n) for numbers (n,): Spearman's rank correlation."""
    truth, ranks = standard_ranks(values[:, None]), standard_ranks(scores.T)
    products = ranks * truth
    by_training = products.mean(0).clip(0.0, 1.0)
    parts = np.array_split(products.mean(1), min(GROUPS, len(values)))
    interval = t_interval([part.sum() * len(parts) / len(values) for part in parts], len(values), confidence)
    low, high = np.clip((interval.low, interval.high), 0.0, 1.0).tolist()
    over = over_trainings(by_training, confidence)
    return Scored(
        success=replace(interval, value=float(by_training.mean()), low=low, high=high, over_trainings=over),
        by_training=by_training,
        areas=by_training.mean(keepdims=True),
        ranks=ranks.mean(1, keepdims=True) / len(values),
        truth=truth,
    )


def references(
    setting: AttackSetting, attribute: Attribute, view: View, known: Knowledge, trained: TrainedStack
) -> dict[str, Interval]:
    """Return the success with the client's embeddings before training, or with its raw features, in their place.

    Both are in the clear and of the first training. The first tells what training adds, and is left out where it moves
    no client's model; the second is the most that embeddings could tell these classifiers.
    """
    some = known.granted(KnownAttribute)
    label = labels_known(view, known)
    beside = readings(view, known, some, 0).get(BOTH, {})
    raw, start = stand_ins(setting, trained, some.client)
    free = np.setdiff1d(np.arange(known.records), some.ids)
    found = {}
    for name, rows in {RAW: raw, UNTRAINED: start}.items():
        if rows is None:
            continue
        guess = guessed(some, everything(dict.fromkeys(beside or ("alone",), rows), beside, label), 0)
        found[name] = score(attribute, Inferred.of(free, some.kinds, [guess]), setting.confidence).success
    return found


def by_chance(attribute: Attribute, inferred: Inferred, some: KnownAttribute, known: Knowledge) -> Interval:
    """Return the mean, least and largest success of the first training's classifier with attributes in other orders.

    One such fit may reach far where records of a category are much alike.
    """
    generator = stream(known.seed, Purpose.CONTROL, 2)
    first = inferred.first
    ids = inferred.ids[:PAIRED]
    found = []
    for _ in range(int(known.options["permutations"])):
        refit = first.by.refit(some.targets[generator.permutation(len(some.targets))])
        guess = replace(first, scores=refit(first.inputs[:PAIRED]))
        found.append(score(attribute, Inferred.of(ids, some.kinds, [guess]), 0.95).success.value)
    return reach_of(found)


def _tables(
    attribute: Attribute, some: KnownAttribute, inferred: Inferred, compared: Mapping[str, Scored]
) -> dict[str, list[dict[str, Any]]]:
    """Return the area of each category beside the baselines', and who inferred from what."""
    won = Counter(inferred.won)
    rows = {"who inferred": [{"classifier": name, "trainings": n} for name, n in won.items()]}
    areas = [
        {
            "category": attribute.categories[kind],
            "known records": int(some.targets[:, j].sum()),
            **{name: float(one.areas[j]) for name, one in compared.items()},
        }
        for j, kind in enumerate(some.kinds)
    ]
    return rows | ({f"AUC by category of {attribute.name}": areas} if areas else {})


def attribute_of(setting: AttackSetting) -> Attribute:
    """Return the attribute that the options name; `InputError` where there is no such one."""
    options = SPEC.own_options(setting)
    return attribute_named(setting.dataset, str(options["attribute"]), str(options["target"]))


def attacked_client(setting: AttackSetting, attribute: Attribute | None = None) -> int:
    """Return the client whose embeddings are attacked: by default the one that holds the attribute."""
    attribute = attribute or attribute_of(setting)
    target = str(SPEC.own_options(setting)["target"])
    return attribute.holder if target == HOLDER else client_named(setting.dataset, target)


def whom(setting: AttackSetting) -> int:
    """Return the client whose embeddings are attacked, also where there is no such attribute."""
    try:
        return attacked_client(setting)
    except InputError:
        return client_named(setting.dataset, str(SPEC.own_options(setting)["target"]))


def targets_of_attribute(setting: AttackSetting) -> tuple[int, ...]:
    """Return the clients of which one is attacked: none where an attribute is named, whose holder is."""
    return open_targets(setting) if SPEC.own_options(setting)["attribute"] == AUTO else ()


def some_attributes(data: TrainingData, setting: AttackSetting) -> tuple[KnownAttribute, ServerLabels]:
    """Grant the attribute of `known_records` records, drawn by the seed: at most half of them all. And the labels.

    What the holder of the attribute sends, where another client is attacked, is left out.
    """
    attribute = attribute_of(setting)
    client = attacked_client(setting, attribute)
    ids = known_ids(setting)
    values = attribute.values
    kinds = told_apart(attribute, ids)
    targets = (values[ids, None] == np.array(kinds)).astype(float) if kinds else values[ids, None]
    others = others_than(setting, client, attribute.holder)
    return KnownAttribute(ids, targets, kinds, client, others), ServerLabels(setting.labels)


def known_ids(setting: AttackSetting) -> Ints:
    """Return the records (m,) whose attribute the adversary knows."""
    order = stream(setting.seed, Purpose.ATTACK, 7).permutation(setting.records)
    return np.sort(order[: min(SPEC.count(setting, "known_records"), setting.records // 2)])


def told_apart(attribute: Attribute, ids: Ints) -> tuple[int, ...]:
    """Return the categories that enough of the records known, `ids`, and of the others are of, and enough are not.

    Of two categories the rarer one stands for both; a number has none.
    """
    if not attribute.categories:
        return ()
    known = np.bincount(attribute.values[ids].astype(np.int64), minlength=len(attribute.categories))
    others = attribute.counts - known
    least = np.min((known, len(ids) - known, others, others.sum() - others), axis=0)
    enough: Ints = np.flatnonzero(least >= LEAST_OF_A_KIND)
    if len(enough) == 2 == len(attribute.categories):
        enough = enough[[known[enough].argmin()]]
    return tuple(enough.tolist())


def attribute_to_infer(setting: AttackSetting) -> str | None:
    """Need an attribute that is known of enough records, and that the adversary does not hold itself."""
    try:
        attribute = attribute_of(setting)
    except InputError as error:
        if SPEC.own_options(setting)["attribute"] != AUTO:
            raise
        return str(error)
    ids = known_ids(setting)
    if len(ids) < LEAST_KNOWN:
        return f"of {setting.records} training records {len(ids)} are known; use {LEAST_KNOWN} at least"
    if attribute.categories and not told_apart(attribute, ids):
        return (
            f"fewer than {LEAST_OF_A_KIND} of {len(ids)} known records are of a second category of {attribute.name}; "
            f"name another attribute"
        )
    if setting.adversary == COLLUDING:
        for client, does in ((attacked_client(setting, attribute), "is attacked"), (attribute.holder, "holds it")):
            if client in setting.parties:
                return f"client {client}, who {does}, colludes; name other clients"
    return None


def planted(setting: AttackSetting) -> AttackSetting:
    """Return split learning of a client that holds a coin and four numbers, in the clear."""
    generator = stream(setting.seed, Purpose.CONTROL, 0, 5)

    def drawn(records: Records) -> Records:
        numbers = generator.standard_normal((2, len(records), 4), np.float32)
        coins = generator.integers(2, size=(len(records), 1)).astype(np.float32)
        return Records((np.concatenate((coins, numbers[0]), 1), numbers[1]), records.labels)

    data = setting.dataset
    data = replace(data, train=drawn(data.train), test=drawn(data.test), vocabulary=None, variables=(), columns=None)
    return setting.on("split", {"epochs": 2}, dataset=data, adversary="server", trials=2, options={}, pilot=True)


SPEC = AttackSpec(
    name="attribute_inference",
    summary="an attribute such as sex from a client's embeddings, beside what other clients and the label tell",
    adversaries=("server", COLLUDING),
    infer=infer,
    mounted_by=mount_attribute,
    goal=Goal(
        Positive("a coin beside four numbers at client 1: must be 0.9 at least", planted, 0.9), reveals="features"
    ),
    needs=Needs(
        conditions=(embeddings_shown, needs.uploads_of(whom), attribute_to_infer, needs.one_batch_size),
        one_view=True,
        reads=READS,
        numbers=True,
    ),
    setup=Setup(
        options={
            "attribute": AUTO,
            "target": HOLDER,
            "known_records": 200,
            "embeddings": "auto",
            "permutations": 40,
        },
        choices={"embeddings": tuple(READ)},
        trials=8,
        targets=targets_of_attribute,
        grants=some_attributes,
    ),
)
