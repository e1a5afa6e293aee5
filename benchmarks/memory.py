"""Peak memory of one round on a ResNet-18 (`dpzv-audit reproduce dpzv-figure4-memory`), and of `feature_inversion`.

Run: python benchmarks/run.py memory
"""

import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from measuring import random_dataset
from ratios import Row

from attacks import ATTACKS, AttackSetting
from dpzv_audit.reproduce import TABLES
from dpzv_audit.reproduce.memory import PeakMemory
from mechanisms import METHODS

PROMISED = 1.3
"""A DPZV client's step in place takes at most so many times its model and the activations of one batch."""
COLUMNS = 300
MOST = 2e9
"""The bytes that `feature_inversion` may take on a table of so many columns."""


def rows(*, quick=False, device="cpu"):
    """The peak of a client's round over its model and the activations of a batch, by method."""
    for bar in TABLES["dpzv-figure4-memory"].items:
        if not isinstance(bar, PeakMemory):
            continue
        bar = replace(bar, image_size=16 if quick else PeakMemory.image_size)
        megabytes = bar.measured()  # on the CPU, whatever the device
        model, activations = megabytes["model_megabytes"], megabytes["activations_megabytes"]
        yield Row(
            what=f"{bar.label}, ResNet-18, B = {bar.batch_size}, {bar.image_size} x {bar.image_size}",
            ours=f"{megabytes['peak_megabytes']:.1f} MB",
            beside=f"model {model:.1f} and activations {activations:.1f} MB",
            ratio=megabytes["peak_megabytes"] / (model + activations),
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
    data = random_dataset("wide", records, 100, 2, (COLUMNS // 2,), classes=2)
    method = METHODS["dpzv"]
    config = method.configure(epochs=8)
    ATTACKS["feature_inversion"].mount(
        AttackSetting(method=method, config=config, dataset=data, adversary="server", trials=trials)
    )
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
