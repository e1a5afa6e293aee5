"""`dpzv-audit audit --method`: simulated trainings of any size, and what every audited method prints and leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpzv_audit.cli.common import Output

if TYPE_CHECKING:
    from dpzv_audit.evaluation.auditing import AuditOutcome


def show(outcome: AuditOutcome, out: Path, seed: int, output: Output, fail_on: str | None) -> None:
    """Write the run folder, print the result, and exit with 1 where `--fail-on` asks for it."""
    from dpzv_audit.cli.summary import audit_table, save

    result = outcome.result
    saved = save(result, out, "audit", seed, files=outcome.files)
    outcome.forget()
    output.result(saved)
    audit_table(output.console, result)
    output.say(result.sentence)
    output.noise(result.noise)
    output.memory(result.compute)
    output.path(saved.run)
    verdict = result.privacy.conclusion
    if fail_on is not None and verdict in ("refuted", *(("overclaimed",) if fail_on == "overclaimed" else ())):
        raise typer.Exit(1)
