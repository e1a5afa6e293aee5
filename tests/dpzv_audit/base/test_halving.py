"""Work in pieces: everything is done once and in order, whatever fits, and progress never goes back or beyond."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.base.halving import as_share, in_pieces, shortage


@given(st.integers(1, 60), st.integers(1, 60), st.none() | st.integers(1, 60), st.integers(1, 5))
def test_everything_is_done_once_in_order_and_progress_rises_to_the_end(count, fits, at_once, rounds):
    seen = []

    def work(first, last):
        if last - first > fits:
            raise MemoryError
        told = as_share(seen.append, (first, last), of=count, rounds=rounds)
        for done in range(1, rounds + 1):
            told(done)
        return list(range(first, last))

    found = list(in_pieces(work, 0, count, at_once))
    assert [k for piece, _ in found for k in piece] == list(range(count))
    assert seen == sorted(seen)
    assert seen[-1] == rounds
    tried = min(at_once or count, count)
    sufficed = found[-1][1]
    assert sufficed == at_once if tried <= fits else sufficed is not None and sufficed <= fits < 2 * sufficed + 2


def test_what_does_not_fit_alone_and_what_is_no_lack_of_memory_end_it():
    def work(first, last):
        raise error

    for error in (MemoryError("all of it"), RuntimeError("CUDA error: out of memory"), RuntimeError("shapes differ")):
        with pytest.raises(type(error), match=str(error)):
            list(in_pieces(work, 0, 4))


def test_nobody_need_listen_to_progress_and_without_shortage_nothing_to_say():
    as_share(None, (0, 1), of=2, rounds=3)(1)
    assert shortage(None) == {}
    assert "2 trainings at a time" in shortage(2)["memory"]
