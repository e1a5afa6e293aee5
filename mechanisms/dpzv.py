"""DPZV: differentially private zeroth-order vertical federated learning (paper 001, algorithm 1), for K replicas.

Each round the active client sends its embeddings under w_m + lambda u and w_m - lambda u; the server answers with one
number, the mean of the records' clipped loss differences plus Gaussian noise; the client steps along u by it.
`dpzv-sound` is the same with the server perturbed in the same two evaluations, so that one noised release pays for
both updates and the server's state is a function of released values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from mechanisms.behaviours import ClientBehaviour, Turn
from mechanisms.config import DPZVConfig
from mechanisms.directions import Directions
from mechanisms.federation import ClientState, Federation
from mechanisms.messages import SERVER, Message, Observer
from mechanisms.method import MethodSpec
from mechanisms.noise import NoiseOrigin
from mechanisms.perturbation import AveragedSteps, TwoSided, shift_in_place
from mechanisms.plan import Plan
from mechanisms.scalar_channel import ScalarChannel
from mechanisms.schedules import Batch
from mechanisms.server_updates import ServerTrainer
from mechanisms.training_data import TrainingData


class DPZVRun:
    """One stack of K trainings in progress, a round at a time."""

    def __init__(
        self,
        data: TrainingData,
        config: DPZVConfig,
        plan: Plan,
        *,
        seed: int,
        replicas: Sequence[int],
        behaviours: Mapping[int, ClientBehaviour] | None = None,
        observers: Sequence[Observer] = (),
        device: str = "cpu",
        origin: NoiseOrigin | None = None,
        noised: Callable[[Tensor], Tensor] | None = None,
        released: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """`origin` is what noise is drawn from, by default the streams of `seed`.

        `noised` and `released` take a transcript apart: each maps a round's numbers (K,) to those that go on.

        `noised` gets the sums without noise (`ScalarChannel.sums`) and returns them with noise of its own, so that one
        who plays two worlds at once sees both; `released` maps the noised scalars to what goes out instead.
        """
        self.config = config
        self.plan = plan
        self._noised = noised
        self._released = released
        self.round = 0
        self._behaviours = dict(behaviours or {})
        self.federation = fed = Federation(
            data, config, seed=seed, replicas=replicas, observers=observers, device=device
        )
        self._directions = [
            Directions(
                "sphere",
                client.parameters.flat.shape[1],
                seed=seed,
                party=number,
                replicas=replicas,
                dtype=fed.dtype,
                device=device,
            )
            for number, client in enumerate(fed.clients, start=1)
        ]
        self._channel = ScalarChannel(
            config, plan.sigma, seed=seed, replicas=replicas, dtype=fed.dtype, device=device, origin=origin
        )
        self._server = ServerTrainer(fed, config, seed=seed, replicas=replicas, origin=origin)
        in_place = config.perturbation == "in-place"
        self._two_sided = [] if in_place else [TwoSided(client.parameters) for client in fed.clients]
        self._steps = [
            AveragedSteps(
                client.parameters.flat,
                client.momentum,
                count=config.directions,
                rate=config.client_rate,
                momentum=config.momentum,
            )
            for client in fed.clients
        ]
        self._scale = 1.0 / ((2.0 if config.difference == "central" else 1.0) * config.smoothing)
        self._counts = torch.zeros(fed.stack * fed.records + 1, dtype=torch.int32, device=device)
        fed.fill_table(self._behaviours)

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.method.Run.own_tensors`."""
        averaged = {f"client-{m}-averaged": steps.total for m, steps in enumerate(self._steps, start=1)}
        return {"participations": self._counts, "server-averaged": self._server.averaged, **averaged}

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.method.Run.skip_to`."""
        self.round = rounds
        self._channel.noise.skip_to(rounds)
        self._server.skip_to(rounds)

    def step(self) -> None:
        """Run the next round (algorithm 1, lines 3 to 10)."""
        fed, config = self.federation, self.config
        number = self.plan.active[self.round]
        client = fed.clients[number - 1]
        own_round = client.rounds
        behaviour = self._behaviours.get(number)
        batch = client.next_batch(behaviour.first_pass_repeats if behaviour else 1, fed.steps_per_pass)

        # Client: two embeddings of its batch (eq. 6), or whatever a client that deviates sends.
        uploads = None
        if behaviour is not None:
            shape = (fed.stack, 2, batch.ids.shape[1], fed.width)
            uploads = behaviour.uploads(Turn(self.round, number, own_round, batch, shape, fed.dtype, fed.device))
            if uploads is not None and uploads.shape != shape:
                raise ValueError(f"client {number} sends embeddings of shape {tuple(uploads.shape)}, must be {shape}")
        honest = uploads is None
        if uploads is None:
            uploads = self._embed_twice(client, number, own_round, batch)
        # Padding is nobody: what a replica would send for it must not reach the table's row that all replicas share.
        message = Message(
            self.round, number, SERVER, "embeddings", batch.cleared(uploads), batch.members, sizes=batch.sizes
        )
        received = fed.channel.send(message)

        # Server: one clipped, noised scalar (eqs. 7 and 8), its own update, the answer.
        scalar = self._serve(number, batch, received)
        answer = fed.channel.send(Message(self.round, SERVER, number, "scalar", scalar, batch.members))

        # Client: a step along the direction it chose (eq. 9).
        if honest and config.client_rate > 0:
            self._client_step(client, number, own_round, answer)
        self.round += 1

    def _embed_twice(self, client: ClientState, number: int, own_round: int, batch: Batch) -> Tensor:
        """h+ and h- (eq. 6), shape (K, 2, B, width)."""
        fed, smoothing, directions = self.federation, self.config.smoothing, self._directions[number - 1]
        inputs = fed.inputs(client, batch)
        fed.channel.note(number, self.round, "direction", lambda: directions.at(own_round))
        if self.config.perturbation == "in-place":
            shift_in_place(client.parameters, directions, own_round, smoothing)
            plus = client.evaluator.forward(client.parameters, inputs)
            shift_in_place(client.parameters, directions, own_round, -2.0 * smoothing)
            minus = client.evaluator.forward(client.parameters, inputs)
            shift_in_place(client.parameters, directions, own_round, smoothing)
            return torch.stack((plus, minus), 1)
        direction = directions.at(own_round)
        moved = self._two_sided[number - 1].around(direction, smoothing)
        doubled = inputs.unsqueeze(1).expand(-1, 2, *inputs.shape[1:]).flatten(0, 1)
        return client.evaluator.forward(moved, doubled).view(fed.stack, 2, -1, fed.width)

    def _serve(self, number: int, batch: Batch, uploads: Tensor) -> Tensor:
        """Refresh the table with the mean of h+ and h-, compute the scalar (K,), update the server."""
        fed = self.federation
        labels = fed.data.batch_labels(batch)
        weights = self._accepted(batch)
        plus, minus = uploads.unbind(1)
        rows = fed.refresh(number, batch, torch.lerp(plus, minus, 0.5))
        differences = self._server.loss_differences(self.round, rows, uploads, labels, fed.slots[number - 1])
        sums = self._channel.sums(differences, self._scale, weights)
        scalar = self._channel.scalars(self._noised(sums) if self._noised else sums + self._channel.noise.next())
        if self._released is not None:
            scalar = self._released(scalar)
        self._server.step(self.round, rows, labels, weights, scalar)
        return scalar

    def _accepted(self, batch: Batch) -> Tensor | None:
        """Weights (K, B) of the records that count: padding does not, nor do records past the server's limits."""
        config, weights = self.config, batch.weights
        if config.distinct_ids:
            first = _first_occurrences(batch.ids).to(self.federation.dtype)
            weights = first if weights is None else weights * first
        if config.participation_cap is not None:
            counts = self._counts.index_select(0, batch.places).view(batch.ids.shape)
            allowed = (counts < config.participation_cap).to(self.federation.dtype)
            weights = allowed if weights is None else weights * allowed
            self._counts.index_add_(0, batch.places, weights.flatten().to(torch.int32))
        return None if weights is None else weights.to(self.federation.dtype)

    def _client_step(self, client: ClientState, number: int, own_round: int, scalar: Tensor) -> None:
        """w_m <- w_m - eta_m Delta u (eq. 9), with momentum; the average of q such estimates every q own rounds."""
        config, directions = self.config, self._directions[number - 1]
        if config.perturbation == "in-place" and config.momentum == 0.0:
            shift_in_place(client.parameters, directions, own_round, scalar.unsqueeze(1) * -config.client_rate)
            return
        self._steps[number - 1].add(own_round, directions.at(own_round), scalar)


def _first_occurrences(ids: Tensor) -> Tensor:
    """Whether each of (K, B) ids is the first of its kind in its row."""
    ordered, order = ids.sort(dim=1, stable=True)
    first = torch.ones_like(ids, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.empty_like(first).scatter_(1, order, first)


DPZV = MethodSpec(
    name="dpzv",
    summary="asynchronous, zeroth order; the server answers with one clipped, noised scalar (DPZV, algorithm 1)",
    config=DPZVConfig,
    run=DPZVRun,
    downlink="scalar",
)
DPZV_SOUND = MethodSpec(
    name="dpzv-sound",
    summary="dpzv whose server steps by the same noised scalar and whose noise is calibrated against known batches",
    config=DPZVConfig,
    run=DPZVRun,
    downlink="scalar",
    defaults=MappingProxyType(
        {
            "server_update": "joint-zo",
            "calibration": "sound",
            "clip": 1.0,
            "client_rate": 1e-3,
            "server_rate": 1e-3,
            "momentum": 0.0,
            "server_momentum": 0.0,
        }
    ),
)
