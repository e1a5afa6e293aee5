"""The private control: frozen random clients under a server trained by full-batch DP gradient descent (methods.md).

Nothing is sent down to any client. The server is one linear layer on the clients' embeddings; each of T steps releases
the sum of all records' gradients, clipped one by one to C, with Gaussian noise, both in steps of a grid. That is T
Gaussian mechanisms of sensitivity 2C where a record is replaced, all of them seen: mu = 2 C sqrt(T) / sigma, without
amplification.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from dpzv_audit.accounting import sigma_sound
from dpzv_audit.seeds import Purpose
from mechanisms.config import TrainingConfig
from mechanisms.context import RunContext
from mechanisms.federation import Federation
from mechanisms.grid import GRADIENT_BITS, Grid, outer_steps, unit_steps
from mechanisms.noise import GaussianNoise
from mechanisms.training_data import TrainingData

_ROWS = 4096
"""Records at a time in double precision."""


class PrivateControlConfig(BaseModel):
    """How the server of frozen clients is trained, and for which guarantee."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epsilon: float = Field(gt=0, description="Epsilon of the guarantee; infinite noise-free training is not offered.")
    delta: float = Field(gt=0, lt=1, description="Delta of the guarantee.")
    embedding: int = Field(128, ge=1, description="Width of a client's random embedding.")
    steps: int = Field(100, ge=1, description="Steps of full-batch gradient descent, T.")
    rate: float = Field(2.0, gt=0, description="Learning rate of the server.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of its steps.")
    clip: float = Field(1.0, gt=0, description="L2 clip of a record's gradient, C.")
    feature_scale: float = Field(10.0, gt=0, description="What the embeddings are multiplied by; public.")


def control_sigma(config: PrivateControlConfig) -> float:
    """Standard deviation of the noise on the sum of clipped gradients: 2 C sqrt(T) / mu, checked forward."""
    return sigma_sound(config.epsilon, config.delta, clip=config.clip, batch_size=1, participations=config.steps)


@torch.no_grad()
def private_frozen_clients(
    data: TrainingData,
    config: PrivateControlConfig,
    *,
    seed: int,
    replicas: Sequence[int] = (0,),
    device: str = "cpu",
) -> np.ndarray:
    """Train the server privately on random embeddings; which test records are right, booleans (K, n).

    A client's features are h(x) - h(0): its own random start at the record less that at a blank one, so that nothing is
    centred or scaled by the data. Clients have the models that `TrainingConfig` gives the data.
    """
    return np.concatenate([_one(data, config, seed=seed, replica=k, device=device) for k in replicas])


def _one(data: TrainingData, config: PrivateControlConfig, *, seed: int, replica: int, device: str) -> np.ndarray:
    clients = TrainingConfig(batch_size=1, embedding=config.embedding)
    fed = Federation(data, clients, RunContext(seed=seed, replicas=(replica,), device=device))
    rows = _features(fed, data.features, config.feature_scale)
    sigma = control_sigma(config)
    grid = Grid.fit(config.clip, sigma, bits=GRADIENT_BITS, records=len(rows))
    # Whole numbers of at most 2^12: two bytes hold them, which for 60,000 records is worth it.
    units = torch.cat([unit_steps(some[None].double(), grid)[0][0].to(torch.int16) for some in rows.split(_ROWS)])
    noise = GaussianNoise(
        grid.steps(sigma),
        size=rows.shape[1] * data.classes,
        purpose=Purpose.SERVER_NOISE,
        rounded=True,
        **fed.context.streams(torch.float64),
    )
    weights = torch.zeros(rows.shape[1], data.classes, dtype=fed.dtype, device=device)
    velocity = torch.zeros_like(weights)
    for _ in range(config.steps):
        steps = clipped_gradient_steps(rows, units, data.labels, weights, grid) + noise.next().view_as(weights)
        velocity = velocity.mul_(config.momentum).add_(steps.mul_(grid.step / len(rows)))
        weights -= config.rate * velocity
    test = _features(fed, data.test_features, config.feature_scale)
    guesses = (test @ weights).argmax(1)
    right: np.ndarray = (guesses == data.test_labels).cpu().numpy()
    return right[np.newaxis]


def _features(fed: Federation, blocks: Sequence[Tensor], scale: float) -> Tensor:
    """`scale` (h(x) - h(0)) of all clients side by side and a last column of ones, (n, M * width + 1)."""
    parts = []
    for client, block in zip(fed.clients, blocks, strict=True):
        blank = fed.embed_all(client, torch.zeros_like(block[:1]))[0]
        parts.append(fed.embed_all(client, block)[0].sub_(blank).mul_(scale))
    return torch.cat([*parts, torch.ones_like(parts[0][:, :1])], 1)


def clipped_gradient_steps(rows: Tensor, units: Tensor, labels: Tensor, weights: Tensor, grid: Grid) -> Tensor:
    """Sum over records of the gradient of softmax regression, each clipped and in whole steps of `grid`; (d, classes).

    A record's gradient is x (p - y)^T, whose norm is |x| |p - y|: no record's own gradient is ever formed. `units` are
    the directions of `rows` in whole steps (`mechanisms.grid.unit_steps`).
    """
    residuals = torch.softmax(rows @ weights, 1)
    residuals[torch.arange(len(rows), device=rows.device), labels] -= 1.0
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    (steps,) = outer_steps([residuals[None].double()], [norms[None, :, None]], grid)
    total = steps.new_zeros(weights.shape)
    for some, own in zip(units.split(_ROWS), steps[0].split(_ROWS), strict=True):
        total += some.to(torch.float64).T @ own
    return total
