"""The worst-case canary through the real path: embeddings, sent as messages, whose loss difference saturates the clip.

Every client sends, for the canary, an embedding v as h+ and -v as h-, under which the server's own loss difference is
far below -C under one label and far above +C under the other; for the other records 0 or +C.

`play_one_run` trains once with m such canaries whose labels are coin flips: the game of one-run audits (Steinke, Nasr
and Jagielski, NeurIPS 2023) with labels for membership. Fair coins b_i = +-1, flipped apart from each other, give each
canary one of two labels. With batch ids known, a scalar is (C/B) sum of b_i over the canaries in its batch, and noise,
so the best linear guess of all coins together is c A^T (c^2 A A^T + s^2 I)^-1 x, with A (T, m) the rounds that hold
each canary and c = C/B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.games.game import Others
from dpzv_audit.seeds import Purpose, stream
from mechanisms.core.channel import Adversary, ViewRecorder
from mechanisms.core.context import Deployment, Plan, RunContext, Turn, repeats_of
from mechanisms.core.data import TrainingData, dtype_of
from mechanisms.core.federation import Federation
from mechanisms.core.method import MethodSpec, Run
from mechanisms.core.replicas import Evaluator, ParameterStack
from mechanisms.methods.dpzv import DPZVConfig

RANDOM_CANDIDATES = 64
CANDIDATE_SCALES = (1.0, 0.3, 0.1, 0.03)
"""Embeddings tried as the canary's: directions a client, and norms in units of `strength`."""

CANARY_STRENGTH = 10.0
"""Norm of the canary's embeddings in units of the loss difference that saturates the clip, and at least this."""


def saturating_difference(config: DPZVConfig) -> float:
    """Loss difference at which the clip saturates: C * 2 lambda (C * lambda as eq. 7 is printed)."""
    return config.clip * config.smoothing * (2.0 if config.difference == "central" else 1.0)


def strength(config: DPZVConfig) -> float:
    """Norm of the canary's embeddings: the loss difference it makes is of that order, far above what saturates."""
    return CANARY_STRENGTH * max(1.0, saturating_difference(config))


class CanaryClient:
    """Sends the canaries' saturating embeddings, and for every other record embeddings that contribute 0 or +C.

    `records` are the canaries, none where the record is absent from this world; `labels` the two that tell the worlds
    apart.
    """

    def __init__(
        self, records: tuple[int, ...], labels: tuple[int, int], others: Others, *, first_pass_repeats: int = 1
    ) -> None:
        self.first_pass_repeats = first_pass_repeats
        self._records = torch.tensor(records, dtype=torch.int64)
        self._labels = labels
        self._others = others

    def aim(self, candidates: Tensor, differences: Tensor, labels: Tensor) -> None:
        """Choose what to send, with knowledge of the server's start and of the other records: a worst-case record.

        Args:
            candidates: (K, n, width) embeddings v to choose from; v goes out as h+ and -v as h-.
            differences: (K, n, classes) loss at h+ less loss at h- under every label.
            labels: Labels (K, N) of all records.
        """
        low, high = self._labels
        reach = torch.minimum(-differences[..., low], differences[..., high])
        self.reach, best = reach.max(1)
        self.embedding = candidates[torch.arange(len(best), device=best.device), best]
        # For every class the candidate under which its own loss difference is largest: it contributes +C.
        most = differences.argmax(1)
        self._own_label = candidates.gather(1, most.unsqueeze(2).expand(-1, -1, candidates.shape[2]))
        self._all_labels = labels
        self._records = self._records.to(candidates.device)

    def uploads(self, turn: Turn) -> Tensor:
        """Embeddings (K, 2, B, width), see `mechanisms.core.context.ClientBehaviour.uploads`."""
        ids = turn.batch.ids
        plus = torch.zeros(*ids.shape, turn.shape[-1], dtype=turn.dtype, device=turn.device)
        if self._others == "saturated":
            own = self._all_labels.gather(1, ids).unsqueeze(2)
            plus = self._own_label.gather(1, own.expand(*ids.shape, turn.shape[-1]))
        canary = torch.isin(ids, self._records).unsqueeze(2)
        plus = torch.where(canary, self.embedding.unsqueeze(1), plus)
        return torch.stack((plus, -plus), 1)

    def saturates(self, fed: Federation, number: int, config: DPZVConfig) -> bool:
        """Whether what this client sends for the canary still saturates the clip under the server's parameters."""
        low, high = self._labels
        differences = loss_differences(fed, number, self.embedding.unsqueeze(1))
        reach = torch.minimum(-differences[..., low], differences[..., high])
        return bool((reach >= saturating_difference(config)).all())


def logit_directions(server: Evaluator, parameters: ParameterStack, *, rows: Tensor, classes: int) -> Tensor:
    """Gradient of every logit at one row of embeddings, shape (K, classes, M * width); `rows` (K, 1, M * width)."""
    logits, pullback = server.forward_with_pullback(parameters, rows)
    directions = []
    for label in range(classes):
        one = torch.zeros_like(logits)
        one[:, 0, label] = 1.0
        directions.append(pullback(one)[1][:, 0])
    return torch.stack(directions, 1)


def aim_all(
    canaries: Mapping[int, CanaryClient],
    fed: Federation,
    config: DPZVConfig,
    labels: tuple[int, int],
    all_labels: Tensor,
    seed: int,
) -> None:
    """Aim every client's canary; `InputError` unless each saturates the clip at the start, on both sides.

    A canary that does not would make the audit blind without a word: a top model so small that all its hidden units
    are dead at the start has no embedding to send.
    """
    for number, canary in canaries.items():
        candidates = _candidates(fed, config, labels, number, seed)
        canary.aim(candidates, loss_differences(fed, number, candidates), all_labels)
    wanted = saturating_difference(config)
    reached = min(float(canary.reach.min()) for canary in canaries.values())
    if not reached >= wanted:
        raise InputError(
            f"the worst-case canary makes a loss difference of {reached:.3g} where the clip saturates at "
            f"{wanted:.3g}: must reach it, so use more hidden units or a smaller clip or smoothing"
        )


def train_aimed(
    run: Run, canaries: Mapping[int, CanaryClient], config: DPZVConfig, rounds: int, labels: tuple[int, int], seed: int
) -> bool:
    """Aim the canaries and train `rounds` rounds; return whether each still saturated the clip after every pass.

    Raises `InputError` as `aim_all`.
    """
    fed = run.federation
    if canaries:
        aim_all(canaries, fed, config, labels, fed.data.labels, seed)
    saturated = True
    for done in range(1, rounds + 1):
        run.step()
        if done % fed.steps_per_pass == 0:
            saturated = saturated and all(c.saturates(fed, m, config) for m, c in canaries.items())
    return saturated


def _candidates(fed: Federation, config: DPZVConfig, labels: tuple[int, int], number: int, seed: int) -> Tensor:
    """Embeddings (K, n, width) of client `number` that may saturate: along the logits' gradients, and random ones."""
    centre = torch.zeros(fed.stack, 1, fed.table.shape[1], dtype=fed.dtype, device=fed.device)
    gradients = logit_directions(fed.server, fed.server_parameters, rows=centre, classes=fed.data.classes)
    rising = gradients[..., fed.slots[number - 1]]
    low, high = labels
    toward_low = (rising[:, low] - rising[:, high]).unsqueeze(1)
    draws = [
        stream(seed, Purpose.CANARY, number, k).standard_normal((RANDOM_CANDIDATES, fed.width)) for k in fed.replicas
    ]
    random = torch.from_numpy(np.stack(draws)).to(device=fed.device, dtype=fed.dtype)
    found = torch.cat((toward_low, -rising, random), 1)
    norms: Tensor = torch.linalg.vector_norm(found, dim=2, keepdim=True)
    # A dead server has no gradient: such a candidate stays 0 and reaches nothing.
    unit = found / norms.clamp(min=torch.finfo(fed.dtype).tiny)
    return torch.cat([strength(config) * scale * unit for scale in CANDIDATE_SCALES], 1)


def loss_differences(fed: Federation, number: int, candidates: Tensor) -> Tensor:
    """Loss at v less loss at -v, for every label, (K, n, classes), where only client `number`'s embedding is not 0."""
    both = torch.cat((candidates, -candidates), 1)
    rows = both.new_zeros(*both.shape[:2], fed.table.shape[1])
    rows[..., fed.slots[number - 1]] = both
    plus, minus = torch.log_softmax(fed.server.forward(fed.server_parameters, rows), 2).chunk(2, 1)
    return minus - plus


Floats = NDArray[np.float64]
LABELS = (0, 1)
_ADVERSARIES = ("client", "colluding-clients")


@dataclass(frozen=True)
class OneRun:
    """Scores (m,) of the canaries, high for label 1, their coins (m,) as booleans, and facts of the training."""

    scores: Floats
    coins: NDArray[np.bool_]
    plan: Plan
    rounds_seen: int
    saturated: bool

    @property
    def sides(self) -> tuple[Floats, Floats]:
        """Scores of the canaries with label 1 and with label 0."""
        return self.scores[self.coins], self.scores[~self.coins]


@torch.no_grad()
def play_one_run(
    method: MethodSpec,
    config: DPZVConfig,
    dataset: VerticalDataset,
    *,
    canaries: int,
    adversary: str,
    seed: int = 0,
    device: str = "cpu",
) -> OneRun:
    """Train once with `canaries` records of coin-flip labels and score each from the adversary's scalars.

    Raises:
        InputError: More canaries than records, an adversary without batch ids, or a configuration that does not fit.
    """
    count = len(dataset.train)
    if not 2 <= canaries <= count:
        raise InputError(f"must be from 2 to the {count} training records", "canaries", canaries)
    if adversary not in _ADVERSARIES:
        raise InputError(f"must be one of {', '.join(_ADVERSARIES)} with ‹canaries›", "adversary", adversary)
    generator = stream(seed, Purpose.CANARY, 0)
    records = np.sort(generator.choice(count, canaries, replace=False))
    coins = generator.random(canaries) < 0.5
    labels = dataset.train.labels.copy()
    labels[records] = np.where(coins, LABELS[1], LABELS[0])
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=device, labels=labels[None])
    crafted = {m: CanaryClient(tuple(records.tolist()), LABELS, "zero") for m in range(1, dataset.clients + 1)}
    deployment = Deployment(records=count, clients=dataset.clients, seed=seed, repeats=repeats_of(crafted))
    the_plan = method.scalar_plan(config, deployment)
    clients = (1,) if adversary == "client" else tuple(crafted)
    recorder = ViewRecorder(Adversary(adversary, clients), kinds=("scalar",))
    context = RunContext(seed=seed, behaviours=crafted, observers=(recorder,), device=device, plan=the_plan)
    run = method.start(data, config, context)
    saturated = train_aimed(run, crafted, config, len(the_plan.active), LABELS, seed)
    scalars = recorder.view.scalars()[:, 0].double().cpu().numpy()
    held = _held(recorder.view.batches()[:, 0].cpu().numpy(), records)
    if config.participation_cap is not None and len(clients) == dataset.clients:
        held = held & (np.cumsum(held, 0) <= config.participation_cap)
    scores = coin_scores(scalars, held, unit=config.clip / config.batch_size, sigma=the_plan.sigma)
    return OneRun(scores, coins, the_plan, len(scalars), saturated)


def _held(ids: NDArray[np.int64], records: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rounds hold each of the records: (T, B) ids -> (T, m)."""
    place = np.searchsorted(records, ids).clip(max=len(records) - 1)
    found = records[place] == ids
    held = np.zeros((len(ids), len(records)), dtype=bool)
    rounds, columns = np.nonzero(found)
    held[rounds, place[rounds, columns]] = True
    return held


def coin_scores(scalars: Floats, held: NDArray[np.bool_], *, unit: float, sigma: float) -> Floats:
    """Best linear guesses (m,) of the coins from scalars (T,), the canaries' rounds (T, m), C/B and the noise."""
    design = unit * held.astype(np.float64)
    covariance = design @ design.T + sigma**2 * np.eye(len(design))
    return np.asarray(design.T @ np.linalg.solve(covariance, scalars))
