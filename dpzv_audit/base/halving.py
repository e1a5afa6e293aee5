"""Work on numbered things in pieces: half as many at a time from where memory ran out, to the same results."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from .errors import out_of_memory

T = TypeVar("T")


def in_pieces(
    work: Callable[[int, int], T], first: int, last: int, at_once: int | None = None
) -> Iterator[tuple[T, int | None]]:
    """Yield `work(a, b)` for pieces that make up `first` to `last`, at most `at_once` at a time.

    Where memory runs out, half as many are tried from there on. With each piece comes how many at a time it sufficed
    for, None where it sufficed for all that was tried. Raises what `work` raises, out of memory for one alone too.
    """
    size = last - first if at_once is None else min(at_once, last - first)
    fitted = at_once
    place = first
    while place < last:
        stop = min(place + size, last)
        try:
            done = work(place, stop)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error) or stop - place < 2:
                raise
            size = fitted = (stop - place) // 2
        else:
            yield done, fitted
            place = stop


def as_share(
    progress: Callable[[int], None] | None, piece: tuple[int, int], *, of: int, rounds: int
) -> Callable[[int], None]:
    """Return the progress of a piece as that of all: told r of its `rounds`, `progress` hears their worth of all `of`.

    Args:
        progress: Hears of 0 to `rounds` rounds; None where nobody listens.
        piece: First and last number of the piece's trainings, as `in_pieces` gives them.
        of: How many trainings there are.
        rounds: Rounds that each takes.
    """
    first, last = piece
    return lambda done: progress((first * rounds + (last - first) * done) // of) if progress is not None else None


def shortage(at_once: int | None) -> dict[str, str]:
    """Return the note of a result where memory held no more than `at_once` trainings; empty where it held all."""
    if at_once is None:
        return {}
    return {"memory": f"ran out: from then on {at_once} trainings at a time, to the same numbers"}
