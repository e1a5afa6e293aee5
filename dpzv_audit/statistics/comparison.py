"""Compares measurements by their intervals: of the trainings that were made, and over further ones."""

from dataclasses import dataclass
from typing import Literal

from ..base.findings import Interval, OverTrainings

Side = Literal["above", "below"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Where a measurement lies beside another: on one `side` of it, or on neither (None).

    `of_these` says that this is about the trainings that were made; else it is about further trainings too.
    """

    side: Side | None
    of_these: bool


def compared(measured: Interval, other: Interval | float) -> Comparison:
    """Return on which side of `other` the measurement `measured` lies; intervals that overlap show neither.

    Compares first all of these trainings, each of them and by their records, one draw in all trainings or one in each:
    neither may decide otherwise. A baseline that shares the luck of each
    training, such as which labels are known, is compared training by training, and by the records of all. Where that
    shows neither side and both have intervals over further trainings, compares those.
    """
    side = _side(of_these_trainings(measured), of_these_trainings(other))
    if side is None and _behind_in_each(measured, other):
        side = "above"
    if side is not None or measured.over_trainings is None:
        return Comparison(side=side, of_these=measured.over_trainings is not None)
    further = over_further_trainings(measured)
    others = over_further_trainings(other)
    return Comparison(side=_side(further, others) if further and others else None, of_these=False)


def _behind_in_each(measured: Interval, other: Interval | float) -> bool:
    """Return whether `other` lies below in each training, and below by the records of all of them."""
    if not isinstance(other, Interval) or other.over_trainings is None:
        return False
    over = other.over_trainings
    return over.behind == over.count and measured.low > other.high


def of_these_trainings(measured: Interval | float) -> tuple[float, float]:
    """Return the limits of a measurement by its trainings' records and by each of these trainings, the wider ones."""
    if not isinstance(measured, Interval):
        return measured, measured
    trainings = measured.over_trainings
    if trainings is None:
        return measured.low, measured.high
    low, high = _by_shared_records(trainings, (measured.low, measured.high))
    return min(low, trainings.least), max(high, trainings.most)


def _by_shared_records(trainings: OverTrainings, limits: tuple[float, float]) -> tuple[float, float]:
    """Return `limits`, or those by the records that trainings share where these are wider."""
    low, high = limits
    if trainings.shared_low is None or trainings.shared_high is None:
        return limits
    return min(low, trainings.shared_low), max(high, trainings.shared_high)


def over_further_trainings(measured: Interval | float) -> tuple[float, float] | None:
    """Return the limits of a measurement over further trainings; None where its trainings are too few to tell."""
    if not isinstance(measured, Interval) or measured.over_trainings is None:
        return of_these_trainings(measured)
    trainings = measured.over_trainings
    if trainings.low is None or trainings.high is None:
        return None
    return _by_shared_records(trainings, (trainings.low, trainings.high))


def _side(ours: tuple[float, float], theirs: tuple[float, float]) -> Side | None:
    if ours[0] > theirs[1]:
        return "above"
    return "below" if ours[1] < theirs[0] else None
