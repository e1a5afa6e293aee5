"""`dpzv-audit audit mechanism`: mechanisms of the user's own, and those that are wrong on purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dpzv_audit.cli.audit_coverage import DEFAULT_DELTA
from dpzv_audit.cli.audit_method import GameFlags, show
from dpzv_audit.cli.common import Output, kept_for_resume, progress_reporter
from dpzv_audit.cli.flags import OutFlags, Positive, Probability, WorkerFlags, takes
from dpzv_audit.deadline import TRIAL_SECONDS
from dpzv_audit.errors import InputError

if TYPE_CHECKING:
    from dpzv_audit.evaluation import AuditPlan

PLANTED_PREFIX = "planted:"
WHAT = "pkg.mod:factory, a mechanism of yours, which is imported; or planted:NAME, planted:all."


@takes(game=GameFlags, run=OutFlags, workers=WorkerFlags, output=Output)
def audit_mechanism(
    *,
    mechanism: Annotated[str, typer.Argument(metavar="WHAT", help=WHAT)],
    epsilon: Positive | None = None,
    delta: Probability = DEFAULT_DELTA,
    exactly_gaussian: bool = False,
    trial_seconds: Positive = TRIAL_SECONDS,
    game: GameFlags,
    workers: WorkerFlags,
    run: OutFlags,
    output: Output,
) -> None:
    """Bound epsilon of a Python object of yours from below.

    It is imported and run in both worlds. planted:all runs the mechanisms that are wrong on purpose, and exits with 3
    where one of them gets another verdict than it must.

    Example: dpzv-audit audit mechanism planted:all

    Options:
        epsilon X: Claimed epsilon.
        delta X: Delta of the claim and of every bound, strictly between 0 and 1.
        exactly_gaussian: The scores are Gaussian by construction, on your word: the gaussian estimator may then refute
            the claim.
        trial_seconds X: Most seconds that one run of the mechanism may take.
    """
    plan = game.plan(workers, run.out)
    with kept_for_resume(run.out / "audits", "*.npz"):
        if mechanism.startswith(PLANTED_PREFIX):
            knows = "--mechanism planted, which knows what its scores are"
            if exactly_gaussian:
                raise InputError(f"--exactly-gaussian does not go with {knows}")
            if epsilon is not None:
                raise InputError("--epsilon does not go with --mechanism planted: the claim is part of what is planted")
            _planted(mechanism.removeprefix(PLANTED_PREFIX), plan, game, run, output)
            return
        from dpzv_audit.cli.summary import mechanism_table
        from dpzv_audit.evaluation.auditing import mechanism_outcome
        from dpzv_audit.execution.executor import Workers
        from dpzv_audit.games.mechanism import mechanism_from

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
                seed=run.seed,
                reporter=progress_reporter(bars),
            )
        show(outcome, mechanism_table, game, run, output)


def _planted(name: str, plan: AuditPlan, game: GameFlags, run: OutFlags, output: Output) -> None:
    """Audit one planted mechanism, or all: exits with 3 where a verdict is not the one that it must be."""
    from dpzv_audit.cli.summary import planted_markdown, planted_table, save_table
    from dpzv_audit.evaluation.auditing import planted_result
    from dpzv_audit.games.planted import PLANTED, planted_named

    every = name == "all"
    flag = "--mechanism planted:NAME"
    chosen = list(PLANTED.values()) if every else [planted_named(name, what=flag, also=("all",))]
    with output.progress() as bars:
        result = planted_result(chosen, plan, runs=game.runs, seed=run.seed, reporter=progress_reporter(bars))
    saved = save_table(result, run.out, "audit", run.seed, planted_markdown(result))
    output.result(saved)
    planted_table(output.console, result)
    output.say(result.sentence)
    output.path(saved.run)
    rows = result.rows
    if not all(row.as_expected for row in rows):
        raise typer.Exit(3)
    if not every:
        game.fail(rows[0].verdict)
