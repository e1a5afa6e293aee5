"""VAFL: asynchronous first-order vertical federated learning (papers 001, 003), with noise on a channel where asked.

The active client sends its embeddings; the server refreshes its table, steps, and answers with dL/dh_m of every record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from mechanisms.behaviours import GradientBehaviour
from mechanisms.config import VAFLConfig
from mechanisms.federation import Federation
from mechanisms.messages import SERVER, Message, Observer
from mechanisms.method import MethodSpec
from mechanisms.noise import NoiseOrigin
from mechanisms.perturbation import momentum_step
from mechanisms.plan import active_clients
from mechanisms.protection import ChannelNoise
from mechanisms.servers import loss_gradient
from mechanisms.training_data import TrainingData


class VAFLRun:
    """One stack of K trainings in progress, a round at a time."""

    def __init__(
        self,
        data: TrainingData,
        config: VAFLConfig,
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
        self._active = active_clients(config, len(fed.clients), seed)
        self._noise = ChannelNoise(config, seed=seed, replicas=replicas, dtype=fed.dtype, device=device, origin=origin)
        fed.local_rules.update(behaviours or {})
        self.round = 0
        fed.fill_table(protect=self._noise.embeddings)

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.method.Run.own_tensors`."""
        return {"noise-draws": self._noise.draws}

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.method.Run.skip_to`."""
        self.round = rounds
        for _ in range(rounds):
            next(self._active)

    def step(self) -> None:
        """Run the next round."""
        fed, config = self.federation, self.config
        number = next(self._active)
        client = fed.clients[number - 1]
        batch = client.next_batch(1, fed.steps_per_pass)
        output, pullback = client.evaluator.forward_with_pullback(client.parameters, fed.inputs(client, batch))
        output = batch.cleared(output)
        sent = batch.cleared(self._noise.embeddings(output))
        message = Message(self.round, number, SERVER, "embeddings", sent, batch.members, sizes=batch.sizes)
        rows = fed.refresh(number, batch, fed.channel.send(message))

        logits, pull_server = fed.server.forward_with_pullback(fed.server_parameters, rows)
        labels = fed.data.batch_labels(batch)
        server_gradient, at_rows = pull_server(loss_gradient(logits, labels, batch.weights, config.batch_size))
        part = batch.cleared(self._noise.gradients(at_rows[:, :, fed.slots[number - 1]].contiguous()))
        momentum_step(
            fed.server_parameters.flat, fed.server_momentum, server_gradient, config.server_rate, config.server_momentum
        )

        answer = fed.channel.send(
            Message(self.round, SERVER, number, "gradient", part, batch.members, sizes=batch.sizes)
        )
        client_gradient, _ = pullback(self._noise.through_clip(output, answer), at_inputs=False)
        step = fed.local_gradient(number, client_gradient)
        momentum_step(client.parameters.flat, client.momentum, step, config.client_rate, config.momentum)
        self.round += 1


SPEC = MethodSpec(
    name="vafl",
    summary="asynchronous, first order: one client a round, per-record gradients go down",
    config=VAFLConfig,
    run=VAFLRun,
    downlink="gradient",
)
