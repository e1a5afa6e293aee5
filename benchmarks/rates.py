"""Chooses learning rates of paper 003's setting on real MNIST by validation loss; test records are never read.

The last 10,000 training records are held out for validation; the rest train. One line a setting: client rate, server
rate, loss and accuracy on the held-out records, mean over replicas, and how soon accuracies were reached. Epochs are
the paper's (a pass of every client).

Run: python benchmarks/rates.py czofo --data-dir data --epochs 5 --rates 0.1 0.01 --set directions=10
"""

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path

import torch

from dpzv_audit.data import load
from mechanisms import method_named, train
from mechanisms.core.context import RunContext, TrainingData

HELD_OUT = 10_000
HALVES = {"name": "mnist", "clients": 2, "partition": "runs"}
MLP = {"batch_size": 64, "embedding": 64, "hidden": 128, "momentum": 0.0, "server_momentum": 0.0}
SYNCHRONOUS = ("split", "compressed", "syn-zoo-vfl")
"""Methods whose rounds activate every client, so that a pass of every client is one epoch."""


def held_out(data, records):
    """`data` with its last training records in the place of the test records, and `records` of the others."""
    cut = len(data.labels) - HELD_OUT
    trained = min(records or cut, cut)
    return replace(
        data,
        features=tuple(block[:trained] for block in data.features),
        labels=data.labels[:trained].contiguous(),
        test_features=tuple(block[cut:] for block in data.features),
        test_labels=data.labels[cut:].contiguous(),
    )


def milestones(history, passes):
    """In which of the paper's epochs 60, 80, 90 and 95% were first reached, "-" where they were not."""
    epochs = []
    for target in (60, 80, 90, 95):
        reached = next((epoch / passes for epoch, accuracy, _ in history if 100 * accuracy >= target), None)
        epochs.append(f"{target}%: " + ("-" if reached is None else f"{reached:g}"))
    return ", ".join(epochs)


def setting(text):
    """KEY=VALUE with VALUE as JSON where it is JSON, as a string otherwise."""
    key, value = text.split("=", 1)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def main():
    """Print a line for every pair of rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs="+", help="one rate for all parties, each in turn")
    parser.add_argument("--pairs", nargs="+", help="CLIENT,SERVER rates, each in turn, instead of --rates")
    parser.add_argument("--records", type=int, help="train on the first of them; by default on all but those held out")
    parser.add_argument("--set", dest="settings", type=setting, nargs="*", default=[])
    arguments = parser.parse_args()
    rates = [tuple(map(float, pair.split(","))) for pair in arguments.pairs or ()] or [
        (rate, rate) for rate in arguments.rates
    ]
    dataset = load(**HALVES, data_dir=arguments.data_dir)
    data = held_out(TrainingData.of(dataset, dtype=torch.float32, device="cpu"), arguments.records)
    method = method_named(arguments.method)
    epochs = arguments.epochs * (1 if arguments.method in SYNCHRONOUS else 2)
    for client_rate, server_rate in rates:
        chosen = {"epochs": epochs, "client_rate": client_rate, "server_rate": server_rate}
        config = method.configure(**{**MLP, **dict(arguments.settings), **chosen})
        trained = train(method, data, config, RunContext(seed=1, replicas=range(arguments.seeds)), evaluate_epochs=True)
        loss = float(trained.loss.mean())
        shown = f"{loss:.4f}" if math.isfinite(loss) else "diverged"
        settings = " ".join(f"{key}={value}" for key, value in arguments.settings)
        print(
            f"{arguments.method} {settings} client {client_rate:g} server {server_rate:g} epochs {arguments.epochs}: "
            f"loss {shown}, accuracy {100 * trained.accuracy.mean():.2f}, "
            f"epochs to {milestones(trained.history, epochs // arguments.epochs)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
