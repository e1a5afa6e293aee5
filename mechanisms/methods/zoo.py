"""Zeroth-order VFL by two losses: ZOO-VFL, its synchronous form, and VFL-Cascaded (paper 002, section III).

A client sends h(w_m) and h(w_m + mu u) and receives the two batch losses; its gradient estimate is
phi/mu (L(w_m + mu u) - L(w_m)) u. The server steps by the same kind of estimate (`zoo-vfl`, `syn-zoo-vfl`) or by its
exact gradient (`cascaded`).
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..core.baselines import BaselineRun, baseline_method
from ..core.channel import SERVER
from ..core.config import ClientMomentum, ClientRate, Passes, ProtectedConfig, ServerMomentum, ServerRate, Smoothing
from ..core.method import Differences
from ..core.replicas import ServerBatch, cross_entropy
from ..core.rounds import Turn, ZerothOrderParty
from ..core.streams import DirectionKind, dimension_factor


class ZerothOrderConfig(ProtectedConfig):
    """ZOO-VFL, Syn-ZOO-VFL and VFL-Cascaded (papers 002, 003)."""

    uploads = 2
    client_step = "zeroth-order"
    answers = "losses"

    client_rate: ClientRate = 1e-3
    server_rate: ServerRate = 1e-3
    momentum: ClientMomentum = 0.0
    server_momentum: ServerMomentum = 0.0
    smoothing: Smoothing = 1e-3
    direction: DirectionKind = "gaussian"
    """Distribution of the directions."""
    synchronous: bool = False
    """All clients in every round, on one batch."""
    server_first_order: bool = False
    """The server steps along its exact gradient (VFL-Cascaded)."""

    @property
    def all_at_once(self) -> bool:
        """See `ProtectedConfig.all_at_once`."""
        return self.synchronous

    def answered_losses(self, clients: int) -> int:
        """See `TrainingConfig.answered_losses`: at h, and at h + mu u of every active client."""
        return 1 + (clients if self.all_at_once else 1)

    def passes(self, clients: int) -> Passes:
        """See `TrainingConfig.passes`: what answers need, and at w_0 + mu u_0 or the server's gradient."""
        first_order = self.server_step == "sgd"
        return Passes(self.answered_losses(clients) + (not first_order), backward=first_order, zeroth_order=True)

    @property
    def server_step(self) -> Literal["zo", "sgd"]:
        """See `ProtectedConfig.server_step`."""
        return "sgd" if self.server_first_order else "zo"


class ZOORun(BaselineRun[ZerothOrderConfig]):
    """ZOO-VFL, where `synchronous` activates all clients in every round."""

    def prepare(self) -> None:
        """See `BaselineRun.prepare`."""
        fed = self.federation
        self.parties = {m: ZerothOrderParty(fed, m, self.config.direction) for m in (SERVER, *fed.numbers)}
        if self.config.keeps_table:
            fed.fill_table(fed.context.behaviours, protect=self._noise.embeddings)

    def step(self) -> None:
        """Run the next round (paper 002, section III): one client, or all of them."""
        turn = self.next_turn()
        pairs = self.send_up(turn, self.embeddings(turn))
        seen = self.server_batch(turn.batch, {m: pair[:, 0] for m, pair in pairs.items()})
        losses = {m: self._losses(seen, pair, self.federation.slots[m - 1]) for m, pair in pairs.items()}
        self._server_step(seen)
        for number, answer in self.send_down(turn, "losses", losses).items():
            self._step(number, turn.own_round, answer)
        self.round += 1

    def embeddings(self, turn: Turn) -> dict[int, Tensor]:
        """Return h(w) and h(w + mu u) under noise by client, (K, 2, B, width)."""
        pairs = self.embed_both_ways(turn, 0.0, self.config.smoothing)
        return {m: self._noise.embeddings(turn.batch.cleared(pair)) for m, pair in pairs.items()}

    def _losses(self, batch: ServerBatch, uploads: Tensor, slot: slice) -> Tensor:
        """Return the two batch losses, (K, 2)."""
        fed = self.federation
        logits = fed.server.pair_logits(fed.server_parameters, batch.rows, uploads, slot)
        losses = cross_entropy(logits, batch.labels.repeat(1, 2))
        return self._mean(losses.unflatten(1, (2, -1)), batch)

    def _mean(self, losses: Tensor, batch: ServerBatch) -> Tensor:
        """Return batch losses (K, e) of `losses` (K, e, B): the divisor is B whatever the sampler."""
        return batch.counted(losses).sum(2) / self.config.batch_size

    def _server_step(self, batch: ServerBatch) -> None:
        fed = self.federation
        config = self.config
        if not fed.server.layout or config.server_rate == 0:
            return
        if config.server_first_order:
            fed.train_server(batch)
            return
        moved = self.parties[SERVER].moved(self.round, 0.0, config.smoothing)
        logits = fed.server.forward(moved, batch.rows.repeat_interleave(2, 0))
        losses = cross_entropy(logits, batch.labels.repeat_interleave(2, 0))
        self._step(SERVER, self.round, self._mean(losses.unflatten(0, (-1, 2)), batch))

    def _step(self, number: int, round_: int, losses: Tensor) -> None:
        """Step by phi/mu (L(w + mu u) - L(w)) u (paper 002, eq. 3), from the two losses (K, 2)."""
        party = self.parties[number]
        first, second = losses.unbind(1)
        phi = dimension_factor(self.config.direction, party.parameters.flat.shape[1])
        party.step(round_, torch.sub(second, first) * (phi / self.config.smoothing))


def _differences(config: ZerothOrderConfig) -> Differences:
    return Differences(smoothing=config.smoothing, records=config.batch_size)


ZOO_VFL = baseline_method(
    name="zoo-vfl",
    summary="asynchronous, zeroth order at clients and server: two losses go down",
    config=ZerothOrderConfig,
    run=ZOORun,
    downlink="losses",
    differences=_differences,
    deviation="uploads",
)
SYN_ZOO_VFL = replace(
    ZOO_VFL,
    name="syn-zoo-vfl",
    summary="zoo-vfl with all clients in every round",
    defaults={"synchronous": True},
)
CASCADED = replace(
    ZOO_VFL,
    name="cascaded",
    summary="VFL-Cascaded: zoo-vfl whose server steps by its exact gradient",
    defaults={"server_first_order": True, "server_rate": 0.05},
)
