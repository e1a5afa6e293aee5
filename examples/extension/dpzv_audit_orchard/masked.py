"""Masked VAFL: every record's gradient is clipped and noised before it goes down to a client.

A record's row of a message is clip_C(g_i) + N(0, sigma^2 I), which is what `released` states.
"""

from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from dpzv_audit.accounting import Release
from dpzv_audit.base.seeds import Purpose
from mechanisms.core.config import AsyncConfig, active_clients, check_plan
from mechanisms.core.context import Deployment, RunContext, TrainingData
from mechanisms.core.method import MethodSpec, Protection
from mechanisms.core.noise import ROW_BITS, Grid, gaussian, truncated_steps
from mechanisms.core.rounds import AsyncRun


class MaskedConfig(AsyncConfig):
    """VAFL whose gradients are noised."""

    client_rate: float = Field(0.05, ge=0, description="Learning rate of the clients; 0 freezes them.")
    server_rate: float = Field(0.05, ge=0, description="Learning rate of the server.")
    clip: float = Field(1.0, gt=0, description="L2 norm to which a record's gradient is clipped, C.")
    sigma: float = Field(2.0, ge=0, description="Standard deviation of the noise on every coordinate; 0: none.")
    noise: Literal["grid"] = Field("grid", description="Gradients and noise are whole steps of a public grid.")

    @model_validator(mode="after")
    def _in_turn(self) -> Self:
        if self.sampler != "shuffled" or self.activation != "cyclic" or self.compute_times is not None:
            raise ValueError("use sampler shuffled and activation cyclic: the release counts passes")
        return self


class MaskedRun(AsyncRun[MaskedConfig]):
    """One stack of K trainings in progress."""

    def __init__(self, data: TrainingData, config: MaskedConfig, context: RunContext) -> None:
        super().__init__(data, config, context, active_clients(config, len(data.features), context.seed))
        self._context = context
        self.federation.fill_table()

    def step(self) -> None:
        """Run the next round: the active client sends embeddings, the server answers with noised gradients."""
        fed = self.federation
        turn = self.next_turn()
        (number,) = turn.clients
        forward = fed.forward(number, turn.batch)
        received = self.send_up(turn, {number: forward.output})
        server_gradient, at_rows = fed.server_gradients(self.server_batch(turn.batch, received))
        fed.step_server(server_gradient)
        masked = self._masked(at_rows[:, :, fed.slots[number - 1]])
        answers = self.send_down(turn, "gradient", {number: masked})
        client_gradient, _ = forward.pullback(answers[number], at_inputs=False)
        fed.step_client(number, client_gradient)
        self.round += 1

    def _masked(self, gradients: Tensor) -> Tensor:
        """Clip and noise the records' gradients, of which `gradients` (K, B, width) are those of the batch mean."""
        config, context = self.config, self._context
        if config.sigma == 0.0:
            return gradients
        grid = Grid.fit(config.clip, config.sigma, bits=ROW_BITS)
        shape, std, origin = tuple(gradients.shape[1:]), grid.steps(config.sigma), context.noise_origin
        draws = [gaussian(shape, std, origin, Purpose.NOISE, k, self.round, rounded=True) for k in context.replicas]
        steps = truncated_steps(gradients * config.batch_size, grid, (2,)) + torch.from_numpy(np.stack(draws))
        return (steps * grid.step / config.batch_size).to(gradients)


def released(config: MaskedConfig, deployment: Deployment) -> tuple[Release, ...]:
    """Return what a training releases: one noised row per record of each round's batch."""
    if config.sigma == 0.0:
        return ()
    return (
        Release(
            channel="gradient",
            batch_size=config.batch_size,
            dataset_size=deployment.records,
            rounds=check_plan(config, records=deployment.records, clients=deployment.clients),
            clients=deployment.clients,
            sampler="shuffled",
            clip=config.clip,
            sigma=config.sigma,
            server_update="sgd" if config.top_model and config.server_rate > 0 else "none",
            client_update="first-order",
            noise="grid",
            seeded_noise=deployment.seeded_noise,
            data_dependent_side=deployment.data_dependent_side,
        ),
    )


def protection(config: MaskedConfig) -> Protection:
    """Return what the noise protects."""
    if config.sigma == 0.0:
        return Protection()
    return Protection(
        words="gradients sent to clients, hence labels; features stay open to the server",
        channel="gradient",
        audience=("client", "colluding-clients", "all-but-one"),
        neighbours="replace-label",
        draws=True,
    )


SPEC = MethodSpec(
    name="masked",
    summary="vafl whose server clips and noises every record's gradient",
    config=MaskedConfig,
    run=MaskedRun,
    released=released,
    protection=protection,
    downlink="gradient",
)
