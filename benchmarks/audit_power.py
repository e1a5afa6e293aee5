"""Prints power and speed of the estimators on Gaussian and Laplace scores beside their bars; run it as a script.

Power: the mean bound of 40 audits at 95%, delta 1e-5, for each line of the table in the audit's specification. Bars:
jax-privacy 2.0.0 with its Bonferroni thresholds on the same kind of scores, and what is asked of this package; of
`joint` it is asked of the mean of 400. Speed: one audit of 1,000,000 scores a side (100,000 canaries for the one-run
estimators), with its peak memory. Options: `power`, `speed`, then a number of audits and names of estimators; without
one, both.
"""

import sys
import time
import tracemalloc

import numpy as np
from ratios import Row

from dpzv_audit.accounting.gaussian import epsilon_from_mu
from dpzv_audit.statistics.estimators import ESTIMATORS, audit_scores
from dpzv_audit.statistics.families import LAPLACE

DELTA = 1e-5
Line = tuple[str, float, int]
LINES = (
    ("gaussian", 0.388, 1_000),
    ("gaussian", 0.388, 10_000),
    ("gaussian", 1.0, 1_000),
    ("gaussian", 1.0, 10_000),
    ("gaussian", 3.0, 1_000),
    ("gaussian", 3.0, 10_000),
    ("gaussian", 8.4, 10_000),
    ("laplace", 1.0, 1_000),
    ("laplace", 1.0, 10_000),
)
"""Noise of scale 1, the shift between the worlds (mu, or epsilon of the Laplace mechanism), and scores a side."""
TARGETS = {
    "joint": {
        ("gaussian", 0.388, 1_000): 0.33,
        ("gaussian", 1.0, 1_000): 1.53,
        ("gaussian", 3.0, 1_000): 4.45,
        ("gaussian", 0.388, 10_000): 0.71,
        ("gaussian", 1.0, 10_000): 2.25,
        ("gaussian", 3.0, 10_000): 6.10,
        ("laplace", 1.0, 1_000): 0.71,
        ("laplace", 1.0, 10_000): 0.87,
    },
    "clopper-pearson": {
        ("gaussian", 0.388, 10_000): 0.60,
        ("gaussian", 1.0, 10_000): 2.15,
        ("gaussian", 3.0, 10_000): 6.0,
    },
    "gaussian": {
        ("gaussian", 0.388, 10_000): 1.15,
        ("gaussian", 1.0, 10_000): 4.0,
        ("gaussian", 3.0, 10_000): 15.9,
    },
    "one-run-fdp": {
        ("gaussian", 0.388, 10_000): 0.76,
        ("gaussian", 1.0, 10_000): 2.3,
        ("gaussian", 3.0, 10_000): 7.4,
    },
}
JAX_PRIVACY = {
    "clopper-pearson": {
        ("gaussian", 0.388, 10_000): 0.58,
        ("gaussian", 1.0, 10_000): 1.99,
        ("gaussian", 3.0, 10_000): 5.71,
    },
    "one-run-fdp": {
        ("gaussian", 0.388, 10_000): 0.76,
        ("gaussian", 1.0, 10_000): 2.27,
        ("gaussian", 3.0, 10_000): 7.37,
    },
}


def true_epsilon(noise, shift):
    """Return epsilon at delta 1e-5 of a shift of scores by `shift`: exact for either noise."""
    return float(epsilon_from_mu(shift, DELTA)) if noise == "gaussian" else LAPLACE.epsilon(shift, DELTA)


def print_power(names, audits=40):
    """Print the mean bound, its standard error, the bars and the time of one audit, a line an estimator and law.

    Bounds on a Gaussian curve say nothing about Laplace scores and are left out there.
    """
    print(f"power: mean of {audits} audits, 95%, delta {DELTA:g}")
    print(
        f"{'noise':<9}{'shift':>6} {'n':>7} {'truth':>7} {'estimator':<20} {'mean':>16} {'asked':>6} {'jax':>6} "
        f"{'ms CPU':>7}"
    )
    for line in LINES:
        noise, shift, n = line
        for name in names:
            if noise == "laplace" and ESTIMATORS[name].claim_kind == "trade-off":
                continue
            start, found = time.process_time(), []
            for seed in range(audits):
                draw = getattr(np.random.default_rng(seed), "normal" if noise == "gaussian" else noise)
                scores = draw(shift, 1.0, n), draw(0.0, 1.0, n)
                found.append(audit_scores(*scores, delta=DELTA, estimators=(name,))[0].epsilon_lower)
            pace = 1e3 * (time.process_time() - start) / audits
            bars = [table.get(name, {}).get(line, "") for table in (TARGETS, JAX_PRIVACY)]
            spread = np.std(found, ddof=1) / np.sqrt(audits)
            print(
                f"{noise:<9}{shift:>6} {n:>7} {true_epsilon(noise, shift):>7.3f} {name:<20} "
                f"{np.mean(found):>8.3f} +- {spread:<5.3f}{bars[0]:>6} {bars[1]:>6} {pace:>7.1f}",
                flush=True,
            )


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
            what = f"{name}, {2 * size:,} canaries" if one_run else f"{name}, {size:,} scores a side"
            if before is not None:
                tenth = f"{before:.3g} s at a tenth of them"
                yield Row(what=what, ours=f"{taken:.3g} s", beside=tenth, ratio=taken / before)
            before = taken
            if n == 1_000_000:
                limit = 10.0 if one_run else 2.0
                yield Row(what=what, ours=f"{taken:.3g} s", beside=f"{limit:g} s", ratio=taken / limit, promised=1.0)
                yield Row(
                    what=what, ours=f"{mebibytes:.0f} MiB", beside="1 GB", ratio=mebibytes * 2**20 / 1e9, promised=1.0
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


def print_speed(names, n=1_000_000, canaries=100_000):
    """Print processor seconds and peak memory beyond the scores of one audit at mu = 1."""
    audit_scores([0.0] * 50, [1.0] * 50, delta=DELTA)
    print(f"speed: {n:,} scores a side, {canaries:,} canaries for one-run")
    for name in names:
        taken, mebibytes = speed(name, canaries // 2 if name.startswith("one-run") else n)
        print(f"{name:<20} {taken:>7.2f} s of the processor {mebibytes:>7.0f} MiB", flush=True)


def main():
    """Print what the command line asks for."""
    wanted = [word for word in sys.argv[1:] if word in ("power", "speed")] or ["power", "speed"]
    audits = [int(word) for word in sys.argv[1:] if word.isdigit()] or [40]
    names = tuple(word for word in sys.argv[1:] if word not in ("power", "speed") and not word.isdigit())
    if "power" in wanted:
        print_power(names or tuple(ESTIMATORS), audits[0])
    if "speed" in wanted:
        print_speed(names or tuple(ESTIMATORS))


if __name__ == "__main__":
    main()
