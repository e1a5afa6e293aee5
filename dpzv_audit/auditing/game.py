"""The label game: can an adversary tell from its view whether a canary record carried one label or another?

A game fixes mechanism, neighbour relation (`replace-label`), canary, adversary and score. With the `worst-case` canary
the record's clipped difference is +C in the world "in" and -C in the world "out" in every round that it is in, through
the real path: every client sends embeddings, as messages, under which the server's own loss difference exceeds C. The
score is the sum of the scalars the adversary received for batches with the canary, less what the other records add,
which is known. Given the batch ids this is the exact log-likelihood ratio up to scale (auditing.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.seeds import Purpose, stream
from mechanisms.config import DPZVConfig
from mechanisms.dpzv import DPZVRun
from mechanisms.federation import Federation, TrainingData, Turn, dtype_of
from mechanisms.plan import Plan, plan
from mechanisms.replicas import Evaluator, ParameterStack
from mechanisms.views import Adversary, View, ViewRecorder

RANDOM_CANDIDATES = 64
CANDIDATE_SCALES = (1.0, 0.3, 0.1, 0.03)
"""Embeddings tried as the canary's: directions a client, and norms in units of `strength`."""

CANARY_STRENGTH = 10.0
"""Norm of the canary's embeddings in units of the loss difference that saturates the clip, and at least this."""


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

    `participations` counts the adversary's own rounds that held the canary: (smallest, largest) over runs. `saturated`
    says whether the canary still saturated the clip after every pass of every run: a server that moved far from its
    start may undo it, and the bound is then weaker than the mechanism allows.
    """

    out_scores: np.ndarray
    in_scores: np.ndarray
    participations: tuple[int, int]
    exactly_gaussian: bool
    saturated: bool
    plan: Plan


def saturating_difference(config: DPZVConfig) -> float:
    """Loss difference at which the clip saturates: C * 2 lambda (C * lambda as eq. 7 is printed)."""
    return config.clip * config.smoothing * (2.0 if config.difference == "central" else 1.0)


def strength(config: DPZVConfig) -> float:
    """Norm of the canary's embeddings: the loss difference it makes is of that order, far above what saturates."""
    return CANARY_STRENGTH * max(1.0, saturating_difference(config))


class CanaryClient:
    """Sends the canary's saturating embeddings, and for every other record embeddings that contribute 0 or +C."""

    def __init__(self, game: LabelGame, *, first_pass_repeats: int) -> None:
        self.first_pass_repeats = first_pass_repeats
        self._game = game

    def aim(self, candidates: Tensor, differences: Tensor, labels: Tensor) -> None:
        """Choose what to send, with knowledge of the server's start and of the other records: a worst-case record.

        Args:
            candidates: (K, n, width) embeddings v to choose from; v goes out as h+ and -v as h-.
            differences: (K, n, classes) loss at h+ less loss at h- under every label.
            labels: Labels (K, N) of all records.
        """
        low, high = self._game.labels
        reach = torch.minimum(-differences[..., low], differences[..., high])
        self.reach, best = reach.max(1)
        self.embedding = candidates[torch.arange(len(best), device=best.device), best]
        # For every class the candidate under which its own loss difference is largest: it contributes +C.
        most = differences.argmax(1)
        self._own_label = candidates.gather(1, most.unsqueeze(2).expand(-1, -1, candidates.shape[2]))
        self._labels = labels

    def uploads(self, turn: Turn) -> Tensor:
        """Embeddings (K, 2, B, width), see `mechanisms.federation.ClientBehaviour.uploads`.

        h+ raises the logit of the label "out" over that of "in", h- does the reverse: the loss difference is
        far below 0 under the label "out" and far above 0 under "in".
        """
        ids = turn.batch.ids
        plus = torch.zeros(*ids.shape, turn.shape[-1], dtype=turn.dtype, device=turn.device)
        if self._game.others == "saturated":
            own = self._labels.gather(1, ids).unsqueeze(2)
            plus = self._own_label.gather(1, own.expand(*ids.shape, turn.shape[-1]))
        plus = torch.where((ids == self._game.canary).unsqueeze(2), self.embedding.unsqueeze(1), plus)
        return torch.stack((plus, -plus), 1)


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
    _check(game, dataset, runs, chunk)
    the_plan = plan(
        game.config,
        records=len(dataset.train),
        clients=dataset.clients,
        seed=seed,
        behaviours=_canaries(game, dataset.clients),
    )
    if game.adversary == "client" and the_plan.rounds_by_client[0] == 0:
        raise InputError("client 1 is never active in so few rounds, must be for its view to be scored: more epochs")
    scores, counts = np.empty(2 * runs), np.empty(2 * runs, dtype=np.int64)
    saturated = True
    # Run k of the world "out" is replica 2k, of the world "in" replica 2k + 1: a chunk holds both.
    for start in range(0, 2 * runs, chunk):
        replicas = range(start, min(start + chunk, 2 * runs))
        scores[start : replicas.stop], counts[start : replicas.stop], kept = _play_chunk(
            game, dataset, the_plan, replicas, seed, device
        )
        saturated = saturated and kept
        if progress is not None:
            progress(replicas.stop)
    # Under a cap the canary stops counting at a round that depends on other clients' batches.
    fixed = int(counts.min()) == int(counts.max()) and game.config.participation_cap is None
    # With joint-zo the perturbed server makes the other records contribute too, so the score is a mixture.
    alone = not game.config.top_model or game.config.server_update != "joint-zo"
    return GameScores(
        out_scores=scores[0::2],
        in_scores=scores[1::2],
        participations=(int(counts.min()), int(counts.max())),
        exactly_gaussian=fixed and alone and saturated and the_plan.sigma > 0 and game.config.clip_rule == "symmetric",
        saturated=saturated,
        plan=the_plan,
    )


def _check(game: LabelGame, dataset: VerticalDataset, runs: int, chunk: int) -> None:
    for name, value in (("--runs", runs), ("chunk", chunk)):
        if value < 1:
            raise InputError(f"{name} is {value}, must be at least 1")
    if not 0 <= game.canary < len(dataset.train):
        raise InputError(f"canary is record {game.canary}, must be from 0 to {len(dataset.train) - 1}")
    low, high = game.labels
    if low == high or not (0 <= low < dataset.classes and 0 <= high < dataset.classes):
        raise InputError(
            f"labels of the canary are {low} and {high}, must be two different classes below {dataset.classes}"
        )


def _play_chunk(
    game: LabelGame, dataset: VerticalDataset, the_plan: Plan, replicas: Sequence[int], seed: int, device: str
) -> tuple[np.ndarray, np.ndarray, bool]:
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
    for number, canary in canaries.items():
        candidates = _candidates(game, run.federation, number, seed)
        canary.aim(candidates, _loss_differences(run.federation, number, candidates), data.labels)
    _check_reach(game, canaries)
    saturated = True
    for done in range(1, len(the_plan.active) + 1):
        run.step()
        if done % run.federation.steps_per_pass == 0:
            saturated = saturated and _saturates(game, run.federation, canaries)
    return *score(recorder.view, game), saturated


def _candidates(game: LabelGame, fed: Federation, number: int, seed: int) -> Tensor:
    """Embeddings (K, n, width) of client `number` that may saturate: along the logits' gradients, and random ones."""
    centre = torch.zeros(fed.stack, 1, fed.table.shape[1], dtype=fed.dtype, device=fed.device)
    gradients = logit_directions(fed.server, fed.server_parameters, rows=centre, classes=fed.data.classes)
    rising = gradients[..., fed.slots[number - 1]]
    low, high = game.labels
    toward_low = (rising[:, low] - rising[:, high]).unsqueeze(1)
    draws = [
        stream(seed, Purpose.CANARY, number, k).standard_normal((RANDOM_CANDIDATES, fed.width)) for k in fed.replicas
    ]
    random = torch.from_numpy(np.stack(draws)).to(device=fed.device, dtype=fed.dtype)
    found = torch.cat((toward_low, -rising, random), 1)
    norms: Tensor = torch.linalg.vector_norm(found, dim=2, keepdim=True)
    # A dead server has no gradient: such a candidate stays 0 and reaches nothing.
    unit = found / norms.clamp(min=torch.finfo(fed.dtype).tiny)
    return torch.cat([strength(game.config) * scale * unit for scale in CANDIDATE_SCALES], 1)


def _loss_differences(fed: Federation, number: int, candidates: Tensor) -> Tensor:
    """Loss at v less loss at -v, for every label, (K, n, classes), where only client `number`'s embedding is not 0."""
    both = torch.cat((candidates, -candidates), 1)
    rows = both.new_zeros(*both.shape[:2], fed.table.shape[1])
    rows[..., fed.slots[number - 1]] = both
    plus, minus = torch.log_softmax(fed.server.forward(fed.server_parameters, rows), 2).chunk(2, 1)
    return minus - plus


def _check_reach(game: LabelGame, canaries: Mapping[int, CanaryClient]) -> None:
    """`InputError` unless the canary saturates the clip at the start, on both sides, whichever client is active.

    A canary that does not would make the audit blind without a word: a top model so small that all its hidden units
    are dead at the start has no embedding to send.
    """
    wanted = saturating_difference(game.config)
    reached = min(float(canary.reach.min()) for canary in canaries.values())
    if not reached >= wanted:
        raise InputError(
            f"the worst-case canary makes a loss difference of {reached:.3g} where the clip saturates at "
            f"{wanted:.3g}: must reach it, so use more hidden units or a smaller clip or smoothing"
        )


def _saturates(game: LabelGame, fed: Federation, canaries: Mapping[int, CanaryClient]) -> bool:
    """Whether what the canary's clients send saturates the clip under the server's present parameters."""
    low, high = game.labels
    differences = torch.cat(
        [_loss_differences(fed, number, canary.embedding.unsqueeze(1)) for number, canary in canaries.items()], 1
    )
    reach = torch.minimum(-differences[..., low], differences[..., high])
    return bool((reach >= saturating_difference(game.config)).all())


def score(view: View, game: LabelGame) -> tuple[np.ndarray, np.ndarray]:
    """Score (K,) of each run, from the adversary's view alone, and how many of its rounds held the canary."""
    scalars, ids = view.scalars().double(), view.batches()
    held = (ids == game.canary).any(2)
    others = ((ids >= 0).sum(2) - 1) * (
        game.config.clip / game.config.batch_size if game.others == "saturated" else 0.0
    )
    residuals = (scalars - others) * held
    return residuals.sum(0).cpu().numpy(), held.sum(0).cpu().numpy()
