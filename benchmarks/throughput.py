"""Audit trainings a second by where they run: this process, loky processes (`--jobs`), Dask workers on this machine.

One game, DPZV on digits with the worst-case canary, in chunks of 64 pairs, by the clock: what counts is how long the
audit takes. Processes and cluster are warm before the clock starts: a first chunk has run on each.

Run: OMP_NUM_THREADS=1 python benchmarks/run.py throughput
"""

import os
import time
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

from ratios import Row

from dpzv_audit.base.executor import Workers, lanes_of
from dpzv_audit.data import load
from dpzv_audit.games.engine import run_chunk
from dpzv_audit.games.game import Game
from dpzv_audit.games.real import RealTrials
from mechanisms import METHODS

CHUNK = 64
MEMORY = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TOP_PAD_": "67108864"}
"""What docs/guide/scale.md says to start Dask workers with: else glibc gives the memory of each tensor back at once."""


def rows(*, quick=False, device="cpu"):
    """Trainings a second on 1 and 2 workers of either kind against this process; a line where Dask is not installed."""
    trials = RealTrials(Game(config=METHODS["dpzv"].configure()), load("digits"), device=device)
    chunks = 4 if quick else 16
    alone = rate_here(trials, chunks)
    yield Row(what="this process", ours=f"{alone:.0f} trainings a second", beside="itself", ratio=1.0)
    for jobs in (1, 2):
        rate = rate_on(Workers(kind="loky", jobs=jobs), trials, chunks)
        yield _row(f"--jobs {jobs}, as processes", rate, alone)
    for workers, environment, words in (
        (1, {}, "memory as Dask has it"),
        (1, MEMORY, "memory kept"),
        (2, MEMORY, "memory kept"),
    ):
        with cluster_of(workers, environment) as address:
            if address is None:
                yield Row(what="Dask", ours="not measured: `distributed` is not installed", beside="-", ratio=None)
                return
            rate = rate_on(Workers(kind="dask", scheduler=address), trials, chunks)
            yield _row(f"Dask, workers {workers}, {words}", rate, alone)


def _row(what, rate, alone):
    return Row(
        what=what, ours=f"{rate:.0f} trainings a second", beside=f"{alone:.0f} in this process", ratio=rate / alone
    )


def rate_here(trials, chunks):
    """Trainings a second of `chunks` chunks one after the other."""
    run_chunk(trials, 0, CHUNK)
    start = time.perf_counter()
    for number in range(chunks):
        run_chunk(trials, number * CHUNK, (number + 1) * CHUNK)
    return 2 * CHUNK * chunks / (time.perf_counter() - start)


def rate_on(workers, trials, chunks):
    """Trainings a second of `chunks` chunks on warm `workers`, as an audit hands them out."""
    opened = lanes_of(workers, partial(run_chunk, trials))
    try:
        lanes = opened.opened(0)
        for future in [lane.submit(0, CHUNK) for lane in lanes]:
            future.result()
        start = time.perf_counter()
        futures = [lanes[number % len(lanes)].submit(number * CHUNK, (number + 1) * CHUNK) for number in range(chunks)]
        for future in futures:
            future.result()
        return 2 * CHUNK * chunks / (time.perf_counter() - start)
    finally:
        opened.close()


@contextmanager
def cluster_of(workers, environment):
    """Address of a local Dask cluster of processes started with `environment`; None without `distributed`."""
    try:
        from distributed import LocalCluster
    except ImportError:
        yield None
        return
    with (
        patch.dict(os.environ, environment),
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as made,
    ):
        yield made.scheduler_address
