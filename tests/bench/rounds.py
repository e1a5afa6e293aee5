"""Milliseconds a round in paper 003's setting, beside the bare arithmetic of the round and the published code.

Two clients, MLP 64 / 128, batches of 64 of MNIST in memory, K = 1, one thread. The bare arithmetic is a loop of the
very matrix products of one round, captured as they ran, on ready tensors; its part of a round is the share spent in
arithmetic, of processor time. A figure is the least of many short turns, each of both in turn, so that other work on
the machine moves it little; it holds everything a round does, batches and directions drawn, messages counted, both
models stepped. One thread that waits for nothing takes as long as its processor time where nothing else runs, so that
is what is held against the target; the wall time beside it needs an idle machine. The published figures are the model
work alone of paper 003's public code on a machine of this kind (it spends 54 to 72 ms a round with its loader). MNIST
is read from DPZV_AUDIT_DATA; without it random images of its shape take its place, which are as much work.

Run: OMP_NUM_THREADS=1 python tests/bench/rounds.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpzv_audit.data import load
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError
from mechanisms import METHODS
from mechanisms.federation import TrainingData
from mechanisms.registry import run_of

PUBLISHED: dict[tuple[str, int], float] = {
    ("vafl", 0): 1.8,
    ("zoo-vfl", 0): 3.2,
    ("czofo", 1): 2.3,
    ("czofo", 10): 5.1,
    ("czofo", 100): 26.8,
}
"""Milliseconds a round of the public code's model work, by method and number of directions."""

PRODUCTS = {torch.ops.aten.bmm, torch.ops.aten.baddbmm, torch.ops.aten.mm, torch.ops.aten.addmm}


class CaptureProducts(TorchDispatchMode):
    """Keeps every matrix product that runs inside it, with its arguments as they were."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket in PRODUCTS:
            ready = tuple(a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args)
            plain = getattr(torch, function.overloadpacket.__name__)
            self.calls.append(lambda: plain(*ready))
        return function(*args, **(kwargs or {}))


def mnist() -> tuple[VerticalDataset, str]:
    """MNIST in 003's halves, and what it is in words; random images of its shape where its files are absent."""
    try:
        return load("mnist", clients=2, partition="runs"), "MNIST"
    except InputError:
        generator = np.random.default_rng(0)

        def part(n: int) -> Records:
            blocks = tuple(generator.random((n, 392), dtype=np.float32) for _ in range(2))
            return Records(blocks, generator.integers(10, size=n))

        return VerticalDataset("mnist", part(60_000), part(64), 10, "halves", {}), "random images of MNIST's shape"


def round_and_products(
    data: TrainingData, method: str, directions: int
) -> tuple[Callable[[], None], Callable[[], None]]:
    """A function that runs one round, and one that runs the bare products of such a round."""
    options = {"directions": directions} if directions else {}
    config = METHODS[method].configure(batch_size=64, epochs=100, embedding=64, hidden=128, **options)
    run = run_of(config)(data, config, seed=0, replicas=(0,))
    for _ in range(8):
        run.step()
    with CaptureProducts() as captured:
        run.step()
    calls = captured.calls

    def products() -> None:
        for call in calls:
            call()

    return run.step, products


def seconds(function: Callable[[], None], repeats: int) -> tuple[float, float]:
    """(wall, processor) seconds a call, over `repeats` calls."""
    start = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        function()
    stop = time.perf_counter(), time.process_time()
    return (stop[0] - start[0]) / repeats, (stop[1] - start[1]) / repeats


@torch.no_grad()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=4, help="rounds in a turn")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset, what = mnist()
    data = TrainingData.of(dataset, dtype=torch.float32, device="cpu")
    print(f"{what}, 2 clients, 64 / 128, B = 64, K = 1, one thread; the least of {arguments.turns} turns, ms a round")
    print("method     q     wall  processor     bare  round/bare  arithmetic  published  half of it          of it")
    for (method, directions), published in PUBLISHED.items():
        step, products = round_and_products(data, method, directions)
        turns = [
            seconds(step, arguments.repeats) + seconds(products, arguments.repeats) for _ in range(arguments.turns)
        ]
        wall, processor, _, bare = (1e3 * min(column) for column in zip(*turns, strict=True))
        verdict = "met" if processor <= published / 2 else "missed"
        print(
            f"{method:8} {directions or '':>3} {wall:8.3f} {processor:10.3f} {bare:8.3f} {processor / bare:11.2f} "
            f"{bare / processor:11.0%} {published:10.1f} {published / 2:11.2f} {verdict:>6} "
            f"{processor / published:7.2f}"
        )


if __name__ == "__main__":
    main()
