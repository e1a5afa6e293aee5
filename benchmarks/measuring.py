"""What the benchmarks of training share: times in turn, and the bare matrix products of a round.

A time is the least of several turns, taken in turn with what it is held against, so that other work on the machine
moves a ratio little. On the CPU it is processor time, on CUDA the time until the device is done.
"""

import time

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpzv_audit.data.vertical import Records, VerticalDataset
from mechanisms.core.context import TrainingData

PRODUCTS = {torch.ops.aten.bmm, torch.ops.aten.baddbmm, torch.ops.aten.mm, torch.ops.aten.addmm}


def seconds(function, repeats=1, *, device="cpu"):
    """Seconds a call over `repeats` calls: of the processor, or on CUDA by the clock until the device is done."""
    if device == "cpu":
        start = time.process_time()
        for _ in range(repeats):
            function()
        return (time.process_time() - start) / repeats
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def least(functions, *, turns, device="cpu"):
    """The least seconds a call of each of `functions`, (function, repeats a turn), over `turns` turns of all."""
    taken = [[seconds(function, repeats, device=device) for function, repeats in functions] for _ in range(turns)]
    return tuple(min(column) for column in zip(*taken, strict=True))


class CaptureProducts(TorchDispatchMode):
    """Keeps every matrix product that runs inside it, with its arguments as they were."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in PRODUCTS:
            ready = tuple(a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args)
            plain = getattr(torch, function.overloadpacket.__name__)
            self.calls.append(lambda: plain(*ready))
        return function(*args, **(kwargs or {}))


def products_of(step, *, before=8):
    """A function that runs the bare matrix products of one call of `step`, made after `before` calls of it."""
    for _ in range(before):
        step()
    with CaptureProducts() as captured:
        step()
    calls = captured.calls

    def products():
        for call in calls:
            call()

    return products


def tensors(dataset, device="cpu"):
    """What methods train on."""
    return TrainingData.of(dataset, dtype=torch.float32, device=device)


def random_dataset(name, records, test, clients, shape, classes=10):
    """Random features of `clients` clients, of `shape` a record: what a round costs does not depend on them."""
    generator = np.random.default_rng(0)

    def part(count):
        blocks = tuple(generator.random((count, *shape), dtype=np.float32) for _ in range(clients))
        return Records(blocks, generator.integers(classes, size=count))

    return VerticalDataset(name, part(records), part(test), classes, "random", {})
