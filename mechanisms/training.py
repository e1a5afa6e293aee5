"""Runs any method to its end: rounds, epochs, progress and evaluation, for a stack of K replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from dpzv_audit.errors import InputError
from mechanisms.calibration import calibrated
from mechanisms.compressed import CompressedRun
from mechanisms.config import (
    CompressedConfig,
    CZOFOConfig,
    DPZVConfig,
    ProtectedConfig,
    TrainingConfig,
    VAFLConfig,
    ZerothOrderConfig,
)
from mechanisms.czofo import CZOFORun
from mechanisms.dpzv import DPZVRun
from mechanisms.federation import Federation, TrainedStack, TrainingData
from mechanisms.messages import Observer
from mechanisms.plan import plan
from mechanisms.vafl import VAFLRun
from mechanisms.zoo import ZOORun

Progress = Callable[[int], None]
History = list[tuple[int, float, float]]
"""(epoch, mean test accuracy, mean test loss)."""


class Run(Protocol):
    """One stack of K trainings in progress."""

    federation: Federation
    round: int

    def step(self) -> None:
        """Run the next round."""

    def own_tensors(self) -> dict[str, Tensor]:
        """State beside the federation's that a checkpoint must hold."""

    def skip_to(self, rounds: int) -> None:
        """Set the counters of this run, and of its random streams, to where `rounds` rounds are done."""


class Checkpoints(Protocol):
    """Where a run is saved after every epoch, and taken up again."""

    def load(self, run: Run) -> History:
        """Put a fresh `run` where the last checkpoint left off; the history so far, empty if there is none."""

    def save(self, run: Run, history: History) -> None:
        """Keep the state of `run` and its history."""


RUNS: dict[type[TrainingConfig], Callable[..., Run]] = {
    CompressedConfig: CompressedRun,
    VAFLConfig: VAFLRun,
    ZerothOrderConfig: ZOORun,
    CZOFOConfig: CZOFORun,
}
"""How a configuration is run; DPZV is apart, since its schedule and noise are planned before it starts."""


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
        checkpoints: Saves the run after every epoch and takes it up again, with the observers that keep a state.

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


def new_run(
    data: TrainingData,
    config: TrainingConfig,
    *,
    seed: int,
    replicas: Sequence[int] = (0,),
    behaviours: Mapping[int, Any] | None = None,
    observers: Sequence[Observer] = (),
    device: str = "cpu",
) -> Run:
    """The run of `config` before its first round: arguments and errors as of `train`."""
    common: dict[str, Any] = {"seed": seed, "replicas": replicas, "observers": observers, "device": device}
    records, clients = data.records, len(data.features)
    if behaviours:
        _check_behaviours(config, behaviours, clients=clients)
        common["behaviours"] = behaviours
    if isinstance(config, ProtectedConfig):
        config = calibrated(config, records=records, clients=clients, seed=seed)
    if isinstance(config, DPZVConfig):
        schedule = plan(config, records=records, clients=clients, seed=seed, behaviours=behaviours)
        return DPZVRun(data, config, schedule, **common)
    return _run_of(config)(data, config, **common)


def _run_of(config: TrainingConfig) -> Callable[..., Run]:
    for kind, make in RUNS.items():
        if isinstance(config, kind):
            return make
    kinds = ", ".join(["DPZVConfig", *(kind.__name__ for kind in RUNS)])
    raise InputError(f"config is a {type(config).__name__}, must be one of a method: {kinds}")


def _check_behaviours(config: TrainingConfig, behaviours: Mapping[int, Any], *, clients: int) -> None:
    numbers = ", ".join(map(str, behaviours))
    zeroth_order = isinstance(config, DPZVConfig | ZerothOrderConfig)
    first_order = isinstance(config, VAFLConfig | CompressedConfig)
    does = "uploads" if zeroth_order else "own_gradient" if first_order else ""
    if not all(hasattr(behaviour, does) for behaviour in behaviours.values()):
        raise InputError(
            f"behaviours are given for client {numbers} of a {type(config).__name__}, must be left out: "
            "a client that deviates chooses the two uploads of a zeroth-order method, or its step in a first-order one"
        )
    if not set(behaviours) <= set(range(1, clients + 1)):
        raise InputError(f"behaviours are given for client {numbers}, must be for clients 1 to {clients}")
