"""One training with m canaries whose labels are coin flips, and what the scalars say about each coin.

The game of one-run audits (Steinke, Nasr and Jagielski, NeurIPS 2023) with labels for membership: fair coins
b_i = +-1, flipped apart from each other, give m worst-case canaries one of two labels each. With batch ids known, a
scalar is (C/B) sum of b_i over the canaries in its batch, and noise, so the best linear guess of all coins together is
c A^T (c^2 A A^T + s^2 I)^-1 x, with A (T, m) the rounds that hold each canary and c = C/B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.games.worst_case import CanaryClient, train_aimed
from dpzv_audit.seeds import Purpose, stream
from mechanisms.context import Deployment, Plan, RunContext, repeats_of
from mechanisms.dpzv import DPZVConfig
from mechanisms.method import MethodSpec
from mechanisms.training_data import TrainingData, dtype_of
from mechanisms.views import Adversary, ViewRecorder

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
