"""The same chunks on a Dask cluster of real processes, one of which is killed while it works."""

import logging
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from dpzv_audit.base.errors import AuditError
from dpzv_audit.base.executor import Workers
from dpzv_audit.games.engine import ChunkStore, Effort, MechanismFailed, collect
from dpzv_audit.games.mechanism import MechanismTrials

from ...helpers.refusals import refused

distributed = pytest.importorskip("distributed", reason="needs the extra [dask]")
cloudpickle = pytest.importorskip("cloudpickle")


@dataclass(frozen=True)
class Slow:
    """Pair k scores k; a chunk takes a while."""

    def facts(self):
        return {}

    def __call__(self, first, last):
        time.sleep(0.05)
        rows = np.arange(first, last, dtype=np.float64)
        return {"in_scores": rows, "out_scores": -rows}


@dataclass(frozen=True)
class Heavy:
    """Says in every row which process made it; notes in a file each time that it is unpickled."""

    log: str
    data: np.ndarray

    def facts(self):
        return {}

    def __setstate__(self, state):
        self.__dict__.update(state)
        with open(self.log, "a") as log:
            log.write(f"{os.getpid()}\n")

    def __call__(self, first, last):
        time.sleep(0.05)
        rows = np.arange(first, last, dtype=np.float64)
        return {"in_scores": rows, "out_scores": -rows, "pids": np.full(last - first, os.getpid())}


def unpickled_in(log):
    """How often each process unpickled a `Heavy`."""
    return Counter(int(line) for line in log.read_text().split())


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as made:
        yield made


def test_a_worker_killed_on_the_way_changes_nothing(cluster):
    """The functions of this module travel by value: workers need the package alone."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    pids = [worker.pid for worker in cluster.workers.values()]
    killed = []

    def kill_one(done, arrays):
        if done >= 20 and not killed:
            killed.append(pids[0])
            os.kill(pids[0], signal.SIGKILL)

    effort = Effort(chunk=4, workers=Workers(kind="dask", scheduler=cluster.scheduler_address), progress=kill_one)
    got = collect(Slow(), 160, effort)
    assert killed
    assert (got.arrays["in_scores"] == np.arange(160)).all()


def test_data_go_to_a_worker_once_and_a_worker_that_joins_takes_part(tmp_path):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    log = tmp_path / "log"
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as cluster:
        first = {worker.pid for worker in cluster.workers.values()}

        def one_more(done, arrays):
            if done == 20:
                cluster.scale(3)

        effort = Effort(chunk=2, workers=Workers(kind="dask", scheduler=cluster.scheduler_address), progress=one_more)
        got = collect(Heavy(str(log), np.zeros(1000)), 400, effort)
    assert (got.arrays["in_scores"] == np.arange(400)).all()
    pids = set(got.arrays["pids"].tolist())
    assert len(pids) == 3
    assert first < pids
    assert unpickled_in(log) == dict.fromkeys(pids, 1)


def test_a_scheduler_that_goes_away_is_one_line(tmp_path):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    store = ChunkStore(tmp_path / "chunks", resume=False)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as cluster:
        effort = Effort(
            chunk=2,
            workers=Workers(kind="dask", scheduler=cluster.scheduler_address),
            store=store,
            progress=lambda done, arrays: cluster.close() if done == 10 else None,
        )
        with refused(r"the Dask scheduler at \S+ went away; the chunks done so far", AuditError):
            collect(Slow(), 400, effort)
    assert sum(last - first for first, last in store.load()) >= 10


def test_data_go_to_a_process_once(tmp_path):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    log = tmp_path / "log"
    got = collect(Heavy(str(log), np.zeros(1000)), 40, Effort(chunk=2, workers=Workers(kind="loky", jobs=2)))
    assert unpickled_in(log) == dict.fromkeys(set(got.arrays["pids"].tolist()), 1)


def test_a_scheduler_that_is_not_there_is_one_line():
    with refused(r"scheduler is 'tcp://127\.0\.0\.1:1', which cannot be reached"):
        collect(Slow(), 4, Effort(workers=Workers(kind="dask", scheduler="tcp://127.0.0.1:1")))
    # Nor does Dask add lines of its own where the scheduler goes away later.
    assert not logging.getLogger("distributed.client").isEnabledFor(logging.ERROR)


def test_a_run_that_hangs_on_a_cluster_ends_at_its_limit(tmp_path, monkeypatch):
    """Dask runs chunks in threads, which no signal reaches: the mechanism has a process of its own there."""
    text = (
        "import time\nclass Made:\n    def run(self, world, rng): return time.sleep(1000)\ndef made(): return Made()\n"
    )
    (tmp_path / "hanging_mechanism.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as cluster:
        effort = Effort(chunk=4, workers=Workers(kind="dask", scheduler=cluster.scheduler_address))
        with refused(r"run 1 of the world '(in|out)' took longer than trial_seconds 0\.3", MechanismFailed):
            collect(MechanismTrials("hanging_mechanism:made", 0, 0.3), 8, effort)
