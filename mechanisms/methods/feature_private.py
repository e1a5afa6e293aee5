"""Features that are private from the server: noised components of each client's block, uploaded once, and a head.

A client keeps its block from everybody, the server included. It releases the noised sum of outer products of its
records, from which principal components follow (Dwork et al., STOC 2014, "Analyze Gauss"). Then it uploads, once, the
`embedding` first components of each record, centred and scaled by that sum, clipped and noised. The sum is over all
records and costs little of the budget; each record's own row needs noise many times as large as itself.

The server knows the labels and how wide the noise is. Its head is linear discriminant analysis of which the covariance
of the noise is taken away: a regression with errors in its variables (Fuller 1987, section 1.2). All of it is
post-processing. A record that is replaced moves a client's sum and its rows by 2C each, so that over M clients

    mu^2 = M (2 C / sigma)^2 / (1 - s),   where a share s of mu^2 is that of the sums.

Labels stay open to whoever sees the head, and what is uploaded to be predicted is not noised.

Rules for components and for the least eigenvalue were settled on digits, adult, bank and breast-cancer.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot, pad

from dpzv_audit.accounting import Release, sigma_sound
from dpzv_audit.base.seeds import Purpose

from ..core.channel import SERVER, Message
from ..core.config import HeadConfig, Positive
from ..core.context import Deployment, RunContext, TrainingData
from ..core.federation import Federation
from ..core.logistic import GRID_BITS
from ..core.method import Games, MethodSpec, Protection
from ..core.noise import (
    ROW_BITS,
    Grid,
    gaussian,
    norms_of,
    outer_steps,
    summed_products,
    truncated_steps,
    unit_steps,
)

_ONCE = "everything is uploaded once, and the head is solved for"
_STILL = "clients have noised components, which do not move"
_UNUSED = {
    "epochs": _ONCE,
    "batch_size": _ONCE,
    "sampler": _ONCE,
    "sample_rate": _ONCE,
    "rate_schedule": _ONCE,
    "server_rate": _ONCE,
    "server_momentum": _ONCE,
    "client_rate": _STILL,
    "momentum": _STILL,
    "client_model": _STILL,
    "transformer": _STILL,
    "frozen_blocks": _STILL,
    "client_blocks": _STILL,
    "half_precision": _STILL,
    "shift": _STILL,
    "hidden": "the head is one linear layer",
    "top_model": "the head is the server's model",
    "softmax_outputs": "the head is linear discriminant analysis",
}
# The least eigenvalue of the head's covariance, in standard deviations of what noise leaves of it.
_FLOOR = 0.5
# Records at a time in double precision.
_ROWS = 4096


class FeaturePrivateConfig(HeadConfig):
    """Noised components of every client, once. The one round is the server's."""

    unused: ClassVar[Mapping[str, str]] = _UNUSED

    epochs: int = 1
    """One round: everything is uploaded once."""
    embedding: int = Field(4, ge=1, le=1000)
    """Most components of a client that are uploaded: each carries as much noise as all of a record's together."""
    epsilon: float | None = Field(4.0, gt=0)
    """Claimed epsilon, from which the noise follows."""
    sigma: float | None = Field(None, ge=0)
    """Standard deviation of the noise on each component; overrides the rest."""
    clip: Positive = 1.0
    """L2 clip of a record's components, C, in units of the root of their mean square."""
    statistics: float = Field(0.1, gt=0, lt=1)
    """Share of the privacy budget, of mu^2, that the sums take from which the components follow."""

    @property
    def label_free(self) -> Literal["components"]:
        """See `TrainingConfig.label_free`."""
        return "components"


def sigma_of(config: FeaturePrivateConfig, clients: int) -> float:
    """Return the standard deviation of the noise on each component of a row, 2 C sqrt(M) / (mu sqrt(1 - s)), or 0."""
    if config.sigma is not None:
        return config.sigma
    if config.calibration == "none" or config.epsilon is None:
        return 0.0
    whole = sigma_sound(
        config.epsilon,
        config.delta,
        clip=config.clip,
        batch_size=1,
        participations=clients,
        neighbours="replace-record",
    )
    # A hair more, so that no rounding of the two parts makes them more than the whole.
    return whole / math.sqrt(1.0 - config.statistics) * (1.0 + 1e-12)


def statistics_sigma(config: FeaturePrivateConfig, clients: int) -> float:
    """Return the standard deviation of the noise on a sum of outer products, each clipped to 1."""
    share = config.statistics
    return sigma_of(config, clients) / config.clip * math.sqrt((1.0 - share) / share)


class FeaturePrivateRun:
    """One stack of K trainings in progress; see `mechanisms.core.method.Run`."""

    def __init__(self, data: TrainingData, config: FeaturePrivateConfig, context: RunContext) -> None:
        self.federation = fed = Federation(data, config, context)
        self.config = config
        self.round = 0
        self._sigma = sigma_of(config, len(fed.clients))
        self._origin = context.noise_origin
        # What a claim cannot pay for is refused before anything is computed.
        self._grid(config.clip, self._sigma, ROW_BITS)
        self._grid(1.0, statistics_sigma(config, len(fed.clients)), GRID_BITS)

    def _grid(self, clip: float, sigma: float, bits: int) -> Grid | None:
        return Grid.of(self.config.noise, clip, sigma, bits=bits, records=self.federation.records)

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.core.method.Run.own_tensors`."""
        return {}

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.core.method.Run.skip_to`."""
        self.round = rounds

    def step(self) -> None:
        """Run the one round: every client releases its sums and uploads its rows; the server solves for its head."""
        fed = self.federation
        received = [self._upload(number) for number in fed.numbers]
        soft = fed.data.soft
        shares = one_hot(fed.data.labels, fed.data.classes) if soft is None else soft.rows
        # A random label stands for the classes that make it likely, all as likely as each other before.
        shares = shares.double() / shares.sum(-1, keepdim=True)
        weight, bias = fed.server_parameters.views.values()
        for place, own in enumerate(shares.expand(fed.stack, -1, -1)):
            rows = torch.cat([sent[place] for sent in received], 1).double()
            weight[place], bias[place] = discriminant(rows, own, self._sigma)
        self.round += 1

    def _upload(self, number: int) -> Tensor:
        """Set a client's models to its noised components and send its noised rows; return what the server gets."""
        fed = self.federation
        client = fed.clients[number - 1]
        for place, replica in enumerate(fed.replicas):
            block = client.features
            if fed.data.selection is not None:
                block = block[fed.data.selection[place]]
            client.parameters.flat[place] = self._components(block.flatten(1).double(), number, replica)
        rows = fed.embed_records(client)
        noised = torch.stack([self._rows(rows[k], number, replica) for k, replica in enumerate(fed.replicas)])
        return fed.channel.send(Message(self.round, number, SERVER, "table", noised.to(rows.dtype)))

    def _components(self, block: Tensor, number: int, replica: int) -> Tensor:
        """Return the layer to components of a `block` (n, d), (width * (d + 1)), which follows from its noised sum."""
        config = self.config
        count = block.shape[1]
        # Columns lie between 0 and 1: with a last 1 a record's norm is at most the root of 2 (d + 1) / 2.
        rows = pad(2.0 * block - 1.0, (0, 1), value=1.0) / math.sqrt(count + 1)
        sigma = statistics_sigma(config, len(self.federation.clients))
        grid = self._grid(1.0, sigma, GRID_BITS)
        noise = self._draw((count + 1, count + 1), sigma, grid, number, replica, 0)
        step = 1.0 if grid is None else grid.step
        total = (outer_sum(rows, grid) + noise) * (step * (count + 1) / len(block))
        total = (total + total.T) / 2
        mean = total[-1, :-1]
        spread, directions = torch.linalg.eigh(total[:-1, :-1] - torch.outer(mean, mean))
        width = min(self.federation.width, count)
        leading = directions[:, -width:].flip(1)
        # Either sign is an eigenvector's: that with which its largest entry is positive.
        leading = leading * leading.gather(0, leading.abs().argmax(0, keepdim=True)).sign()
        length = spread[-width:].clamp(min=0.0).sum().sqrt()
        scale = 1.0 / length if length > 0.0 else length
        weight = block.new_zeros(self.federation.width, count)
        weight[:width] = 2.0 * scale * leading.T
        shift = block.new_zeros(self.federation.width)
        shift[:width] = -scale * (leading.T @ (1.0 + mean))
        return torch.cat((weight.flatten(), shift))

    def _rows(self, rows: Tensor, number: int, replica: int) -> Tensor:
        """Return components (n, width) as they are sent: clipped and noised."""
        clip = self.config.clip
        if self._sigma == 0.0:
            return rows
        grid = self._grid(clip, self._sigma, ROW_BITS)
        noise = self._draw(tuple(rows.shape), self._sigma, grid, number, replica, 1)
        if grid is None:
            return rows.double() * (clip / norms_of(rows, (1,)).clamp(min=clip)) + noise
        return truncated_steps(rows, grid, (1,)).add_(noise).mul_(grid.step)

    def _draw(
        self, shape: tuple[int, ...], sigma: float, grid: Grid | None, number: int, replica: int, which: int
    ) -> Tensor:
        """Return noise in float64: in whole steps where there is a grid."""
        if sigma == 0.0:
            return torch.zeros(shape, dtype=torch.float64)
        std = sigma if grid is None else grid.steps(sigma)
        drawn = gaussian(shape, std, self._origin, Purpose.NOISE, replica, number, which, rounded=grid is not None)
        return torch.from_numpy(drawn).to(self.federation.device)


def outer_sum(rows: Tensor, grid: Grid | None) -> Tensor:
    """Return the sum (d, d) of the outer products of `rows` (n, d), each clipped to 1; in steps where there is a grid.

    A row that is not finite counts as 0.
    """
    total = rows.new_zeros(rows.shape[1], rows.shape[1])
    for some in rows.split(_ROWS):
        if grid is None:
            finite = torch.where(some.isfinite().all(1, keepdim=True), some, 0.0)
            total += (finite / finite.square().sum(1, keepdim=True).clamp(min=1.0)).T @ finite
        else:
            directions, norms = unit_steps(some[None], grid)
            (steps,) = outer_steps([some[None]], [norms], grid)
            total += summed_products(steps.double(), directions.double())[0]
    return total


def discriminant(rows: Tensor, shares: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """Return weights (classes, d) and constants (classes,) of linear discriminant analysis of what noise was added to.

    Args:
        rows: Noised rows (n, d).
        shares: Share of each class in each record, (n, classes).
        sigma: Standard deviation of the noise on each entry of a row.
    """
    n, d = rows.shape
    counts = shares.sum(0).clamp(min=1e-9 * n)
    mean = rows.mean(0)
    means = shares.T @ rows / counts[:, None] - mean
    centred = rows - mean
    noise = sigma**2 * torch.eye(d, dtype=rows.dtype, device=rows.device)
    within = centred.T @ centred / n - noise - (means.T * counts / n) @ means
    values, vectors = torch.linalg.eigh(within)
    floor = _FLOOR * sigma**2 * math.sqrt(d / n) + 1e-3 * values.max().clamp(min=1e-9)
    inverse = (vectors / (values.clamp(min=0.0) + floor)) @ vectors.T
    weights = means @ inverse
    # Noise alone gives a mean of few records a length.
    lengths = (weights * means).sum(1) - sigma**2 * inverse.trace() * (1.0 / counts - 1.0 / n)
    return weights, (counts / n).log() - lengths / 2 - weights @ mean


def _released(config: FeaturePrivateConfig, deployment: Deployment) -> tuple[Release, ...]:
    """Return the noised rows of all clients, and beside them the mu of their sums; () without noise."""
    clients = deployment.clients
    sigma = sigma_of(config, clients)
    if sigma == 0.0:
        return ()
    release = Release(
        batch_size=deployment.records,
        dataset_size=deployment.records,
        rounds=clients,
        clients=clients,
        clip=config.clip,
        sigma=sigma,
        sampler="shuffled",
        server_update="none",
        client_update="frozen",
        channel="embedding",
        server_mu=2.0 * math.sqrt(clients) / statistics_sigma(config, clients),
        noise=config.noise,
        seeded_noise=deployment.seeded_noise,
        data_dependent_side=deployment.data_dependent_side,
    )
    return (release,)


def _protection(config: FeaturePrivateConfig) -> Protection:
    nothing = Protection(epsilon=config.epsilon, delta=config.delta)
    if not config.noised:
        return nothing
    return replace(
        nothing,
        words="features of the training records, from the server too; labels stay open to whoever sees the head",
        channel="embedding",
        audience=("server",),
        neighbours="replace-record",
        draws=True,
    )


SPEC = MethodSpec(
    name="feature-private",
    summary="clients send noised components once, private from the server; a linear head takes the noise into account",
    config=FeaturePrivateConfig,
    run=FeaturePrivateRun,
    released=_released,
    protection=_protection,
    games=lambda config: Games(
        played=("rows",), why_not="the command audit method plays the game of a record's noised rows"
    ),
    downlink="none",
    own_noise=True,
    # These are the method's, whatever others take for the data.
    defaults={"embedding": 4, "epochs": 1},
)
