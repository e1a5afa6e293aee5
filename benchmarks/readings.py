"""Compares readings of a method that its paper leaves open: test accuracy, loss and bytes of each, paired by seed.

A reading is KEY=VALUE, or several with commas between them; `--set` holds for all. Every difference is to the first
reading, with a 95% Student interval over the seeds, which share starts and batches.

Run: python benchmarks/readings.py vafl --data-dir data --epochs 2 --readings embeddings=stale embeddings=fresh
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

import torch
from rates import HALVES, MLP, setting
from scipy import stats

from dpzv_audit.data import load
from mechanisms import method_named, train
from mechanisms.core.context import RunContext, TrainingData


def standardised(data):
    """`data` less the mean of all training features, over their standard deviation."""
    whole = torch.cat([block.flatten() for block in data.features])
    mean, std = whole.mean(), whole.std()
    moved, tested = (tuple((b - mean) / std for b in blocks) for blocks in (data.features, data.test_features))
    return replace(data, features=moved, test_features=tested)


def difference(values):
    """Mean of paired differences and its 95% Student interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return f"{values.mean():+.2f}, 95% from {values.mean() - half:+.2f} to {values.mean() + half:+.2f}"


def main():
    """Print a line for every reading."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--dataset", choices=("halves", "digits"), default="halves", help="MNIST in halves, or digits")
    parser.add_argument("--standardise", action="store_true", help="as paper 003's public code does with MNIST")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--records", type=int, help="train on the first of them; by default on all")
    parser.add_argument("--readings", nargs="+", required=True)
    parser.add_argument("--set", dest="settings", type=setting, nargs="*", default=[])
    arguments = parser.parse_args()
    halves = arguments.dataset == "halves"
    dataset = load(**HALVES, data_dir=arguments.data_dir) if halves else load("digits")
    data = TrainingData.of(dataset, dtype=torch.float32, device="cpu")
    if arguments.standardise:
        data = standardised(data)
    if arguments.records:
        blocks = tuple(block[: arguments.records] for block in data.features)
        data = replace(data, features=blocks, labels=data.labels[: arguments.records].contiguous())
    method = method_named(arguments.method)
    first = None
    for reading in arguments.readings:
        chosen = dict(map(setting, reading.split(",")))
        shared = {**(MLP if halves else {}), **dict(arguments.settings), "epochs": arguments.epochs}
        trained = train(
            method, data, method.configure(**shared, **chosen), RunContext(seed=1, replicas=range(arguments.seeds))
        )
        accuracy = 100 * trained.accuracy
        first = accuracy if first is None else first
        compared = "" if first is accuracy else f"; {difference(accuracy - first)}"
        print(
            f"{reading}: {trained.rounds} rounds, accuracy {accuracy.mean():.2f} +- {accuracy.std(ddof=1):.2f}, "
            f"loss {trained.loss.mean():.4f}, {trained.ledger.up / 1e6:.1f} MB up, "
            f"{trained.ledger.down / 1e6:.1f} MB down{compared}",
            flush=True,
        )


if __name__ == "__main__":
    main()
