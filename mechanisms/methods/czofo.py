"""VFL-CZOFO: zeroth order on the client's output layer only, chained with first order (paper 003, algorithm 1).

The server perturbs the active client's *embedding* along q directions that both derive from a shared seed, and answers
with q differences of the loss; the client estimates dL/dh_m (eq. 2) and pulls it back through its own model. Both
losses are taken before the server steps, as the algorithm says.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dpzv_audit.base.limits import MOST_DIRECTIONS, MOST_EMBEDDED

from ..core.baselines import BaselineRun, baseline_method
from ..core.channel import quantised
from ..core.config import BaselineConfig, Bits, ForwardBits, Passes, Smoothing
from ..core.method import Differences
from ..core.noise import norms_of
from ..core.replicas import ServerBatch, cross_entropy
from ..core.streams import Batch, DirectionKind, Directions, dimension_factor


class CZOFOConfig(BaselineConfig):
    """VFL-CZOFO (paper 003): q directions at the embedding, chained with first order at the client."""

    answers = "scalar"

    directions: int = Field(10, ge=1, le=MOST_DIRECTIONS)
    """Directions per round, q."""
    smoothing: Smoothing = 1e-3
    direction: DirectionKind = "gaussian"
    """Distribution of a record's direction."""
    scalars: Literal["batch", "record"] = "batch"
    """One difference per direction, or one per direction and record."""
    forward_bits: ForwardBits = None
    backward_bits: Bits | None = None
    """Bits per difference sent down; 32 if not given."""

    def contradictions(self) -> Iterator[tuple[bool, str]]:
        """See `TrainingConfig.contradictions`."""
        yield from super().contradictions()
        sizes = "use sampler shuffled or uniform: directions are shared for batches of one size"
        yield self.sampler == "poisson", sizes

    def answered_losses(self, clients: int) -> int:
        """See `TrainingConfig.answered_losses`: at h and at q points (paper 003, eq. 2)."""
        return self.directions + 1

    def passes(self, clients: int) -> Passes:
        """See `TrainingConfig.passes`: what answers need, and the server's own gradient."""
        return Passes(self.answered_losses(clients), backward=True)

    def sizes(self, *, records: int, clients: int) -> list[tuple[str, int, int]]:
        """See `TrainingConfig.sizes`: the directions of a batch as well."""
        width = self.embedding if self.top_model else 1
        sent = f"directions {self.directions} for batch_size {self.batch_size} and embedding {width}"
        held = self.directions * self.batch_size * width
        return [*super().sizes(records=records, clients=clients), (sent, held, MOST_EMBEDDED)]


class CZOFORun(BaselineRun[CZOFOConfig]):
    """VFL-CZOFO; see `BaselineRun`."""

    def prepare(self) -> None:
        """See `BaselineRun.prepare`."""
        fed = self.federation
        config = self.config
        # For a whole batch; `_directions_of` puts each record's row on its sphere where asked.
        drawn = config.directions * config.batch_size * fed.width
        kind: DirectionKind = "rademacher" if config.direction == "rademacher" else "gaussian"
        self._draws = [Directions(kind, drawn, fed.streams, party=m) for m in fed.numbers]
        if config.keeps_table:
            fed.fill_table(protect=self._noise.embeddings, bits=config.forward_bits)

    def step(self) -> None:
        """Run the next round (algorithm 1)."""
        fed = self.federation
        config = self.config
        turn = self.next_turn()
        (number,) = turn.clients
        forward = fed.forward(number, turn.batch)
        noised = {number: self._noise.embeddings(forward.output)}
        received = self.send_up(turn, noised, config.forward_bits) | self.others(turn, config.forward_bits)
        directions = self._directions_of(number, turn.own_round, turn.batch)
        fed.channel.note(number, self.round, "direction", directions)
        seen = self.server_batch(turn.batch, received)
        differences = self._differences(seen, directions, fed.slots[number - 1])
        if fed.server.layout:
            fed.train_server(seen)
        answer, bits = quantised(differences, config.backward_bits)
        answers = self.send_down(turn, "scalar", {number: answer}, bits)
        estimate = self._estimate(answers[number], directions)
        gradient, _ = forward.pullback(self._noise.through_clip(forward.output, estimate), at_inputs=False)
        fed.step_client(number, gradient)
        self.round += 1

    def _directions_of(self, number: int, own_round: int, batch: Batch) -> Tensor:
        """Return the q directions of this round, a row for each record, (K, q, B, width)."""
        fed = self.federation
        config = self.config
        drawn = self._draws[number - 1].at(own_round)
        drawn = drawn.view(fed.stack, config.directions, -1, fed.width)
        drawn = drawn[:, :, : batch.ids.shape[1]]
        if config.direction in ("gaussian", "rademacher"):
            return drawn
        radius = 1.0 if config.direction == "unit-sphere" else fed.width**0.5
        return drawn * (radius / norms_of(drawn, (3,)))

    def _differences(self, batch: ServerBatch, directions: Tensor, slot: slice) -> Tensor:
        """Return delta_j = f(h + mu u_j) - f(h): batch means (K, q), or one a record (K, q, B)."""
        fed = self.federation
        config = self.config
        q = config.directions
        # The unperturbed rows go first; all q + 1 evaluations of all records are one batched product.
        server = fed.server_parameters
        logits = fed.server.moved_logits(server, batch.rows, directions, slot, config.smoothing)
        losses = cross_entropy(logits, batch.labels.repeat(1, q + 1))
        losses = losses.unflatten(1, (q + 1, -1))
        differences = batch.counted(losses[:, 1:] - losses[:, :1])
        if config.scalars == "record":
            return differences
        return differences.sum(2) / config.batch_size

    def _estimate(self, differences: Tensor, directions: Tensor) -> Tensor:
        """Return the gradient of the batch loss at the embeddings, (K, B, width), by eq. 2."""
        config = self.config
        phi = dimension_factor(config.direction, directions.shape[3])
        scale = phi / (config.directions * config.smoothing)
        indices = "kq,kqbw->kbw"
        if config.scalars == "record":
            indices = "kqb,kqbw->kbw"
            scale /= config.batch_size
        return torch.einsum(indices, differences, directions) * scale


def _differences(config: CZOFOConfig) -> Differences:
    records = 1 if config.scalars == "record" else config.batch_size
    return Differences(smoothing=config.smoothing, shared=True, records=records)


SPEC = baseline_method(
    name="czofo",
    summary="VFL-CZOFO: zeroth order at the embedding along q directions, first order at the client",
    config=CZOFOConfig,
    run=CZOFORun,
    downlink="scalar",
    differences=_differences,
)
