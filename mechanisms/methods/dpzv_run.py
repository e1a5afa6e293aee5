"""The rounds of DPZV (paper 001, algorithm 1), for K replicas; `dpzv` has their settings and what they release."""

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpzv_audit.base.seeds import Purpose

from ..core.channel import SERVER
from ..core.context import RunContext, TrainingData
from ..core.federation import Federation
from ..core.noise import GRADIENT_BITS, GaussianNoise, Grid
from ..core.replicas import (
    ServerBatch,
    Targets,
    add_clipped_gradient_steps,
    clipped_gradient_sum,
    loss_differences,
    shift_in_place,
)
from ..core.rounds import AsyncRun, Turn, ZerothOrderParty
from ..core.scalars import NoisedScalars, plan_run
from ..core.streams import Batch

if TYPE_CHECKING:
    from .dpzv import DPZVConfig


class ServerTrainer:
    """The server's part of a round beside the scalar: the loss differences it computes, and its own update."""

    def __init__(self, federation: Federation, config: "DPZVConfig") -> None:
        self._fed = federation
        self._config = config
        d = federation.server_parameters.flat.shape[1]
        self.update = config.server_update if d and config.server_rate > 0 else "frozen"
        count = config.directions if self.update == "joint-zo" else 1
        self.party = ZerothOrderParty(federation, SERVER, config.direction, count=count)
        noised = config.server_noised and self.update != "frozen"
        self._std = config.server_noise_multiplier * config.server_clip if noised else 0.0
        self.noise = self._scalars.noise if self.update == "dp-zo" else self._gradient_noise(d)

    def _gradient_noise(self, d: int) -> GaussianNoise:
        """Return the noise on sums of clipped gradients (K, d), for dp-sgd; zeros where nothing is noised."""
        config, context = self._config, self._fed.context
        # A Poisson batch of so many that it matters never has twice the records it is expected to have.
        grid = Grid.of(config.noise, config.server_clip, self._std, bits=GRADIENT_BITS, records=config.batch_size)
        std = self._std / config.batch_size if grid is None else self._std
        streams = context.noise_streams(self._fed.dtype)
        return GaussianNoise(std, streams, shape=(d,), purpose=Purpose.SERVER_NOISE, grid=grid)

    @cached_property
    def _scalars(self) -> NoisedScalars:
        """Return what clips and noises the server's own loss differences, for dp-zo."""
        return NoisedScalars(
            self._config,
            self._std / self._config.batch_size,
            self._fed.context,
            clip=self._config.server_clip,
            clip_rule="symmetric",
            purpose=Purpose.SERVER_NOISE,
        )

    def loss_differences(self, round_: int, batch: ServerBatch, uploads: Tensor, slot: slice) -> Tensor:
        """Return loss at h+ less loss at h- of each record, (K, B); with joint-zo at w_0 +- lambda_0 u_0 as well.

        The `slot` of the table's rows gives way to `uploads` (K, 2, B, width).
        """
        fed = self._fed
        if self.update != "joint-zo":
            logits = fed.server.pair_logits(fed.server_parameters, batch.rows, uploads, slot)
            return loss_differences(logits, batch.labels)
        pair = torch.stack((batch.rows, batch.rows), 1)
        pair[..., slot] = uploads
        return self._moved_differences(round_, pair.flatten(0, 1), batch.labels)

    def _moved_differences(self, round_: int, rows: Tensor, labels: Targets) -> Tensor:
        """Return losses at w_0 + lambda_0 u_0 less losses at w_0 - lambda_0 u_0, (K, B), of `rows` (2K, B, n)."""
        smoothing = self._config.server_smoothing
        moved = self.party.moved(round_, smoothing, -smoothing)
        logits = self._fed.server.forward(moved, rows).transpose(1, 2)
        # Copied once, into the layout in which the softmax runs over classes.
        pairs = logits.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)
        return loss_differences(pairs.transpose(1, 2), labels)

    def step(self, round_: int, batch: ServerBatch, scalar: Tensor) -> None:
        """Update w_0; `scalar` (K,) is what this round releases."""
        config = self._config
        if self.update == "joint-zo":
            self.party.step(round_, scalar * (config.smoothing / config.server_smoothing))
        elif self.update == "sgd":
            self._fed.train_server(batch)
        elif self.update == "zo":
            self._step_along(round_, self._own_derivative(round_, batch))
        elif self.update == "dp-sgd":
            self._fed.step_server(self._private_gradient(batch))
        elif self.update == "dp-zo":
            self._step_along(round_, self._noised_derivative(round_, batch))

    def _step_along(self, round_: int, derivative: Tensor) -> None:
        """Step w_0 by the two-point estimate of the batch loss's gradient (eq. 3): its `derivative` (K,) along u_0."""
        self._fed.step_server(self.party.directions.at(round_) * derivative.unsqueeze(1))

    def _own_differences(self, round_: int, batch: ServerBatch) -> Tensor:
        """Return losses at w_0 + lambda_0 u_0 less losses at w_0 - lambda_0 u_0, (K, B), at the table's rows."""
        return self._moved_differences(round_, batch.rows.repeat_interleave(2, 0), batch.labels)

    def _own_derivative(self, round_: int, batch: ServerBatch) -> Tensor:
        """Return the derivative of the batch loss along u_0, (K,), neither clipped nor noised."""
        differences = batch.counted(self._own_differences(round_, batch))
        return differences.sum(1) / (2.0 * self._config.server_smoothing * self._config.batch_size)

    def _noised_derivative(self, round_: int, batch: ServerBatch) -> Tensor:
        """Return the mean of the records' derivatives along u_0, each clipped to `server_clip`, with noise, (K,)."""
        scale = 1.0 / (2.0 * self._config.server_smoothing)
        sums = self._scalars.sums(self._own_differences(round_, batch), scale, batch.weights)
        return self._scalars.scalars(sums + self.noise.next())

    def _private_gradient(self, batch: ServerBatch) -> Tensor:
        """Return the DP-SGD gradient: per-record gradients clipped to `server_clip`, summed, noised and averaged."""
        config = self._config
        grid = self.noise.grid
        server = self._fed.server
        parameters = self._fed.server_parameters
        noise = self.noise.next()
        if grid is None:
            total = clipped_gradient_sum(server, parameters, batch, config.server_clip)
            return noise + total / config.batch_size
        add_clipped_gradient_steps(server, parameters, batch, grid, noise)
        return noise.mul_(grid.step / config.batch_size).to(self._fed.dtype)


class DPZVRun(AsyncRun["DPZVConfig"]):
    """DPZV (paper 001, algorithm 1)."""

    def __init__(self, data: TrainingData, config: "DPZVConfig", context: RunContext) -> None:
        self.plan = context.plan or plan_run(config, context.deployment(data))
        super().__init__(data, config, context, iter(self.plan.active))
        fed = self.federation
        self._scalars = NoisedScalars(config, self.plan.sigma, context)
        self._server = ServerTrainer(fed, config)
        self.parties = {m: ZerothOrderParty(fed, m, config.direction, count=config.directions) for m in fed.numbers}
        steps = 2.0 if config.difference == "central" else 1.0
        self._scale = 1.0 / (steps * config.smoothing)
        places = fed.stack * fed.records + 1
        self._counts = torch.zeros(places, dtype=torch.int32, device=fed.device)
        if config.keeps_table:
            fed.fill_table(context.behaviours)

    def own_tensors(self) -> dict[str, Tensor]:
        """See `mechanisms.core.method.Run.own_tensors`."""
        return {
            "participations": self._counts,
            "server-averaged": self._server.party.total,
            **{f"client-{m}-averaged": party.total for m, party in self.parties.items()},
        }

    def skip_to(self, rounds: int) -> None:
        """See `mechanisms.core.method.Run.skip_to`."""
        super().skip_to(rounds)
        self._scalars.noise.skip_to(rounds)
        self._server.noise.skip_to(rounds)

    def step(self) -> None:
        """Run the next round: lines 3 to 10 of algorithm 1, in the paper's order."""
        turn = self.next_turn()  # lines 3 and 4
        pairs = self.send_up(turn, self.embeddings(turn))  # lines 5 and 6
        seen, differences = self.differences(turn.batch, pairs)  # line 7, eq. 7
        scalar = self.noised(differences, seen.weights)  # line 7, eq. 8
        self._server.step(self.round, seen, scalar)  # line 7
        for number, answer in self.send_down(turn, "scalar", dict.fromkeys(turn.clients, scalar)).items():  # line 8
            self.client_step(number, turn.own_round, answer)  # line 9
        self.round += 1  # line 10

    def embeddings(self, turn: Turn) -> dict[int, Tensor]:
        """Return h+ and h- (eq. 6) by client, (K, 2, B, width)."""
        smoothing = self.config.smoothing
        if self.config.perturbation != "in-place":
            return self.embed_both_ways(turn, smoothing, -smoothing)
        return {number: self._embedded_in_place(number, turn) for number in turn.honest}

    def _embedded_in_place(self, number: int, turn: Turn) -> Tensor:
        fed = self.federation
        client = fed.clients[number - 1]
        party = self.parties[number]
        inputs = fed.inputs(client, turn.batch)
        pair = []
        for scale in (1.0, -2.0):
            shift_in_place(party.parameters, party.directions, turn.own_round, scale * self.config.smoothing)
            pair.append(client.evaluator.forward(party.parameters, inputs))
        client.shifted = party.directions, turn.own_round, -self.config.smoothing
        if not (self._steps_in_place and party.directions.counted):
            self._shift_back(number)
        return torch.stack(pair, 1)

    @property
    def _steps_in_place(self) -> bool:
        """Return whether clients move their parameters by the step as they do to evaluate: along u, drawn again."""
        config = self.config
        return config.perturbation == "in-place" and config.momentum == 0.0 and config.client_rate > 0

    def _shift_back(self, number: int, step: float | Tensor = 0.0) -> None:
        """Take the last shift of a client back, and move it by `step`, (K, 1), along the same direction."""
        client = self.federation.clients[number - 1]
        assert client.shifted is not None
        directions, own_round, scale = client.shifted
        shift_in_place(client.parameters, directions, own_round, step - scale)
        client.shifted = None

    def differences(self, batch: Batch, pairs: dict[int, Tensor]) -> tuple[ServerBatch, Tensor]:
        """Return what the server sees once its table has the mean of h+ and h-, and loss differences (K, B), eq. 7."""
        rows, pair, slot = self._received(batch, pairs)
        seen = ServerBatch(rows, self.federation.data.batch_labels(batch), self._accepted(batch))
        return seen, self._server.loss_differences(self.round, seen, pair, slot)

    def _received(self, batch: Batch, pairs: dict[int, Tensor]) -> tuple[Tensor, Tensor, slice]:
        """Return the table's rows (K, B, n) once they have the mean of a pair, the pair, and its place in them."""
        fed = self.federation
        ((number, pair),) = pairs.items()
        plus, minus = pair.unbind(1)
        return fed.refresh(number, batch, torch.lerp(plus, minus, 0.5)), pair, fed.slots[number - 1]

    def noised(self, differences: Tensor, weights: Tensor | None) -> Tensor:
        """Return one clipped, noised scalar (K,), eq. 8, or what the context puts in its place."""
        context = self.federation.context
        sums = self._scalars.sums(differences, self._scale, weights)
        sums = context.noised(sums) if context.noised else sums + self._scalars.noise.next()
        scalar = self._scalars.scalars(sums)
        return context.released(scalar) if context.released else scalar

    def client_step(self, number: int, own_round: int, scalar: Tensor) -> None:
        """Step w_m by -eta_m Delta u (eq. 9), with momentum; every q own rounds by the mean of q such estimates."""
        party = self.parties[number]
        if self._steps_in_place:
            step = scalar.unsqueeze(1) * -self.federation.optimizers[number].rate
            if self.federation.clients[number - 1].shifted is None:
                shift_in_place(party.parameters, party.directions, own_round, step)
            else:
                self._shift_back(number, step)
        elif self.config.client_rate > 0:
            party.step(own_round, scalar)

    def _accepted(self, batch: Batch) -> Tensor | None:
        """Return weights (K, B) of the records that count: not padding, nor records past the server's limits."""
        cap = self.config.participation_cap
        weights = batch.weights
        if self.config.distinct_ids:
            first = _first_occurrences(batch.ids)
            weights = first if weights is None else weights & first
        if cap is not None:
            counts = self._counts.index_select(0, batch.places)
            allowed = counts.view(batch.ids.shape) < cap
            weights = allowed if weights is None else weights & allowed
            self._counts.index_add_(0, batch.places, weights.flatten().to(torch.int32))
        return None if weights is None else weights.to(self.federation.dtype)


def _first_occurrences(ids: Tensor) -> Tensor:
    """Return whether each of (K, B) ids is the first of its kind in its row."""
    ordered, order = ids.sort(dim=1, stable=True)
    first = torch.ones_like(ids, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.empty_like(first).scatter_(1, order, first)
