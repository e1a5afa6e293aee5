"""How the cost of a DPZV training grows with records D, clients M, epochs T and replicas K: slopes on log-log axes.

One of the four varies by factors of 4 while the others stay at a base size; features are random, 16 columns a client.
A slope of 1 is a cost in proportion. Rounds are those of an epoch, D / B, so that D is at a fixed number of epochs.

Run: python benchmarks/costs.py
"""

import argparse

import numpy as np
import torch
from measuring import seconds
from ratios import Row

from dpzv_audit.data.vertical import Records, VerticalDataset
from mechanisms import METHODS, train
from mechanisms.core.context import TrainingData

BASE = {"D": 2048, "M": 4, "T": 8, "K": 8}
WORDS = {"D": "records D, at fixed epochs", "M": "clients M, at fixed rounds", "T": "rounds T", "K": "replicas K"}
BATCH = 64
COLUMNS = 16


def rows(*, turns=2, quick=False, device="cpu"):
    """The slope of the cost of `dpzv` and of `vafl` in each of the four."""
    for method in ("dpzv",) if quick else ("dpzv", "vafl"):
        for name, base in BASE.items():
            sizes = [base, 4 * base] if quick else [base, 4 * base, 16 * base]
            taken = [cost(method, {**BASE, name: size}, turns=1 if quick else turns, device=device) for size in sizes]
            slope = float(np.polyfit(np.log(sizes), np.log(taken), 1)[0])
            yield Row(
                what=f"{method}, {WORDS[name]}, slope",
                ours=", ".join(f"{t:.3g} s" for t in taken),
                beside="at " + ", ".join(f"{size:,}" for size in sizes),
                ratio=slope,
            )


def cost(method, size, *, turns, device):
    """The least seconds of a whole training of this size, its data not counted, over `turns` turns."""
    data = random_data(size["D"], size["M"], device)
    spec = METHODS[method]
    config = spec.configure(epochs=size["T"], batch_size=BATCH)
    return min(
        seconds(lambda: train(spec, data, config, seed=0, replicas=range(size["K"]), device=device), device=device)
        for _ in range(turns)
    )


def random_data(records, clients, device):
    """Random features of `clients` clients and labels of ten classes."""
    generator = np.random.default_rng(0)

    def part(n):
        blocks = tuple(generator.random((n, COLUMNS), dtype=np.float32) for _ in range(clients))
        return Records(blocks, generator.integers(10, size=n))

    dataset = VerticalDataset("random", part(records), part(64), 10, "columns", {})
    return TrainingData.of(dataset, dtype=torch.float32, device=device)


def main():
    """Print the slopes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for row in rows(turns=arguments.turns, device=arguments.device):
        print(f"{row.what:40} {row.ours:36} {row.beside:24} {row.ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
