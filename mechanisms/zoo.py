"""Zeroth-order VFL by two losses: ZOO-VFL, its synchronous form, and VFL-Cascaded (paper 002, section III).

A client sends h(w_m) and h(w_m + mu u) and receives the two batch losses; its gradient estimate is
phi/mu (L(w_m + mu u) - L(w_m)) u. The server steps by the same kind of estimate (`zoo-vfl`, `syn-zoo-vfl`) or by its
exact gradient (`cascaded`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from dpzv_audit.seeds import Purpose
from mechanisms.behaviours import ClientBehaviour, Turn
from mechanisms.config import ZerothOrderConfig
from mechanisms.directions import Directions, dimension_factor
from mechanisms.federation import ClientState, Federation
from mechanisms.messages import SERVER, Message, Observer
from mechanisms.method import MethodSpec
from mechanisms.models import dimension
from mechanisms.noise import NoiseOrigin
from mechanisms.perturbation import OneSided, momentum_step, step_along
from mechanisms.plan import active_clients
from mechanisms.protection import ChannelNoise
from mechanisms.schedules import Batch
from mechanisms.servers import cross_entropy, loss_gradient
from mechanisms.training_data import TrainingData


class ZOORun:
    """One stack of K trainings in progress, a round at a time; `synchronous` activates all clients in every round."""

    def __init__(
        self,
        data: TrainingData,
        config: ZerothOrderConfig,
        *,
        seed: int,
        replicas: Sequence[int],
        behaviours: Mapping[int, ClientBehaviour] | None = None,
        observers: Sequence[Observer] = (),
        device: str = "cpu",
        origin: NoiseOrigin | None = None,
    ) -> None:
        self.config = config
        self._behaviours = dict(behaviours or {})
        self.federation = fed = Federation(
            data, config, seed=seed, replicas=replicas, observers=observers, device=device
        )
        self._active = active_clients(config, len(fed.clients), seed)

        def directions(d: int, party: int, purpose: Purpose) -> Directions:
            return Directions(
                config.direction,
                d,
                seed=seed,
                party=party,
                replicas=replicas,
                dtype=fed.dtype,
                device=device,
                purpose=purpose,
            )

        self._directions = [
            directions(dimension(client.evaluator.layout), number, Purpose.DIRECTIONS)
            for number, client in enumerate(fed.clients, start=1)
        ]
        self._perturbed = [OneSided(client.parameters) for client in fed.clients]
        self._server_directions = directions(dimension(fed.server.layout), SERVER, Purpose.SERVER_DIRECTIONS)
        self._server_perturbed = OneSided(fed.server_parameters)
        self._noise = ChannelNoise(config, seed=seed, replicas=replicas, dtype=fed.dtype, device=device, origin=origin)
        self.round = 0
        # All clients send every batch in the synchronous methods: nothing is ever read from a table.
        if not config.synchronous:
            fed.fill_table(self._behaviours, protect=self._noise.embeddings)

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.method.Run.own_tensors`."""
        return {"noise-draws": self._noise.draws}

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.method.Run.skip_to`."""
        self.round = rounds
        for _ in range(rounds):
            next(self._active)

    def step(self) -> None:
        """Run the next round: one client, or all of them."""
        fed = self.federation
        numbers = range(1, len(fed.clients) + 1) if self.config.synchronous else [next(self._active)]
        # In the synchronous methods all clients work on one batch, which client 1 draws.
        drawer = fed.clients[numbers[0] - 1]
        own_round = drawer.rounds
        repeats = max((b.first_pass_repeats for m, b in self._behaviours.items() if m in numbers), default=1)
        batch = drawer.next_batch(repeats, fed.steps_per_pass)
        for other in numbers[1:]:
            fed.clients[other - 1].rounds += 1
        uploads, deviating = {}, set()
        for number in numbers:
            pair = self._deviation(number, own_round, batch)
            if pair is not None:
                deviating.add(number)
            else:
                own = self._embed_twice(fed.clients[number - 1], number, own_round, batch)
                pair = self._noise.embeddings(batch.cleared(own))
            # Padding is nobody, and replicas share the table's row that it is written to.
            sent = batch.cleared(pair)
            message = Message(self.round, number, SERVER, "embeddings", sent, batch.members, sizes=batch.sizes)
            uploads[number] = fed.channel.send(message)
        if self.config.synchronous:
            rows = torch.cat([pair[:, 0] for pair in uploads.values()], 2)
        else:
            rows = fed.refresh(numbers[0], batch, uploads[numbers[0]][:, 0])
        labels = fed.data.batch_labels(batch)
        losses = {
            number: self._losses(rows, pair, labels, fed.slots[number - 1], batch) for number, pair in uploads.items()
        }
        self._server_step(rows, labels, batch)
        for number, pair in losses.items():
            answer = fed.channel.send(Message(self.round, SERVER, number, "losses", pair, batch.members))
            if number not in deviating:
                self._client_step(fed.clients[number - 1], number, own_round, answer)
        self.round += 1

    def _deviation(self, number: int, own_round: int, batch: Batch) -> Tensor | None:
        """What a client that deviates sends instead, (K, 2, B, width), or None."""
        fed, behaviour = self.federation, self._behaviours.get(number)
        if behaviour is None:
            return None
        shape = (fed.stack, 2, batch.ids.shape[1], fed.width)
        uploads = behaviour.uploads(Turn(self.round, number, own_round, batch, shape, fed.dtype, fed.device))
        if uploads is not None and uploads.shape != shape:
            raise ValueError(f"client {number} sends embeddings of shape {tuple(uploads.shape)}, must be {shape}")
        return uploads

    def _embed_twice(self, client: ClientState, number: int, own_round: int, batch: Batch) -> Tensor:
        """h(w) and h(w + mu u), shape (K, 2, B, width)."""
        fed = self.federation
        direction = self._directions[number - 1].at(own_round)
        fed.channel.note(number, self.round, "direction", direction)
        moved = self._perturbed[number - 1].toward(direction, self.config.smoothing)
        inputs = fed.inputs(client, batch)
        doubled = inputs.unsqueeze(1).expand(-1, 2, *inputs.shape[1:]).flatten(0, 1)
        return client.evaluator.forward(moved, doubled).view(fed.stack, 2, -1, fed.width)

    def _losses(self, rows: Tensor, uploads: Tensor, labels: Tensor, slot: slice, batch: Batch) -> Tensor:
        """The two batch losses, (K, 2)."""
        fed = self.federation
        logits = fed.server.pair_logits(fed.server_parameters, rows, uploads, slot)
        return self._mean(cross_entropy(logits, labels.repeat(1, 2)).unflatten(1, (2, -1)), batch)

    def _mean(self, losses: Tensor, batch: Batch) -> Tensor:
        """Batch losses (K, e) of `losses` (K, e, B): the divisor is B whatever the sampler."""
        if batch.weights is not None:
            losses = losses * batch.weights.unsqueeze(1)
        return losses.sum(2) / self.config.batch_size

    def _server_step(self, rows: Tensor, labels: Tensor, batch: Batch) -> None:
        fed, config = self.federation, self.config
        if not fed.server.layout or config.server_rate == 0:
            return
        parameters = fed.server_parameters
        if config.server_first_order:
            logits, pullback = fed.server.forward_with_pullback(parameters, rows)
            gradient, _ = pullback(loss_gradient(logits, labels, batch.weights, config.batch_size), at_inputs=False)
            momentum_step(parameters.flat, fed.server_momentum, gradient, config.server_rate, config.server_momentum)
            return
        direction = self._server_directions.at(self.round)
        moved = self._server_perturbed.toward(direction, config.smoothing)
        losses = cross_entropy(fed.server.forward(moved, rows.repeat_interleave(2, 0)), labels.repeat_interleave(2, 0))
        pair = self._mean(losses.unflatten(0, (-1, 2)), batch)
        scalar = self._scalar(pair, direction.shape[1])
        step_along(parameters.flat, fed.server_momentum, direction, scalar, config.server_rate, config.server_momentum)

    def _client_step(self, client: ClientState, number: int, own_round: int, losses: Tensor) -> None:
        """Step by phi/mu (L(w + mu u) - L(w)) u (paper 002, eq. 3), from the two losses received."""
        config = self.config
        direction = self._directions[number - 1].at(own_round)
        scalar = self._scalar(losses, direction.shape[1])
        step_along(client.parameters.flat, client.momentum, direction, scalar, config.client_rate, config.momentum)

    def _scalar(self, losses: Tensor, d: int) -> Tensor:
        first, second = losses.unbind(1)
        return torch.sub(second, first) * (dimension_factor(self.config.direction, d) / self.config.smoothing)


ZOO_VFL = MethodSpec(
    name="zoo-vfl",
    summary="asynchronous, zeroth order at clients and server: two losses go down",
    config=ZerothOrderConfig,
    run=ZOORun,
    downlink="losses",
)
SYN_ZOO_VFL = MethodSpec(
    name="syn-zoo-vfl",
    summary="zoo-vfl with all clients in every round",
    config=ZerothOrderConfig,
    run=ZOORun,
    downlink="losses",
    defaults=MappingProxyType({"synchronous": True}),
)
CASCADED = MethodSpec(
    name="cascaded",
    summary="VFL-Cascaded: zoo-vfl whose server steps by its exact gradient",
    config=ZerothOrderConfig,
    run=ZOORun,
    downlink="losses",
    defaults=MappingProxyType({"server_first_order": True, "server_rate": 0.05}),
)
