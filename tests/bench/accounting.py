"""What accounting costs: our composition against prv-accountant called directly, and the table of sizes.

Both accountants get the same release and the same error in epsilon, in one run, in turn, each in a process of its own
so that peak memory is its own. The package composes the remove direction of add-remove, and so do we there; the table
below it is the whole accountant: both directions of add-remove, or the replace pair.

Run: python tests/bench/accounting.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

LIMIT = 120.0
"""Seconds after which a process is given up on."""

AGAINST = (
    (0.01, 1.0, 1_000),
    (0.001, 1.0, 100_000),
    (0.001, 0.5, 100_000),
    (0.001, 20.0, 100_000),
    (0.001, 20.0, 10**6),
)
"""Rate, noise multiplier, rounds."""

NOISE = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 20.0)


def peak_gigabytes() -> float:
    """Peak resident memory of this program; Linux alone says so without what its parent had."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1e6


def ours(rate: float, noise: float, rounds: int, delta: float) -> tuple[float, float, float, str]:
    """Our remove direction: lower, estimate, upper, note."""
    from dpzv_audit.accounting.prv import prv_epsilon

    answer = prv_epsilon(kind="remove", rate=rate, noise=noise, rounds=rounds, delta=delta)
    return answer.epsilon.lower, answer.epsilon.estimate, answer.epsilon.upper, answer.note


def package(rate: float, noise: float, rounds: int, delta: float, error: float) -> tuple[float, float, float, str]:
    """The package's own answer at `error` in epsilon and our share of delta."""
    import warnings

    warnings.simplefilter("ignore")
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    from dpzv_audit.accounting.prv import DELTA_ERROR

    mechanism = PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=noise)
    accountant = PRVAccountant(
        mechanism, max_self_compositions=rounds, eps_error=error, delta_error=delta * DELTA_ERROR
    )
    low, middle, high = accountant.compute_epsilon(delta, [rounds])
    return float(low), float(middle), float(high), "package"


def whole(relation: str, noise: float, rounds: int, delta: float) -> tuple[float, float, float, str]:
    """The accountant `prv` at r = 0.001, z = `noise` against the relation's sensitivity."""
    from dpzv_audit.accounting import Release, prv

    scale = 2.0 if relation == "replace-label" else 1.0
    release = Release(
        batch_size=10,
        dataset_size=10_000,
        rounds=rounds,
        clip=10.0,
        sigma=noise * scale,
        sampler="poisson",
        server_update="joint-zo",
    )
    bound = prv(release, "release", relation, delta)  # type: ignore[arg-type]
    assert bound.epsilon is not None
    return bound.epsilon.lower, bound.epsilon.estimate, bound.epsilon.upper, bound.note.split(";")[0]


TASKS = {"ours": ours, "package": package, "whole": whole}


def child(task: str, arguments: list[object]) -> None:
    """Run one task, imports not timed, and print seconds by the clock, of the processor, gigabytes and the answer."""
    import time

    import prv_accountant  # noqa: F401
    import scipy.fft  # noqa: F401

    import dpzv_audit.accounting  # noqa: F401

    start, start_processor = time.perf_counter(), time.process_time()
    answer = TASKS[task](*arguments)  # type: ignore[operator]
    spent = [time.perf_counter() - start, time.process_time() - start_processor]
    print(json.dumps([*spent, peak_gigabytes(), *answer]))


def measured(task: str, *arguments: object) -> list[object] | str:
    """Both seconds, gigabytes, lower, estimate, upper and note of a fresh process, or why there is none."""
    command = [sys.executable, __file__, "--child", task, json.dumps(arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"more than {LIMIT:.0f} s"
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1]
    return list(json.loads(done.stdout.splitlines()[-1]))


def shown(row: list[object] | str) -> str:
    """A measured row in fixed columns."""
    if isinstance(row, str):
        return row
    seconds, processor, memory, lower, estimate, upper, note = row
    cost = f"{seconds:7.2f} s (processor {processor:6.2f} s) {memory:5.2f} GB"
    return f"{cost}   {lower:.6g} <= {estimate:.6g} <= {upper:.6g}   {note}"


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="Fewer and smaller releases.")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], json.loads(given.child[1]))
        return
    delta = 1e-5
    print("Remove direction, delta = 1e-5: the same release, the same error in epsilon")
    for rate, noise, rounds in AGAINST[: 2 if given.quick else None]:
        print(f"r = {rate:g}, z = {noise:g}, T = {rounds:,}", flush=True)
        mine = measured("ours", rate, noise, rounds, delta)
        print(f"  ours     {shown(mine)}", flush=True)
        if isinstance(mine, str):
            continue
        error = float(mine[5]) - float(mine[4])  # type: ignore[arg-type]
        print(f"  package  {shown(measured('package', rate, noise, rounds, delta, error))}", flush=True)
    print("\nThe accountant prv, r = 0.001, delta = 1e-5")
    for relation in ("add-remove", "replace-label"):
        for rounds in (100, 100_000) if given.quick else (100, 10_000, 100_000, 10**6, 10**7):
            for noise in NOISE[:: 4 if given.quick else 1]:
                row = measured("whole", relation, noise, rounds, delta)
                print(f"  {relation:13} T = {rounds:>10,}  z = {noise:<5g} {shown(row)}", flush=True)


if __name__ == "__main__":
    main()
