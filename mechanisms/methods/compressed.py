"""Compressed VFL: synchronous, first order, quantised embeddings, Q local steps a round (Castiglia et al. 2022).

In each round all clients send the quantised embeddings of one batch and receive dL/dh_m; a client then takes Q steps,
pulling that one gradient back through its present model each time (Q = 1 is split learning with compression). As the
paper has it (algorithm 1; `local_gradient` recomputed) they receive what a gradient is computed from instead: the other
clients' quantised embeddings, the quantised server model and, once, the labels, which all its parties hold. Client and
server take Q steps each, on gradients in which their own part is as it is now and all else as it was sent.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dpzv_audit.base.limits import MOST_LOCAL_STEPS

from ..core.baselines import FirstOrderRun, baseline_method
from ..core.channel import HEADER_BITS, SERVER, Message, quantised, whole_bytes
from ..core.config import BaselineConfig, ClientMomentum, ForwardBits, ServerMomentum
from ..core.replicas import ParameterStack, ServerBatch
from ..core.streams import Batch


class CompressedConfig(BaselineConfig):
    """Compressed VFL; `split` is the case without compression."""

    forward_bits: ForwardBits = None
    local_steps: int = Field(1, ge=1, le=MOST_LOCAL_STEPS)
    """Local steps of a client per round, Q."""
    local_gradient: Literal["received", "recomputed"] = "received"
    """Gradient of local steps: as received, or recomputed in each (the paper): clients then get labels and all else."""

    def contradictions(self) -> Iterator[tuple[bool, str]]:
        """See `TrainingConfig.contradictions`."""
        yield from super().contradictions()
        sizes = self.forward_bits is not None and self.sampler == "poisson"
        yield sizes, "use sampler shuffled or uniform with forward_bits: batches of one size are quantised"
        noised = self.labels_shared and self.dp != "none"
        yield noised, "use dp none with local_gradient recomputed: clients step by embeddings without noise"

    @property
    def all_at_once(self) -> bool:
        """See `AsyncConfig.all_at_once`."""
        return True

    @property
    def labels_shared(self) -> bool:
        """See `TrainingConfig.labels_shared`."""
        return self.local_gradient == "recomputed"

    @property
    def embeddings_shared(self) -> bool:
        """See `TrainingConfig.embeddings_shared`."""
        return self.local_gradient == "recomputed"


class SplitConfig(CompressedConfig):
    """Split learning: synchronous, first order."""

    momentum: ClientMomentum = 0.9
    server_momentum: ServerMomentum = 0.9


class CompressedRun(FirstOrderRun[CompressedConfig]):
    """Compressed VFL, and split learning, which is the case without compression; see `FirstOrderRun`."""

    def prepare(self) -> None:
        """See `BaselineRun.prepare`."""
        self.bits = self.config.forward_bits
        self.local_steps = self.config.local_steps
        super().prepare()
        if self.config.labels_shared:
            self._labels = self.federation.send_labels()

    def step(self) -> None:
        """Run the next round."""
        if self.config.labels_shared:
            self._recomputed_step()
        else:
            super().step()

    def _recomputed_step(self) -> None:
        """Run a round in which every party steps by gradients that it computes (algorithm 1 of the paper)."""
        fed = self.federation
        turn = self.next_turn()
        batch = turn.batch
        received = self.send_up(turn, {m: fed.embed(m, batch) for m in turn.clients}, self.bits)
        model = fed.server_parameters
        for number in turn.clients:
            others = [received[other] for other in turn.clients if other != number]
            if others:
                others = self._passed_on(number, batch, others)
            if fed.server.layout:
                sent, size = quantised(fed.server_parameters.flat.clone(), self.bits)
                message = Message(self.round, SERVER, number, "model", sent, bits=size)
                model = ParameterStack(fed.channel.send(message), fed.server.layout)
            self._local_steps(number, batch, model, others)
        seen = self.server_batch(batch, received)
        for _ in range(self.local_steps):
            fed.train_server(seen)
        self.round += 1

    def _passed_on(self, number: int, batch: Batch, others: list[Tensor]) -> list[Tensor]:
        """Send client `number` the embeddings (K, B, width) of all others, each in the bits in which it came."""
        fed = self.federation
        each = others[0][0].numel()
        bits = None if self.bits is None else 8 * whole_bytes(len(others) * (HEADER_BITS + self.bits * each))
        rows = torch.cat(others, 2)
        message = Message(self.round, SERVER, number, "embeddings", rows, batch.members, bits, batch.sizes)
        return list(fed.channel.send(message).split(fed.width, 2))

    def _local_steps(self, number: int, batch: Batch, model: ParameterStack, others: list[Tensor]) -> None:
        """Step client `number`: its own embeddings as they are now, the `others` and the server's `model` as sent."""
        fed = self.federation
        client = fed.clients[number - 1]
        inputs = fed.inputs(client, batch)
        labels = self._labels[number - 1].gather(1, batch.ids)
        for _ in range(self.local_steps):
            output, pullback = client.evaluator.vjp(client.parameters, inputs)
            rows = torch.cat([*others[: number - 1], batch.cleared(output), *others[number - 1 :]], 2)
            _, at_rows = fed.server_gradients(ServerBatch(rows, labels, batch.weights), model)
            own = batch.cleared(at_rows[:, :, fed.slots[number - 1]].contiguous())
            gradient, _ = pullback(own, at_inputs=False)
            fed.step_client(number, gradient)


SPLIT = baseline_method(
    name="split",
    summary="split learning: synchronous, first order, per-record gradients go down",
    config=SplitConfig,
    run=CompressedRun,
    downlink="gradient",
    deviation="own_gradient",
)
COMPRESSED = replace(
    SPLIT,
    name="compressed",
    summary="compressed VFL: split learning with quantised embeddings and Q local steps",
    config=CompressedConfig,
    defaults={"forward_bits": 8},
)
