"""Ends work by signals: SIGTERM and SIGHUP end a command as Ctrl-C does, and a timer ends a block that has a deadline.

The exit code of a command that a signal ended is 128 plus its number, as in a shell.
"""

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from traceback import walk_stack
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
# Signals that follow one sooner than this count as the same: a sender of SIGTERM often sends SIGHUP beside it.
_SAME_SIGNAL_SECONDS = 5.0


@contextmanager
def stoppable() -> Iterator[list[signal.Signals]]:
    """Raise `KeyboardInterrupt` in the block where SIGTERM or SIGHUP comes; the list holds those that came.

    A signal that was ignored before stays ignored (`nohup`). One that comes while torch is imported, Ctrl-C included,
    waits until it has been: an exception in C++ code that calls Python there would abort the process. Outside of the
    main thread, which alone may handle signals, the block runs as it is.
    """
    came: list[signal.Signals] = []
    last = -_SAME_SIGNAL_SECONDS

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if _importing_torch(frame):
            _send_later(number)
            return
        if number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        came.append(signal.Signals(number))
        _leave_lost_terminals()
        if time.monotonic() - last < _SAME_SIGNAL_SECONDS:
            return
        last = time.monotonic()
        raise KeyboardInterrupt

    taken = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in SIGNALS}
        taken = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            taken[signal.SIGINT] = signal.default_int_handler
    for number in taken:
        signal.signal(number, handle)
    try:
        yield came
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def exit_code(code: int, came: list[signal.Signals]) -> int:
    """Return the exit code of a command that ended with `code` after the signals that `came`."""
    return 128 + came[0] if came and code == INTERRUPTED else code


def leave_to_parent() -> None:
    """Ignore in this process, a worker, what ends a command: its parent gets the same signal, and ends its workers."""
    for number in (signal.SIGINT, *SIGNALS):
        signal.signal(number, signal.SIG_IGN)
    _open.clear()  # a fork inherits no timer


def _importing_torch(frame: FrameType | None) -> bool:
    return any(
        above.f_code.co_name == "<module>" and above.f_globals.get("__name__", "").partition(".")[0] == "torch"
        for above, _ in walk_stack(frame)
    )


def _send_later(number: int) -> None:
    timer = threading.Timer(0.05, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def _leave_lost_terminals() -> None:
    """Let what would be written to a terminal that has been closed go nowhere: writing there would be an error."""
    try:
        import termios
    except ImportError:
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, closed, or not a file
            try:
                termios.tcgetattr(stream.fileno())
            except termios.error as error:
                if error.args[0] == errno.EIO:  # ENOTTY: never was one
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


GRACE_SECONDS = 60.0
"""Time that planning, theory and existing score files may take past the end of a budget, together."""
TRIAL_SECONDS = 60.0
"""Default time limit of a single run of a user's mechanism."""
_LEAST_SECONDS = 1e-3
# Deadlines of the blocks that the main thread is in, the innermost last.
_open: list[float] = []


class TimeIsUp(BaseException):
    """The time of a block is over. No `Exception`, so that no code in between takes it for an error of its own."""


class TooLong(BaseException):
    """Raised inside code of the user's that is past its limit; no `except Exception` of that code stops it."""


def can_ring() -> bool:
    """Return whether a timer reaches this thread: that needs a POSIX system and the main thread."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextmanager
def _bare(*kinds: type[BaseException]) -> Iterator[None]:
    """Raise what is of `kinds` bare: Python 3.11 wraps it in a RuntimeError while a class is made, as imports do."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, kinds):
            raise error.__cause__ from None
        raise


@contextmanager
def until(deadline: float | None, raises: type[BaseException] = TimeIsUp) -> Iterator[None]:
    """Raise `raises` in the block once `time.monotonic()` passes `deadline`; None for no limit.

    Where no timer rings (`can_ring`) a block runs to its end. What one call into a library takes, it takes: Python
    hears of the timer after it. An outer block of this kind that ends no later ends this one too.
    """
    if deadline is None or not can_ring() or (_open and _open[-1] <= deadline):
        with _bare(raises, TimeIsUp):
            yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise raises

    started = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    # Again every second: an exception that is raised while an object is being finalised is lost.
    left, again = signal.setitimer(signal.ITIMER_REAL, max(deadline - started, _LEAST_SECONDS), 1.0)
    _open.append(deadline)
    try:
        with _bare(raises, TimeIsUp):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _open.pop()
        signal.signal(signal.SIGALRM, before)
        if left:  # somebody else's timer goes on
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - started), _LEAST_SECONDS), again)
