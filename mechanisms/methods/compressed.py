"""Compressed VFL: synchronous, first order, quantised embeddings, Q local steps a round (Castiglia et al. 2022).

In each round all clients send the quantised embeddings of one batch and receive dL/dh_m; a client then takes Q steps,
pulling that one gradient back through its present model each time (Q = 1 is split learning with compression).
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Self

import torch
from pydantic import Field, model_validator

from dpzv_audit.limits import MOST_LOCAL_STEPS
from mechanisms.core.channel import SERVER, Message, message_bits, quantise
from mechanisms.core.config import BaselineConfig, Bits, refuse_schedule
from mechanisms.core.method import MethodSpec
from mechanisms.core.protection import BaselineRun, channel_games, channel_protection, channel_releases


class CompressedConfig(BaselineConfig):
    """Compressed VFL; `split` is the case without compression."""

    forward_bits: Bits | None = Field(None, description="Bits a value of the embeddings sent up; all 32 if not given.")
    local_steps: int = Field(1, ge=1, le=MOST_LOCAL_STEPS, description="Local steps of a client in a round, Q.")

    @model_validator(mode="after")
    def _synchronous(self) -> Self:
        refuse_schedule(self)
        if self.forward_bits is not None and self.sampler == "poisson":
            raise ValueError("sampler must be shuffled or uniform with forward_bits: batches of one size are quantised")
        return self

    @property
    def all_at_once(self) -> bool:
        """See `ProtectedConfig.all_at_once`."""
        return True


class SplitConfig(CompressedConfig):
    """Split learning: synchronous, first order."""

    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of the clients' steps.")
    server_momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of the server's steps.")


class CompressedRun(BaselineRun[CompressedConfig]):
    """Compressed VFL, and split learning, which is the case without compression; see `BaselineRun`."""

    def step(self) -> None:
        """Run the next round: embeddings up, gradients down, everybody steps."""
        fed, config = self.federation, self.config
        batch = fed.clients[0].next_batch(1, fed.steps_per_pass)
        for other in fed.clients[1:]:
            other.rounds += 1
        inputs = [fed.inputs(client, batch) for client in fed.clients]
        received, outputs, pullbacks = [], [], []
        for number, (client, features) in enumerate(zip(fed.clients, inputs, strict=True), start=1):
            output, pullback = client.evaluator.forward_with_pullback(client.parameters, features)
            output = batch.cleared(output)
            sent = quantise(batch.cleared(self._noise.embeddings(output)), config.forward_bits)
            bits = None if config.forward_bits is None else message_bits(sent[0].numel(), config.forward_bits)
            received.append(fed.upload(number, self.round, batch, sent, bits))
            outputs.append(output)
            pullbacks.append(pullback)
        labels = fed.data.batch_labels(batch)
        server_gradient, at_rows = fed.server_gradients(torch.cat(received, 2), labels, batch.weights)
        fed.step_server(server_gradient)
        for number, client in enumerate(fed.clients, start=1):
            part = batch.cleared(self._noise.gradients(at_rows[:, :, fed.slots[number - 1]].contiguous()))
            message = Message(self.round, SERVER, number, "gradient", part, batch.members, sizes=batch.sizes)
            answer = fed.channel.send(message)
            output, pullback = outputs[number - 1], pullbacks[number - 1]
            for local in range(config.local_steps):
                if local:
                    output, pullback = client.evaluator.forward_with_pullback(client.parameters, inputs[number - 1])
                    output = batch.cleared(output)
                client_gradient, _ = pullback(self._noise.through_clip(output, answer), at_inputs=False)
                fed.step_client(number, client_gradient)
        self.round += 1


SPLIT = MethodSpec(
    name="split",
    summary="split learning: synchronous, first order, per-record gradients go down",
    config=SplitConfig,
    run=CompressedRun,
    released=channel_releases,
    protection=channel_protection,
    games=channel_games,
    downlink="gradient",
    deviation="own_gradient",
)
COMPRESSED = replace(
    SPLIT,
    name="compressed",
    summary="compressed VFL: split learning with quantised embeddings and Q local steps",
    config=CompressedConfig,
    defaults=MappingProxyType({"forward_bits": 8}),
)
