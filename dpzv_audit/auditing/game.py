"""The label game: can an adversary tell from its view whether a canary record carried one label or another?

A game fixes mechanism, neighbour relation (`replace-label`), canary, adversary and score. With the `worst-case` canary
the record's clipped difference is +C in the world "in" and -C in the world "out" in every round that it is in, through
the real path: every client sends embeddings, as messages, under which the server's own loss difference exceeds C. The
score is the sum of the scalars the adversary received for batches with the canary, less what the other records add,
which is known. Given the batch ids this is the exact log-likelihood ratio up to scale (auditing.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from mechanisms.config import DPZVConfig
from mechanisms.dpzv import DPZVRun
from mechanisms.federation import TrainingData, Turn, dtype_of
from mechanisms.plan import Plan, plan
from mechanisms.replicas import Evaluator, ParameterStack
from mechanisms.views import Adversary, View, ViewRecorder

CANARY_STRENGTH = 10.0
"""Norm of the canary's embeddings: the loss difference it makes, of order 10, is far above C * 2 lambda = 0.02."""


@dataclass(frozen=True, kw_only=True)
class LabelGame:
    """A label game with the worst-case canary.

    Attributes:
        config: The audited configuration; its claim and noise are taken as they are.
        adversary: `client` (client 1) or `colluding-clients` (all of them).
        canary: Record number of the canary.
        labels: Its label in the worlds "out" and "in".
        others: What the other records contribute: 0 (`zero`) or +C each (`saturated`).
        first_pass_repeats: How often each batch of client 1's first pass serves, as in the attacked training.
    """

    config: DPZVConfig
    adversary: Literal["client", "colluding-clients"] = "client"
    canary: int = 0
    labels: tuple[int, int] = (0, 1)
    others: Literal["zero", "saturated"] = "zero"
    first_pass_repeats: int = 1


@dataclass(frozen=True)
class GameScores:
    """Scores of both worlds, and whether theory says that they are exactly Gaussian.

    `participations` counts the adversary's own rounds that held the canary: (smallest, largest) over runs.
    """

    out_scores: np.ndarray
    in_scores: np.ndarray
    participations: tuple[int, int]
    exactly_gaussian: bool
    plan: Plan


class CanaryClient:
    """Sends the canary's saturating embeddings, and for every other record embeddings that contribute 0 or +C."""

    def __init__(self, game: LabelGame, *, first_pass_repeats: int) -> None:
        self.first_pass_repeats = first_pass_repeats
        self._game = game

    def aim(self, directions: Tensor, labels: Tensor) -> None:
        """Tell it `directions` (K, classes, width), how each logit rises with its embedding, and `labels` (K, N).

        It is a worst-case record: made with knowledge of the server's start and of the other records.
        """
        low, high = self._game.labels
        self._toward_low = _normalised(directions[:, low] - directions[:, high])
        self._own_label = _normalised(directions)
        self._labels = labels

    def uploads(self, turn: Turn) -> Tensor:
        """Embeddings (2, K, B, width), see `mechanisms.federation.ClientBehaviour.uploads`.

        h+ raises the logit of the label "out" over that of "in", h- does the reverse: the loss difference is
        far below 0 under the label "out" and far above 0 under "in".
        """
        ids = turn.batch.ids
        plus = torch.zeros(turn.shape[1:], dtype=turn.dtype, device=turn.device)
        if self._game.others == "saturated":
            own = self._labels.gather(1, ids).unsqueeze(2)
            plus = -self._own_label.gather(1, own.expand(*ids.shape, turn.shape[-1]))
        plus = torch.where((ids == self._game.canary).unsqueeze(2), self._toward_low.unsqueeze(1), plus)
        plus = plus * CANARY_STRENGTH
        return torch.stack((plus, -plus))


def _normalised(vectors: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / norms


def logit_directions(server: Evaluator, parameters: ParameterStack, *, rows: Tensor, classes: int) -> Tensor:
    """Gradient of every logit at one row of embeddings, shape (K, classes, M * width); `rows` (K, 1, M * width)."""
    logits, pullback = server.forward_with_pullback(parameters, rows)
    directions = []
    for label in range(classes):
        one = torch.zeros_like(logits)
        one[:, 0, label] = 1.0
        directions.append(pullback(one)[1][:, 0])
    return torch.stack(directions, 1)


def _canaries(game: LabelGame, clients: int) -> dict[int, CanaryClient]:
    """All clients hold a part of the canary; client 1 repeats its first batches as the attacked training does."""
    return {
        m: CanaryClient(game, first_pass_repeats=game.first_pass_repeats if m == 1 else 1)
        for m in range(1, clients + 1)
    }


@torch.no_grad()
def play(
    game: LabelGame,
    dataset: VerticalDataset,
    *,
    runs: int,
    seed: int = 0,
    chunk: int = 128,
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> GameScores:
    """Train `runs` times in each world and score every run from the adversary's view.

    Args:
        game: See `LabelGame`.
        dataset: Training records; only the canary's label differs between the worlds.
        runs: Trainings in each world, at least 1.
        seed: Seed of all streams; run k of a world is the same whatever the chunk.
        chunk: Trainings held in memory at once.
        device: `cpu` or `cuda`.
        progress: Called with the number of trainings done after each chunk.

    Raises:
        InputError: No such record or label, or a configuration that does not fit the data.
    """
    _check(game, dataset, runs)
    the_plan = plan(
        game.config,
        records=len(dataset.train),
        clients=dataset.clients,
        seed=seed,
        behaviours=_canaries(game, dataset.clients),
    )
    scores, counts = np.empty(2 * runs), np.empty(2 * runs, dtype=np.int64)
    # Run k of the world "out" is replica 2k, of the world "in" replica 2k + 1: a chunk holds both.
    for start in range(0, 2 * runs, chunk):
        replicas = range(start, min(start + chunk, 2 * runs))
        scores[start : replicas.stop], counts[start : replicas.stop] = _play_chunk(
            game, dataset, the_plan, replicas, seed, device
        )
        if progress is not None:
            progress(replicas.stop)
    fixed = int(counts.min()) == int(counts.max())
    # With joint-zo the perturbed server makes the other records contribute too, so the score is a mixture.
    alone = not game.config.top_model or game.config.server_update != "joint-zo"
    return GameScores(
        out_scores=scores[0::2],
        in_scores=scores[1::2],
        participations=(int(counts.min()), int(counts.max())),
        exactly_gaussian=fixed and alone and the_plan.sigma > 0 and game.config.clip_rule == "symmetric",
        plan=the_plan,
    )


def _check(game: LabelGame, dataset: VerticalDataset, runs: int) -> None:
    if runs < 1:
        raise InputError(f"--runs is {runs}, must be at least 1")
    if not 0 <= game.canary < len(dataset.train):
        raise InputError(f"canary is record {game.canary}, must be from 0 to {len(dataset.train) - 1}")
    low, high = game.labels
    if low == high or not (0 <= low < dataset.classes and 0 <= high < dataset.classes):
        raise InputError(
            f"labels of the canary are {low} and {high}, must be two different classes below {dataset.classes}"
        )


def _play_chunk(
    game: LabelGame, dataset: VerticalDataset, the_plan: Plan, replicas: Sequence[int], seed: int, device: str
) -> tuple[np.ndarray, np.ndarray]:
    labels = np.tile(dataset.train.labels, (len(replicas), 1))
    labels[:, game.canary] = [game.labels[k % 2] for k in replicas]
    data = TrainingData.of(dataset, dtype=dtype_of(game.config), device=device, labels=labels)
    clients = (1,) if game.adversary == "client" else tuple(range(1, dataset.clients + 1))
    recorder = ViewRecorder(Adversary(game.adversary, clients), kinds=("scalar",))
    canaries = _canaries(game, dataset.clients)
    run = DPZVRun(
        data,
        game.config,
        the_plan,
        seed=seed,
        replicas=replicas,
        behaviours=canaries,
        observers=(recorder,),
        device=device,
    )
    fed = run.federation
    centre = torch.zeros(fed.stack, 1, fed.table.shape[1], dtype=fed.dtype, device=device)
    directions = logit_directions(fed.server, fed.server_parameters, rows=centre, classes=dataset.classes)
    for part, canary in zip(directions.unflatten(2, (dataset.clients, -1)).unbind(2), canaries.values(), strict=True):
        canary.aim(part, data.labels)
    for _ in the_plan.active:
        run.step()
    return score(recorder.view, game)


def score(view: View, game: LabelGame) -> tuple[np.ndarray, np.ndarray]:
    """Score (K,) of each run, from the adversary's view alone, and how many of its rounds held the canary."""
    scalars, ids = view.scalars().double(), view.batches()
    held = (ids == game.canary).any(2)
    others = (ids.shape[2] - 1) * game.config.clip / game.config.batch_size if game.others == "saturated" else 0.0
    residuals = (scalars - others) * held
    return residuals.sum(0).cpu().numpy(), held.sum(0).cpu().numpy()
