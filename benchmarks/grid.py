"""A round with noise on a grid against a round with float noise: 128 replicas on digits, batches of 64.

Both kinds run in turn; a figure is the least of several turns of ten rounds, each with everything that a round does.
DPZV's scalars are promised to cost at most 15% more, with a DP-SGD server too, whose clipped gradients are summed in
double precision. Noise on embeddings and gradients, a draw for every coordinate, is measured beside them.

Run: OMP_NUM_THREADS=1 python benchmarks/run.py grid
"""

import torch
from measuring import least, tensors
from ratios import Row, milliseconds

from dpzv_audit.data import load
from mechanisms import METHODS
from mechanisms.core.context import RunContext

REPLICAS = 128
ROUNDS = 10
PROMISED = 1.15
"""A round with noise on the grid over one with float noise, where a scalar is released: with any server."""

SETTINGS = (
    ("dpzv", "dpzv", {}, PROMISED),
    ("dpzv-sound", "dpzv-sound", {}, PROMISED),
    ("dpzv with a dp-sgd server", "dpzv", {"server_update": "dp-sgd", "server_noise_multiplier": 1.0}, PROMISED),
    ("vafl, noise on embeddings", "vafl", {"dp": "embedding", "dp_sigma": 1.0}, None),
    ("vafl, noise on gradients", "vafl", {"dp": "gradient", "dp_sigma": 1.0}, None),
)


@torch.no_grad()
def rows(*, quick=False, device="cpu"):
    """Yield the table's rows; `quick` takes few turns of the first two settings alone."""
    data = tensors(load("digits"), device)
    for label, method, options, promised in SETTINGS[: 2 if quick else None]:
        runs = [
            METHODS[method].start(
                data,
                METHODS[method].configure(batch_size=64, noise=noise, **options),
                RunContext(seed=0, replicas=range(REPLICAS), device=device),
            )
            for noise in ("grid", "float")
        ]
        for run in runs:
            run.step()
        # A run ends with its plan, which holds 22 rounds for each of 8 epochs.
        grid, plain = least([(run.step, ROUNDS) for run in runs], turns=3 if quick else 15, device=device)
        yield Row(
            what=f"{label}, K = {REPLICAS}, B = 64",
            ours=f"{milliseconds(grid)} a round with grid noise",
            beside=f"{milliseconds(plain)} with float noise",
            ratio=grid / plain,
            promised=promised,
        )
