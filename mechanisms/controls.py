"""Controls of accuracy: frozen clients, at the method's own server rate and at a rate tuned for the control.

The clients keep their random starts and only the server learns, by first-order steps on their fixed embeddings. A
method that does not beat this has learnt nothing worth its downlink at the clients (methods.md, "Controls").
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dpzv_audit.accounting import sigma_sound
from dpzv_audit.base.halving import in_pieces
from dpzv_audit.base.seeds import Purpose

from .core.config import Delta, TrainingConfig, rounds_of
from .core.context import RunContext, TrainingData
from .core.federation import Federation
from .core.joining import joined
from .core.logistic import GRID_BITS, ClippedSums, PrivateDescent, rows_of
from .core.noise import GaussianNoise, Grid

RATE_GRID = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Server rates that the tuned control tries beside the method's own."""

_TUNING_RECORDS = 10_000


@dataclass(frozen=True)
class FrozenControl:
    """Frozen clients at one server rate.

    Attributes:
        server_rate: The rate.
        correct: Which test records are right, booleans (K, n).
        fitted: Which of the training records that are looked at are right, booleans (K, n).
    """

    server_rate: float
    correct: np.ndarray
    fitted: np.ndarray

    @property
    def train_accuracy(self) -> float:
        """Return the accuracy in training over all replicas."""
        return float(self.fitted.mean())


@torch.no_grad()
def frozen_clients(
    data: TrainingData,
    config: TrainingConfig,
    context: RunContext,
    *,
    rate: float,
    at_once: int | None = None,
) -> FrozenControl:
    """Train the server alone at `rate` for as many rounds, batches and momentum as `config` says.

    At most `at_once` replicas at a time, and half as many from where memory runs out, to the same numbers.
    """
    at_rate = config.model_copy(update={"server_rate": rate})

    def piece(first: int, last: int) -> FrozenControl:
        some = replace(context, replicas=context.replicas[first:last])
        fed = Federation(data.of_replicas(first, last), at_rate, some)
        fed.fill_table()
        for round_ in range(rounds_of(config, fed.records) if fed.server.layout else 0):
            fed.begin(round_)
            batch = fed.clients[round_ % len(fed.clients)].batches.next()
            fed.train_server(fed.server_batch(fed.table_rows(batch), batch))
        correct, _ = fed.test_metrics()
        shown = min(fed.records, _TUNING_RECORDS)
        rows = fed.table[:-1].unflatten(0, (fed.stack, fed.records))[:, :shown]
        guesses = fed.server.forward(fed.server_parameters, rows).argmax(2)
        fitted = guesses == fed.data.labels[..., :shown]
        return FrozenControl(rate, correct, fitted.cpu().numpy())

    pieces = in_pieces(piece, 0, len(context.replicas), at_once)
    return joined([control for control, _ in pieces])


def rates_tried(config: TrainingConfig) -> tuple[float, ...]:
    """Return server rates of the controls: the method's own first, then the others of `RATE_GRID`."""
    return tuple(dict.fromkeys((config.server_rate, *RATE_GRID)))


def tuned_frozen_clients(
    data: TrainingData,
    config: TrainingConfig,
    context: RunContext,
    *,
    progress: Callable[[int], None] | None = None,
    at_once: int | None = None,
) -> tuple[FrozenControl, FrozenControl]:
    """Return the controls at the method's own rate, and at the best of that and `RATE_GRID` in training accuracy.

    `at_once` is as in `frozen_clients`. Test records decide nothing, so the tuned control is an honest number.
    """
    tried = []
    for rate in rates_tried(config):
        tried.append(frozen_clients(data, config, context, rate=rate, at_once=at_once))
        if progress is not None:
            progress(len(tried))
    return tried[0], max(tried, key=lambda control: control.train_accuracy)


class PrivateControlConfig(BaseModel):
    """How the server of frozen clients is trained, and for which guarantee."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    epsilon: float = Field(gt=0)
    """Epsilon of the guarantee; infinite noise-free training is not offered."""
    delta: Delta
    """Delta of the guarantee."""
    embedding: int = Field(128, ge=1)
    """Width of a client's random embedding."""
    steps: int = Field(100, ge=1)
    """Steps of full-batch gradient descent, T."""
    rate: float = Field(2.0, gt=0)
    """Learning rate of the server."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of its steps."""
    clip: float = Field(1.0, gt=0)
    """L2 clip of a record's gradient, C."""
    feature_scale: float = Field(10.0, gt=0)
    """What the embeddings are multiplied by; public."""


def control_sigma(config: PrivateControlConfig) -> float:
    """Return the standard deviation of the noise on the sum of clipped gradients: 2 C sqrt(T) / mu, checked forward."""
    return sigma_sound(config.epsilon, config.delta, clip=config.clip, batch_size=1, participations=config.steps)


@torch.no_grad()
def private_frozen_clients(data: TrainingData, config: PrivateControlConfig, context: RunContext) -> Tensor:
    """Train the server privately on random embeddings; return its logits of the test records, (K, n, classes).

    A client's features are h(x) - h(0): its own random start at the record less that at a blank one, so that nothing is
    centred or scaled by the data. Clients have the models that `TrainingConfig` gives the data.
    """
    alone = (replace(context, replicas=(k,)) for k in context.replicas)
    return torch.stack([_one(data, config, own) for own in alone])


def _one(data: TrainingData, config: PrivateControlConfig, context: RunContext) -> Tensor:
    fed = Federation(data, TrainingConfig(batch_size=1, embedding=config.embedding), context)
    rows = _features(fed, data.features, config.feature_scale)
    sigma = control_sigma(config)
    grid = Grid.fit(config.clip, sigma, bits=GRID_BITS, records=len(rows))
    shape = rows.shape[1], data.classes
    weights = torch.zeros(1, *shape, dtype=fed.dtype, device=fed.device)
    descent = PrivateDescent(
        ClippedSums(rows[None], config.clip, grid),
        data.labels.expand(1, -1),
        GaussianNoise(sigma, fed.streams, shape=shape, purpose=Purpose.SERVER_NOISE, grid=grid),
        config.rate,
        config.momentum,
        weights,
        torch.zeros_like(weights),
        grid.step,
    )
    for _ in range(config.steps):
        descent.move(descent.noised())
    return _features(fed, data.test_features, config.feature_scale) @ weights[0]


def _features(fed: Federation, blocks: Sequence[Tensor], scale: float) -> Tensor:
    """Return `scale` (h(x) - h(0)) of all clients side by side and a last column of ones, (n, M * width + 1)."""
    parts = []
    for client, block in zip(fed.clients, blocks, strict=True):
        blank = fed.embed_all(client, torch.zeros_like(block[:1]))
        parts.append(fed.embed_all(client, block).sub_(blank).mul_(scale))
    return rows_of(parts)[0]
