"""DPZV: differentially private zeroth-order vertical federated learning (paper 001, algorithm 1), for K replicas.

Each round the active client sends its embeddings under w_m + lambda u and w_m - lambda u; the server answers with one
number, the mean of the records' clipped loss differences plus Gaussian noise; the client steps along u by it.
`dpzv-sound` is the same with the server perturbed in the same two evaluations, so that one noised release pays for
both updates and the server's state is a function of released values.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from dpzv_audit.accounting import Release
from mechanisms.config import DPZVConfig, TrainingConfig
from mechanisms.context import Deployment, RunContext, repeats_of
from mechanisms.directions import Directions
from mechanisms.federation import ClientState, Federation
from mechanisms.messages import SERVER, Message
from mechanisms.method import Differences, Games, MethodSpec, Protection
from mechanisms.perturbation import AveragedSteps, TwoSided, shift_in_place
from mechanisms.plan import plan, scalar_release
from mechanisms.scalar_channel import ScalarChannel
from mechanisms.schedules import Batch
from mechanisms.server_updates import ServerTrainer
from mechanisms.training_data import TrainingData


class DPZVRun:
    """One stack of K trainings in progress, a round at a time; see `mechanisms.method.Run`."""

    def __init__(self, data: TrainingData, config: DPZVConfig, context: RunContext) -> None:
        self.config = config
        self.plan = context.plan or plan(
            config,
            Deployment(
                records=data.records,
                clients=len(data.features),
                seed=context.seed,
                repeats=repeats_of(context.behaviours),
            ),
        )
        self._context = context
        self.round = 0
        self.federation = fed = Federation(data, config, context)
        self._directions = [
            Directions("sphere", client.parameters.flat.shape[1], party=number, **fed.streams)
            for number, client in enumerate(fed.clients, start=1)
        ]
        self._channel = ScalarChannel(config, self.plan.sigma, context)
        self._server = ServerTrainer(fed, config)
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
        self._counts = torch.zeros(fed.stack * fed.records + 1, dtype=torch.int32, device=fed.device)
        fed.fill_table(context.behaviours)

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
        behaviour = self._context.behaviours.get(number)
        batch = client.next_batch(behaviour.first_pass_repeats if behaviour else 1, fed.steps_per_pass)

        # Client: two embeddings of its batch (eq. 6), or whatever a client that deviates sends.
        uploads = fed.deviation(number, self.round, own_round, batch)
        honest = uploads is None
        if uploads is None:
            uploads = self._embed_twice(client, number, own_round, batch)
        received = fed.upload(number, self.round, batch, uploads)

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
        fed.channel.note(number, self.round, "direction", lambda: directions.at(own_round))
        if self.config.perturbation == "in-place":
            inputs = fed.inputs(client, batch)
            shift_in_place(client.parameters, directions, own_round, smoothing)
            plus = client.evaluator.forward(client.parameters, inputs)
            shift_in_place(client.parameters, directions, own_round, -2.0 * smoothing)
            minus = client.evaluator.forward(client.parameters, inputs)
            shift_in_place(client.parameters, directions, own_round, smoothing)
            return torch.stack((plus, minus), 1)
        direction = directions.at(own_round)
        return fed.embed_pair(client, batch, self._two_sided[number - 1].around(direction, smoothing))

    def _serve(self, number: int, batch: Batch, uploads: Tensor) -> Tensor:
        """Refresh the table with the mean of h+ and h-, compute the scalar (K,), update the server."""
        fed = self.federation
        labels = fed.data.batch_labels(batch)
        weights = self._accepted(batch)
        plus, minus = uploads.unbind(1)
        rows = fed.refresh(number, batch, torch.lerp(plus, minus, 0.5))
        differences = self._server.loss_differences(self.round, rows, uploads, labels, fed.slots[number - 1])
        sums = self._channel.sums(differences, self._scale, weights)
        noised, released = self._context.noised, self._context.released
        scalar = self._channel.scalars(noised(sums) if noised else sums + self._channel.noise.next())
        if released is not None:
            scalar = released(scalar)
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


_PROTECTS = "the scalar from the server to the client, hence labels; nothing protects the embeddings sent up"
_SOUND = "; the server's state is a function of released scalars"


def _protection(config: DPZVConfig) -> Protection:
    scalars = config.sigma != 0.0 if config.sigma is not None else config.calibration != "none"
    return Protection(
        words=_PROTECTS + (_SOUND if config.server_update == "joint-zo" else ""),
        channel="scalar",
        audience=("client", "colluding-clients", "all-but-one", "malicious-client", "eavesdropper", "release"),
        draws=scalars or config.server_update == "dp-sgd",
        not_released="" if scalars else "the scalars are sent without noise",
        epsilon=config.epsilon,
        delta=config.delta,
    )


def _releases(config: DPZVConfig, deployment: Deployment) -> tuple[Release, ...]:
    the_plan = plan(config, deployment)
    return (scalar_release(config, the_plan, deployment),) if the_plan.sigma > 0.0 else ()


def _differences(config: DPZVConfig) -> Differences:
    return Differences(
        smoothing=config.smoothing,
        two_sided=True,
        records=config.batch_size,
        clip=config.clip,
        unit=config.difference == "central",
        pairs=config.perturbation == "functional",
    )


def scalar_config(method: MethodSpec, config: TrainingConfig) -> DPZVConfig | None:
    """Return `config` where the games on noised scalars can be played on `method`, else None."""
    if "scalars" not in method.games(config).played:
        return None
    if not isinstance(config, DPZVConfig):
        raise TypeError(f"{method.name} offers games on scalars, so its {type(config).__name__} must be a DPZVConfig")
    return config


DPZV = MethodSpec(
    name="dpzv",
    summary="asynchronous, zeroth order; the server answers with one clipped, noised scalar (DPZV, algorithm 1)",
    config=DPZVConfig,
    run=DPZVRun,
    released=_releases,
    protection=_protection,
    games=lambda config: Games(("scalars",)),
    downlink="scalar",
    plan=plan,
    differences=_differences,
    deviation="uploads",
    own_noise=True,
)
DPZV_SOUND = replace(
    DPZV,
    name="dpzv-sound",
    summary="dpzv whose server steps by the same noised scalar and whose noise is calibrated against known batches",
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
