"""False alarms and speed of the gate: files of true claims over many seeds, and a file of planted bugs.

    python tests/bench/gate.py [--seeds 200]

True claims are at the exact epsilon of their mechanism (Gaussian, Laplace, randomised response), the hardest true ones.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.stats import binom

from dpzv_audit.accounting.gaussian import epsilon_from_mu
from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.gate import Gate, place_of
from dpzv_audit.claims.load import parse_claims
from dpzv_audit.claims.verdicts import holm

ALPHA, DELTA, RUNS = 0.05, 1e-5, 1000
MUS = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
EPSILONS = (0.2, 0.5, 1.0, 1.5, 2.0, 3.0)


def draws(seed: int) -> list[tuple[float, bool, np.ndarray, np.ndarray]]:
    """Return (true epsilon, Gaussian by construction, scores in, scores out) of 20 mechanisms."""
    rng = np.random.default_rng(seed)
    found = []
    for k, mu in enumerate(MUS):
        claim = float(epsilon_from_mu(mu, DELTA))
        found.append((claim, k % 2 == 0, rng.normal(mu, 1.0, RUNS), rng.normal(0.0, 1.0, RUNS)))
    for epsilon in EPSILONS:
        # (epsilon, delta) of the Laplace mechanism at unit shift: delta = 1 - e^((epsilon' - b) / 2) at scale 1 / b.
        true = max(epsilon + 2.0 * math.log1p(-DELTA), 1e-3)
        found.append((true, False, rng.laplace(epsilon, 1.0, RUNS), rng.laplace(0.0, 1.0, RUNS)))
    for epsilon in (*EPSILONS, 4.0):
        truth = math.exp(epsilon) / (1.0 + math.exp(epsilon))
        inside, outside = (rng.random(RUNS) < truth) * 1.0, (rng.random(RUNS) >= truth) * 1.0
        found.append((math.log((truth - DELTA) / (1.0 - truth)), False, inside, outside))
    return found


def refutations(seed: int, folder: Path) -> int:
    """Return how many of 20 true claims one gate refutes."""
    lines = []
    for k, (epsilon, gaussian, inside, outside) in enumerate(draws(seed)):
        np.save(folder / f"in{k}.npy", inside)
        np.save(folder / f"out{k}.npy", outside)
        lines.append(
            f'[[claim]]\nname = "{k}"\nscores = {{ in = "in{k}.npy", out = "out{k}.npy" }}\nepsilon = {epsilon!r}\n'
            f"delta = {DELTA}\nexactly_gaussian = {str(gaussian).lower()}\n"
        )
    path = folder / "claims.toml"
    file = parse_claims(f"[defaults]\nalpha = {ALPHA}\n" + "\n".join(lines), path)
    gate = Gate(
        file=file, place=place_of(path, root=None, trust_code=False, device="cpu"), cache=Cache(None), seed=seed
    )
    runs = gate.prepare()
    gate.gather(runs)
    return sum(holm([run.evidence().p_value for run in runs], ALPHA))


BUGS = '''
"""Twenty rounds of a clipped sum at +C or -C; each class of bug leaves less noise than the claim needs."""
import numpy as np

ROUNDS, SIGMA = 20, 2 * 20**0.5 / 0.2681  # mu 0.2681: epsilon 1 at delta 1e-5


def federation(noise):
    def run(world, rng):
        sign = 1.0 if world else -1.0
        return float(np.sum(sign + noise(rng)))

    return lambda: run


sound = federation(lambda rng: rng.normal(0, SIGMA, ROUNDS))
same_noise_every_round = federation(lambda rng: np.random.default_rng(7).normal(0, SIGMA, ROUNDS))
shared_with_the_client = federation(lambda rng: 0.0 * rng.normal(0, SIGMA, ROUNDS))
once_an_epoch = federation(lambda rng: np.append(rng.normal(0, SIGMA, 1), np.zeros(ROUNDS - 1)))
b_times_too_little = federation(lambda rng: rng.normal(0, SIGMA / 64, ROUNDS))
half_the_sensitivity = federation(lambda rng: rng.normal(0, SIGMA / 2, ROUNDS))
'''
BUG_NAMES = (
    "same_noise_every_round",
    "shared_with_the_client",
    "once_an_epoch",
    "b_times_too_little",
    "half_the_sensitivity",
)


def planted(folder: Path) -> tuple[dict[str, bool], float]:
    """Return which planted bugs a gate at the default alpha refutes, the sound one too, and the seconds it took."""
    (folder / "planted_bugs.py").write_text(BUGS)
    text = "\n".join(
        f'[[claim]]\nname = "{name}"\nmechanism = "planted_bugs:{name}"\nepsilon = 1.0\ndelta = {DELTA}\n'
        "exactly_gaussian = true\n"
        for name in (*BUG_NAMES, "sound")
    )
    path = folder / "planted.toml"
    file = parse_claims(text, path)
    started = time.perf_counter()
    gate = Gate(file=file, place=place_of(path, root=None, trust_code=True, device="cpu"), cache=Cache(None))
    runs = gate.prepare()
    gate.gather(runs)
    found = holm([run.evidence().p_value for run in runs], file.alpha)
    names = [run.placed.name for run in runs]
    return dict(zip(names, found, strict=True)), time.perf_counter() - started


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.perf_counter()
        counts = [refutations(seed, folder) for seed in range(seeds)]
        wrong = sum(count > 0 for count in counts)
        allowed = int(binom.isf(1e-3, seeds, ALPHA))
        print(f"{seeds} files of 20 true claims at alpha {ALPHA}: a false refutation in {wrong} (allowed {allowed})")
        print(f"seconds a file: {(time.perf_counter() - started) / seeds:.2f}")
        refuted, seconds = planted(folder)
        for bug, found in refuted.items():
            print(f"{bug}: {'refuted' if found else 'not refuted'}")
        print(f"seconds for the planted bugs: {seconds:.1f}")


if __name__ == "__main__":
    main()
