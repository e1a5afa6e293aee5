"""Peak memory of one client step on a ResNet-18: DPZV in place (MeZO) and functional, and VAFL, against its model.

Everything is counted that lives between the making of a run and its second round: every tensor that an operation
makes, followed until it is freed, and what numpy and Python allocate. There is one client, and the small server and its
table count too. Figures are the same on every run. Run: python tests/bench/memory.py
"""

from __future__ import annotations

import argparse
import gc
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from dpzv_audit.data.vertical import Records, VerticalDataset
from mechanisms import METHODS
from mechanisms.dpzv import DPZVRun
from mechanisms.federation import TrainingData
from mechanisms.plan import plan
from mechanisms.vafl import VAFLRun


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that operations inside it made and that still live, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {t.untyped_storage()._cdata for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = function(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                self._follow(tensor.untyped_storage(), before)
        return out

    def _follow(self, storage: torch.UntypedStorage, before: set[int]) -> None:
        key = storage._cdata
        if key in before or key in self._known:
            return
        self._known.add(key)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, key, storage.nbytes())

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def images(records: int, size: int) -> VerticalDataset:
    """Random images for one client: memory does not depend on what is in them."""
    generator = np.random.default_rng(0)

    def part(n: int) -> Records:
        blocks = tuple(generator.random((n, 3, size, size), dtype=np.float32) for _ in range(1))
        return Records(blocks, generator.integers(10, size=n))

    return VerticalDataset("images", part(records), part(4), 10, "one client", {})


def peak_of_a_round(make: Callable[[], Any]) -> int:
    """Peak bytes during the second round of a run."""
    make().step()  # whatever is imported on first use is no part of a round
    gc.collect()
    tracemalloc.start()
    with LiveBytes() as live:
        run = make()
        run.step()
        gc.collect()
        live.peak = live.now
        tracemalloc.reset_peak()
        run.step()
    _, python = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return live.peak + python


@torch.no_grad()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, default=32, help="rows and columns of an image")
    arguments = parser.parse_args()
    batch = arguments.batch_size
    dataset = images(2 * batch, arguments.size)
    data = TrainingData.of(dataset, dtype=torch.float32, device="cpu")
    common = {"batch_size": batch, "epochs": 8, "client_model": "resnet18", "momentum": 0.0, "server_momentum": 0.0}

    def dpzv(perturbation: str) -> DPZVRun:
        config = METHODS["dpzv"].configure(**common, perturbation=perturbation)
        schedule = plan(config, records=2 * batch, clients=1, seed=0)
        return DPZVRun(data, config, schedule, seed=0, replicas=(0,))

    def vafl() -> VAFLRun:
        return VAFLRun(data, METHODS["vafl"].configure(**common), seed=0, replicas=(0,))

    probe = vafl().federation.clients[0]
    with LiveBytes() as live:
        probe.evaluator.forward(probe.parameters, data.features[0][:batch].unsqueeze(0))
    activations, model = live.peak, probe.parameters.flat.nbytes
    print(f"ResNet-18, {batch} images of {arguments.size} x {arguments.size}, one client, in MB")
    print(f"model {model / 1e6:.1f}, activations of one batch without gradients {activations / 1e6:.1f}")
    print("method              peak of a round   ratio to model + activations")
    makes = {"dpzv, in place": lambda: dpzv("in-place"), "dpzv, functional": lambda: dpzv("functional"), "vafl": vafl}
    for name, make in makes.items():
        peak = peak_of_a_round(make)
        print(f"{name:18} {peak / 1e6:16.1f} {peak / (model + activations):14.2f}")


if __name__ == "__main__":
    main()
