"""What rounds of several methods share: whose turn it is, parties that step along directions, first-order rounds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor

from dpzv_audit.seeds import Purpose
from mechanisms.core.channel import SERVER, Message
from mechanisms.core.config import BaselineConfig, ProtectedConfig, active_clients
from mechanisms.core.context import RunContext, TrainingData
from mechanisms.core.federation import Federation
from mechanisms.core.protection import ChannelNoise, calibrated
from mechanisms.core.replicas import Moved, ParameterStack, momentum_step, step_along
from mechanisms.core.streams import Batch, DirectionKind, Directions

P = TypeVar("P", bound=ProtectedConfig)


class ZerothOrderParty:
    """One party's K models, moved and stepped along a direction in each of its rounds.

    With `count` above 1 the estimates scalar * direction of so many successive rounds are averaged into one step; what
    is averaged so far is `total`, (K, d), empty where every estimate is a step.
    """

    def __init__(self, federation: Federation, number: int, kind: DirectionKind, *, count: int = 1) -> None:
        config = federation.config
        if number == SERVER:
            purpose = Purpose.SERVER_DIRECTIONS
            self.parameters, self._buffer = federation.server_parameters, federation.server_momentum
            self._rate, self._momentum = config.server_rate, config.server_momentum
        else:
            purpose = Purpose.DIRECTIONS
            client = federation.clients[number - 1]
            self.parameters, self._buffer = client.parameters, client.momentum
            self._rate, self._momentum = config.client_rate, config.momentum
        flat = self.parameters.flat
        self.directions = Directions(kind, flat.shape[1], party=number, purpose=purpose, **federation.streams)
        self._count = count
        self.total = torch.zeros_like(flat) if count > 1 else flat.new_empty(0)

    @cached_property
    def _storage(self) -> Moved:
        return Moved(self.parameters)

    def moved(self, round_: int, first: float, second: float) -> ParameterStack:
        """The 2K models moved by `first` and by `second` along the direction of the party's round number `round_`."""
        return self._storage.along(self.directions.at(round_), first, second)

    def step(self, round_: int, scalar: Tensor) -> None:
        """Step along the direction of `round_` by `scalar` (K,), or every `count` rounds by the mean of so many."""
        direction = self.directions.at(round_)
        flat, buffer, rate, momentum = self.parameters.flat, self._buffer, self._rate, self._momentum
        if self._count == 1:
            step_along(flat, buffer, direction, scalar, rate, momentum)
            return
        self.total.addcmul_(direction, scalar.unsqueeze(1), value=1.0 / self._count)
        if (round_ + 1) % self._count == 0:
            momentum_step(flat, buffer, self.total, rate, momentum)
            self.total.zero_()


class BaselineRun(Generic[P]):
    """One stack of K trainings in progress, a round at a time, with noise calibrated; see `core.method.Run`."""

    def __init__(self, data: TrainingData, config: P, context: RunContext) -> None:
        clients = len(data.features)
        self.config = calibrated(config, records=data.records, clients=clients, seed=context.seed)
        self.federation = Federation(data, self.config, context)
        self._active = active_clients(config, clients, context.seed)
        self._noise = ChannelNoise(self.config, context)
        self.round = 0

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.core.method.Run.own_tensors`."""
        return {"noise-draws": self._noise.draws}

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.core.method.Run.skip_to`."""
        self.round = rounds
        for _ in range(rounds):
            next(self._active)

    def turn(self) -> tuple[Sequence[int], int, Batch]:
        """Who is active in the next round, the own round of the client who draws its batch, and that batch.

        In synchronous methods all clients work on one batch, which client 1 draws.
        """
        clients = self.federation.clients
        numbers = range(1, len(clients) + 1) if self.config.all_at_once else (next(self._active),)
        drawer = clients[numbers[0] - 1]
        own_round = drawer.rounds
        deviating = self.federation.context.behaviours
        repeats = max((deviating[m].first_pass_repeats for m in numbers if m in deviating), default=1)
        batch = drawer.next_batch(repeats, self.federation.steps_per_pass)
        for other in numbers[1:]:
            clients[other - 1].rounds += 1
        return numbers, own_round, batch

    def rows(self, numbers: Sequence[int], batch: Batch, received: Sequence[Tensor]) -> Tensor:
        """The server's rows (K, B, M * width): of what it `received` from all clients, or of its refreshed table."""
        if self.config.all_at_once:
            return torch.cat(list(received), 2)
        return self.federation.refresh(numbers[0], batch, received[0])


class FirstOrderRun(BaselineRun[BaselineConfig]):
    """Embeddings go up, dL/dh_m of every record comes down; clients and server step by their gradients.

    Embeddings travel in `bits` a value where that is given. A client takes `local_steps`, pulling the one gradient that
    it received back through its present model each time.
    """

    def __init__(
        self,
        data: TrainingData,
        config: BaselineConfig,
        context: RunContext,
        *,
        bits: int | None = None,
        local_steps: int = 1,
    ) -> None:
        super().__init__(data, config, context)
        self._bits = bits
        self._local_steps = local_steps
        # All clients send every batch in the synchronous methods: nothing is ever read from a table.
        if not config.all_at_once:
            self.federation.fill_table(protect=self._noise.embeddings, bits=bits)

    def step(self) -> None:
        """Run the next round."""
        fed, noise = self.federation, self._noise
        numbers, _, batch = self.turn()
        passes, received = [], []
        for number in numbers:
            client = fed.clients[number - 1]
            inputs = fed.inputs(client, batch)
            output, pullback = client.evaluator.forward_with_pullback(client.parameters, inputs)
            output = batch.cleared(output)
            received.append(fed.upload(number, self.round, batch, noise.embeddings(output), self._bits))
            passes.append((client, inputs, output, pullback))
        rows = self.rows(numbers, batch, received)
        server_gradient, at_rows = fed.server_gradients(rows, fed.data.batch_labels(batch), batch.weights)
        fed.step_server(server_gradient)
        for number, (client, inputs, output, pullback) in zip(numbers, passes, strict=True):
            part = batch.cleared(noise.gradients(at_rows[:, :, fed.slots[number - 1]].contiguous()))
            message = Message(self.round, SERVER, number, "gradient", part, batch.members, sizes=batch.sizes)
            answer = fed.channel.send(message)
            for local in range(self._local_steps):
                if local:
                    output, pullback = client.evaluator.forward_with_pullback(client.parameters, inputs)
                    output = batch.cleared(output)
                gradient, _ = pullback(noise.through_clip(output, answer), at_inputs=False)
                fed.step_client(number, gradient)
        self.round += 1
