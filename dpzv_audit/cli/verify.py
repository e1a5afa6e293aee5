"""`dpzv-audit verify`: every claim of a file with its evidence and verdict; the gate of a CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpzv_audit.cli.common import (
    Output,
    choose_device,
)
from dpzv_audit.cli.flags import Count, Positive, RunFlags, WorkerFlags, among, takes
from dpzv_audit.deadline import TRIAL_SECONDS
from dpzv_audit.errors import InputError, Interrupted

if TYPE_CHECKING:
    from dpzv_audit.claims.gate import ClaimRun, Gate

GO_ON = "the report is partial; the same command with --resume goes on from there"

ClaimsArgument = Annotated[Path | None, typer.Argument(metavar="CLAIMS.TOML", help="The claims file.")]


def _below_half(name: str, alpha: float) -> None:
    if not 0.0 < alpha < 0.5:
        raise InputError("must lie strictly between 0 and 0.5", name, alpha)


@takes(run=RunFlags, workers=WorkerFlags, output=Output)
def verify(
    *,
    claims: ClaimsArgument = None,
    only: list[str] | None = None,
    alpha: Annotated[float | None, _below_half] = None,
    max_minutes: Positive | None = None,
    max_trials: Count | None = None,
    workers: WorkerFlags,
    trial_seconds: Positive = TRIAL_SECONDS,
    strict: bool = False,
    allow: Annotated[list[str] | None, among("overclaimed")] = None,
    trust_code: bool = False,
    root: Path | None = None,
    ledger: Path | None = None,
    new_ledger: bool = False,
    junit: Path | None = None,
    sarif: Path | None = None,
    no_cache: bool = False,
    cache: Path | None = None,
    resume: bool = False,
    check: bool = False,
    schema: bool = False,
    run: RunFlags,
    output: Output,
) -> None:
    """Verify every claim of a file, with evidence; the CI gate.

    Each claim is refuted, overclaimed, supported or inconclusive. A true claim is refuted with probability at most
    alpha over all claims of the file together. Exit code 1 for a refuted or overclaimed claim. An unchanged claim is
    not audited again.

    Example: dpzv-audit verify examples/claims.toml --junit junit.xml --sarif claims.sarif

    Options:
        only NAME: Verify this claim alone; may be given several times.
        alpha X: Largest chance that any true claim of the file is refuted; by default the file's, else 1e-3.
        max_minutes X: Minutes for the whole file; then the verdicts rest on the evidence there is.
        max_trials N: Most trainings, or runs, for each claim.
        trial_seconds X: Most seconds that one run of a mechanism may take.
        strict: Exit with 1 for a claim that is inconclusive, was cut off or was not audited.
        allow overclaimed: Exit with 0 though a claim is overclaimed.
        trust_code: Import and run the mechanisms that the file names. Only your own files.
        root DIR: Folder that paths in the file must lie in; by default its own.
        ledger FILE: Hold the error rate over all runs that use this file together.
        new_ledger: Begin a new ledger, with a new error rate, though another was used at the same path.
        junit FILE: Write JUnit XML.
        sarif FILE: Write SARIF 2.1.0.
        no_cache: Audit everything again and keep nothing.
        cache DIR: Where evidence is kept; by default dpzv-audit in the user's cache.
        resume: Go on where an interrupted run stopped.
        check: Check the file whole, run nothing, write nothing.
        schema: Print the JSON schema of claims files, for editors; nothing else.
    """
    if schema:
        _print_schema()
        return
    if claims is None:
        raise InputError("CLAIMS.TOML is missing: give the claims file, such as dpzv-audit verify claims.toml")
    if new_ledger and ledger is None:
        raise InputError("--new-ledger needs --ledger FILE")
    if no_cache and (resume or cache):
        raise InputError("--no-cache keeps nothing, so it goes with neither --resume nor --cache")
    from dataclasses import replace

    from dpzv_audit.claims.cache import Cache, default_cache
    from dpzv_audit.claims.file import load_claims
    from dpzv_audit.claims.gate import Effort, Gate
    from dpzv_audit.claims.ledger import LedgerMemory, ledger_files, open_ledger
    from dpzv_audit.claims.result import decided, decided_by_ledger, measured, verify_result
    from dpzv_audit.claims.subjects import place_of
    from dpzv_audit.cli.tables import print_table
    from dpzv_audit.cli.verify_output import check_file, save, summary_file
    from dpzv_audit.cli.verify_view import print_sentence, verdict_table

    check_file("junit", junit)
    check_file("sarif", sarif)

    pool = workers.workers()
    file = load_claims(claims)
    file = file if alpha is None else replace(file, alpha=alpha)
    file = file.only(only) if only else file
    memory = LedgerMemory(cache or default_cache(), keeps=not no_cache)
    begins = ledger is not None and not ledger.exists()
    if ledger is not None:
        # A wrong one is told now, not after an hour of audits.
        open_ledger(ledger, file.alpha, memory, new=new_ledger)
    gate = Gate(
        file=file,
        place=place_of(
            claims,
            root=root,
            trust_code=trust_code,
            device=choose_device(run.device),
            outputs=(junit, sarif, summary_file(), *ledger_files(ledger)),
            trial_seconds=trial_seconds,
        ),
        cache=Cache(None if no_cache else cache or default_cache()),
        seed=run.seed,
        resume=resume,
        effort=Effort(max_minutes=max_minutes, max_trials=max_trials, workers=pool),
    )
    if check:
        gate.check()
        output.result({"schema": "dpzv-audit/verify-check/1", "claims": [placed.name for placed in file.claims]})
        counted = "1 claim," if len(file.claims) == 1 else f"{len(file.claims)} claims, all of them"
        output.say(f"{claims}: {counted} valid")
        return
    runs, interrupted = _gathered(gate, output)
    settled = (
        decided(runs, file.alpha)
        if ledger is None
        else decided_by_ledger(ledger, memory, file.alpha, runs, new=new_ledger)
    )
    result = verify_result(
        file,
        runs,
        settled,
        seed=run.seed,
        interrupted=interrupted,
        allow_overclaimed=bool(allow),
        strict=strict,
    )
    saved = save(result, measured(runs), run.out, gate.cache, junit=junit, sarif=sarif)
    cached = [run.placed.name for run in runs if run.cached]
    not_cached = {} if no_cache else {run.placed.name: run.unkept for run in runs if run.unkept}
    output.result({**saved, "cached": cached, "not_cached": not_cached})
    print_table(output.console, verdict_table(result.claims))
    for entry, done in zip(result.claims, runs, strict=True):
        print_sentence(output.console, entry, cached=done.cached, not_cached=not_cached.get(entry.name, ""))
    output.say(result.sentence)
    output.noise(result.noise)
    if begins:
        output.say(f"A new ledger begins in {ledger}: keep it as you keep the claims file.")
    output.path(saved["run"])
    if interrupted:
        raise Interrupted("--no-cache kept nothing to go on from" if no_cache else GO_ON)
    if result.failed:
        raise typer.Exit(1)


def _print_schema() -> None:
    import json

    from dpzv_audit.claims.file import claims_schema

    typer.echo(json.dumps(claims_schema(), indent=2))


def _gathered(gate: Gate, output: Output) -> tuple[list[ClaimRun], bool]:
    """Validate every claim, then gather the evidence; also whether the user interrupted it."""
    from dpzv_audit.cli.verify_view import live_status

    runs = gate.prepare()
    with live_status(output, [run.placed.name for run in runs]) as show:
        gate.status = show
        try:
            gate.gather(runs)
        except KeyboardInterrupt:
            return runs, True
    return runs, False
