"""One executor: takes tasks one after another, and does them in this process or on lanes of workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol, TypeVar

from dpzv_audit.deadline import TimeIsUp, until
from dpzv_audit.execution.workers import Job, Lane, Workers, failure_of, lanes_of, worker_died

MOST_DEATHS = 3
"""So often may workers die on one task before it is given up as failed."""
_POLL_SECONDS = 0.5

Task = TypeVar("Task", bound=Hashable)


class Work(Protocol[Task]):
    """Tasks, and what becomes of them; a task is any value that tells it from the others."""

    def left(self) -> bool:
        """Return whether any task still waits to be taken."""

    def take(self) -> Task | None:
        """Take the task that is to be done next; None where none of those that wait needs work."""

    def arguments(self, task: Task) -> tuple[Any, ...]:
        """Return what the job is called with."""

    def ends(self, task: Task) -> float | None:
        """Return when the task is to be given up, on `time.monotonic()`'s clock; None for never."""

    def done(self, task: Task, result: Any) -> None:
        """Take the result of a task."""

    def give_up(self, task: Task) -> None:
        """Take note that the task's time was over before it was done."""

    def again(self, task: Task) -> None:
        """Put back a task whose worker died."""

    def failed(self, task: Task, error: BaseException, *, deaths: int = 0) -> None:
        """Raise what an error of the task means; after so many `deaths` of its workers it is that of the last."""


def carry_out(work: Work[Task], workers: Workers, job: Job) -> None:
    """Take tasks of `work` and call `job` on their arguments until nothing is left.

    In this process one at a time, each ended where its time is over; on lanes of workers (`workers.kind`) as many at a
    time as there are lanes, where what is under way is given up once the time of all of it is over. Raises what
    `Work.failed` raises.
    """
    if workers.kind == "here":
        _here(work, job)
    else:
        _on_lanes(work, workers, job)


def _here(work: Work[Task], job: Callable[..., Any]) -> None:
    while (task := work.take()) is not None:
        try:
            with until(work.ends(task)):
                result = job(*work.arguments(task))
        except TimeIsUp:
            work.give_up(task)
        except Exception as error:
            work.failed(task, error)
        else:
            work.done(task, result)


def _on_lanes(work: Work[Task], workers: Workers, job: Job) -> None:
    lanes = lanes_of(workers, job)
    running: dict[Future[Any], tuple[Lane, Task]] = {}
    deaths: Counter[Task] = Counter()
    opened: list[Lane] = []
    free: list[Lane] = []
    try:
        while work.left() or running:
            joined = lanes.opened()
            opened += joined
            free += joined
            while free and (task := work.take()) is not None:
                lane = free.pop()
                running[lane.submit(*work.arguments(task))] = (lane, task)
            now = time.monotonic()
            left = max((_left(work.ends(task), now) for _, task in running.values()), default=_POLL_SECONDS)
            if running and left <= 0.0:
                for future, (_, task) in running.items():
                    future.cancel()  # for a cluster; a process of this machine is renewed
                    work.give_up(task)
                running = {}
                for lane in opened:
                    lane.renew()
                free = list(opened)
            elif running:
                done, _ = wait(running, timeout=min(_POLL_SECONDS, left), return_when=FIRST_COMPLETED)
                for future in done:
                    lane, task = running.pop(future)
                    free.append(lane)
                    error = failure_of(future)
                    if error is None:
                        work.done(task, future.result())
                        deaths.pop(task, None)  # a name may stand for another task later
                        continue
                    if not worker_died(error):
                        work.failed(task, error)
                    deaths[task] += 1
                    if deaths[task] == MOST_DEATHS:
                        work.failed(task, error, deaths=MOST_DEATHS)
                    lane.renew()
                    work.again(task)
            elif not free:
                time.sleep(_POLL_SECONDS)  # until a worker joins
    finally:
        lanes.close()


def _left(end: float | None, now: float) -> float:
    return float("inf") if end is None else end - now
