"""Carries out the steps of all claims of a file, stage by stage: in this process, or on lanes of worker processes.

A worker gets a claim and a task, builds the claim's source itself and keeps it, so that nothing but claims and blocks
travels. Every block draws from streams of its own: the numbers do not depend on where and in which order it was drawn.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from dpzv_audit.auditing.engine import MOST_DEATHS
from dpzv_audit.auditing.workers import Lane, Workers, failure_of, lanes_of, worker_died
from dpzv_audit.claims.blocks import Block
from dpzv_audit.claims.evidence import Evidence, Theory
from dpzv_audit.claims.load import PlacedClaim
from dpzv_audit.claims.progress import (
    THEORY,
    ClaimRun,
    Done,
    Progress,
    Step,
    Task,
    carried_out,
    progress_of,
    result_of,
)
from dpzv_audit.claims.sources import Place, Source, source_of
from dpzv_audit.deadline import GRACE_SECONDS, TimeIsUp, until
from dpzv_audit.errors import AuditError

WHOLE: Task = ("the whole claim", 0)
_POLL_SECONDS = 0.5
_MOST_KEPT = 4


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What holds for every claim of the file: error rate, the p-value that decides, and what it all may cost.

    `deadline` is on `time.monotonic()`'s clock, and `over` says in words that it has passed.
    """

    alpha: float
    stop: float
    max_trials: int | None = None
    deadline: float | None = None
    over: str = ""

    @property
    def last(self) -> float | None:
        """When everything must have ended, a grace for theory and for score files after the deadline."""
        return None if self.deadline is None else self.deadline + GRACE_SECONDS


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What the gate does about each claim as it goes: its errors' names, stored blocks, status, the end."""

    named: Callable[[PlacedClaim], AbstractContextManager[None]]
    stored: Callable[[ClaimRun, Task], Block | None]
    keep: Callable[[ClaimRun, Task, Block], None]
    status: Callable[[int, str], None]
    ended: Callable[[int, ClaimRun], None]


@dataclass
class _Open:
    """A step of one claim that is under way."""

    run: ClaimRun
    progress: Progress | None
    step: Step
    results: list[Any] = field(default_factory=list)
    pending: int = 0
    cut: str = ""


def carry_out(runs: Mapping[int, ClaimRun], workers: Workers, *, place: Place, terms: Terms, hooks: Hooks) -> None:
    """Take every claim of `runs`, by its place in the file, to its end; `workers` beyond this process do the tasks.

    Raises the first error of a claim, and `KeyboardInterrupt` where that comes: what was done until then stands in the
    runs.
    """
    _Schedule(runs, workers, place=place, terms=terms, hooks=hooks).run()


class _Schedule:
    def __init__(
        self, runs: Mapping[int, ClaimRun], workers: Workers, *, place: Place, terms: Terms, hooks: Hooks
    ) -> None:
        self._place, self._terms, self._hooks = place, terms, hooks
        self._here = workers.kind == "here"
        self._workers = workers
        self._open: dict[int, _Open] = {}
        self._queue: list[tuple[int, int, int]] = []
        self._deaths: dict[tuple[int, int], int] = {}
        for index, run in runs.items():
            self._begin(index, run)

    def _begin(self, index: int, run: ClaimRun) -> None:
        assert run.source is not None
        run.missing = "interrupted before anything was done"
        if run.source.quick:
            self._add(index, _Open(run, None, Step(0, (WHOLE,), "testing")))
            return
        progress = progress_of(run, alpha=self._terms.alpha, stop=self._terms.stop, max_trials=self._terms.max_trials)
        self._add(index, _Open(run, progress, next(progress)))

    def _add(self, index: int, opened: _Open) -> None:
        self._open[index] = opened
        opened.results = [None] * len(opened.step.tasks)
        opened.pending = len(opened.step.tasks)
        for number in range(len(opened.step.tasks)):
            heapq.heappush(self._queue, (opened.step.order, index, number))
        if not opened.pending:
            self._resolve(index)

    def run(self) -> None:
        """Work until nothing is left."""
        if self._here:
            while self._queue:
                index, number = self._next()
                if self._ready(index, number):
                    continue
                opened = self._open[index]
                assert opened.run.source is not None
                try:
                    with self._hooks.named(opened.run.placed), until(self._end(index, number)):
                        outcome = perform(opened.run, opened.run.source, opened.step.tasks[number], self._terms)
                except TimeIsUp:
                    self._give_up(index, number)
                else:
                    self._settle(index, number, outcome)
            return
        self._in_lanes()

    def _in_lanes(self) -> None:
        lanes = lanes_of(self._workers, perform_apart)
        running: dict[Future[tuple[Any, float]], tuple[Lane, int, int]] = {}
        opened: list[Lane] = []
        free: list[Lane] = []
        try:
            while self._queue or running:
                joined = lanes.opened()
                opened += joined
                free += joined
                while self._queue and free:
                    index, number = self._next()
                    if not self._ready(index, number):
                        lane = free.pop()
                        running[self._submit(lane, index, number)] = (lane, index, number)
                if running and all(self._is_over(*at) for _, *at in running.values()):
                    for future, (_, index, number) in running.items():
                        future.cancel()  # for a cluster; a process of this machine is renewed
                        self._give_up(index, number)
                    running = {}
                    for lane in opened:
                        lane.renew()
                    free = list(opened)
                    continue
                if running:
                    self._collect(running, free)
        finally:
            lanes.close()

    def _collect(self, running: dict[Future[tuple[Any, float]], tuple[Lane, int, int]], free: list[Lane]) -> None:
        done, _ = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            lane, index, number = running.pop(future)
            free.append(lane)
            error = failure_of(future)
            if error is None:
                self._settle(index, number, future.result())
            elif worker_died(error):
                self._deaths[index, number] = self._deaths.get((index, number), 0) + 1
                lane.renew()
                placed = self._open[index].run.placed
                if self._deaths[index, number] >= MOST_DEATHS:
                    with self._hooks.named(placed):
                        raise AuditError(f"a worker died {MOST_DEATHS} times on it; ‹resume› goes on") from error
                heapq.heappush(self._queue, (self._open[index].step.order, index, number))
            else:
                with self._hooks.named(self._open[index].run.placed):
                    raise error

    def _submit(self, lane: Lane, index: int, number: int) -> Future[tuple[Any, float]]:
        opened = self._open[index]
        run = opened.run
        return lane.submit(run.placed, run.seed, self._place, opened.step.tasks[number], self._terms)

    def _next(self) -> tuple[int, int]:
        _, index, number = heapq.heappop(self._queue)
        return index, number

    def _drawn(self, index: int, number: int) -> bool:
        """Whether a task draws a block of trials, not theory or a whole quick claim, which have a grace."""
        return self._open[index].step.tasks[number] not in (WHOLE, (THEORY, 0))

    def _end(self, index: int, number: int) -> float | None:
        """Return when a task must have ended, on `time.monotonic()`'s clock."""
        return self._terms.deadline if self._drawn(index, number) else self._terms.last

    def _is_over(self, index: int, number: int) -> bool:
        end = self._end(index, number)
        return end is not None and time.monotonic() >= end

    def _ready(self, index: int, number: int) -> bool:
        """Whether the task needs no work: its block is stored, or time is up for it."""
        opened = self._open[index]
        task = opened.step.tasks[number]
        stored = self._hooks.stored(opened.run, task) if self._drawn(index, number) else None
        if stored is not None:
            self._settle(index, number, (stored, 0.0), fresh=False)
            return True
        if self._is_over(index, number):
            self._give_up(index, number)
            return True
        many = f" {number + 1}/{len(opened.step.tasks)}" if len(opened.step.tasks) > 1 else ""
        self._hooks.status(index, opened.step.doing + many)
        return False

    def _give_up(self, index: int, number: int) -> None:
        self._open[index].cut = self._terms.over
        self._count_down(index)

    def _settle(self, index: int, number: int, outcome: tuple[Any, float], *, fresh: bool = True) -> None:
        opened = self._open[index]
        result, seconds = outcome
        opened.run.seconds += seconds
        opened.results[number] = result
        task = opened.step.tasks[number]
        if fresh and not isinstance(result, Theory | Evidence):
            self._hooks.keep(opened.run, task, result)
        self._count_down(index)

    def _count_down(self, index: int) -> None:
        self._open[index].pending -= 1
        if not self._open[index].pending:
            self._resolve(index)

    def _resolve(self, index: int) -> None:
        """All of a step is done, or given up: hand the results on and take the next step."""
        opened = self._open.pop(index)
        run = opened.run
        if opened.progress is None:
            run.complete = opened.results[0]
            run.missing = f"{opened.cut} ended before any test" if opened.cut else ""
            run.source = None
            self._hooks.ended(index, run)
            return
        started = time.monotonic()
        try:
            with self._hooks.named(run.placed), until(self._terms.last):
                step = opened.progress.send(Done(_unbroken(opened.results), opened.cut))
        except (StopIteration, TimeIsUp) as ended:
            if isinstance(ended, TimeIsUp):
                run.missing = f"{self._terms.over} ended in its tests"
            run.seconds += time.monotonic() - started
            self._hooks.ended(index, run)
            return
        run.seconds += time.monotonic() - started
        self._add(index, _Open(run, opened.progress, step))


def _unbroken(results: Sequence[Any]) -> tuple[Any, ...]:
    """Return the results up to the first that is missing."""
    count = next((place for place, result in enumerate(results) if result is None), len(results))
    return tuple(results[:count])


def perform(run: ClaimRun, source: Source, task: Task, terms: Terms) -> tuple[Any, float]:
    """Return the result of a task and the seconds it took."""
    started = time.monotonic()
    result: Any
    if task == WHOLE:
        result = carried_out(run, alpha=terms.alpha, stop=terms.stop)
    else:
        result = result_of(source, task)
    return result, time.monotonic() - started


_sources: dict[tuple[str, int, Place], Source] = {}


def perform_apart(placed: PlacedClaim, seed: int, place: Place, task: Task, terms: Terms) -> tuple[Any, float]:
    """Return what `perform` does, in a worker process, which keeps the sources of the last claims that it met."""
    key = (placed.digest(), seed, place)
    if key not in _sources:
        while len(_sources) >= _MOST_KEPT:
            _sources.pop(next(iter(_sources)))
        _sources[key] = source_of(placed, place, seed)
    run = ClaimRun(placed, "", seed, _sources[key])
    return perform(run, _sources[key], task, terms)
