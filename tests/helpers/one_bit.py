"""A method from outside: the server answers with one bit a round, by randomised response, and states no release."""

from dataclasses import replace

import torch
from pydantic import Field

from dpzv_audit.base.seeds import Purpose
from mechanisms.core.bits import BitSource, randomised_response
from mechanisms.core.channel import SERVER, Message
from mechanisms.core.config import AsyncConfig, active_clients
from mechanisms.core.federation import Federation
from mechanisms.core.method import MethodSpec, Protection

NOT_RELEASED = "each answer is one bit by randomised response, epsilon for each answer alone"


class OneBitConfig(AsyncConfig):
    """One bit a round."""

    client_rate: float = Field(0.05, ge=0, description="Learning rate of the clients.")
    server_rate: float = Field(0.0, ge=0, description="Learning rate of the server, which stands still.")
    epsilon: float = Field(1.0, gt=0, description="Epsilon of one answer.")


class OneBitRun:
    """One stack of K trainings in progress."""

    def __init__(self, data, config, context):
        self.config, self.context = config, context
        self.federation = Federation(data, config, context)
        self._active = active_clients(config, len(data.features), context.seed)
        self.round = 0
        self.federation.fill_table()

    def own_tensors(self):
        return {}

    def skip_to(self, rounds):
        self.round = rounds
        for _ in range(rounds):
            next(self._active)

    def origin(self):
        return self.context.seed if self.context.origin is None else self.context.origin

    def bit(self, truth, replica):
        """Randomised response on one truth value."""
        source = BitSource(self.origin(), Purpose.NOISE, (replica, self.round))
        return bool(randomised_response(truth.long().numpy(), 2, self.config.epsilon, source)[0])

    def step(self):
        fed, number = self.federation, next(self._active)
        client = fed.clients[number - 1]
        batch = client.next_batch(1, fed.steps_per_pass)
        output, pullback = client.evaluator.vjp(client.parameters, fed.inputs(client, batch))
        rows = fed.refresh(number, batch, fed.upload(number, self.round, batch, output))
        _, at_rows = fed.server_gradients(fed.server_batch(rows, batch))
        rising = at_rows[:, :, fed.slots[number - 1]].sum((1, 2)) > 0
        bits = torch.tensor([self.bit(rising[i : i + 1], k) for i, k in enumerate(self.context.replicas)])
        told = fed.channel.send(Message(self.round, SERVER, number, "scalar", bits, batch.members))
        signs = torch.where(told, 1.0, -1.0).to(output.dtype)[:, None, None].expand_as(output)
        fed.step_client(number, pullback((signs / output.shape[1]).contiguous(), at_inputs=False)[0])
        self.round += 1


SPEC = MethodSpec(
    name="one-bit",
    summary="the server answers with one bit a round, by randomised response",
    config=OneBitConfig,
    run=OneBitRun,
    released=lambda config, deployment: (),
    protection=lambda config: Protection(
        words="the answers to the active client, hence labels",
        channel="scalar",
        audience=("client",),
        draws=True,
        not_released=NOT_RELEASED,
        epsilon=config.epsilon,
    ),
    downlink="scalar",
)


class SeededRun(OneBitRun):
    """The same, whose coins follow from the run's seed."""

    def origin(self):
        return self.context.seed


SEEDED = replace(SPEC, run=SeededRun)
