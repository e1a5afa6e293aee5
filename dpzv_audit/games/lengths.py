"""The game of numbers of messages: whether when a training stops, or who sends how often, tells a label.

A game in which coins decide all labels hardly sees it: such a number says something of one coin in a training, or a
little of all of them. So two label vectors are sought that differ in one label and whose trainings, of one seed, send
different numbers of messages: by bisection between two vectors that do. A fair coin then decides between both for each
of several trainings, which have seeds of their own, and a rule that was fixed on further trainings guesses it by one
number. A coin replaces one label: theorem 5.2 of Steinke, Nasr and Jagielski (NeurIPS 2023) bounds the right guesses.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from mechanisms.core.channel import View

from .messages import Ids, PublicLabels
from .scores import GameScores

PILOT = 4
"""Trainings on each of the two label vectors that fix the rule."""
COINS = 16
"""Trainings whose coin is guessed beside each training whose labels are guessed."""
FIRST = 1_000_000
"""Number of the first training of this game: trainings of other games come before."""
REDEALT = 2
MOST_ENDS = 8
"""Label vectors that are tried in the place of those of coins, at most."""

Trained = Callable[[int, Ids], View]
"""Trains by the number of a training, which decides its seed, on labels (N,), and returns what the adversary saw."""


def numbers_in(view: View) -> Counter[str]:
    """Return how many rounds there are in the view of one training, and messages and records in them of each way."""
    numbers = Counter({"rounds": len({message.round for message in view.messages})})
    for message in view.messages:
        way = f"{message.kind} from {message.sender} to {message.receiver}"
        numbers[f"messages of {way}"] += 1
        if message.ids is not None:
            numbers[f"records in {way}"] += int((message.ids[0] >= 0).sum())
    return numbers


@dataclass(frozen=True, eq=False)
class NumberRule:
    """A rule that tells by one number which of two label vectors a training was on.

    Attributes:
        worlds: The label vectors (2, N), which differ in one label.
        name: The number that is read.
        cut: The least number of the world that has more.
        more: The world that has more, 0 or 1.
    """

    worlds: Ids
    name: str
    cut: float
    more: int

    @property
    def words(self) -> str:
        """Words for what is read and of whom."""
        (record,) = np.flatnonzero(self.worlds[0] != self.worlds[1])
        return f"{self.name}, at least {self.cut:g} or fewer, by the label of record {record}"

    def play(
        self, train: Trained, coins: Ids, *, first: int = 0, progress: Callable[[int], None] = lambda done: None
    ) -> GameScores:
        """Train once for each of the coins (T,), and return 1 where the rule says that it fell on 1, -1 otherwise.

        `first` is how many coins were guessed before.
        """
        scores = np.empty(len(coins))
        for place, coin in enumerate(coins):
            numbers = numbers_in(train(FIRST + 2 * PILOT + first + place, self.worlds[coin]))
            scores[place] = 1.0 if (numbers[self.name] >= self.cut) == (self.more == 1) else -1.0
            progress(place + 1)
        ones = coins == 1
        pilot = np.ones(PILOT), -np.ones(PILOT)
        facts = {"fitted_score": self.words, "fitted_on": f"{2 * PILOT} separate trainings"}
        return GameScores(scores[ones], scores[~ones], "fitted", fitted=facts, coins=True, discrete=True, pilot=pilot)


def number_rule(
    train: Trained, start: Ids, numbers: Counter[str], ends: Iterable[Ids], generator: np.random.Generator
) -> NumberRule | None:
    """Return a rule for a pair of neighbouring label vectors that numbers of messages tell apart; None where none did.

    Args:
        train: Trains.
        start: Labels (N,).
        numbers: Numbers of training 0 on these.
        ends: Other labels to try, until training 0 on some has other numbers.
        generator: Orders the labels that change one after the other.
    """
    worlds = _neighbours(train, start, numbers, ends, generator)
    return None if worlds is None else _rule_for(train, worlds)


def other_labels(public: PublicLabels, coins: Ids, classes: int, true: Ids, *, varied: bool) -> Iterator[Ids]:
    """Yield labels (N,) to try in place of those that `coins` (N,) decide: first all of them changed.

    Where numbers of messages `varied` already, the true labels too, all of these changed, mostly one class, and others.
    """
    by_other_coin = np.take_along_axis(public.candidates, 1 - coins[:, None], 1)[:, 0]
    yield np.where(public.given >= 0, (public.given + 1) % classes, by_other_coin)
    if not varied:
        return
    yield true
    yield (true + 1) % classes
    few = np.arange(len(true)) % 10 == 0
    for c in range(min(classes, 3)):
        yield np.where(few, true, c)
    for place in range(REDEALT):
        yield np.roll(true, place + 1)


def _neighbours(
    train: Trained, start: Ids, numbers: Counter[str], ends: Iterable[Ids], generator: np.random.Generator
) -> Ids | None:
    """Return two label vectors (2, N) that differ in one label and whose training 0 has different numbers."""
    for end in ends:
        if numbers_in(train(0, end)) == numbers:
            continue
        order = generator.permutation(np.flatnonzero(start != end))
        alike, other = 0, len(order)  # so many changed labels give the same numbers, and others
        while other - alike > 1:
            middle = (alike + other) // 2
            if numbers_in(train(0, _changed(start, end, order[:middle]))) == numbers:
                alike = middle
            else:
                other = middle
        return np.stack([_changed(start, end, order[:count]) for count in (alike, other)])
    return None


def _changed(start: Ids, end: Ids, which: Ids) -> Ids:
    labels = start.copy()
    labels[which] = end[which]
    return labels


def _rule_for(train: Trained, worlds: Ids) -> NumberRule | None:
    """Return the rule of the number that lies furthest apart in trainings on both; None where none is apart in all."""
    seen: tuple[list[Counter[str]], list[Counter[str]]] = ([], [])
    rules: list[tuple[float, NumberRule]] = []
    for number in range(PILOT):
        for world in (0, 1):
            seen[world].append(numbers_in(train(FIRST + 2 * number + world, worlds[world])))
        rules = []
        for name in sorted(set().union(*seen[0], *seen[1])):
            values = [[numbers[name] for numbers in of_world] for of_world in seen]
            for more in (0, 1):
                gap = min(values[more]) - max(values[1 - more])
                if gap > 0:
                    spread = max(*values[0], *values[1]) - min(*values[0], *values[1])
                    rules.append((gap / spread, NumberRule(worlds, name, min(values[more]) - gap / 2, more)))
        if not rules:
            return None
    return max(rules, key=lambda rule: rule[0])[1]
