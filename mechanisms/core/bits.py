"""Exact draws from uniform bits: events of chance exp(-x), uniform numbers, and mechanisms on counts made of them.

A pure guarantee of (epsilon, 0) is literally false of noise that is drawn in floating point: it has a largest value,
and gaps between values, so that an output may be possible under one of two neighbouring inputs alone. Here a chance
exp(-x) with a rational x is met by comparing uniform bits with its binary expansion, 64 digits and as many more as it
takes (Canonne, Kamath and Steinke, NeurIPS 2020, sample it another way), so that the law is exact given uniform bits.
An epsilon is the double that it is given as, which is a rational number.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpzv_audit.base.seeds import Purpose, stream

from .noise import Floats, gaussian
from .secret import Origin, SecretBits, Words

Whole = NDArray[np.int64]
_WORD = 64


@dataclass
class BitSource:
    """Uniform words of 64 bits one after the other: of secret bits, or of a stream of a seed, which protects nothing.

    `purpose` and `place` name the stretch; no other source of the same origin may have the same name.
    """

    origin: Origin
    purpose: Purpose
    place: tuple[int, ...]
    _drawn: int = field(default=0, init=False)

    def words(self, count: int) -> Words:
        """Return the next `count` words, each in [0, 2^64)."""
        key = (*self.place, self._drawn)
        self._drawn += 1
        if isinstance(self.origin, SecretBits):
            return self.origin.words(count, self.purpose, *key)
        drawn: Words = stream(self.origin, self.purpose, *key).integers(0, 2**_WORD, count, dtype=np.uint64)
        return drawn

    def normals(self, shape: tuple[int, ...], scale: float) -> Floats:
        """Return the next round(scale Z) for independent standard normal Z, whole numbers of `shape`, exact in law."""
        key = (*self.place, self._drawn)
        self._drawn += 1
        return gaussian(shape, scale, self.origin, self.purpose, *key, rounded=True)


def happens(gaps: Whole, unit: Fraction, bits: BitSource) -> NDArray[np.bool_]:
    """Return for each of the `gaps` (n,), whole numbers of at least 0, whether a chance exp(-unit * gap) came true."""
    distinct, places = np.unique(gaps, return_inverse=True)
    limits = np.array([0 if gap == 0 else _digits(unit * int(gap), _WORD) for gap in distinct], np.uint64)[places]
    words = bits.words(len(gaps))
    true: NDArray[np.bool_] = (words < limits) | (gaps == 0)
    # The first 64 digits are those of the chance itself: the next decide.
    for tie in np.flatnonzero((words == limits) & (gaps != 0)).tolist():
        true[tie] = _goes_on_below(unit * int(gaps[tie]), bits)
    return true


def uniform(count: int, choices: int, bits: BitSource) -> Whole:
    """Return `count` whole numbers, each uniform in [0, choices), by rejection."""
    most = 2**_WORD // choices * choices - 1
    words = bits.words(count)
    wrong = np.flatnonzero(words > np.uint64(most))
    while len(wrong):
        words = words.copy()
        words[wrong] = bits.words(len(wrong))
        wrong = wrong[words[wrong] > np.uint64(most)]
    return (words % np.uint64(choices)).astype(np.int64)


def permutations(count: int, size: int, bits: BitSource) -> Whole:
    """Return `count` uniform permutations (count, size) of 0 to size - 1 (Fisher and Yates)."""
    orders = np.tile(np.arange(size), (count, 1))
    rows = np.arange(count)
    for last in range(size - 1, 0, -1):
        other = uniform(count, last + 1, bits)
        orders[rows, last], orders[rows, other] = orders[rows, other], orders[rows, last].copy()
    return orders


def permute_and_flip(counts: Whole, epsilon: float, bits: BitSource) -> Whole:
    """Return one column of each row of `counts` (n, c), near its largest (McKenna and Sheldon 2020, algorithm 1).

    Columns are asked in random order, and one is taken with chance exp(-epsilon (max - count) / 2): (epsilon, 0) where
    a neighbour moves the counts of one row by at most 1 each, some up and some down.
    """
    unit = Fraction(epsilon) / 2
    order = permutations(len(counts), counts.shape[1], bits)
    gaps = np.take_along_axis(counts.max(1, keepdims=True) - counts, order, 1)
    taken = np.full(len(counts), -1)
    for place in range(counts.shape[1]):
        open_rows = np.flatnonzero(taken < 0)
        came = open_rows[happens(gaps[open_rows, place], unit, bits)]
        taken[came] = order[came, place]
    return taken


def randomised_response(labels: Whole, classes: int, epsilon: float, bits: BitSource) -> Whole:
    """Return each of the `labels` (n,) with chance e^epsilon / (e^epsilon + classes - 1), else one of the others.

    (epsilon, 0) for each label by itself (Warner 1965; Kairouz et al. 2016). A uniform class is taken where it is the
    label, another with chance exp(-epsilon), until one is.
    """
    unit = Fraction(epsilon)
    responses = np.empty_like(labels)
    left = np.arange(len(labels))
    while len(left):
        offered = uniform(len(left), classes, bits)
        taken = happens((offered != labels[left]).astype(np.int64), unit, bits)
        responses[left[taken]] = offered[taken]
        left = left[~taken]
    return responses


def two_sided_geometric(shape: tuple[int, ...], unit: Fraction, bits: BitSource) -> Whole:
    """Return whole numbers of `shape`, each z with chance proportional to exp(-unit |z|) (Ghosh et al., STOC 2009)."""
    count = int(np.prod(shape))
    totals = np.zeros(2 * count, np.int64)
    going = np.arange(2 * count)
    while len(going):
        going = going[happens(np.ones(len(going), np.int64), unit, bits)]
        totals[going] += 1
    return (totals[:count] - totals[count:]).reshape(shape)


@lru_cache(maxsize=4096)
def _digits(x: Fraction, bits: int) -> int:
    """Return floor(2^bits exp(-x)) for x > 0, exactly."""
    from mpmath import mp

    more = 64
    while True:
        with mp.workprec(bits + more):
            # mpmath rounds to the working precision: far less than 2^(8 - more) of a unit is unknown.
            scaled = mp.ldexp(mp.exp(-mp.mpf(x.numerator) / x.denominator), bits)
            low, high = (int(mp.floor(scaled + side * mp.ldexp(1, 16 - more))) for side in (-1, 1))
        if max(0, low) == high:
            return high
        more *= 2


def _goes_on_below(x: Fraction, bits: BitSource) -> bool:
    """Return whether uniform bits whose first word is that of exp(-x) go on to a number below it."""
    known = 2 * _WORD
    while True:
        following = _digits(x, known) & ((1 << _WORD) - 1)
        word = int(bits.words(1)[0])
        if word != following:
            return word < following
        known += _WORD
