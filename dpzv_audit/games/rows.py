"""Plays the game of a record on the noised rows that clients upload once: real trainings, scored by all but the record.

The canary is the first record. At every client its features are one end of the block's first component or, in the world
"in", the other: as far apart as records of the table's range are in it. Given the noised sums from which components
follow, an adversary who knows the canary's features in both worlds knows its rows without noise, m_0 and m_1. The score
is ln N(x; m_1, s^2 I) - ln N(x; m_0, s^2 I) of what every client uploaded of it. What the sums themselves tell is left
out. Run k of the world "out" is replica 2k, of the world "in" replica 2k + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mechanisms.core.channel import Message
from mechanisms.core.context import RunContext, TrainingData, dtype_of
from mechanisms.core.method import federation_of
from mechanisms.core.noise import norms_of

from .arrays import Arrays, Floats
from .game import CANARY
from .scores import GameScores, scores_of
from .trained import TrainedTrials


@dataclass(frozen=True)
class RowTrials(TrainedTrials):
    """Trials of rows that are uploaded once.

    Arrays: `in_scores`, `out_scores`, and `in_information`, `out_information`: |m_1 - m_0|^2 / s^2, over all clients.
    """

    def facts(self) -> dict[str, object]:
        """See `Trials.facts`."""
        return self.facts_of("rows")

    def scored(self, arrays: Arrays) -> GameScores:
        """See `Trials.scored`: how far apart the worlds are varies with the noised sums, so no law is assumed."""
        return scores_of(arrays, "replay")

    @cached_property
    def ends(self) -> list[tuple[Floats, Floats]]:
        """Return the canary's features (d,) in the worlds "out" and "in" at each client."""
        return [_ends(block.reshape(len(block), -1).astype(np.float64)) for block in self.dataset.train.features]

    @torch.no_grad()
    def __call__(self, first: int, last: int) -> Arrays:
        """Train pairs `first` to `last` and score every run."""
        arrays: Arrays = {}
        for world, side in enumerate(("out", "in")):
            scores, information = self._play(range(2 * first + world, 2 * last, 2), world)
            arrays |= {f"{side}_scores": scores, f"{side}_information": information}
        return arrays

    def _play(self, replicas: Sequence[int], world: int) -> tuple[Floats, Floats]:
        """Train `replicas` in one world, and return scores and information (n,)."""
        blocks = [block.copy() for block in self.dataset.train.features]
        for block, ends in zip(blocks, self.ends, strict=True):
            block[CANARY] = ends[world].reshape(block.shape[1:])
        dataset = replace(self.dataset, train=replace(self.dataset.train, features=tuple(blocks)))
        data = TrainingData.of(dataset, dtype=dtype_of(self.config), device=self.device)
        sent = _CanaryRows()
        run = self.method.start(
            data, self.config, RunContext(seed=self.seed, replicas=replicas, device=self.device, observers=(sent,))
        )
        federation = federation_of(run)
        for _ in range(self.config.epochs * federation.steps_per_pass):
            run.step()
        sigma, clip = self.config.row_sigma(len(federation.clients)), self.config.clip
        score = torch.zeros(len(replicas), dtype=torch.float64)
        information = torch.zeros_like(score)
        for client, ends, row in zip(federation.clients, self.ends, sent.rows, strict=True):
            weight, bias = (view.double().cpu() for view in client.parameters.views.values())
            out, inside = (_clipped(weight @ torch.from_numpy(end) + bias, clip) for end in ends)
            apart = (inside - out) / sigma
            score += (apart * (row - 0.5 * (inside + out)) / sigma).sum(1)
            information += apart.square().sum(1)
        return score.numpy(), information.numpy()


@dataclass
class _CanaryRows:
    """Keeps the canary's rows (K, width) of each upload."""

    rows: list[Tensor] = field(default_factory=list)

    def on_message(self, message: Message) -> None:
        """Take one message."""
        if message.kind == "table":
            self.rows.append(message.payload[:, CANARY].double().cpu())


def _ends(block: Floats) -> tuple[Floats, Floats]:
    """Return the records (d,) at the ends of the first component of a block (n, d), within its range and [0, 1]."""
    centred = block - block.mean(0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    low, high = np.minimum(block.min(0), 0.0), np.maximum(block.max(0), 1.0)
    up = directions[:, -1] > 0.0
    return np.where(up, low, high), np.where(up, high, low)


def _clipped(rows: Tensor, clip: float) -> Tensor:
    """Return rows (K, width) with a norm of at most `clip`."""
    return rows * (clip / norms_of(rows, (1,)).clamp(min=clip))
