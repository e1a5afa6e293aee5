"""DPZV: differentially private zeroth-order vertical federated learning (paper 001, algorithm 1), for K replicas.

Each round the active client sends its embeddings under w_m + lambda u and w_m - lambda u; the server answers with one
number, the mean of the records' clipped loss differences plus Gaussian noise; the client steps along u by it.
`dpzv-sound` is the same with the server perturbed in the same two evaluations, so that one noised release pays for
both updates and the server's state is a function of released values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from dpzv_audit.accounting import Release, sigma_from_paper, sigma_sound
from dpzv_audit.errors import InputError
from dpzv_audit.evidence import NeighbourRelation
from dpzv_audit.seeds import Purpose
from mechanisms.config import DPZVConfig
from mechanisms.directions import Directions
from mechanisms.federation import (
    ClientBehaviour,
    ClientState,
    Federation,
    TrainedStack,
    TrainingData,
    Turn,
    rounds_of,
)
from mechanisms.messages import SERVER, Message, Observer
from mechanisms.models import dimension
from mechanisms.noise import GaussianNoise, clip
from mechanisms.replicas import ParameterStack
from mechanisms.schedules import Batch, by_compute_times, cyclic, largest_participation, random_activation
from mechanisms.servers import cross_entropy, loss_gradient, per_record_gradients

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Plan:
    """What is decided before any data is touched: who is active when, how often a record takes part, how much noise."""

    active: tuple[int, ...]
    rounds_by_client: tuple[int, ...]
    participations: int | None
    sigma: float

    def release(self, config: DPZVConfig, records: int) -> Release:
        """The scalars that this plan releases, as an accountant takes them."""
        server_mu = None
        if config.server_update == "dp-sgd" and self.participations is not None:
            server_mu = 2.0 * self.participations**0.5 / config.server_noise_multiplier
        return Release(
            batch_size=config.batch_size,
            dataset_size=records,
            rounds=len(self.active),
            clip=config.clip,
            sigma=self.sigma,
            sampler=config.sampler,
            clients=len(self.rounds_by_client),
            participations=self.participations,
            clip_rule=config.clip_rule,
            server_update=config.server_update if config.top_model else "none",
            participation_cap=config.participation_cap,
            distinct_ids=config.distinct_ids,
            server_mu=server_mu,
        )


def plan(
    config: DPZVConfig,
    *,
    records: int,
    clients: int,
    seed: int,
    behaviours: Mapping[int, ClientBehaviour] | None = None,
    neighbours: NeighbourRelation = "replace-label",
) -> Plan:
    """Decide the schedule and the noise of a run; `InputError` where the configuration does not fit the data."""
    if config.batch_size > records:
        raise InputError(f"batch_size is {config.batch_size}, must be at most the {records} training records")
    for name in ("activation_probabilities", "compute_times"):
        values = getattr(config, name)
        if values is not None and len(values) != clients:
            raise InputError(f"{name} has {len(values)} entries, must have one for each of the {clients} clients")
    rounds = rounds_of(config, records)
    active = tuple(islice(_activation(config, clients, seed), rounds))
    by_client = tuple(active.count(m) for m in range(1, clients + 1))
    repeats = {m: b.first_pass_repeats for m, b in (behaviours or {}).items()}
    participations = None
    if config.sampler == "shuffled":
        participations = sum(
            largest_participation(r, steps_per_pass=records // config.batch_size, first_pass_repeats=repeats.get(m, 1))
            for m, r in enumerate(by_client, start=1)
        )
    elif any(r > 1 for r in repeats.values()):
        raise InputError(f"sampler is {config.sampler!r}, must be shuffled where a client queries a batch repeatedly")
    if config.participation_cap is not None and participations is not None:
        participations = min(participations, config.participation_cap)
    return Plan(active, by_client, participations, _sigma(config, records, rounds, participations, neighbours))


def _activation(config: DPZVConfig, clients: int, seed: int) -> Iterator[int]:
    if config.compute_times is not None:
        return by_compute_times(config.compute_times)
    if config.activation == "random":
        return random_activation(config.activation_probabilities or [1.0 / clients] * clients, seed=seed)
    return cyclic(clients)


def _sigma(
    config: DPZVConfig, records: int, rounds: int, participations: int | None, neighbours: NeighbourRelation
) -> float:
    if config.sigma is not None:
        return config.sigma
    if config.calibration == "none" or config.epsilon is None:
        return 0.0
    if config.calibration == "paper":
        return sigma_from_paper(config.epsilon, config.delta, clip=config.clip, dataset_size=records, rounds=rounds)
    if participations is None:
        raise InputError(f"calibration is 'sound' with sampler {config.sampler!r}, must be used with sampler shuffled")
    return sigma_sound(
        config.epsilon,
        config.delta,
        clip=config.clip,
        batch_size=config.batch_size,
        participations=participations,
        neighbours=neighbours,
    )


class DPZVRun:
    """One stack of K trainings in progress; `train` runs it to the end."""

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
    ) -> None:
        self.config = config
        self.plan = plan
        self.behaviours = dict(behaviours or {})
        self.federation = fed = Federation(
            data, config, seed=seed, replicas=replicas, observers=observers, device=device
        )
        common = {"seed": seed, "replicas": fed.replicas, "dtype": fed.dtype, "device": device}
        self._directions = [
            Directions("sphere", client.parameters.flat.shape[1], party=m, **common)
            for m, client in enumerate(fed.clients, start=1)
        ]
        server_d = dimension(fed.server.layout)
        self._update = config.server_update if server_d and config.server_rate > 0 else "frozen"
        self._server_directions = Directions(
            "sphere", server_d, party=SERVER, purpose=Purpose.SERVER_DIRECTIONS, **common
        )
        self._noise = GaussianNoise(plan.sigma, **common)
        server_std = config.server_noise_multiplier * config.server_clip / config.batch_size
        self._server_noise = GaussianNoise(
            server_std if self._update == "dp-sgd" else 0.0, size=server_d, purpose=Purpose.SERVER_NOISE, **common
        )
        self._scale = 1.0 / ((2.0 if config.difference == "central" else 1.0) * config.smoothing)
        self._perturbed = [ParameterStack.empty(c.evaluator.layout, 2 * fed.stack, c.parameters.flat) for c in fed.clients]
        self._server_perturbed = ParameterStack.empty(fed.server.layout, 2 * fed.stack, fed.server_parameters.flat)
        self._counts = torch.zeros(fed.stack * fed.records + 1, dtype=torch.int32, device=device)
        self.round = 0
        fed.fill_table(self.behaviours)

    def step(self) -> None:
        """Run the next round (algorithm 1, lines 3 to 10)."""
        fed, config = self.federation, self.config
        number = self.plan.active[self.round]
        client = fed.clients[number - 1]
        own_round = client.rounds
        behaviour = self.behaviours.get(number)
        batch = client.next_batch(behaviour.first_pass_repeats if behaviour else 1, fed.steps_per_pass)

        # Client: two embeddings of its batch (eq. 6), or whatever a client that deviates sends.
        uploads = None
        if behaviour is not None:
            shape = (2, fed.stack, batch.ids.shape[1], fed.width)
            uploads = behaviour.uploads(Turn(self.round, number, own_round, batch, shape, fed.dtype, fed.device))
        honest = uploads is None
        if uploads is None:
            uploads = self._embed_twice(client, number, own_round, batch)
        message = Message(self.round, number, SERVER, "embeddings", uploads.transpose(0, 1), batch.ids)
        received = fed.channel.send(message).transpose(0, 1)

        # Server: one clipped, noised scalar (eqs. 7 and 8), its own update, the answer.
        scalar = self._serve(number, batch, received, own_round)
        answer = fed.channel.send(Message(self.round, SERVER, number, "scalar", scalar, batch.ids))

        # Client: a step along the direction it chose (eq. 9).
        if honest and config.client_rate > 0:
            self._client_step(client, number, own_round, answer)
        self.round += 1

    def _embed_twice(self, client: ClientState, number: int, own_round: int, batch: Batch) -> Tensor:
        """h+ and h- (eq. 6), shape (2, K, B, width)."""
        fed, smoothing = self.federation, self.config.smoothing
        inputs = fed.inputs(client, batch)
        if self.config.perturbation == "in-place":
            plus = self._embed_in_place(client, number, own_round, inputs, smoothing)
            minus = self._embed_in_place(client, number, own_round, inputs, -2.0 * smoothing)
            self._shift(client, number, own_round, smoothing)
            return torch.stack((plus, minus))
        direction = self._directions[number - 1].at(own_round)
        fed.channel.note(number, self.round, "direction", direction)
        stack = self._perturbed[number - 1]
        plus_half, minus_half = stack.flat.unflatten(0, (2, fed.stack)).unbind(0)
        torch.add(client.parameters.flat, direction, alpha=smoothing, out=plus_half)
        torch.sub(client.parameters.flat, direction, alpha=smoothing, out=minus_half)
        doubled = inputs.expand(2, *inputs.shape).flatten(0, 1)
        return client.evaluator.forward(stack.views, doubled).unflatten(0, (2, fed.stack))

    def _embed_in_place(
        self, client: ClientState, number: int, own_round: int, inputs: Tensor, shift: float
    ) -> Tensor:
        self._shift(client, number, own_round, shift)
        return client.evaluator.forward(client.parameters.views, inputs)

    def _shift(self, client: ClientState, number: int, own_round: int, scale: float | Tensor) -> None:
        """Add `scale` (a number, or (K, 1)) times this round's direction to the parameters, piece by piece."""
        for start, stop, piece in self._directions[number - 1].pieces(own_round):
            client.parameters.flat[:, start:stop].add_(piece * scale)

    def _serve(self, number: int, batch: Batch, uploads: Tensor, own_round: int) -> Tensor:
        """Refresh the table, compute the scalar (K,), update the server."""
        fed, config = self.federation, self.config
        labels = fed.data.batch_labels(batch)
        slot = slice((number - 1) * fed.width, number * fed.width)
        mean = (uploads[0] + uploads[1]).mul_(0.5)
        fed.table[:, slot].index_copy_(0, batch.places, mean.flatten(0, 1))
        rows = fed.table.index_select(0, batch.places).unflatten(0, (fed.stack, -1))
        weights = self._accepted(batch)

        joint = self._update == "joint-zo"
        losses = self._losses_of_pair(rows, uploads, labels, slot, joint)
        differences = clip((losses[0] - losses[1]).mul_(self._scale), config.clip, config.clip_rule)
        if weights is not None:
            differences = differences * weights
        noise = self._noise.next().squeeze(1)
        scalar = torch.add(noise, differences.sum(1), alpha=1.0 / config.batch_size)
        self._server_step(rows, labels, weights, scalar)
        return scalar

    def _losses_of_pair(self, rows: Tensor, uploads: Tensor, labels: Tensor, slot: slice, joint: bool) -> Tensor:
        """Losses (2, K, B) at h+ and h-; with joint-zo the server's parameters move by +-lambda_0 u_0 as well."""
        fed = self.federation
        if joint:
            pair = rows.expand(2, *rows.shape).clone()
            pair[..., slot] = uploads
            direction = self._server_directions.at(self.round)
            plus, minus = self._server_perturbed.flat.unflatten(0, (2, fed.stack)).unbind(0)
            torch.add(fed.server_parameters.flat, direction, alpha=self.config.server_smoothing, out=plus)
            torch.sub(fed.server_parameters.flat, direction, alpha=self.config.server_smoothing, out=minus)
            logits = fed.server.forward(self._server_perturbed.views, pair.flatten(0, 1))
            return cross_entropy(logits, labels.expand(2, *labels.shape).flatten(0, 1)).unflatten(0, (2, fed.stack))
        # Both evaluations share the server's parameters, so they go through it as one batch of 2B rows.
        pair = torch.cat((rows, rows), 1).unflatten(1, (2, -1))
        pair[..., slot] = uploads.transpose(0, 1)
        logits = fed.server.forward(fed.server_parameters.views, pair.flatten(1, 2))
        return cross_entropy(logits, labels.repeat(1, 2)).unflatten(1, (2, -1)).transpose(0, 1)

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

    def _server_step(self, rows: Tensor, labels: Tensor, weights: Tensor | None, scalar: Tensor) -> None:
        """Update w_0: option i (`zo`), option ii (`sgd`), the sound `joint-zo` and `dp-sgd`, or nothing (`frozen`)."""
        fed, config = self.federation, self.config
        if self._update == "frozen":
            return
        if self._update == "sgd":
            logits, pullback = fed.server.forward_with_pullback(fed.server_parameters.views, rows)
            gradient, _ = pullback(loss_gradient(logits, labels, weights, config.batch_size))
        elif self._update == "joint-zo":
            step = scalar * (config.smoothing / config.server_smoothing)
            gradient = self._server_directions.at(self.round) * step.unsqueeze(1)
        elif self._update == "zo":
            gradient = self._zeroth_order_gradient(rows, labels, weights)
        else:
            gradient = self._private_gradient(rows, labels, weights)
        momentum_step(fed.server_parameters.flat, fed.server_momentum, gradient, config.server_rate, config.server_momentum)

    def _zeroth_order_gradient(self, rows: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """The server's own two-point estimate (eq. 3) of the batch loss, neither clipped nor noised."""
        fed, smoothing = self.federation, self.config.server_smoothing
        direction = self._server_directions.at(self.round)
        plus, minus = self._server_perturbed.flat.unflatten(0, (2, fed.stack)).unbind(0)
        torch.add(fed.server_parameters.flat, direction, alpha=smoothing, out=plus)
        torch.sub(fed.server_parameters.flat, direction, alpha=smoothing, out=minus)
        logits = fed.server.forward(self._server_perturbed.views, rows.expand(2, *rows.shape).flatten(0, 1))
        losses = cross_entropy(logits, labels.expand(2, *labels.shape).flatten(0, 1)).unflatten(0, (2, fed.stack))
        differences = losses[0] - losses[1]
        if weights is not None:
            differences = differences * weights
        return direction * (differences.sum(1, keepdim=True) / (2.0 * smoothing * self.config.batch_size))

    def _private_gradient(self, rows: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """DP-SGD: per-record gradients clipped to `server_clip`, averaged, noised."""
        fed, config = self.federation, self.config
        gradients = per_record_gradients(fed.server, fed.server_parameters.views, rows, labels)
        norms = gradients.norm(dim=2, keepdim=True)
        clipped = gradients * (config.server_clip / norms.clamp(min=config.server_clip))
        if weights is not None:
            clipped = clipped * weights.unsqueeze(2)
        return clipped.sum(1) / config.batch_size + self._server_noise.next()

    def _client_step(self, client: ClientState, number: int, own_round: int, scalar: Tensor) -> None:
        """w_m <- w_m - eta_m Delta u (eq. 9), with momentum."""
        config = self.config
        if config.perturbation == "in-place" and config.momentum == 0.0:
            self._shift(client, number, own_round, scalar.unsqueeze(1) * -config.client_rate)
            return
        direction = self._directions[number - 1].at(own_round)
        momentum_step(
            client.parameters.flat,
            client.momentum,
            direction * scalar.unsqueeze(1),
            config.client_rate,
            config.momentum,
        )


def momentum_step(parameters: Tensor, buffer: Tensor, gradient: Tensor, rate: float, momentum: float) -> None:
    """buffer <- momentum * buffer + gradient; parameters <- parameters - rate * buffer, in place, as torch's SGD does."""
    if momentum:
        gradient = buffer.mul_(momentum).add_(gradient)
    parameters.add_(gradient, alpha=-rate)


def _first_occurrences(ids: Tensor) -> Tensor:
    """Whether each of (K, B) ids is the first of its kind in its row."""
    ordered, order = ids.sort(dim=1, stable=True)
    first = torch.ones_like(ids, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.empty_like(first).scatter_(1, order, first)


@torch.no_grad()
def train(
    data: TrainingData,
    config: DPZVConfig,
    *,
    seed: int,
    replicas: Sequence[int] = (0,),
    behaviours: Mapping[int, ClientBehaviour] | None = None,
    observers: Sequence[Observer] = (),
    device: str = "cpu",
    progress: Progress | None = None,
    evaluate_epochs: bool = False,
) -> TrainedStack:
    """Train DPZV in K replicas at once.

    Args:
        data: Records on `device`, labels shared by the replicas or one row each.
        config: See `DPZVConfig`.
        seed: Seed of every stream; replica k draws from streams of its own, whatever stack it is in.
        replicas: Numbers of the K replicas.
        behaviours: Clients, by number from 1, that do not follow the protocol.
        observers: See every message; `ViewRecorder` keeps an adversary's view.
        device: `cpu` or `cuda`.
        progress: Called after every epoch with the number of rounds done.
        evaluate_epochs: Whether to record test accuracy after every epoch.

    Returns:
        The trained models with accuracy, byte ledger and participation counts.

    Raises:
        InputError: The configuration does not fit the data.
    """
    records, clients = data.features[0].shape[0], len(data.features)
    the_plan = plan(config, records=records, clients=clients, seed=seed, behaviours=behaviours)
    run = DPZVRun(
        data,
        config,
        the_plan,
        seed=seed,
        replicas=replicas,
        behaviours=behaviours,
        observers=observers,
        device=device,
    )
    history: list[tuple[int, float, float]] = []
    per_epoch = run.federation.steps_per_pass
    for epoch in range(config.epochs):
        for _ in range(per_epoch):
            run.step()
        if evaluate_epochs:
            history.append(run.federation.epoch_record(epoch + 1))
        if progress is not None:
            progress(run.round)
    return run.federation.finish(
        rounds=run.round,
        rounds_by_client=the_plan.rounds_by_client,
        participations=the_plan.participations,
        history=history,
    )
