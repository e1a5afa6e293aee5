"""The same chunks on a Dask cluster of real processes, one of which is killed while it works."""

import os
import signal
import sys
import time
from dataclasses import dataclass

import numpy as np
import pytest

from dpzv_audit.auditing.engine import Effort, collect
from dpzv_audit.auditing.workers import Workers
from dpzv_audit.errors import InputError

distributed = pytest.importorskip("distributed", reason="needs the extra [dask]")


@dataclass(frozen=True)
class Slow:
    """Pair k scores k; a chunk takes a while."""

    def facts(self):
        return {}

    def __call__(self, first, last):
        time.sleep(0.05)
        rows = np.arange(first, last, dtype=np.float64)
        return {"in_scores": rows, "out_scores": -rows}


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as made:
        yield made


def test_a_worker_killed_on_the_way_changes_nothing(cluster):
    """The functions of this module travel by value: workers need the package alone."""
    import cloudpickle

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


def test_a_scheduler_that_is_not_there_is_one_line():
    with pytest.raises(InputError, match=r"--scheduler is 'tcp://127\.0\.0\.1:1', which cannot be reached"):
        collect(Slow(), 4, Effort(workers=Workers(kind="dask", scheduler="tcp://127.0.0.1:1")))
