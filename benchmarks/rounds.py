"""Milliseconds a round in paper 003's setting, beside the bare arithmetic of the round and the published code.

Two clients, MLP 64 / 128, batches of 64 of MNIST in memory, K = 1, one thread. The bare arithmetic is a loop of the
very matrix products of one round, captured as they ran, on ready tensors; its part of a round is the share spent in
arithmetic, of processor time. A figure is the least of many short turns, each of both in turn, so that other work on
the machine moves it little; it holds everything a round does, batches and directions drawn, messages counted, both
models stepped. One thread that waits for nothing takes as long as its processor time where nothing else runs, so that
is what is held against the target; the wall time beside it needs an idle machine. The published figures are the model
work alone of paper 003's public code on a machine of this kind (it spends 54 to 72 ms a round with its loader). MNIST
is read from DPZV_AUDIT_DATA; without it random images of its shape take its place, which are as much work.

Run: OMP_NUM_THREADS=1 python benchmarks/run.py published
"""

import torch
from measuring import least, products_of, random_dataset, tensors
from ratios import Row, milliseconds

from dpzv_audit.base.errors import InputError
from dpzv_audit.data import load
from mechanisms import METHODS
from mechanisms.core.context import RunContext

PUBLISHED = {
    ("vafl", 0): 1.8,
    ("zoo-vfl", 0): 3.2,
    ("czofo", 1): 2.3,
    ("czofo", 10): 5.1,
    ("czofo", 100): 26.8,
}
"""Milliseconds a round of the public code's model work, by method and number of directions."""

PROMISED = 0.5
"""A round takes at most half of the published code's model work."""


def mnist():
    """MNIST in 003's halves, and what it is in words; random images of its shape where its files are absent."""
    try:
        return load("mnist", clients=2, partition="runs"), "MNIST"
    except InputError:
        return random_dataset("mnist", 60_000, 64, 2, (392,)), "random images of MNIST's shape"


@torch.no_grad()
def rows(*, quick=False, device="cpu"):
    """A round of each method against what the published code takes for its model work."""
    dataset, pictures = mnist()
    data = tensors(dataset, device)
    for (method, directions), published in PUBLISHED.items():
        options = {"directions": directions} if directions else {}
        config = METHODS[method].configure(batch_size=64, epochs=100, embedding=64, hidden=128, **options)
        run = METHODS[method].start(data, config, RunContext(seed=0, device=device))
        products = products_of(run.step)
        taken, bare = least([(run.step, 4), (products, 4)], turns=10 if quick else 100, device=device)
        q = f", q = {directions}" if directions else ""
        yield Row(
            what=f"{method}{q}, K = 1, {pictures}",
            ours=f"{milliseconds(taken)} a round, {bare / taken:.0%} of it arithmetic",
            beside=f"{published:g} ms published",
            ratio=1e3 * taken / published,
            promised=PROMISED,
        )
