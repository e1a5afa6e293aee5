"""`dpzv-audit audit --mechanism`: mechanisms of the user's own, and those that are wrong on purpose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpzv_audit.cli.common import Output, progress_reporter
from dpzv_audit.errors import InputError, check_positive

if TYPE_CHECKING:
    from dpzv_audit.evaluation import AuditPlan

PLANTED_PREFIX = "planted:"


def audit_mechanism(
    mechanism: str,
    plan: AuditPlan,
    *,
    epsilon: float | None,
    delta: float,
    trial_seconds: float,
    exactly_gaussian: bool,
    fail_on: str | None,
    seed: int,
    out: Path,
    output: Output,
    runs: int | None,
) -> None:
    """Audit `mechanism`, print the result and write its run folder; exits with 1 where `--fail-on` asks for it."""
    check_positive("trial_seconds", trial_seconds)
    if mechanism.startswith(PLANTED_PREFIX):
        if exactly_gaussian:
            raise InputError("--exactly-gaussian does not go with --mechanism planted, which knows what its scores are")
        _planted(mechanism.removeprefix(PLANTED_PREFIX), plan, runs, epsilon, fail_on, seed, out, output)
        return
    if epsilon is not None:
        check_positive("epsilon", epsilon)
    from dpzv_audit.auditing.mechanism import mechanism_from
    from dpzv_audit.cli.summary import mechanism_table, save
    from dpzv_audit.evaluation.mechanism import mechanism_outcome
    from dpzv_audit.execution.workers import Workers

    mechanism_from(mechanism)  # here, so that one that cannot be imported is one line before anything starts
    if plan.workers.kind == "here":
        # In a process of its own: a run that hangs in native code or takes its process down ends nothing else.
        plan = replace(plan, workers=Workers(kind="loky", jobs=1))
    with output.progress() as bars:
        outcome = mechanism_outcome(
            mechanism,
            plan,
            epsilon=epsilon,
            delta=delta,
            trial_seconds=trial_seconds,
            exactly_gaussian=exactly_gaussian,
            seed=seed,
            reporter=progress_reporter(bars),
        )
    result = outcome.result
    saved = save(result, out, "audit", seed, files=outcome.files)
    outcome.forget()
    output.result(saved)
    mechanism_table(output.console, result)
    output.say(result.sentence)
    if "not_kept" in result.compute:
        output.say(f"Nothing was kept for --resume: {result.compute['not_kept']}.")
    output.path(saved.run)
    if fail_on is not None and result.privacy.conclusion == "refuted":
        raise typer.Exit(1)


def _planted(
    name: str,
    plan: AuditPlan,
    runs: int | None,
    epsilon: float | None,
    fail_on: str | None,
    seed: int,
    out: Path,
    output: Output,
) -> None:
    """Audit one planted mechanism, or all: exits with 3 where a verdict is not the one that it must be."""
    from dpzv_audit.auditing.planted import PLANTED, planted_named
    from dpzv_audit.cli.summary import planted_markdown, planted_table, save_table
    from dpzv_audit.evaluation.planting import planted_result

    if epsilon is not None:
        raise InputError("--epsilon does not go with --mechanism planted: the claim is part of what is planted")
    every = name == "all"
    flag = "--mechanism planted:NAME"
    chosen = list(PLANTED.values()) if every else [planted_named(name, what=flag, also=("all",))]
    with output.progress() as bars:
        result = planted_result(chosen, plan, runs=runs, seed=seed, reporter=progress_reporter(bars))
    saved = save_table(result, out, "audit", seed, planted_markdown(result))
    output.result(saved)
    planted_table(output.console, result)
    output.say(result.sentence)
    output.path(saved.run)
    rows = result.rows
    if not all(row.as_expected for row in rows):
        raise typer.Exit(3)
    if fail_on is not None and not every:
        failing = ("refuted", "overclaimed") if fail_on == "overclaimed" else ("refuted",)
        if rows[0].verdict in failing:
            raise typer.Exit(1)
