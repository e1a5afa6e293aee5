"""Scores that read the numbers of a view exactly: values that repeat, and low bits that lie on a coarse grid.

Both put each number into a category and count on pilots how often either world gives it. The score is the sum of the
log odds over the numbers of the view. A category that no pilot run gave says nothing.

A value that comes twice from a continuous law is one without noise, or with noise that was drawn before. Noise that was
drawn or rounded on a coarse grid leaves the low bits of the signal as they are: x minus the signal lies on that grid in
one world alone (Mironov, "On significance of the least significant bits for differential privacy", CCS 2012). The
signal need not be known: what x leaves on the grid is the same in all runs of a world.

A grid counts as coarse from `_BITS` bits above the spacing of doubles on: below it every Gaussian that is drawn in
doubles shows something.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from .arrays import Floats, Ints

Codes = NDArray[np.int64]
Coded = Callable[[Floats], Codes]
"""From numbers (n,) to their categories."""

MOST_COLUMNS = 256
"""Numbers of a view whose low bits are looked at; of longer views the first ones."""
_BITS = 12
_CELLS = 256
"""Categories of what a number leaves on a grid."""
_STEP = 2
"""Bits from one grid that is tried to the next: a grid that is finer than the noise's own shows it as well."""
_CLEAR = 3.0
"""Standard deviations by which the categories of a column must differ between the worlds to take part."""
_DIFFERENCES = 48
"""Differences of neighbouring values from which the step of a grid is worked out."""
_THIRDS = 3
_ROUNDING = 2.0**-10
"""What a number leaves on a grid that it lies on, at most, as a share of the grid's step."""


@dataclass(frozen=True)
class CodedColumn:
    """The categories of one column: the log odds of "in" of those that pilots gave, by code in ascending order."""

    column: int
    coded: Coded
    codes: Codes
    odds: Floats
    clear: float
    """How clearly the worlds differ in them, in standard deviations of chance."""

    def score(self, views: Floats) -> Floats:
        """Return the log odds (n,) of views (n, d)."""
        codes = self.coded(views[:, self.column])
        place = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return np.where(self.codes[place] == codes, self.odds[place], 0.0)


def repeats(views: Floats, truth: Ints) -> Callable[[Floats], Floats]:
    """Return the score of values that repeat exactly, by views (n, d) of the worlds `truth` (n,), 1 for "in"."""
    return _sum_of([_counted(column, _bits, views[:, column], truth) for column in range(views.shape[1])])


def low_bits(views: Floats, truth: Ints) -> Callable[[Floats], Floats]:
    """Return the score of low bits, by the grids on which the worlds differ most; arguments as for `repeats`."""
    columns = []
    for column in range(min(views.shape[1], MOST_COLUMNS)):
        values = views[:, column]
        tried = [_counted(column, coded, values, truth) for coded in _grids(values, truth)]
        columns.append(max(tried, key=attrgetter("clear")))
    return _sum_of(columns)


def _sum_of(columns: list[CodedColumn]) -> Callable[[Floats], Floats]:
    """Return the sum of the log odds of columns.

    Columns in which the worlds do not differ clearly take no part, except the one in which they differ most: chance in
    many of them would drown it.
    """
    most = max(columns, key=attrgetter("clear"))
    counted = [column for column in columns if column is most or column.clear > _CLEAR]

    def score(views: Floats) -> Floats:
        return np.asarray(np.sum([column.score(views) for column in counted], axis=0))

    return score


def _counted(column: int, coded: Coded, values: Floats, truth: Ints) -> CodedColumn:
    codes, place = np.unique(coded(values), return_inverse=True)
    inside, outside = (np.bincount(place[truth == world], minlength=len(codes)) for world in (1, 0))
    # A category of one run differs by 1 whatever happens: only those of several runs can differ more than by chance.
    both = inside + outside
    several = both > 1
    apart = ((inside - outside)[several] ** 2 / both[several]).sum() - several.sum()
    clear = float(apart / math.sqrt(2.0 * several.sum() + 1.0))
    return CodedColumn(column, coded, codes, np.log((inside + 0.5) / (outside + 0.5)), clear)


def _bits(values: Floats) -> Codes:
    """Return the bits of each number; 0 and -0 are equal."""
    return np.ascontiguousarray(values + 0.0).view(np.int64)


def _grids(values: Floats, truth: Ints) -> Iterator[Coded]:
    """Yield ways to put numbers into categories by their low bits."""
    yield _coarseness
    largest = float(np.abs(values).max())
    if largest == 0.0 or np.ptp(values) == 0.0:
        return
    least = np.spacing(largest) * 2.0**_BITS
    finest = round(math.log2(least))
    for power in range(finest, math.frexp(largest)[1] + 1, _STEP):
        yield _left_on(2.0**power)
        yield _left_on(2.0**power, by_size=True)
    # A few values near 0 may lie on a much finer grid: thirds of the values without them have a step of their own.
    thirds = [values[truth == world][start::_THIRDS] for world in (1, 0) for start in range(_THIRDS)]
    steps = (common_step(third, least) for third in thirds)
    yield from map(_left_on, dict.fromkeys(step for step in steps if step))


def _coarseness(values: Floats) -> Codes:
    """Return the exponent of each number, and how many bits its last one is above `_BITS` bits of a double's last."""
    fraction, exponents = np.frexp(values)
    whole = (fraction * 2.0**53).astype(np.int64)
    last = np.where(whole == 0, 53, np.frexp((whole & -whole).astype(np.float64))[1] - 1)
    return np.asarray(exponents.astype(np.int64) * 64 + np.maximum(last - _BITS, 0))


def _left_on(step: float, *, by_size: bool = False) -> Coded:
    """Return the category of what a number leaves on the grid of `step`; with `by_size` for each exponent its own."""

    def coded(values: Floats) -> Codes:
        left: Codes = np.round(np.remainder(values, step) * (_CELLS / step)).astype(np.int64) % _CELLS
        return left + _CELLS * np.frexp(values)[1].astype(np.int64) if by_size else left

    return coded


def common_step(values: Floats, least: float) -> float:
    """Return the largest step of which all differences of `values` (n,) are multiples; 0 where it is below `least`.

    Euclid's algorithm on differences of neighbours, with the step made more exact by ever larger ones.
    """
    ordered = np.unique(values)
    differences = np.diff(ordered)
    differences = np.sort(differences[differences > least])
    if differences.size < 2:
        return 0.0
    kept = differences[np.linspace(0, differences.size - 1, _DIFFERENCES).astype(np.intp)]
    step = float(kept[0])
    for difference in map(float, kept[1:]):
        step = _divisor(difference, step, least)
        if not step:
            return 0.0
    for difference in (*map(float, kept), float(ordered[-1] - ordered[0])):
        step = difference / round(difference / step)
    return step


def _divisor(larger: float, smaller: float, least: float) -> float:
    """Return the greatest common divisor of two numbers up to rounding; 0 where it is below `least`."""
    while smaller > least:
        rest = abs(math.remainder(larger, smaller))
        # Rounding leaves a little of an exact multiple. What is so small by chance is found out by the next number.
        if rest < smaller * _ROUNDING:
            return smaller
        larger, smaller = smaller, rest
    return 0.0
