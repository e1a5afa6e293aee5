"""Peak memory of one round on a ResNet-18 at any batch and image size (`dpzv-audit reproduce dpzv-figure4-memory`), and
of `feature_inversion` on a wide table.

Run: python benchmarks/memory.py --batch-size 32 --size 64
"""

import argparse
import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
from ratios import Row

from attacks import ATTACKS, AttackSetting
from dpzv_audit.data import Records, VerticalDataset
from dpzv_audit.reproduce import TABLES, Setting, reproduce, to_markdown
from dpzv_audit.reproduce.memory import PeakMemory
from mechanisms import METHODS

FIGURE_4 = TABLES["dpzv-figure4-memory"]
PROMISED = 1.3
"""A DPZV client's step in place takes at most so many times its model and the activations of one batch."""
COLUMNS = 300
MOST = 2e9
"""The bytes that `feature_inversion` may take on a table of so many columns."""


def rows(*, quick=False, device="cpu"):
    """The peak of a client's round over its model and the activations of a batch, by method."""
    for bar in bars(PeakMemory.batch_size, 16 if quick else PeakMemory.image_size):
        found = bar.measured(device)
        model, activations = found["model_megabytes"], found["activations_megabytes"]
        yield Row(
            what=f"{bar.label}, ResNet-18, B = {bar.batch_size}, {bar.image_size} x {bar.image_size}",
            ours=f"{found['peak_megabytes']:.1f} MB",
            beside=f"model {model:.1f} and activations {activations:.1f} MB",
            ratio=found["peak_megabytes"] / (model + activations),
            promised=PROMISED if bar.options.get("perturbation") == "in-place" else None,
        )
    if device == "cpu":
        records, trials = (500, 2) if quick else (4000, 16)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            peak = fresh.submit(inversion_peak, records, trials).result()
        yield Row(
            what=f"feature_inversion, {COLUMNS} columns, {records:,} records, {trials} trainings and controls",
            ours=f"{peak / 1e9:.2f} GB, of the process",
            beside=f"{MOST / 1e9:.0f} GB",
            ratio=peak / MOST,
            promised=1.0,
        )


def inversion_peak(records, trials):
    """The most bytes that this process held, after `feature_inversion` on DPZV with two clients of half the columns."""
    generator = np.random.default_rng(0)

    def part(n):
        blocks = tuple(generator.random((n, COLUMNS // 2), dtype=np.float32) for _ in range(2))
        return Records(blocks, generator.integers(2, size=n))

    data = VerticalDataset(name="wide", train=part(records), test=part(100), classes=2, partition="halves", digests={})
    method = METHODS["dpzv"]
    config = method.configure(epochs=8)
    ATTACKS["feature_inversion"].mount(
        AttackSetting(method=method, config=config, dataset=data, adversary="server", trials=trials)
    )
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def bars(batch, size):
    """What the figure measures, at another batch and image size."""
    kept = (item for item in FIGURE_4.items if isinstance(item, PeakMemory))
    return tuple(replace(bar, batch_size=batch, image_size=size) for bar in kept)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=PeakMemory.batch_size)
    parser.add_argument("--size", type=int, default=PeakMemory.image_size, help="rows and columns of an image")
    arguments = parser.parse_args()
    batch, size = arguments.batch_size, arguments.size
    about = f"One client with a ResNet-18, batches of {batch} images of {size} x {size}, no momentum."
    table = replace(FIGURE_4, items=bars(batch, size), about=about)

    def no_data(keywords):
        raise AssertionError("memory is measured on random images")

    print(to_markdown(table, reproduce(table, Setting(load=no_data, epochs=1, seeds=1))))


if __name__ == "__main__":
    main()
