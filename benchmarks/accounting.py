"""What accounting costs: our composition against prv-accountant and dp-accounting.

Ours and prv-accountant get the same release and the same error in epsilon, in one run, in turn, each in a process of
its own so that peak memory is its own. The package composes the remove direction of add-remove, and so do we there.
dp-accounting's PLD accountant composes both directions on its own grid (1e-4), rounded up, which gives an upper bound
alone; the whole accountant, which gives a lower one too, stands beside it.

Run: python benchmarks/run.py accounting
"""

import json
import subprocess
import sys
from pathlib import Path

from ratios import Row

DELTA = 1e-5
AGAINST = (
    (0.01, 1.0, 1_000),
    (0.001, 1.0, 100_000),
    (0.001, 0.5, 100_000),
)
"""Rate, noise multiplier, rounds."""

PLD_GRID = 1e-4
"""dp-accounting's own default, in epsilon."""

PROMISED = {100_000: (3.0, 1.0), 10**7: (30.0, 2.0)}
"""Most seconds and gigabytes at up to so many rounds."""


def peak_gigabytes():
    """Peak resident memory of this program; Linux alone says so without what its parent had."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1e6


def ours(rate, noise, rounds, delta):
    """Our remove direction: lower, estimate, upper, note."""
    from dpzv_audit.accounting.prv import prv_epsilon

    answer = prv_epsilon(kind="remove", rate=rate, noise=noise, rounds=rounds, delta=delta)
    return answer.epsilon.lower, answer.epsilon.estimate, answer.epsilon.upper, answer.note


def package(rate, noise, rounds, delta, error):
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


def whole(relation, noise, rounds, delta):
    """The accountant `prv` at r = 0.001, z = `noise` against the relation's sensitivity."""
    from dpzv_audit.accounting import Release, prv

    scale = 2.0 if relation == "replace-label" else 1.0
    release = Release(
        batch_size=10,
        sample_rate=0.001,
        rounds=rounds,
        clip=10.0,
        sigma=noise * scale,
        sampler="poisson",
        server_update="joint-zo",
    )
    bound = prv(release, "release", relation, delta)
    assert bound.epsilon is not None
    return bound.epsilon.lower, bound.epsilon.estimate, bound.epsilon.upper, bound.note.split(";")[0]


def pld(rate, noise, rounds, delta):
    """dp-accounting's privacy loss distribution, both directions of add-remove, rounded up: an upper bound alone."""
    from dp_accounting.pld import privacy_loss_distribution as distributions

    loss = distributions.from_gaussian_mechanism(noise, value_discretization_interval=PLD_GRID, sampling_prob=rate)
    bound = float(loss.self_compose(rounds).get_epsilon_for_delta(delta))
    return 0.0, bound, bound, "dp-accounting"


TASKS = {"ours": ours, "package": package, "whole": whole, "pld": pld}


def child(task, arguments):
    """Run one task, imports not timed, and print seconds by the clock, of the processor, gigabytes and the answer."""
    import time

    import prv_accountant  # noqa: F401
    import scipy.fft  # noqa: F401

    import dpzv_audit.accounting  # noqa: F401

    start, start_processor = time.perf_counter(), time.process_time()
    answer = TASKS[task](*arguments)
    spent = [time.perf_counter() - start, time.process_time() - start_processor]
    print(json.dumps([*spent, peak_gigabytes(), *answer]))


def measured(task, *arguments, limit=120.0):
    """Both seconds, gigabytes, lower, estimate, upper and note of a fresh process, or why there is none."""
    command = [sys.executable, __file__, task, json.dumps(arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"more than {limit:.0f} s"
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1]
    return list(json.loads(done.stdout.splitlines()[-1]))


def rows(*, quick=False, limit=60.0):
    """Processor seconds of ours over those of each package, and of the whole accountant over what was promised."""
    for rate, noise, rounds in AGAINST[: 1 if quick else None]:
        mine = answered("ours", rate, noise, rounds, DELTA)
        error = mine[5] - mine[4]
        theirs = measured("package", rate, noise, rounds, DELTA, error, limit=limit)
        yield _against("prv-accountant", f"r = {rate:g}, z = {noise:g}, T = {rounds:,}", mine, theirs, limit)
    for noise, rounds in ((1.0, 1_000),) if quick else ((1.0, 1_000), (1.0, 100_000), (0.5, 100_000)):
        mine = answered("whole", "add-remove", noise, rounds, DELTA)
        theirs = measured("pld", 0.001, noise, rounds, DELTA, limit=limit)
        yield _against(
            "dp-accounting", f"both directions, r = 0.001, z = {noise:g}, T = {rounds:,}", mine, theirs, limit
        )
    for rounds, (most, memory) in list(PROMISED.items())[: 1 if quick else None]:
        for relation in ("add-remove", "replace-label"):
            for noise in (0.5,) if quick else (0.05, 0.5, 2.0, 20.0):
                label = f"{relation}, r = 0.001, z = {noise:g}, T = {rounds:,}"
                taken, gigabytes = answered("whole", relation, noise, rounds, DELTA)[1:3]
                yield Row(what=label, ours=f"{taken:.2f} s", beside=f"{most:g} s", ratio=taken / most, promised=1.0)
                used = f"{gigabytes:.2f} GB"
                yield Row(what=label, ours=used, beside=f"{memory:g} GB", ratio=gigabytes / memory, promised=1.0)


def answered(task, *arguments):
    """The numbers of a task of ours that must have an answer; the program ends where it has none."""
    answer = measured(task, *arguments)
    if isinstance(answer, str):
        sys.exit(f"{task} {arguments}: {answer}")
    return [float(value) for value in answer[:6]]


def _against(package, label, mine, theirs, limit):
    """Ours over a package's; where that was given up on, over the time that it had: the ratio is at most that."""
    if isinstance(theirs, str):
        other, words = limit, f"{package}: {theirs}"
    else:
        other = float(theirs[1])
        words = f"{package} {other:.2f} s, at most {theirs[5]:.5g}"
    return Row(what=label, ours=f"{mine[1]:.2f} s, {mine[3]:.5g} to {mine[5]:.5g}", beside=words, ratio=mine[1] / other)


if __name__ == "__main__":
    child(sys.argv[1], json.loads(sys.argv[2]))
