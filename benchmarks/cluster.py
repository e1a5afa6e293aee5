"""What a Dask cluster adds to an audit: time to hand out the job with its data, and time a chunk beside the work.

A local scheduler and two worker processes; the job holds random data of the given size and does nothing with it, so
that all that is measured is overhead. Needs the extra `[dask]`.

Run: OMP_NUM_THREADS=1 python benchmarks/cluster.py --megabytes 188      (MNIST's training images as floats)
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
from distributed import LocalCluster

from dpzv_audit.base.executor import Workers
from dpzv_audit.games.engine import Effort, collect

CHUNKS = 200


@dataclass(frozen=True)
class Idle:
    """Pair k scores k; `data` is what a worker holds."""

    data: np.ndarray

    def facts(self):
        """See `dpzv_audit.games.engine.Trials`."""
        return {}

    def __call__(self, first, last):
        """See `dpzv_audit.games.engine.Trials`."""
        rows = np.arange(first, last, dtype=np.float64)
        return {"in_scores": rows, "out_scores": -rows}


def main():
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=188)
    arguments = parser.parse_args()
    ends = []

    def note(done, arrays):
        ends.append(time.monotonic())

    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        begun = time.monotonic()
        effort = Effort(chunk=1, workers=Workers(kind="dask", scheduler=cluster.scheduler_address), progress=note)
        collect(Idle(np.zeros(arguments.megabytes * 10**6 // 8)), CHUNKS, effort)
    print(f"until the first chunk is done, {arguments.megabytes} MB to each of 2 workers: {ends[0] - begun:.2f} s")
    print(f"a chunk, of {CHUNKS}: {1000 * (ends[-1] - ends[0]) / (CHUNKS - 1):.1f} ms")


if __name__ == "__main__":
    # Workers import this file as a module of its own.
    main()
