"""Controls of accuracy: frozen clients, at the method's own server rate and at a rate tuned for the control.

The clients keep their random starts and only the server learns, by first-order steps on their fixed embeddings. A
method that does not beat this has learnt nothing worth its downlink at the clients (methods.md, "Controls").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mechanisms.config import TrainingConfig
from mechanisms.federation import Federation, rounds_of
from mechanisms.perturbation import momentum_step
from mechanisms.servers import loss_gradient
from mechanisms.training_data import TrainingData

RATE_GRID = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Server rates that the tuned control tries beside the method's own."""

_TUNING_RECORDS = 10_000


@dataclass(frozen=True)
class FrozenControl:
    """Frozen clients at one server rate: which test records are right, booleans (K, n), and accuracy in training."""

    server_rate: float
    correct: np.ndarray
    train_accuracy: float


@torch.no_grad()
def frozen_clients(
    data: TrainingData,
    config: TrainingConfig,
    *,
    rate: float,
    seed: int,
    replicas: Sequence[int] = (0,),
    device: str = "cpu",
) -> FrozenControl:
    """Train the server alone at `rate` for as many rounds, batches and momentum as `config` says."""
    fed = Federation(data, config, seed=seed, replicas=replicas, device=device)
    fed.fill_table()
    for round_ in range(rounds_of(config, fed.records) if fed.server.layout else 0):
        batch = fed.clients[round_ % len(fed.clients)].batches.next()
        logits, pullback = fed.server.forward_with_pullback(fed.server_parameters, fed.table_rows(batch))
        gradient, _ = pullback(
            loss_gradient(logits, data.batch_labels(batch), batch.weights, config.batch_size), at_inputs=False
        )
        momentum_step(fed.server_parameters.flat, fed.server_momentum, gradient, rate, config.server_momentum)
    correct, _ = fed.test_metrics()
    shown = min(fed.records, _TUNING_RECORDS)
    rows = fed.table[:-1].unflatten(0, (fed.stack, fed.records))[:, :shown]
    guesses = fed.server.forward(fed.server_parameters, rows).argmax(2)
    labels = data.labels[..., :shown]
    return FrozenControl(rate, correct, float((guesses == labels).to(torch.float64).mean()))


def tuned_frozen_clients(
    data: TrainingData,
    config: TrainingConfig,
    *,
    seed: int,
    replicas: Sequence[int] = (0,),
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> tuple[FrozenControl, FrozenControl]:
    """(at the method's own rate, at the best of that and `RATE_GRID`); the best is chosen by training accuracy.

    Test records decide nothing, so the tuned control is an honest number.
    """
    tried = []
    for rate in (config.server_rate, *(r for r in RATE_GRID if r != config.server_rate)):
        tried.append(frozen_clients(data, config, rate=rate, seed=seed, replicas=replicas, device=device))
        if progress is not None:
            progress(len(tried))
    finite = [c for c in tried if np.isfinite(c.train_accuracy)]
    return tried[0], max(finite, key=lambda control: control.train_accuracy)
