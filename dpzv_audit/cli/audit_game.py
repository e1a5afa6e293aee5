"""`dpzv-audit audit --method`: simulated trainings of any size, and what every audited method prints and leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dpzv_audit.cli.common import Output, progress_reporter
from dpzv_audit.cli.options import configure
from dpzv_audit.errors import InputError

if TYPE_CHECKING:
    from dpzv_audit.evaluation import AuditPlan
    from dpzv_audit.evaluation.auditing import AuditOutcome

_SIMULATED = frozenset(
    {
        "--clients",
        "--batch-size",
        "--calibration",
        "--sigma",
        "--set",
        "--dataset-size",
        "--rounds",
        "--simulate",
    }
)
"""What a simulation takes of the flags that describe a training."""


def simulated(
    method: str,
    plan: AuditPlan,
    flags: dict[str, Any],
    values: dict[str, Any],
    settings: list[str] | None,
    *,
    adversary: str,
    seed: int,
    output: Output,
) -> AuditOutcome:
    """Simulate a training whose size the flags give."""
    from dpzv_audit.evaluation.auditing import simulated_outcome
    from mechanisms.context import Deployment

    for flag, value in flags.items():
        if flag not in _SIMULATED and value is not None:
            raise InputError(f"{flag} does not go with --simulate, which trains nothing")
    for flag in ("--dataset-size", "--rounds"):
        if flags.get(flag) is None:
            raise InputError(f"{flag} is missing: --simulate needs --dataset-size D and --rounds T")
    spec, config = configure(method, values, settings)
    deployment = Deployment(
        records=flags["--dataset-size"], clients=flags.get("--clients") or 1, rounds=flags["--rounds"]
    )
    with output.progress() as bars:
        return simulated_outcome(
            spec, config, deployment, adversary=adversary, audit=plan, seed=seed, reporter=progress_reporter(bars)
        )


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
