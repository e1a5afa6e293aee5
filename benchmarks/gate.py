"""What the gate is worth and what it costs: false alarms, planted bugs, the papers' claims, ten thousand claims.

    python benchmarks/gate.py true [--seeds 200]      files of 20 true claims: false refutations
    python benchmarks/gate.py bugs                     mechanisms with a bug: refuted, and how fast
    python benchmarks/gate.py papers [--seeds 5]       examples/papers.toml: verdicts by seed, processor time
    python benchmarks/gate.py load [--claims 1000] [--jobs 1]   claims with score files of 10,000 rows

True claims are at the exact epsilon of their mechanism (Gaussian, Laplace, randomised response), the hardest true ones.
Half of the files give the scores, the other half the mechanism, so that the sequential test comes first. Times are of
the processor; where other work shares the machine the clock on the wall says nothing.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.stats import binom

from dpzv_audit.accounting.gaussian import epsilon_from_mu
from dpzv_audit.claims.access import Access
from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.file import parse_claims
from dpzv_audit.claims.gate import Gate
from dpzv_audit.statistics.panel import holm

ROOT = Path(__file__).resolve().parents[1]
ALPHA, DELTA, RUNS, ROWS = 0.05, 1e-5, 1000, 10_000
DISTINCT = 700
"""Score files a side that are drawn anew, a multiple of the number of laws."""
MUS = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
EPSILONS = (0.2, 0.5, 1.0, 1.5, 2.0, 3.0)


TRUE = '''
"""Mechanisms whose epsilon is known."""
import numpy as np


class Shifted:
    def __init__(self, law, shift):
        self.law, self.shift = law, shift

    def run_batch(self, world, rng, n):
        return getattr(rng, self.law)(self.shift * world, 1.0, n)


class Answered:
    def __init__(self, truth):
        self.truth = truth

    def run_batch(self, world, rng, n):
        return (rng.random(n) < (self.truth if world else 1.0 - self.truth)) * 1.0


'''


def true_mechanisms(folder):
    """Write a module of 20 mechanisms of known epsilon into `folder`; return their claims as TOML."""
    code, lines = [TRUE], []
    for k, (kind, parameter, epsilon, gaussian) in enumerate(laws()):
        maker = f"Answered({parameter!r})" if kind == "response" else f"Shifted({kind!r}, {parameter})"
        code.append(f"def m{k}():\n    return {maker}\n\n\n")
        lines.append(claim_of(k, f'mechanism = "true_mechanisms:m{k}"', epsilon, gaussian))
    (folder / "true_mechanisms.py").write_text("".join(code))
    return lines


def score_claims(folder, seed):
    """Write score files of 20 mechanisms of known epsilon into `folder`; return their claims as TOML."""
    lines, rng = [], np.random.default_rng(seed)
    for k, (kind, parameter, epsilon, gaussian) in enumerate(laws()):
        if kind == "response":
            inside, outside = (rng.random(RUNS) < parameter) * 1.0, (rng.random(RUNS) >= parameter) * 1.0
        else:
            inside, outside = (getattr(rng, kind)(shift, 1.0, RUNS) for shift in (parameter, 0.0))
        np.save(folder / f"in{k}.npy", inside)
        np.save(folder / f"out{k}.npy", outside)
        lines.append(claim_of(k, f'scores = {{ in = "in{k}.npy", out = "out{k}.npy" }}', epsilon, gaussian))
    return lines


def gathered(path, text, seed=0):
    """The file of claims and its runs, their evidence gathered."""
    file = parse_claims(text, path)
    access = Access.of(path, root=None, trust_code=True, device="cpu")
    gate = Gate(file=file, access=access, cache=Cache(None), seed=seed)
    runs = gate.prepare()
    gate.gather(runs)
    return file, runs


def refutations(seed, folder, lines):
    """Return how many of 20 true claims one gate refutes."""
    _, runs = gathered(folder / "claims.toml", f"[defaults]\nalpha = {ALPHA}\n" + "\n".join(lines), seed)
    return sum(holm([run.evidence().p_value for run in runs], ALPHA))


def true_claims(seeds):
    """Print in how many files a true claim was refuted."""
    started, counts = time.process_time(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mechanisms = true_mechanisms(folder)
        for seed in range(seeds):
            lines = mechanisms if seed % 2 else score_claims(folder, seed)
            counts.append(refutations(seed, folder, lines))
            if seed % 50 == 49:
                print(f"{seed + 1} files: {sum(count > 0 for count in counts)} with a false refutation", flush=True)
    wrong = sum(count > 0 for count in counts)
    allowed = int(binom.isf(1e-3, seeds, ALPHA))
    print(f"{seeds} files of 20 true claims at alpha {ALPHA}: a false refutation in {wrong} (allowed {allowed})")
    print(f"of them {sum(c > 0 for c in counts[::2])} with scores, {sum(c > 0 for c in counts[1::2])} with mechanisms")
    print(f"processor seconds a file: {(time.process_time() - started) / seeds:.2f}")


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


def bugs():
    """Print which mechanisms with a bug a gate at the default alpha refutes, the sound one too, and what it cost."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "planted_bugs.py").write_text(BUGS)
        text = "\n".join(
            claim_of(name, f'mechanism = "planted_bugs:{name}"', 1.0, True) for name in (*BUG_NAMES, "sound")
        )
        path = folder / "planted.toml"
        started = time.process_time()
        print_verdicts(path, text)
        print(f"processor seconds for the bugs: {time.process_time() - started:.1f}")
    started = time.process_time()
    path = ROOT / "examples" / "planted.toml"
    print_verdicts(path, path.read_text())
    print(f"processor seconds for examples/planted.toml: {time.process_time() - started:.1f}")


def print_verdicts(path, text):
    """Print the claims of a file, whether each is refuted, and the pairs that its tests saw."""
    file, runs = gathered(path, text)
    evidence = [run.evidence() for run in runs]
    for run, proof, refuted in zip(runs, evidence, holm([e.p_value for e in evidence], file.alpha), strict=True):
        pairs = max((look.test.n_in for look in proof.looks), default=0)
        word = "refuted" if refuted else "not refuted"
        print(f"{run.placed.name}: {word}, p = {proof.p_value:.1g}, {pairs} pairs, {run.seconds:.1f} s")


def papers(seeds):
    """Print every verdict on examples/papers.toml by seed, and the processor time of each run."""
    verdicts_by_claim = {}
    path = ROOT / "examples" / "papers.toml"
    for seed in range(seeds):
        before = children_seconds()
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "dpzv_audit", "verify", str(path), "--no-cache", "--json"]
            done = subprocess.run(
                [*command, "--seed", str(seed), "--out", out], capture_output=True, text=True, check=False
            )
        assert done.returncode in (0, 1), done.stderr
        for entry in json.loads(done.stdout)["claims"]:
            verdicts_by_claim.setdefault(entry["name"], []).append(
                f"{entry['verdict']} {entry['adjusted_p_value']:.0e}"
            )
        print(f"seed {seed}: {children_seconds() - before:.0f} s of processor time", flush=True)
    for name, verdicts in verdicts_by_claim.items():
        words = Counter(verdict.split()[0] for verdict in verdicts)
        print(f"{'stable' if len(words) == 1 else 'FLIPS'}: {name}: {', '.join(verdicts)}")


def load(claims, jobs):
    """Print what one `verify` of `claims` claims with score files of 10,000 rows each costs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        lines = []
        for k in range(claims):
            mu = MUS[k % len(MUS)]
            for side, mean in (("in", mu), ("out", 0.0)):
                path = folder / f"{side}{k}.csv"
                if k < DISTINCT:
                    np.savetxt(path, rng.normal(mean, 1.0, ROWS), fmt="%.7g")
                else:  # another name of a file that is there: read and hashed again all the same
                    path.hardlink_to(folder / f"{side}{k % DISTINCT}.csv")
            epsilon = float(epsilon_from_mu(mu, DELTA)) * (0.2 if k % 10 == 0 else 1.0)
            lines.append(
                f'[[claim]]\nname = "claim {k}"\nscores = {{ in = "in{k}.csv", out = "out{k}.csv" }}\n'
                f"epsilon = {epsilon!r}\n"
            )
        (folder / "claims.toml").write_text("\n".join(lines))
        command = [sys.executable, "-m", "dpzv_audit", "verify", "claims.toml", "--quiet", "--jobs", str(jobs)]
        command += ["--cache", "cache", "--junit", "junit.xml", "--sarif", "claims.sarif"]
        for word in ("first run", "second run, from the cache"):
            started, before = time.monotonic(), children_seconds()
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 1, done.stderr
            largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            print(
                f"{claims:,} claims, {word}: {children_seconds() - before:.0f} s of processor time, "
                f"{time.monotonic() - started:.0f} s on the wall, largest process {largest / 1e6:.2f} GB",
                flush=True,
            )


def main():
    """Run one of the four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["true", "bugs", "papers", "load"])
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--claims", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.what == "true":
        true_claims(arguments.seeds or 200)
    elif arguments.what == "bugs":
        bugs()
    elif arguments.what == "papers":
        papers(arguments.seeds or 5)
    else:
        load(arguments.claims, arguments.jobs)


def laws():
    """Yield (kind, parameter, true epsilon, Gaussian by construction) of 20 mechanisms at unit scale."""
    for k, mu in enumerate(MUS):
        yield "normal", mu, float(epsilon_from_mu(mu, DELTA)), k % 2 == 0
    for epsilon in EPSILONS:
        # (epsilon, delta) of the Laplace mechanism at unit shift: delta = 1 - e^((epsilon' - b) / 2) at scale 1 / b.
        yield "laplace", epsilon, max(epsilon + 2.0 * math.log1p(-DELTA), 1e-3), False
    for epsilon in (*EPSILONS, 4.0):
        truth = math.exp(epsilon) / (1.0 + math.exp(epsilon))
        yield "response", truth, math.log((truth - DELTA) / (1.0 - truth)), False


def claim_of(name, subject, epsilon, gaussian):
    """A claim as TOML."""
    return (
        f'[[claim]]\nname = "{name}"\n{subject}\nepsilon = {epsilon!r}\ndelta = {DELTA}\n'
        f"exactly_gaussian = {str(gaussian).lower()}\n"
    )


def children_seconds():
    """Processor seconds of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
