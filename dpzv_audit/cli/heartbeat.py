"""A line every half minute on stderr for whoever cannot see progress bars: in a pipe, a log, a CI."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TextIO

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from ..base.errors import one_line
from ..base.rounding import duration

EVERY_SECONDS = 30.0
_MOST_TASKS = 3
_shown: list[Progress] = []
"""The bars of the work that is under way, the innermost last."""


def shows_bars(stream: TextIO | None) -> bool:
    """Return whether bars can move on `stream`: on a terminal. `FORCE_COLOR` makes no pipe one."""
    return stream is not None and stream.isatty() and Console(file=stream).is_interactive


@contextmanager
def showing(bars: Progress) -> Iterator[Progress]:
    """Let the heartbeat tell of `bars` while the block runs, and draw them where they are not disabled."""
    _shown.append(bars)
    try:
        with bars:
            yield bars
    finally:
        _shown.remove(bars)


@contextmanager
def beating(*, quiet: bool) -> Iterator[None]:
    """Say on stderr what is under way while the block runs, where that is no terminal, unless `quiet`."""
    if quiet or sys.stderr is None or shows_bars(sys.stderr):
        yield
        return
    thread = _Thread(sys.stderr)
    thread.begin()
    _threads.append(thread)
    try:
        yield
    finally:
        _threads.remove(thread)
        thread.end()


@contextmanager
def paused() -> Iterator[None]:
    """End the heartbeat's thread while the block runs: a process with a second thread cannot be forked."""
    threads = list(_threads)
    for thread in threads:
        thread.end()
    try:
        yield
    finally:
        for thread in threads:
            thread.begin()


class _Thread:
    """The thread that beats on `stream`; it may be ended and begun again."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic()

    def begin(self) -> None:
        self._over = threading.Event()
        heartbeat = Heartbeat(self._stream, self._over.wait, started=self._started)
        self._thread = threading.Thread(target=heartbeat.run, name="heartbeat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()


_threads: list[_Thread] = []
"""The threads that beat, at most one in a command."""


@dataclass(frozen=True)
class Heartbeat:
    """Writes to `stream` until `wait`, which is told for how many seconds, says that all is over.

    The work was `started` at a time of the `clock`, by default when it begins to write.
    """

    stream: TextIO
    wait: Callable[[float], bool]
    clock: Callable[[], float] = time.monotonic
    started: float | None = None

    def run(self) -> None:
        """Write a line whenever `EVERY_SECONDS` have passed; nobody who listens is the end of it."""
        started = self.clock() if self.started is None else self.started
        while not self.wait(EVERY_SECONDS):
            passed = timedelta(seconds=round(self.clock() - started))
            try:
                print(f"dpzv-audit: {passed}: {one_line(under_way())}", file=self.stream, flush=True)
            except (OSError, ValueError):
                return


def under_way() -> str:
    """Return what is under way in words: the stages that are not done, or the one that was last."""
    tasks = list(_shown[-1].tasks) if _shown else []
    left = ([task for task in tasks if not task.finished] or tasks[-1:])[-_MOST_TASKS:]
    # What stands within another stage ends long before that does.
    return "; ".join(_words(task, time_left(task) if not place else "") for place, task in enumerate(left)) or "at work"


def _words(task: Task, left: str) -> str:
    note = str(task.fields.get("note", ""))
    counted = task.total is not None and " of " not in note
    progress = f"{task.completed:,.0f} of {task.total:,.0f}" if counted else ""
    notes = ", ".join(filter(None, (progress, note, left)))
    return f"{task.description}: {notes}" if notes else task.description


def time_left(task: Task) -> str:
    """Return how long a stage still takes at its pace so far, as "about 40 s"; "" where nothing tells."""
    if str(task.fields.get("note", "")).endswith(" left"):
        return ""  # the note says how long everything takes
    if task.finished:
        return "evaluating"
    if not task.elapsed or not task.completed or task.total is None:
        return ""
    seconds = task.elapsed * (task.total - task.completed) / task.completed
    if seconds < 1.0:
        return ""
    return duration(seconds)


class TimeLeft(ProgressColumn):
    """How long a stage still takes, as the heartbeat says it."""

    def render(self, task: Task) -> Text:
        """Return the words for a bar."""
        return Text(time_left(task))
