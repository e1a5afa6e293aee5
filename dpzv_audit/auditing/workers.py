"""Where chunks run: lanes of single loky processes, or of a Dask cluster, behind one interface of futures.

Each loky lane is an executor of one process, so that a process that dies breaks no lane but its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from dpzv_audit.errors import AuditError, InputError, check_count

_DASK_RETRIES = 2
_IDLE_SECONDS = 3600
_CONNECT_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Workers:
    """`here`: this process; `loky`: `jobs` processes of this machine; `dask`: the cluster at `scheduler`."""

    kind: Literal["here", "loky", "dask"] = "here"
    jobs: int = 1
    scheduler: str | None = None

    def words(self) -> str:
        """What a result says about where its chunks ran."""
        return {"here": "this process", "loky": f"{self.jobs} processes", "dask": "a Dask cluster"}[self.kind]


def workers_from(jobs: int | None, executor: str | None, scheduler: str | None) -> Workers:
    """Return the workers that `--jobs`, `--executor` and `--scheduler` ask for; `InputError` where they disagree."""
    if executor not in (None, "loky", "dask"):
        raise InputError(f"--executor is {executor!r}, must be loky or dask")
    if executor == "dask":
        if scheduler is None:
            raise InputError("--executor dask needs --scheduler ADDRESS, such as tcp://127.0.0.1:8786")
        if jobs is not None:
            raise InputError("--jobs goes with loky; a Dask cluster has as many workers as it has")
        return Workers(kind="dask", scheduler=scheduler)
    if scheduler is not None:
        raise InputError("--scheduler goes with --executor dask")
    count = check_count("--jobs", 1 if jobs is None else jobs)
    return Workers(kind="loky", jobs=count) if count > 1 or executor == "loky" else Workers()


class Lane(Protocol):
    """Runs one chunk at a time."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Start `function(*arguments)` and return its future."""

    def renew(self) -> None:
        """Make the lane usable again after its worker died."""

    def close(self) -> None:
        """Give the lane up, and whatever it is doing."""


def lanes_of(workers: Workers) -> list[Lane]:
    """Open the lanes of `workers`; `AuditError` in one line where a cluster cannot be reached."""
    if workers.kind == "dask":
        return _dask_lanes(workers.scheduler or "")
    return [_LokyLane() for _ in range(workers.jobs)]


def worker_died(error: BaseException) -> bool:
    """Whether `error` says that a worker died, as opposed to what ran on it failing."""
    return isinstance(error, BrokenExecutor | CancelledError) or type(error).__name__ == "KilledWorker"


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches every process of a terminal: the parent alone acts on it, and ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _LokyLane:
    """One worker process; it computes in one thread unless the environment says otherwise."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        from joblib.externals.loky import ProcessPoolExecutor

        self._pool = ProcessPoolExecutor(
            max_workers=1,
            timeout=_IDLE_SECONDS,
            initializer=_leave_interrupts_to_the_parent,
            env={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = self._pool.submit(function, *arguments)
        return future

    def renew(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self._pool.shutdown(wait=True, kill_workers=True)


class _DaskLane:
    """One slot of a Dask cluster. The scheduler itself hands on the chunks of a worker that died."""

    def __init__(self, client: Any, executor: Any, *, owner: bool) -> None:
        self._client, self._executor, self._owner = client, executor, owner

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(function, *arguments)
        return future

    def renew(self) -> None:
        """Nothing to do: the next chunk goes to a worker that is alive."""

    def close(self) -> None:
        if self._owner:
            self._executor.shutdown(wait=False)
            self._client.close()


def _dask_lanes(scheduler: str) -> list[Lane]:
    try:
        from distributed import Client
    except ImportError as error:
        raise InputError("--executor dask needs the extra [dask]: pip install 'dpzv-audit[dask]'") from error
    try:
        client = Client(scheduler, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"--scheduler is {scheduler!r}, which cannot be reached, must be the address of a running Dask scheduler"
        ) from error
    slots = sum(client.nthreads().values())
    if slots == 0:
        client.close()
        raise AuditError(f"the Dask cluster at {scheduler} has no workers")
    executor = client.get_executor(pure=False, retries=_DASK_RETRIES)
    return [_DaskLane(client, executor, owner=number == 0) for number in range(slots)]
