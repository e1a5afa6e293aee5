"""How DPZV's server evaluates the two uploads and trains its top model: options i and ii of paper 001, and sound ones.

`sgd` and `zo` step by true labels without noise; `joint-zo` perturbs the server in the same two evaluations and steps
by the released scalar; `dp-sgd` clips and noises per-record gradients; `frozen` does nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpzv_audit.seeds import Purpose
from mechanisms.config import DPZVConfig
from mechanisms.directions import Directions
from mechanisms.federation import Federation
from mechanisms.grid import GRADIENT_BITS, Grid
from mechanisms.messages import SERVER
from mechanisms.models import dimension
from mechanisms.noise import GaussianNoise
from mechanisms.perturbation import AveragedSteps, TwoSided
from mechanisms.servers import clipped_gradient_steps, clipped_gradient_sum, loss_differences


class ServerTrainer:
    """The server's part of a round beside the scalar: the loss differences it computes, and its own update."""

    def __init__(self, federation: Federation, config: DPZVConfig) -> None:
        self._fed = federation
        self._config = config
        self._classes = federation.data.classes
        d = dimension(federation.server.layout)
        self.update = config.server_update if d and config.server_rate > 0 else "frozen"
        self._two_sided = TwoSided(federation.server_parameters)
        joint = self.update == "joint-zo"
        self._steps = AveragedSteps(
            federation.server_parameters.flat,
            federation.server_momentum,
            count=config.directions if joint else 1,
            rate=config.server_rate,
            momentum=config.server_momentum,
        )
        self._directions = Directions(
            "sphere", d, party=SERVER, purpose=Purpose.SERVER_DIRECTIONS, **federation.streams
        )
        std = config.server_noise_multiplier * config.server_clip if self.update == "dp-sgd" else 0.0
        whole = config.noise == "grid" and std > 0.0
        # A Poisson batch of so many that it matters never has twice the records it is expected to have.
        self._grid = Grid.fit(config.server_clip, std, bits=GRADIENT_BITS, records=config.batch_size) if whole else None
        self._noise = GaussianNoise(
            std / config.batch_size if self._grid is None else self._grid.steps(std),
            size=d,
            purpose=Purpose.SERVER_NOISE,
            origin=federation.context.origin,
            rounded=whole,
            **federation.context.streams(torch.float64 if whole else federation.dtype),
        )

    def skip_to(self, rounds: int) -> None:
        """Go to where `rounds` rounds are done."""
        if self.update == "dp-sgd":
            self._noise.skip_to(rounds)

    @property
    def averaged(self) -> Tensor:
        """What joint-zo has averaged since its last step, (K, d_0); empty where every estimate is a step."""
        return self._steps.total

    def loss_differences(self, round_: int, rows: Tensor, uploads: Tensor, labels: Tensor, slot: slice) -> Tensor:
        """Loss at h+ less loss at h- of each record, (K, B); with joint-zo at w_0 +- lambda_0 u_0 as well.

        `rows` (K, B, M * width) are the table's rows, whose `slot` gives way to `uploads` (K, 2, B, width).
        """
        server, parameters = self._fed.server, self._fed.server_parameters
        if self.update != "joint-zo":
            return loss_differences(server.pair_logits(parameters, rows, uploads, slot), labels)
        pair = rows.unsqueeze(1).repeat(1, 2, 1, 1)
        pair[..., slot] = uploads
        moved = self._two_sided.around(self._directions.at(round_), self._config.server_smoothing)
        return loss_differences(server.forward(moved, pair.flatten(0, 1)).reshape(len(rows), -1, self._classes), labels)

    def step(self, round_: int, rows: Tensor, labels: Tensor, weights: Tensor | None, scalar: Tensor) -> None:
        """Update w_0; `weights` (K, B) say which records count, `scalar` (K,) is what this round releases."""
        if self.update == "frozen":
            return
        fed, config = self._fed, self._config
        if self.update == "joint-zo":
            ratio = config.smoothing / config.server_smoothing
            direction = self._directions.at(round_)
            self._steps.add(round_, direction, scalar * ratio)
            return
        if self.update == "sgd":
            gradient, _ = fed.server_gradients(rows, labels, weights, at_inputs=False)
        elif self.update == "zo":
            gradient = self._zeroth_order_gradient(round_, rows, labels, weights)
        else:
            gradient = self._private_gradient(rows, labels, weights)
        fed.step_server(gradient)

    def _zeroth_order_gradient(self, round_: int, rows: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """The server's own two-point estimate (eq. 3) of the batch loss, neither clipped nor noised."""
        smoothing = self._config.server_smoothing
        direction = self._directions.at(round_)
        moved = self._two_sided.around(direction, smoothing)
        logits = self._fed.server.forward(moved, rows.repeat_interleave(2, 0))
        differences = loss_differences(logits.reshape(len(rows), -1, self._classes), labels)
        if weights is not None:
            differences = differences * weights
        return direction * (differences.sum(1, keepdim=True) / (2.0 * smoothing * self._config.batch_size))

    def _private_gradient(self, rows: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """DP-SGD: per-record gradients clipped to `server_clip`, summed and noised in whole steps or not, averaged."""
        config, grid = self._config, self._grid
        server, parameters = self._fed.server, self._fed.server_parameters
        if grid is not None:
            steps = clipped_gradient_steps(server, parameters, rows, labels, grid, weights, self._noise.next())
            return steps.mul_(grid.step / config.batch_size).to(self._fed.dtype)
        total = clipped_gradient_sum(server, parameters, rows, labels, config.server_clip, weights)
        return self._noise.next() + total / config.batch_size
