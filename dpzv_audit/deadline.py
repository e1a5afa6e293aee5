"""Ends work that runs past its time, wherever it is: by the system's timer, as an interrupt from the keyboard would."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_SECONDS = 60.0
"""What planning, theory and score files that are there already may take past the end of a budget, together."""
TRIAL_SECONDS = 60.0
"""What a single run of a user's mechanism may take, unless told otherwise."""
_AGAIN_SECONDS = 1.0
_LEAST_SECONDS = 1e-3
_open: list[float] = []
"""Deadlines of the blocks that the main thread is in, the innermost last."""


class TimeIsUp(BaseException):
    """The time of a block is over. No `Exception`, so that no code in between takes it for an error of its own."""


def can_ring() -> bool:
    """Return whether a timer reaches this thread: that needs a POSIX system and the main thread."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextmanager
def until(deadline: float | None, raises: type[BaseException] = TimeIsUp) -> Iterator[None]:
    """Raise `raises` in the block once `time.monotonic()` passes `deadline`; None for no limit.

    Where no timer rings (`can_ring`) a block runs to its end. What one call into a library takes, it takes: Python
    hears of the timer after it. An outer block of this kind that ends no later ends this one too.
    """
    if deadline is None or not can_ring() or (_open and _open[-1] <= deadline):
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise raises

    started = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    # Again and again: an exception that is raised while an object is being finalised is lost.
    left, again = signal.setitimer(signal.ITIMER_REAL, max(deadline - started, _LEAST_SECONDS), _AGAIN_SECONDS)
    _open.append(deadline)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _open.pop()
        signal.signal(signal.SIGALRM, before)
        if left:  # somebody else's timer goes on
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - started), _LEAST_SECONDS), again)
