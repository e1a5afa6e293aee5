"""What a stack of replicas costs on digits: a DPZV round against the bare arithmetic in it, and K against 1.

The bare arithmetic is a loop of the very matrix products of one round, captured as they ran, on ready tensors. All
figures of a row are taken in turn within one run, so their ratios hold where the machine's speed drifts.

Run: python tests/bench/replicas.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpzv_audit.data import load
from mechanisms import METHODS
from mechanisms.dpzv import DPZVRun
from mechanisms.federation import TrainingData
from mechanisms.plan import plan

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


def round_and_products(
    replicas: int, batch_size: int, **options: object
) -> tuple[Callable[[], None], Callable[[], None]]:
    """A function that runs one DPZV round on digits, and one that runs the bare products of such a round."""
    config = METHODS["dpzv"].configure(epochs=1_000, batch_size=batch_size, **options)
    dataset = load("digits")
    data = TrainingData.of(dataset, dtype=torch.float32, device="cpu")
    schedule = plan(config, records=len(dataset.train), clients=dataset.clients, seed=0)
    run = DPZVRun(data, config, schedule, seed=0, replicas=range(replicas))
    for _ in range(8):
        run.step()
    with CaptureProducts() as captured:
        run.step()
    calls = captured.calls

    def products() -> None:
        for call in calls:
            call()

    return run.step, products


def seconds(function: Callable[[], None], repeats: int) -> float:
    """Seconds a call, over `repeats` calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def compare(batch_size: int, *, turns: int, **options: object) -> tuple[float, float, float, float, float]:
    """Medians over turns: microseconds a round at K = 1 and 128, their ratios to bare arithmetic, gain of 128."""
    one, one_bare = round_and_products(1, batch_size, **options)
    many, many_bare = round_and_products(128, batch_size, **options)
    rows = []
    for _ in range(turns):
        a, b = seconds(one, 200), seconds(one_bare, 200)
        c, d = seconds(many, 10), seconds(many_bare, 10)
        rows.append((1e6 * a, 1e6 * c, a / b, c / d, a / (c / 128)))
    columns = zip(*rows, strict=True)
    k1, k128, ratio1, ratio128, gain = (statistics.median(column) for column in columns)
    return k1, k128, ratio1, ratio128, gain


@torch.no_grad()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"DPZV on digits, 4 clients, float32, {arguments.threads} threads; medians of {arguments.turns} turns")
    print("model           B   us/round K=1  K=128   round/bare K=1  K=128   a replica-round at K=1 / at K=128")
    for name, options in (("16 -> 32 -> 10", {}), ("sum, no top", {"top_model": False})):
        for batch_size in (8, 16, 64):
            k1, k128, ratio1, ratio128, gain = compare(batch_size, turns=arguments.turns, **options)
            print(f"{name:14} {batch_size:3} {k1:10.0f} {k128:10.0f} {ratio1:11.1f} {ratio128:10.1f} {gain:14.1f}")


if __name__ == "__main__":
    main()
