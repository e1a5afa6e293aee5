"""Controls of accuracy: frozen clients, at the method's own server rate and at a rate tuned for the control.

The clients keep their random starts and only the server learns, by first-order steps on their fixed embeddings. A
method that does not beat this has learnt nothing worth its downlink at the clients (methods.md, "Controls").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dpzv_audit.halving import in_pieces
from mechanisms.config import TrainingConfig
from mechanisms.context import RunContext
from mechanisms.federation import Federation, rounds_of
from mechanisms.training_data import TrainingData

RATE_GRID = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Server rates that the tuned control tries beside the method's own."""

_TUNING_RECORDS = 10_000


@dataclass(frozen=True)
class FrozenControl:
    """Frozen clients at one server rate: which test records are right, booleans (K, n), and accuracy in training."""

    server_rate: float
    correct: np.ndarray
    right: int
    """How many of `guesses` about training records, in all replicas, are right."""
    guesses: int

    @property
    def train_accuracy(self) -> float:
        """Accuracy in training over all replicas."""
        return self.right / self.guesses


@torch.no_grad()
def frozen_clients(
    data: TrainingData,
    config: TrainingConfig,
    *,
    rate: float,
    seed: int,
    replicas: Sequence[int] = (0,),
    device: str = "cpu",
    at_once: int | None = None,
) -> FrozenControl:
    """Train the server alone at `rate` for as many rounds, batches and momentum as `config` says.

    At most `at_once` replicas at a time, and half as many from where memory runs out, to the same numbers.
    """

    def piece(first: int, last: int) -> FrozenControl:
        some = data.of_replicas(first, last)
        return _frozen_stack(some, config, rate, seed=seed, replicas=replicas[first:last], device=device)

    pieces = [control for control, _ in in_pieces(piece, 0, len(replicas), at_once)]
    return FrozenControl(
        rate,
        np.concatenate([control.correct for control in pieces]),
        right=sum(control.right for control in pieces),
        guesses=sum(control.guesses for control in pieces),
    )


def _frozen_stack(
    data: TrainingData, config: TrainingConfig, rate: float, *, seed: int, replicas: Sequence[int], device: str
) -> FrozenControl:
    fed = Federation(data, config, RunContext(seed=seed, replicas=replicas, device=device))
    fed.fill_table()
    for round_ in range(rounds_of(config, fed.records) if fed.server.layout else 0):
        batch = fed.clients[round_ % len(fed.clients)].batches.next()
        labels = data.batch_labels(batch)
        gradient, _ = fed.server_gradients(fed.table_rows(batch), labels, batch.weights, at_inputs=False)
        fed.step_server(gradient, rate)
    correct, _ = fed.test_metrics()
    shown = min(fed.records, _TUNING_RECORDS)
    rows = fed.table[:-1].unflatten(0, (fed.stack, fed.records))[:, :shown]
    guesses = fed.server.forward(fed.server_parameters, rows).argmax(2)
    labels = data.labels[..., :shown]
    return FrozenControl(rate, correct, int((guesses == labels).sum()), guesses.numel())


def rates_tried(config: TrainingConfig) -> tuple[float, ...]:
    """Server rates of the controls: the method's own first, then the others of `RATE_GRID`."""
    return tuple(dict.fromkeys((config.server_rate, *RATE_GRID)))


def tuned_frozen_clients(
    data: TrainingData,
    config: TrainingConfig,
    *,
    seed: int,
    replicas: Sequence[int] = (0,),
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
    at_once: int | None = None,
) -> tuple[FrozenControl, FrozenControl]:
    """(at the method's own rate, at the best of that and `RATE_GRID`); the best is chosen by training accuracy.

    `at_once` is as in `frozen_clients`. Test records decide nothing, so the tuned control is an honest number.
    """
    tried = []
    for rate in rates_tried(config):
        tried.append(
            frozen_clients(data, config, rate=rate, seed=seed, replicas=replicas, device=device, at_once=at_once)
        )
        if progress is not None:
            progress(len(tried))
    return tried[0], max(tried, key=lambda control: control.train_accuracy)
