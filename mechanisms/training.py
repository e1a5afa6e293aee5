"""Runs any method to its end: rounds, epochs, progress and evaluation, for a stack of K replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from mechanisms.config import TrainingConfig
from mechanisms.dpzv import DPZVRun
from mechanisms.messages import Observer
from mechanisms.method import Run
from mechanisms.registry import new_run
from mechanisms.trained import TrainedStack
from mechanisms.training_data import TrainingData

Progress = Callable[[int], None]
History = list[tuple[int, float, float]]
"""(epoch, mean test accuracy, mean test loss)."""


class Checkpoints(Protocol):
    """Where a run is saved after every epoch, and taken up again."""

    def load(self, run: Run) -> History:
        """Put a fresh `run` where the last checkpoint left off; the history so far, empty if there is none."""

    def save(self, run: Run, history: History) -> None:
        """Keep the state of `run` and its history."""


@torch.no_grad()
def train(
    data: TrainingData,
    config: TrainingConfig,
    *,
    seed: int,
    replicas: Sequence[int] = (0,),
    behaviours: Mapping[int, Any] | None = None,
    observers: Sequence[Observer] = (),
    device: str = "cpu",
    progress: Progress | None = None,
    evaluate_epochs: bool = False,
    on_epoch: Callable[[int, float, float], None] | None = None,
    checkpoints: Checkpoints | None = None,
) -> TrainedStack:
    """Train the method of `config` in K replicas at once.

    Args:
        data: Records on `device`, labels shared by the replicas or one row each.
        config: Which method, and how; see `mechanisms.config`.
        seed: Seed of every stream; replica k draws from streams of its own, whatever stack it is in.
        replicas: Numbers of the K replicas.
        behaviours: Clients, by number from 1, that do not follow the protocol: a `ClientBehaviour` of zeroth-order
            methods, a `GradientBehaviour` of first-order ones.
        observers: See every message; `ViewRecorder` keeps an adversary's view.
        device: `cpu` or `cuda`.
        progress: Called after every epoch with the number of rounds done.
        evaluate_epochs: Whether to record test accuracy after every epoch.
        on_epoch: Called with each new record of the history.
        checkpoints: Saves the run after every epoch and takes it up again, with the observers that keep a state;
            what a behaviour keeps to itself is not saved.

    Returns:
        The trained models with accuracy, byte ledger and participation counts.

    Raises:
        InputError: The configuration is of no method or does not fit the data, or behaviours do not fit either.
    """
    run = new_run(data, config, seed=seed, replicas=replicas, behaviours=behaviours, observers=observers, device=device)
    history: History = [] if checkpoints is None else checkpoints.load(run)
    per_epoch = run.federation.steps_per_pass
    for epoch in range(run.round // per_epoch, config.epochs):
        for _ in range(per_epoch):
            run.step()
        if evaluate_epochs:
            history.append(run.federation.epoch_record(epoch + 1))
            if on_epoch is not None:
                on_epoch(*history[-1])
        if checkpoints is not None:
            checkpoints.save(run, history)
        if progress is not None:
            progress(run.round)
    return run.federation.finish(
        rounds=run.round,
        rounds_by_client=tuple(client.rounds for client in run.federation.clients),
        participations=run.plan.participations if isinstance(run, DPZVRun) else None,
        history=history,
    )
