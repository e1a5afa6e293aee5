"""What every evaluation shares: the result as a dictionary, where progress goes, how an audit is sought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpzv_audit.evidence import NeighbourRelation

Result = dict[str, Any]
NEIGHBOURS: NeighbourRelation = "replace-label"


@dataclass(frozen=True)
class Reporter:
    """Where long work reports: `stage(name, total)` starts a stage and returns what to call with the steps done."""

    stage: Callable[[str, int], Callable[[int], None]]


def silent() -> Reporter:
    """A reporter that says nothing."""
    return Reporter(lambda name, total: lambda done: None)


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """How the lower bound is sought: `runs` trainings in each world, `chunk` at a time; no runs, no audit."""

    runs: int = 2000
    chunk: int = 256
    confidence: float = 0.95
    others: str = "zero"
