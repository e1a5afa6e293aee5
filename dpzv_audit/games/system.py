"""The game of labels on a training of the user's own: coins decide labels, and a fitted score of messages tells them.

Every record's label is one of two classes by a fair coin, but for a public tenth of the records whose labels the
adversary is given: these are no coins. Classes, who plays and who is given are drawn without the coins. The score is
fitted on other trainings, whose coins the fitter knows; of an audited one it reads the messages and what is public.
Changing one coin replaces one label, and all audited trainings together are one mechanism of all their coins: so
theorem 5.2 of Steinke, Nasr and Jagielski (NeurIPS 2023) bounds the right guesses, however scores depend on each other.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from mechanisms import Training, train
from mechanisms.core.channel import Adversary, View, ViewRecorder
from mechanisms.core.context import RunContext, TrainingData

from ..base.errors import InputError, check_count, check_names
from ..base.findings import NeighbourRelation
from ..base.seeds import Purpose, stream
from ..data.vertical import VerticalDataset
from ..systems.messages import GROUPS
from ..systems.run import SystemRun
from .arrays import Bools, Floats
from .fitting import LEAST_FIT, FittedScore, fit_score
from .lengths import COINS, FIRST, MOST_ENDS, PILOT, NumberRule, number_rule, numbers_in, other_labels
from .messages import MOST_RAW, Heard, Ids, PublicLabels, blank, heard_in, turns
from .scores import GameScores

ADVERSARIES = ("client", "colluding-clients")
"""Who can play: those that know which record a message is about, and not the labels."""
NEIGHBOURS: NeighbourRelation = "replace-label"
"""What one coin decides."""
GIVEN = 10
"""One record in so many has a label that the adversary is given."""
GIVEN_OF_GROUPS = 2
"""The same where clients are told who shares a node: what that says is a vote of records of given labels."""
KINDS = ("linear", "quadratic", "boosted")
"""Scores that are tried: messages of several kinds are compared by their log loss, which these have."""
LEAST_COINS = 2 * LEAST_FIT
"""Fewest labels to guess in a training that a game is played on: four of them then suffice for the fit."""
TRAININGS = 2
FIT_TRAININGS = 4


@dataclass(frozen=True)
class SystemGame:
    """A training, usually of a system of the user's, whose labels are dealt anew, and the adversary that plays.

    The training's seed decides coins, all that is public, and the seed of each training; features and test records are
    used as they are.
    """

    training: Training
    adversary: str = "client"

    def __post_init__(self) -> None:
        check_names("adversary", [self.adversary], ADVERSARIES)

    @property
    def given(self) -> int:
        """Return of how many records the adversary is given the labels."""
        training = self.training
        grouped = GROUPS in training.method.capabilities.told_to()
        return given_labels(training.records, training.dataset, GIVEN_OF_GROUPS if grouped else GIVEN)

    @property
    def coins(self) -> int:
        """Return how many coins there are in a training."""
        return self.training.records - self.given

    @property
    def unplayable(self) -> str | None:
        """Return why it cannot be played, where messages name too few records by their ids; None where it can."""
        training = self.training
        named = training.method.capabilities.named
        first, *_ = training.method.exchanging(training.dataset.clients)
        seen = named.get(first, 0) if self.adversary == "client" else max(named.values(), default=0)
        if min(seen, self.coins) >= LEAST_COINS:
            return None
        few = (
            f"messages that the {self.adversary} sees are about {seen:,} of {training.records:,} records, by their ids"
        )
        why = f"{few}, and {self.coins:,} labels are not given: a game needs {LEAST_COINS} of both"
        return f"too few labels to guess: {why}"

    def most_trainings(self, trainings: int, fit_trainings: int) -> int:
        """Return how often it trains at most, with so many audited trainings and some of the fit."""
        made = trainings + fit_trainings + 1  # one on other labels shows whether numbers of messages tell
        if not self.training.method.capabilities.lengths_tell:
            return made
        bisection = MOST_ENDS + math.ceil(math.log2(self.training.records))
        return made + bisection + 2 * PILOT + COINS * trainings

    def dealt(self, number: int) -> tuple[PublicLabels, Ids]:
        """Return what is public of the labels of training `number`, and their coins (N,) in {0, 1}."""
        records, seed = self.training.records, self.training.seed
        public = public_labels(records, self.training.dataset, stream(seed, Purpose.CONTROL, number, 0), self.given)
        return public, stream(seed, Purpose.CONTROL, number, 1).integers(2, size=records)

    def played(self, number: int) -> "Played":
        """Train on the labels that the coins of training `number` decide, and return what its messages say."""
        public, coins = self.dealt(number)
        view = self.trained(number, public, coins)
        data = self.training.dataset
        own = {m: data.train.features[m - 1].reshape(len(data.train), -1) for m in view.adversary.clients}
        features = {m: block.astype(float) for m, block in own.items() if block.dtype == np.float32}
        heard = heard_in(view, public, data.classes, features)
        return Played(heard, public.given < 0, coins, numbers_in(view))

    def trained(self, number: int, public: PublicLabels, coins: Ids) -> View:
        """Train on the labels that the coins decide, and return what the adversary saw."""
        return self.seen(number, labels_of(public, coins))

    def seen(self, number: int, labels: Ids) -> View:
        """Train on labels (N,), and return what the adversary saw."""
        training = self.training
        clients = training.method.exchanging(training.dataset.clients)
        clients = clients[:1] if self.adversary == "client" else clients
        recorder = ViewRecorder(Adversary(self.adversary, clients))
        context = RunContext(seed=training.seed, replicas=(number,), observers=(recorder,))
        train(training.method, self._data(labels[None]), training.config, context)
        return recorder.view

    def train_ahead(self, numbers: Sequence[int], progress: Callable[[int], None]) -> bool:
        """Make the trainings `numbers`, as many at a time as there are workers, where they are kept to be played.

        Returns whether they are kept: then `progress` heard of 0 to `systems.run.ROUNDS` parts of them all.
        """
        training = self.training
        labels = np.stack([labels_of(*self.dealt(number)) for number in numbers])
        context = RunContext(seed=training.seed, replicas=numbers, progress=progress)
        run = training.method.start(self._data(labels), training.config, context)
        return isinstance(run, SystemRun) and run.train_ahead()

    def _data(self, labels: Ids) -> TrainingData:
        return replace(self.training, device="cpu").data(labels)


class Played(NamedTuple):
    """What messages of a training say, which records play (N,), the coins (N,) of all, and numbers of messages."""

    heard: dict[str, Heard]
    plays: Bools
    coins: Ids
    numbers: Counter[str]


def labels_of(public: PublicLabels, coins: Ids) -> Ids:
    """Return the labels (N,) that are trained on: by its coin (N,) of each record that is not given."""
    by_coin = np.take_along_axis(public.candidates, coins[:, None], 1)[:, 0]
    return np.where(public.given >= 0, public.given, by_coin)


def public_labels(
    records: int, data: VerticalDataset, generator: np.random.Generator, given: int | None = None
) -> PublicLabels:
    """Return two labels of each record, all pairs equally likely, and labels of so many that are `given`.

    Of a tenth of the records by default, see `given_labels`; classes are as frequent there as can be. Where the target
    is a number, the given ones are drawn at random.
    """
    classes = data.classes
    first = generator.integers(classes, size=records)
    second = (first + generator.integers(1, classes, size=records)) % classes
    number = given_labels(records, data) if given is None else given
    labels = np.full(records, -1)
    chosen = generator.permutation(records)[:number]
    labels[chosen] = np.arange(number) % classes if data.values is None else generator.integers(classes, size=number)
    values = None if data.values is None else data.values.astype(float)
    return PublicLabels(np.sort(np.stack((first, second), 1), axis=1), labels, values)


def given_labels(records: int, data: VerticalDataset, one_in: int = GIVEN) -> int:
    """Return one record `one_in` so many: at least two of each class, but at most half of the records."""
    least = 2 * data.classes if data.values is None else 2
    return min(max(least, records // one_in), records // 2)


@dataclass(frozen=True, eq=False)
class MessageScore:
    """A score of records that was fitted on separate trainings: log odds that a label is the second of its two classes.

    Attributes:
        fitted: The score of columns.
        names: Messages that it reads, by kind and parties.
        columns: Which of their columns it reads; the others are constant.
        widths: Widths of the messages whose coordinates it reads as they are too, by name; empty for none.
        tried: Cross-validated log loss of the scores that were tried, by what each reads.
        trainings: Trainings that it was fitted on: the first so many. Audited ones come after them.
        warning: Why it is blind to raw coordinates; "" where it is not.
        numbers: The rule of a game that is played beside, where numbers of messages tell a label.
    """

    fitted: FittedScore
    names: tuple[str, ...]
    columns: Bools
    widths: Mapping[str, int]
    tried: Mapping[str, float]
    trainings: int
    warning: str
    numbers: NumberRule | None = None

    def __call__(self, heard: Mapping[str, Heard]) -> Floats:
        """Return scores (N,) of the records of a training; `InputError` where rows that it reads have another width."""
        return self.fitted.score(_columns(heard, self.names, self.widths)[:, self.columns])

    @property
    def loss(self) -> float:
        """Its cross-validated log loss: of log 2 = 0.693, that of a guess."""
        return self.fitted.held_out_loss[self.fitted.kind]

    @property
    def facts(self) -> dict[str, str]:
        """Facts for a result."""
        losses = ", ".join(f"{words} {loss:.3f}" for words, loss in self.tried.items())
        return {
            **self.fitted.facts,
            "fitted_on": f"{2 * self.fitted.pairs:,} labels of {self.trainings} separate trainings",
            "messages_read": "; ".join(self.names),
            "messages_chosen_by": f"cross-validated log loss: {losses} (a guess: 0.693)",
        }


def fitted_score(
    game: SystemGame, trainings: int = FIT_TRAININGS, *, progress: Callable[[int], None] = lambda done: None
) -> MessageScore:
    """Fit scores on trainings of their own, by kind of messages and on all, and return the one of the least loss.

    Raises:
        InputError: No message is about a record, or there are too few records; and what training raises.
    """
    check_count("fit_trainings", trainings)
    name = game.training.method.name
    heard = []
    ones = []
    zeros = []
    numbers = []
    for number in range(trainings):
        messages, plays, coins, sent = game.played(number)
        if not messages:
            rule = "record some with ids, as record.cut does"
            raise InputError(f"{name}: no message that the {game.adversary} sees has ids; {rule}")
        sides = [np.flatnonzero(plays & (coins == bit)) for bit in (1, 0)]
        pairs = min(map(len, sides))
        heard.append(messages)
        ones.append(sides[0][:pairs])
        zeros.append(sides[1][:pairs])
        numbers.append(sent)
        progress(len(heard))
    sizes = [len(side) for side in ones]
    if sum(sizes) < LEAST_FIT:
        few = f"{2 * sum(sizes)} coins to fit a score on"
        raise InputError(f"{name}: {few}; use {2 * LEAST_FIT} at least: give more trainings or records")
    # Another training is what a score must stand: each is held out whole.
    folds = np.repeat(np.arange(trainings), sizes) if trainings > 1 else None
    warning = turns(heard)
    scores = []
    for words, names, widths in _choices(heard, alike=not warning and trainings > 1):
        both = [
            np.concatenate([_columns(messages, names, widths)[who] for messages, who in zip(heard, side, strict=True)])
            for side in (ones, zeros)
        ]
        varied = np.ptp(np.concatenate(both), axis=0) > 0
        if varied.any():
            fitted = fit_score(both[0][:, varied], both[1][:, varied], kinds=KINDS, folds=folds)
            scores.append((words, MessageScore(fitted, names, varied, widths, {}, trainings, warning)))
    if not scores:
        raise InputError(f"{name}: the messages say the same of every record: there is nothing to score")
    losses = {words: score.loss for words, score in scores}
    best = min((score for _, score in scores), key=attrgetter("loss"))
    return replace(best, tried=losses, numbers=rule_of_numbers(game, numbers))


def rule_of_numbers(game: SystemGame, numbers: Sequence[Counter[str]]) -> NumberRule | None:
    """Return a rule that tells one label by numbers of messages, None where none was found.

    `numbers` are those of the first trainings. One more training shows whether they change where all labels do; where
    they do, or differed before, neighbouring label vectors are sought.
    """
    training = game.training
    varied = training.method.capabilities.lengths_tell or any(other != numbers[0] for other in numbers)
    public, coins = game.dealt(0)
    ends = other_labels(public, coins, training.dataset.classes, training.dataset.train.labels, varied=varied)
    generator = stream(training.seed, Purpose.CONTROL, FIRST)
    return number_rule(game.seen, labels_of(public, coins), numbers[0], ends, generator)


Choice = tuple[str, tuple[str, ...], Mapping[str, int]]


def _choices(heard: Sequence[Mapping[str, Heard]], *, alike: bool) -> list[Choice]:
    """Return what a score may read: in words, names of messages, and widths of those whose coordinates it reads.

    Messages of each kind alone, and of all; with their coordinates too where trainings start alike.
    """
    first = {name: messages for training in heard for name, messages in training.items()}
    kinds = sorted({messages.kind for messages in first.values()})
    groups = {kind: tuple(sorted(name for name in first if first[name].kind == kind)) for kind in kinds}
    if len(groups) > 1:
        groups["all"] = tuple(sorted(first))
    choices: list[Choice] = [(kind, names, {}) for kind, names in groups.items()]
    for kind, names in groups.items():
        widths = {name: first[name].raw.shape[1] for name in names}
        read = {name: width for name, width in widths.items() if 0 < width <= MOST_RAW}
        if alike and read:
            choices.append((f"{kind} with coordinates", names, read))
    return choices


def play(
    game: SystemGame,
    score: MessageScore,
    trainings: int = TRAININGS,
    *,
    first: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> GameScores:
    """Train on coin-flip labels, and return what the score says of the coins.

    Args:
        game: Who plays.
        score: A score that no audited training had a part in.
        trainings: How many are audited, each with coins of its own.
        first: How many were audited by this score before: coins are not used twice.
        progress: Hears how many are done.

    Returns:
        Scores of all records that play; coins only tell which side they are on. A record that no message is about plays
        too: that there is none may tell its label. Nothing is assumed of how scores of one training depend on each
        other.
    """
    check_count("trainings", trainings)
    scores = []
    bits = []
    for number in range(score.trainings + first, score.trainings + first + trainings):
        played = game.played(number)
        scores.append(score(played.heard)[played.plays])
        bits.append(played.coins[played.plays])
        progress(len(scores))
    values = np.concatenate(scores)
    ones = np.concatenate(bits) == 1
    return GameScores(values[ones], values[~ones], "fitted", fitted=score.facts, blind=score.warning, coins=True)


def play_numbers(
    game: SystemGame,
    rule: NumberRule,
    trainings: int,
    *,
    first: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> GameScores:
    """Play the game of numbers of messages: `COINS` coins beside each of so many trainings; see `NumberRule.play`.

    `first` is how many such trainings came before.
    """
    coins = np.concatenate(
        [
            stream(game.training.seed, Purpose.CONTROL, FIRST + 1, number).integers(2, size=COINS)
            for number in range(first, first + trainings)
        ]
    )
    return rule.play(game.seen, coins, first=COINS * first, progress=progress)


def _columns(heard: Mapping[str, Heard], names: Sequence[str], widths: Mapping[str, int]) -> Floats:
    """Return the numbers (N, c) of the named messages side by side, with the coordinates of those with `widths`."""
    some = next(iter(heard.values()))
    columns = []
    for name in names:
        messages = heard.get(name)
        columns.append(blank(name, len(some.numbers)) if messages is None else messages.numbers)
        if name not in widths:
            continue
        raw = np.zeros((len(some.raw), widths[name])) if messages is None else messages.raw
        if raw.shape[1] != widths[name]:
            right = f"use {widths[name]} as in the trainings that the score was fitted on"
            raise InputError(f"the width of {name} is {raw.shape[1]} in an audited training; {right}")
        columns.append(raw)
    return np.hstack(columns)
