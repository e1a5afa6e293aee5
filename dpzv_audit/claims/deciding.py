"""Decides on all claims of a file together: by Holm's method over this run's evidence, or by a ledger over all runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpzv_audit.claims.gate import ClaimRun
from dpzv_audit.claims.ledger import Look, refuted_over_time
from dpzv_audit.claims.ledger_file import LedgerMemory, append_entry, head_of, ledger_lock, open_ledger
from dpzv_audit.evidence.verdict import holm
from dpzv_audit.results import Refutation


@dataclass(frozen=True, kw_only=True)
class Decided:
    """Which claims are refuted at `level`, the error rate of all together, or by an `earlier` entry of a ledger.

    `alone` says of those that this run refuted whether tests that take nothing as given did. `ledger` is the state of
    the ledger, None without one.
    """

    refuted: tuple[bool, ...]
    alone: tuple[bool, ...]
    level: float
    earlier: tuple[Refutation | None, ...]
    ledger: dict[str, str | int] | None = None


def decided(runs: Sequence[ClaimRun], alpha: float) -> Decided:
    """Decide by the evidence of `runs` alone."""
    gathered = [run.evidence() for run in runs]
    return Decided(
        refuted=holm([found.p_value for found in gathered], alpha),
        alone=holm([found.general_p_value for found in gathered], alpha),
        level=alpha,
        earlier=(None,) * len(runs),
    )


def decided_by_ledger(
    path: Path, memory: LedgerMemory, alpha: float, runs: Sequence[ClaimRun], *, new: bool
) -> Decided:
    """Decide by the ledger, and enter what it did not know: on the disk before anybody is told of a verdict.

    Of an interrupted run too: what was looked at was looked at.
    """
    looks = [
        Look(
            claim=run.placed.digest(),
            scores=found.scores,
            name=run.placed.name,
            p_value=found.p_value,
            general_p_value=found.general_p_value,
            tested=found.tested,
            split=found.split,
        )
        for run in runs
        for found in (run.evidence(),)
    ]
    with ledger_lock(path):
        book = open_ledger(path, alpha, memory, new=new)
        refuted, earlier, entry = refuted_over_time(book, looks)
        if entry.decisions:
            book = append_entry(path, book, entry, memory)
        elif book.entries:
            memory.remember(path, book)
    return Decided(
        refuted=refuted,
        alone=tuple(look.claim in entry.decisions and not entry.decisions[look.claim].given for look in looks),
        level=entry.level,
        earlier=earlier,
        ledger={"ledger": book.name, "entries": len(book.entries), "head": head_of(book)},
    )
