"""One executor: takes tasks one after another, and does them in this process or on lanes of workers.

Lanes are single loky processes, or slots of a Dask cluster, behind one interface of futures. A function with all its
data goes to every worker once, when it starts or joins; a task is a few numbers. Each loky lane is an executor of one
process, so that a process that dies breaks no lane but its own.
"""

import logging
import math
import multiprocessing
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol, TypeVar

from .errors import AuditError, InputError, check_count
from .signals import TimeIsUp, leave_to_parent, until

MOST_DEATHS = 3
"""So often may workers die on one task before it is given up as failed."""
_POLL_SECONDS = 0.5
_LOOKS = 20
_LOOK_SECONDS = 0.01
"""How often, and how far apart, it is looked whether a thread that was joined has gone."""

Task = TypeVar("Task", bound=Hashable)


class Work(Protocol[Task]):
    """Tasks, and the use of their results; a task is any value that tells it from the others."""

    def take(self) -> Task | None:
        """Take the task that is to be done next; None where none waits that needs work, or may still be begun."""

    def arguments(self, task: Task) -> tuple[Any, ...]:
        """Return the arguments of the job."""

    def ends(self, task: Task) -> float | None:
        """Return when the task is to be given up, on `time.monotonic()`'s clock; None for never."""

    def done(self, task: Task, result: Any) -> None:
        """Take the result of a task."""

    def give_up(self, task: Task) -> None:
        """Take note that the task's time was over before it was done."""

    def failed(self, task: Task, error: BaseException, *, deaths: int = 0) -> None:
        """Raise the error of the task in the words of the work; after `MOST_DEATHS` `deaths` it is that of the last.

        Until then another worker does the task.
        """


def carry_out(work: Work[Task], workers: "Workers", job: "Job") -> None:
    """Take tasks of `work` and call `job` on their arguments until nothing is left.

    In this process one at a time, each ended where its time is over; on lanes of workers (`workers.kind`) as many at a
    time as there are lanes, where tasks under way are given up once the time of all of them is over. Raises what
    `Work.failed` raises, and `TimeIsUp` where the time of a block around it is over.
    """
    if workers.kind != "here":
        _on_lanes(work, workers, job)
        return
    while (task := work.take()) is not None:
        try:
            with until(work.ends(task)):
                result = job(*work.arguments(task))
        except TimeIsUp:
            end = work.ends(task)
            if end is None or time.monotonic() < end:
                raise  # the time of a block around this is over
            work.give_up(task)
        except Exception as error:
            work.failed(task, error)
        else:
            work.done(task, result)


def _on_lanes(work: Work[Task], workers: "Workers", job: "Job") -> None:
    running: dict[Future[Any], tuple[_Lane, Task]] = {}
    orphaned: list[Task] = []
    deaths: Counter[Task] = Counter()
    opened: list[_Lane] = []
    free: list[_Lane] = []

    def finish(future: Future[Any], lane: _Lane, task: Task) -> None:
        # One that was cancelled, as Dask's are where their scheduler goes away, raises where it is asked.
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            work.done(task, future.result())
            deaths.pop(task, None)  # a name may stand for another task later
            return
        died = isinstance(error, BrokenExecutor | CancelledError) or type(error).__name__ == "KilledWorker"
        if not died:  # the task itself failed on the worker
            work.failed(task, error)
        lane.renew()
        deaths[task] += 1
        if deaths[task] == MOST_DEATHS:
            work.failed(task, error, deaths=MOST_DEATHS)
        else:
            orphaned.append(task)

    with closing(lanes_of(workers, job)) as lanes:
        while True:
            joined = lanes.opened(len(opened))
            opened += joined
            free += joined
            while free and (task := orphaned.pop() if orphaned else work.take()) is not None:
                lane = free.pop()
                running[lane.submit(*work.arguments(task))] = (lane, task)
            now = time.monotonic()
            ends = [work.ends(task) for _, task in running.values()]
            left = max((math.inf if end is None else end - now for end in ends), default=0.0)
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
                    finish(future, lane, task)
            elif free:
                return
            else:
                time.sleep(_POLL_SECONDS)  # until a worker joins


Job = Callable[..., Any]
"""The function of a worker, such as the pairs of a chunk; pickles with all that it needs."""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """`here`: this process; `loky`: `jobs` processes of this machine; `dask`: the cluster at `scheduler`."""

    kind: Literal["here", "loky", "dask"] = "here"
    jobs: int = 1
    scheduler: str | None = None

    def words(self) -> str:
        """Return the words of a result for where its chunks ran."""
        loky = f"{self.jobs} processes" if self.jobs > 1 else "a separate process"
        return {"here": "this process", "loky": loky, "dask": "a Dask cluster"}[self.kind]


def workers_from(jobs: int | None, executor: str | None, scheduler: str | None) -> Workers:
    """Return the workers that `jobs`, `executor` and `scheduler` ask for; `InputError` where they disagree."""
    if executor not in (None, "loky", "dask"):
        raise InputError("use loky or dask", "executor", executor)
    if executor == "dask":
        if scheduler is None:
            raise InputError("‹executor› dask needs ‹scheduler› ADDRESS, such as tcp://127.0.0.1:8786")
        if jobs is not None:
            raise InputError("leave it out with ‹executor› dask: a cluster has its own workers", "jobs", jobs)
        return Workers(kind="dask", scheduler=scheduler)
    if scheduler is not None:
        raise InputError("use it with ‹executor› dask", "scheduler", scheduler)
    count = check_count("jobs", 1 if jobs is None else jobs)
    if count > 1 or executor == "loky":
        return Workers(kind="loky", jobs=count)
    return Workers()


def lanes_of(workers: Workers, job: Job) -> "_LokyLanes | _DaskLanes":
    """Open the lanes of `workers` for `job`; one line where a cluster cannot be reached (`InputError`) or is empty."""
    return _DaskLanes(job, workers.scheduler or "") if workers.kind == "dask" else _LokyLanes(job, workers.jobs)


def in_own_process(job: Job, *arguments: Any) -> Any:
    """Return the answer of `job` in the main thread of a fresh loky process; `BrokenExecutor` where that process dies.

    A worker of Dask is by default a daemon, which must not have processes of its own: it stops being one here.
    """
    multiprocessing.current_process().daemon = False
    with closing(_LokyLane(job)) as lane:
        return lane.submit(*arguments).result()


@contextmanager
def alongside(job: Job, *arguments: Any) -> Iterator[Callable[[], Any]]:
    """Do `job` in a separate process while the block runs; yield a function that waits for the answer.

    The process is a fork of this one, which has everything imported already, where this one has a single thread; else
    it is a fresh loky process. The function raises the errors of the job, and `AuditError` where the process dies.
    Leaving the block ends the process.
    """
    open_lane = _ForkedLane if _single_threaded() else _LokyLane
    with closing(open_lane(job)) as lane:
        future = lane.submit(*arguments)

        def answer() -> Any:
            try:
                return future.result()
            except BrokenExecutor as error:
                raise AuditError("a process of this command died; for want of memory, if it was killed") from error

        yield answer


def _single_threaded() -> bool:
    """Return whether this process can be forked: no thread, of a library's either, may hold a lock meanwhile.

    A thread that was joined is there for a moment longer, on a busy machine for some milliseconds.
    """
    for _ in range(_LOOKS):
        try:
            if len(os.listdir("/proc/self/task")) == 1:
                return True
        except OSError:  # a system that does not say, where a fork may be unsafe in any case
            return False
        if threading.active_count() > 1:
            return False
        time.sleep(_LOOK_SECONDS)
    return False


class _ForkedLane:
    """One fork of this process, which does one job and ends."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def submit(self, *arguments: Any) -> "_ForkedLane":
        context = multiprocessing.get_context("fork")
        self._answers, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_do_in_fork, args=(sender, self._job, arguments))
        self._process.start()
        sender.close()  # the fork has its own end: where that closes, it has died
        return self

    def result(self) -> Any:
        try:
            done, answer = self._answers.recv()
        except EOFError as error:
            raise BrokenExecutor from error
        if not done:
            raise answer
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._answers.close()


def _do_in_fork(sender: Connection, job: Job, arguments: tuple[Any, ...]) -> None:
    leave_to_parent()
    try:
        answer = (True, job(*arguments))
    except Exception as error:
        answer = (False, error)
    sender.send(answer)


# In a loky process: its job.
_held: list[Job] = []


def _hold(job: Job) -> None:
    """Keep the job, and leave signals that end the command, which may reach all its processes, to the parent."""
    leave_to_parent()
    _held[:] = [job]


def in_worker() -> bool:
    """Return whether this is a loky process that runs nothing but its job: to end it ends nothing else."""
    return bool(_held)


def _run_held(*arguments: Any) -> Any:
    return _held[0](*arguments)


class _LokyLane:
    """One worker process; it computes in one thread unless the environment says otherwise."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._open()

    def _open(self) -> None:
        from joblib.externals.loky import ProcessPoolExecutor

        self._pool = ProcessPoolExecutor(
            max_workers=1,
            timeout=3600,
            initializer=_hold,
            initargs=(self._job,),
            env={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )

    def submit(self, *arguments: Any) -> Future[Any]:
        future: Future[Any] = self._pool.submit(_run_held, *arguments)
        return future

    def renew(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self._pool.shutdown(wait=True, kill_workers=True)


class _LokyLanes:
    """As many lanes as there are jobs, from the start."""

    def __init__(self, job: Job, jobs: int) -> None:
        self._lanes = [_LokyLane(job) for _ in range(jobs)]

    def opened(self, known: int) -> list[_LokyLane]:
        """Return the lanes beyond those that are `known`."""
        return self._lanes[known:]

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


class _DaskLane:
    """One slot of a Dask cluster. The scheduler itself hands on the chunks of a worker that died."""

    def __init__(self, executor: Any, name: str) -> None:
        self._executor = executor
        self._name = name

    def submit(self, *arguments: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(_run_on_dask, self._name, *arguments)
        return future

    def renew(self) -> None:
        """Nothing to do: the next chunk goes to a worker that is alive."""


_Lane = _LokyLane | _DaskLane


def _run_on_dask(name: str, *arguments: Any) -> Any:
    from distributed import get_worker

    return get_worker().plugins[name].job()(*arguments)


class _DaskLanes:
    """The slots of the cluster as it is at the moment; its workers get the job as a plugin, when they join too."""

    def __init__(self, job: Job, scheduler: str) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise InputError("‹executor› dask needs the extra [dask]: pip install 'dpzv-audit[dask]'") from error
        # Failures are one line of our own errors. The client has a level of its own.
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._scheduler = scheduler
        try:
            self._client = Client(scheduler, timeout=10, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                "which cannot be reached; use the address of a running Dask scheduler", "scheduler", scheduler
            ) from error
        if self._slots() == 0:
            self._client.close()
            raise AuditError(f"the Dask cluster at {scheduler} has no workers; start one with: dask worker {scheduler}")
        self._name = f"dpzv-audit-{uuid.uuid4().hex}"
        self._client.register_plugin(_held_on_dask(job), name=self._name)
        self._executor = self._client.get_executor(pure=False, retries=2)

    def _slots(self) -> int:
        try:
            return sum(self._client.nthreads().values())
        except OSError as error:
            raise AuditError(
                f"the Dask scheduler at {self._scheduler} went away; the chunks done so far are kept for ‹resume›"
            ) from error

    def opened(self, known: int) -> list[_DaskLane]:
        """Return the lanes beyond those that are `known`: at first all, later those of workers that have joined."""
        return [_DaskLane(self._executor, self._name) for _ in range(self._slots() - known)]

    def close(self) -> None:
        self._executor.shutdown(wait=False)
        if self._client.status == "running":
            self._client.unregister_worker_plugin(self._name)
        self._client.close()


def _held_on_dask(job: Job) -> Any:
    """Return the job as a plugin of Dask's workers, which the scheduler sends to each once. Each thread has a copy."""
    import cloudpickle
    from distributed import WorkerPlugin

    class Held(WorkerPlugin):  # type: ignore[misc]
        def __init__(self, pickled: bytes) -> None:
            self.pickled = pickled

        def setup(self, worker: Any) -> None:
            self.local = threading.local()

        def job(self) -> Any:
            if not hasattr(self.local, "job"):
                self.local.job = cloudpickle.loads(self.pickled)
            return self.local.job

    return Held(cloudpickle.dumps(job))
