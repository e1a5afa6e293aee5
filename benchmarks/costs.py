"""How the cost of a DPZV training grows with records D, clients M, epochs T and replicas K: slopes on log-log axes.

One of the four varies by factors of 4 while the others stay at a base size; features are random, 16 columns a client.
A slope of 1 is a cost in proportion. Rounds are those of an epoch, D / B, so that D is at a fixed number of epochs.

Run: python benchmarks/run.py costs
"""

import numpy as np
from measuring import random_dataset, seconds, tensors
from ratios import Row

from mechanisms import METHODS, train
from mechanisms.core.context import RunContext

BASE = {"D": 2048, "M": 4, "T": 8, "K": 8}
WORDS = {"D": "records D, at fixed epochs", "M": "clients M, at fixed rounds", "T": "rounds T", "K": "replicas K"}
BATCH = 64
COLUMNS = 16


def rows(*, quick=False, device="cpu"):
    """The slope of the cost of `dpzv` and of `vafl` in each of the four."""
    for method in ("dpzv",) if quick else ("dpzv", "vafl"):
        for name, base in BASE.items():
            sizes = [base, 4 * base] if quick else [base, 4 * base, 16 * base]
            taken = [cost(method, {**BASE, name: size}, turns=1 if quick else 2, device=device) for size in sizes]
            slope = float(np.polyfit(np.log(sizes), np.log(taken), 1)[0])
            yield Row(
                what=f"{method}, {WORDS[name]}, slope",
                ours=", ".join(f"{t:.3g} s" for t in taken),
                beside="at " + ", ".join(f"{size:,}" for size in sizes),
                ratio=slope,
            )


def cost(method, size, *, turns, device):
    """The least seconds of a whole training of this size, its data not counted, over `turns` turns."""
    data = tensors(random_dataset("random", size["D"], 64, size["M"], (COLUMNS,)), device)
    spec = METHODS[method]
    config = spec.configure(epochs=size["T"], batch_size=BATCH)
    return min(
        seconds(
            lambda: train(spec, data, config, RunContext(seed=0, replicas=range(size["K"]), device=device)),
            device=device,
        )
        for _ in range(turns)
    )
