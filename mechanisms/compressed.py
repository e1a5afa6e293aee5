"""Compressed VFL: synchronous, first order, quantised embeddings, Q local steps a round (Castiglia et al. 2022).

In each round all clients send the quantised embeddings of one batch and receive dL/dh_m; a client then takes Q steps,
pulling that one gradient back through its present model each time (Q = 1 is split learning with compression).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from mechanisms.behaviours import GradientBehaviour
from mechanisms.config import CompressedConfig, SplitConfig
from mechanisms.federation import Federation
from mechanisms.messages import SERVER, Message, Observer
from mechanisms.method import MethodSpec
from mechanisms.noise import NoiseOrigin
from mechanisms.perturbation import momentum_step
from mechanisms.protection import ChannelNoise
from mechanisms.quantise import message_bits, quantise
from mechanisms.servers import loss_gradient
from mechanisms.training_data import TrainingData


class CompressedRun:
    """One stack of K trainings in progress, a round at a time; split learning is the case without compression."""

    def __init__(
        self,
        data: TrainingData,
        config: CompressedConfig,
        *,
        seed: int,
        replicas: Sequence[int],
        behaviours: Mapping[int, GradientBehaviour] | None = None,
        observers: Sequence[Observer] = (),
        device: str = "cpu",
        origin: NoiseOrigin | None = None,
    ) -> None:
        self.config = config
        self.federation = fed = Federation(
            data, config, seed=seed, replicas=replicas, observers=observers, device=device
        )
        self._noise = ChannelNoise(config, seed=seed, replicas=replicas, dtype=fed.dtype, device=device, origin=origin)
        fed.local_rules.update(behaviours or {})
        self.round = 0

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.method.Run.own_tensors`."""
        return {"noise-draws": self._noise.draws}

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.method.Run.skip_to`."""
        self.round = rounds

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
            message = Message(self.round, number, SERVER, "embeddings", sent, batch.members, bits, batch.sizes)
            received.append(fed.channel.send(message))
            outputs.append(output)
            pullbacks.append(pullback)
        logits, pull_server = fed.server.forward_with_pullback(fed.server_parameters, torch.cat(received, 2))
        gradient = loss_gradient(logits, fed.data.batch_labels(batch), batch.weights, config.batch_size)
        server_gradient, at_rows = pull_server(gradient)
        momentum_step(
            fed.server_parameters.flat, fed.server_momentum, server_gradient, config.server_rate, config.server_momentum
        )
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
                step = fed.local_gradient(number, client_gradient)
                momentum_step(client.parameters.flat, client.momentum, step, config.client_rate, config.momentum)
        self.round += 1


SPLIT = MethodSpec(
    name="split",
    summary="split learning: synchronous, first order, per-record gradients go down",
    config=SplitConfig,
    run=CompressedRun,
    downlink="gradient",
)
COMPRESSED = MethodSpec(
    name="compressed",
    summary="compressed VFL: split learning with quantised embeddings and Q local steps",
    config=CompressedConfig,
    run=CompressedRun,
    downlink="gradient",
    defaults=MappingProxyType({"forward_bits": 8}),
)
