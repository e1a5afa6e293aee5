"""Speed and memory of the estimators: one audit of up to 1,000,000 scores a side (100,000 canaries of one run).

Run: python benchmarks/run.py estimators
"""

import time
import tracemalloc

import numpy as np
from ratios import Row

from dpzv_audit.statistics.estimators import ESTIMATORS, audit_scores

DELTA = 1e-5


def rows(*, quick=False):
    """Seconds and memory of one audit by number of scores: against a tenth of them, and at full size what was promised.

    One-run estimators take a tenth as many canaries as the others take scores a side.
    """
    audit_scores([0.0] * 50, [1.0] * 50, delta=DELTA)
    for name in ESTIMATORS:
        one_run = name.startswith("one-run")
        before = None
        for n in (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000):
            size = n // 20 if one_run else n
            taken, mebibytes = speed(name, size)
            label = f"{name}, {2 * size:,} canaries" if one_run else f"{name}, {size:,} scores a side"
            if before is not None:
                tenth = f"{before:.3g} s at a tenth of them"
                yield Row(what=label, ours=f"{taken:.3g} s", beside=tenth, ratio=taken / before)
            before = taken
            if n == 1_000_000:
                limit = 10.0 if one_run else 2.0
                yield Row(what=label, ours=f"{taken:.3g} s", beside=f"{limit:g} s", ratio=taken / limit, promised=1.0)
                yield Row(
                    what=label, ours=f"{mebibytes:.0f} MiB", beside="1 GB", ratio=mebibytes * 2**20 / 1e9, promised=1.0
                )


def speed(name, size):
    """(processor seconds, peak MiB beyond the scores) of one audit of `size` scores a side at mu = 1."""
    rng = np.random.default_rng(0)
    scores = rng.normal(1.0, 1.0, size), rng.normal(0.0, 1.0, size)
    start = time.process_time()
    audit_scores(*scores, delta=DELTA, estimators=(name,))
    taken = time.process_time() - start
    tracemalloc.start()
    audit_scores(*scores, delta=DELTA, estimators=(name,))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return taken, peak / 2**20
