"""What every evaluation shares: where progress goes, how an audit is sought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dpzv_audit.auditing.games.definition import DEFAULT_NORM
from dpzv_audit.errors import InputError
from dpzv_audit.execution.workers import Workers
from dpzv_audit.findings import NeighbourRelation
from mechanisms import DPZVConfig, MethodSpec, TrainingConfig
from mechanisms.dpzv import scalar_config

NEIGHBOURS: NeighbourRelation = "replace-label"


class Stage(Protocol):
    """A stage of long work in progress."""

    def __call__(self, done: int | None = None, /, note: str | None = None) -> None:
        """Say how many steps are done, or how it goes in a few words; None changes nothing."""


@dataclass(frozen=True)
class Reporter:
    """Where long work reports: `stage(name, total)` starts a stage and returns what to call with the steps done."""

    stage: Callable[[str, int], Stage]


def noised(method: MethodSpec, config: TrainingConfig) -> DPZVConfig:
    """`config` of a method that adds noise of its own; `InputError` for another."""
    found = scalar_config(method, config)
    if found is None and method.protection(config).draws:
        raise InputError(f"must be another: {method.games(config).why_not}", "method", method.name)
    if found is None:
        raise InputError(
            "which adds no noise: there is no epsilon to bound; give dpzv or dpzv-sound", "method", method.name
        )
    return found


def check_noise(sigma: float) -> None:
    """Raise `InputError` where a configuration that may add noise adds none."""
    if sigma == 0.0:
        raise InputError(
            "the noise is 0 (‹sigma› 0 or ‹calibration› none), must be above 0: there is no epsilon to bound"
        )


def silent() -> Reporter:
    """A reporter that says nothing."""

    def stage(done: int | None = None, /, note: str | None = None) -> None:
        pass

    return Reporter(lambda name, total: stage)


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """How the lower bound is sought: `runs` trainings in each world, `chunk` of both at a time; no runs, no audit.

    `neighbours`, `canary`, `others` and `norm` are those of `dpzv_audit.auditing.games.definition.Game`. Chunks run on
    `workers`, are kept under `folder` (None: nowhere) and taken up with `resume`; no chunk begins past `max_minutes`.
    """

    runs: int = 2000
    chunk: int = 256
    confidence: float = 0.95
    others: str = "zero"
    neighbours: str = NEIGHBOURS
    canary: str = "worst-case"
    norm: float = DEFAULT_NORM
    workers: Workers = field(default_factory=Workers)
    max_minutes: float | None = None
    folder: Path | None = None
    resume: bool = False
