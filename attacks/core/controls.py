"""Controls of an attack: runs whose result is known, the data sets they run on, and tests that they are at chance.

No test leans on the shape of what varies between trainings. Where the tool itself dealt what the control is scored
against (coins of records, an order of labels), chance has a known law by that deal, and one training can be tested.
Otherwise trainings are the units, and a bet over them is the test: its p-value holds for any law, and few trainings
cannot show anything.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzv_audit.base.findings import LEAST_TRAININGS, Control, Interval
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.vertical import Records, VerticalDataset

from .metrics import Floats, Ints, bets

# What a success of 1 must reach: an area under a curve may come out an ulp below it.
CERTAIN = 1.0 - 1e-9


def reaches(interval: Interval, *, what: str, least: float) -> Control:
    """Return a positive control: the value of `interval` must reach `least`."""
    return Control(**vars(interval), what=what, kind="positive", expected=least)


def at_chance(interval: Interval, *, what: str, expected: float, test: "ChanceTest | None") -> Control:
    """Return a negative control: `test` must not say that it is off `expected`."""
    control = Control(**vars(interval), what=what, kind="negative", expected=expected)
    return replace(control, p_value=test.p, tested_by=test.by) if test else control


def under_others(successes: Floats, test: "ChanceTest", *, n: int, confidence: float, what: str) -> Control:
    """Return the control of one recorded training: `successes` (orders,) of its guesses on `n` records in other orders.

    Its value is their mean, between the quantiles that leave out 1 - `confidence`; `test` compares the true order.
    """
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(successes, (tail, 1.0 - tail)).tolist()
    mean = float(np.mean(successes))
    return Control(
        value=mean,
        low=low,
        high=high,
        n=n,
        confidence=confidence,
        what=what,
        kind="permutation",
        expected=mean,
        p_value=test.p,
        tested_by=test.by,
    )


# Trainings over which bets can show, at one in a thousand, an attack that sees all.
ENOUGH_TO_BET = 16
# Exchanges of class names that are drawn: the least p-value is one over so many.
_EXCHANGES = 200_000


@dataclass(frozen=True)
class ChanceTest:
    """A p-value, in (0, 1], of a control that is at chance, and `by` what it was found."""

    p: float
    by: str


def by_bets(values: ArrayLike, expected: float, *, least: float = 0.0, unit: str = "trainings") -> ChanceTest | None:
    """Test that independent `values` (n,) in [`least`, 1] have the mean `expected`, whatever their laws.

    The p-value is one over the average wealth of the bets on a larger and on a smaller mean (Markov's inequality).
    None for fewer than `LEAST_TRAININGS` values, which could show nothing.
    """
    width = 1.0 - least
    x = (np.clip(np.asarray(values, float), least, 1.0) - least) / width
    if x.size < LEAST_TRAININGS:
        return None
    wealth = np.logaddexp(*bets(x, (expected - least) / width))
    return ChanceTest(float(np.exp(min(0.0, np.log(2.0) - wealth))), f"bets over {x.size} {unit}")


def by_coins(scores: ArrayLike, coins: ArrayLike) -> ChanceTest:
    """Test that areas under ROC curves owe nothing to fair `coins` (K, pairs): which of records 2i and 2i + 1 is in.

    Were the coins tossed again, each pair would move the area of its training by the difference of its ranks, up or
    down: Hoeffding's inequality bounds how often so far. `scores` (K, records).
    """
    ranks = _ranks(scores)
    second = np.asarray(coins)
    steps = (ranks[:, 1::2] - ranks[:, ::2]) / (2.0 * second.shape[1] ** 2)
    moved = (np.where(second == 1, 1.0, -1.0) * steps).sum()
    return ChanceTest(_hoeffding(moved, (steps**2).sum()), "its coins tossed again")


def by_fair_coins(right: ArrayLike) -> ChanceTest:
    """Test that independent guesses `right`, booleans of any shape, of fair coins are right half of the time."""
    from scipy.stats import binomtest

    outcomes = np.asarray(right)
    return ChanceTest(float(binomtest(outcomes.sum(), outcomes.size).pvalue), "the law of fair coins")


def by_order(scores: ArrayLike, positive: ArrayLike) -> ChanceTest:
    """Test that areas under ROC curves owe nothing to labels in an order drawn at random, booleans `positive` (K, n).

    The ranks of one kind are then a draw without replacement: Hoeffding's inequality holds for it (JASA 1963, section
    6). `scores` (K, n).
    """
    truth = np.asarray(positive, bool)
    ranks = _ranks(scores)
    n = truth.shape[1]
    moved = total = 0.0
    for row, kind in zip(ranks, truth, strict=True):
        rarer = kind.sum() <= n / 2
        drawn = kind if rarer else ~kind
        shift = (row[drawn] - 0.5 * (n + 1)).sum() / n
        moved += shift if rarer else -shift
        total += drawn.sum() * float(np.ptp(row) / n) ** 2 / 4.0
    return ChanceTest(_hoeffding(moved, total), "its labels in another order")


ORDERS = 10_000
"""Random orders of labels behind a permutation test: its least p-value is one over so many and one."""


def by_permutation(
    success: Callable[[Ints], Floats],
    labels: Ints,
    free: NDArray[np.intp],
    generator: np.random.Generator,
) -> tuple[Floats, ChanceTest]:
    """Test that `labels` (N,) of the records `free` could as well stand in another order (Fisher's permutation test).

    Args:
        success: Returns the success (n,) with each of n orders (n, N); the larger, the more it tells.
        labels: Labels as they are.
        free: Records whose labels are permuted; what was guessed must owe nothing to which of them has which label,
            but by what the test is about.
        generator: Draws the orders.

    Returns:
        The success (10,000,) in random orders, and the test, of p-value (1 + how many do as well) / (1 + 10,000).
    """
    as_dealt = success(labels[None])[0]
    rows = max(1, (1 << 22) // len(labels))
    drawn = []
    for first in range(0, ORDERS, rows):
        orders = np.tile(labels, (min(rows, ORDERS - first), 1))
        orders[:, free] = generator.permuted(orders[:, free], axis=1)
        drawn.append(success(orders))
    under_others = np.concatenate(drawn)
    as_well = int((under_others >= as_dealt - 1e-9).sum())
    return under_others, ChanceTest((1 + as_well) / (1 + ORDERS), f"{ORDERS:,} orders of the labels")


MOST_PAIRINGS = 200_000
AS_WELL = 100
"""Random pairings at most, and how many that do as well are enough: the more do, the sooner the test ends."""


def by_pairing(guesses: Floats, truth: Floats, generator: np.random.Generator) -> ChanceTest:
    """Test that `guesses` (n, d) are about the records of `truth` (n, d), taken about its mean, no more than others.

    Records are paired with guesses at random; nothing is fitted again. The p-value is sequential (Besag and Clifford,
    Biometrika 1991): h / l where the h-th pairing that does as well, h = 100, is the l-th, or else
    (1 + how many do) / (1 + 200,000). Both signs count.
    """
    n = len(truth)
    gains = guesses @ (truth - truth.mean(0)).T
    # Guesses that are the same of all records gain the same in any order, but for rounding.
    as_paired = abs(np.trace(gains)) - 1e-12 * n * np.abs(gains).max()
    rows = max(1, (1 << 20) // n)
    as_well = drawn = 0
    places = np.arange(n)
    while drawn < MOST_PAIRINGS:
        count = min(rows, MOST_PAIRINGS - drawn)
        orders = generator.permuted(np.tile(places, (count, 1)), axis=1)
        hits = np.flatnonzero(np.abs(gains[places, orders].sum(1)) >= as_paired)
        if as_well + len(hits) >= AS_WELL:
            last = drawn + int(hits[AS_WELL - as_well - 1]) + 1
            return ChanceTest(AS_WELL / last, f"{last:,} pairings of records")
        as_well += len(hits)
        drawn += count
    return ChanceTest((1 + as_well) / (1 + drawn), f"{drawn:,} pairings of records")


def _ranks(scores: ArrayLike) -> Floats:
    """Return the ranks of scores (K, n) within each training, those of equal scores averaged."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(np.asarray(scores, float), axis=1))


def _hoeffding(moved: float, squares: float) -> float:
    """Bound P(|sum| >= |moved|) of independent terms about 0 whose half ranges have squares that sum to `squares`."""
    if squares <= 0.0:
        return 1.0
    return min(1.0, 2.0 * float(np.exp(-0.5 * moved**2 / squares)))


def by_names(guessed: ArrayLike, labels: ArrayLike, classes: int) -> ChanceTest | None:
    """Test that guesses (K, n) of `labels` (K, n) are right as often as under other names for the guessed classes.

    The control deals labels at random, so that where classes are equally common an attack may as well have learnt any
    other names for them. What guesses of one class share, a cluster or an unlucky training, stays with it. Right
    guesses are counted beyond those that the shares of guesses and labels give. None where classes differ much in size.
    """
    named = np.asarray(guessed)
    truth = np.asarray(labels)
    common = np.bincount(truth.ravel(), minlength=classes)
    if classes < 3 or common.max() > 1.5 * common.min():
        return None
    counts = [np.bincount(both, minlength=classes**2) for both in named * classes + truth]
    tables = np.reshape(counts, (-1, classes, classes))
    tables = tables - tables.sum(2, keepdims=True) * tables.sum(1, keepdims=True) / named.shape[1]
    names = _names(classes)
    as_named = np.trace(tables, axis1=1, axis2=2).sum()
    under_others = np.zeros(len(names))
    for number, table in enumerate(tables):
        # Each training has names of its own: the same list, begun elsewhere.
        drawn = np.roll(names, 7919 * number, axis=0)
        under_others += table[np.arange(classes), drawn].sum(1)
    as_far = (np.abs(under_others) >= abs(as_named) - 1e-9 * named.size).sum()
    return ChanceTest(float(1 + as_far) / (1 + len(names)), "its classes under other names")


@cache
def _names(classes: int) -> NDArray[np.intp]:
    """Return uniform permutations (n, classes) of the classes, the same in every run."""
    generator = np.random.default_rng(np.random.SeedSequence([classes, _EXCHANGES]))
    return generator.permuted(np.tile(np.arange(classes), (_EXCHANGES, 1)), axis=1)


LEAST_RECORDS = 400
MOST_CLASSES = 10
MOST_CLIENTS = 10
"""Records of a positive control, at least, classes and clients at most: beyond these what is known need not hold."""


def known_records(dataset: VerticalDataset, seed: int) -> VerticalDataset:
    """Return records shaped as those of `dataset`, on which it is known beforehand what an attack finds.

    A positive control tests the attack, not the data. Features of the user's own may be constant, repeat, or be so
    large that gradients vanish, and a class may have one record: a right attack would fail there. So features are
    standard normal numbers (token ids stay), and labels are in random order: the first class has three records to two
    of every other, for attacks that tell two classes apart by which is rarer. Where the target is a number, each class
    stands for its own number.
    """
    generator = stream(seed, Purpose.CONTROL, 0, 3)
    classes = min(dataset.classes, MOST_CLASSES)

    def drawn(records: Records, least: int) -> Records:
        count = max(len(records), least)
        parts = generator.permutation(count) % (2 * classes + 1)
        blocks = []
        for block in records.features[:MOST_CLIENTS]:
            shape: Any = (count, *(size or 1 for size in block.shape[1:]))  # a party may have no features
            ids = block.dtype != np.float32
            blocks.append(np.resize(block, shape) if ids else generator.standard_normal(shape, np.float32))
        return Records(tuple(blocks), parts // 2 % classes)

    return replace(
        dataset,
        name=f"records of a known answer, shaped as {dataset.name}",
        classes=classes,
        variables=(),
        values=None if dataset.values is None else np.arange(classes, dtype=np.float32),
        train=drawn(dataset.train, LEAST_RECORDS),
        test=drawn(dataset.test, LEAST_RECORDS // 4),
    )


def labels_in_own_features(dataset: VerticalDataset, *, of_all: bool = False) -> VerticalDataset:
    """Return `dataset` with the first client's block replaced by the one-hot label, or with the blocks `of_all`.

    Clients who pool features of random numbers need many more answers to read the labels in one block.
    """

    def planted(records: Records) -> Records:
        block = np.eye(dataset.classes, dtype=np.float32)[records.labels]
        others = [block if of_all else b for b in records.features[1:] if b.dtype == np.float32]
        return Records((block, *others), records.labels)

    return replace(
        dataset,
        name=f"{dataset.name} with labels planted at {'all clients' if of_all else 'client 1'}",
        train=planted(dataset.train),
        test=planted(dataset.test),
        vocabulary=None,
        variables=(),
    )


def labels_by_heart(dataset: VerticalDataset, seed: int) -> VerticalDataset:
    """Return records of noise in as many blocks as `dataset` has, with random labels: only learning by heart fits them.

    256 to train on, or to draw members from, in 10 classes; 16 numbers a block.
    """
    generator = stream(seed, Purpose.CONTROL, 1)

    def part(count: int) -> Records:
        shape = (count, 16)
        blocks = tuple(generator.standard_normal(shape, np.float32) for _ in dataset.train.features)
        return Records(blocks, generator.integers(10, size=count))

    return VerticalDataset("labels to learn by heart", part(256), part(64), 10, "blocks of noise", {})
