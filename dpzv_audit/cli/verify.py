"""`dpzv-audit verify`: every claim of a file with its evidence and verdict; the gate of a CI."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.progress import TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from reports.ci import to_junit, to_sarif, to_summary
from reports.verdicts import lines_of, measured_of, proven_of, words_of

from ..base.errors import AuditError, InputError, Interrupted, inert, one_line
from ..base.files import kind_of, of_the_kernel
from ..base.rounding import as_claimed, p_value
from ..base.signals import TRIAL_SECONDS
from ..base.store import write_atomically
from ..claims.cache import CACHE_VARIABLE, Cache, check_untracked, default_cache
from ..claims.file import ClaimsFile, claims_schema, load_claims
from ..claims.ledger import LedgerMemory, about, check_room, ledger_files, level_of, open_ledger
from ..results import ClaimResult, GateOptions, VerifyResult
from ..runs import MEASURED_FILE, json_text, versions
from .flags import Count, Positive, RunFlags, WorkerFlags, takes
from .heartbeat import shows_bars
from .output import (
    GO_ON,
    VERDICT_STYLES,
    Answered,
    choose_device,
    coloured,
    progress_bars,
    repeatable_command_line,
    showing_rehearsals,
    table_of,
    write_folder,
)

if TYPE_CHECKING:
    from ..claims.gate import Gate


def _below_half(name: str, alpha: float) -> None:
    if not 0.0 < alpha < 0.5:
        raise InputError("use a number strictly between 0 and 0.5", name, alpha)


_LONGEST_NAME = 200
"""Bytes of a file's name: what is written beside it until it is whole has 16 more."""


def _a_file(name: str, path: Path, *kinds: str) -> None:
    """Raise `InputError` where `path` cannot be a file to write to: before hours of work, not after them.

    It may be of further `kinds` than a regular file or nothing (`dpzv_audit.base.files.kind_of`).
    """
    kind = kind_of(path)
    if not path.name or kind not in ("a regular file", "nothing", *kinds):
        raise InputError(f"{kind}; use a file to write to", name, path)
    if not os.path.isdir(path.parent) or of_the_kernel(path):
        raise InputError("use a file in a folder that exists", name, path)
    _check_name(name, path)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError("use a file in a folder that can be written to", name, path)


def _check_name(name: str, path: Path) -> None:
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise InputError(f"use a name of {_LONGEST_NAME} bytes at most", name, path)


def _identity(path: Path) -> object:
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Files that the verdicts are written to beside the run folder.

    Output:
        junit FILE: Write the verdicts as JUnit XML too.
        sarif FILE: Write the verdicts as SARIF 2.1.0 too.
    """

    junit: Annotated[Path | None, _a_file] = None
    sarif: Annotated[Path | None, _a_file] = None

    def check(self, ledger: Path | None, file: ClaimsFile) -> None:
        """Raise `InputError` where one of them cannot be written, or would be written over another file of the run."""
        if self.summary is not None:
            _a_file(SUMMARY_VARIABLE, self.summary, "a device")
        if ledger is not None:
            _check_name("ledger", ledger)
        known = {_identity(file.path): "the claims file"}
        for placed in file.claims:
            for key, path in placed.claim.files.items():
                known[_identity(file.path.parent / path)] = f"{key} of claim {placed.name!r}"
        for name, written in {"ledger": ledger, **vars(self), SUMMARY_VARIABLE: self.summary}.items():
            other = name if written is None else known.setdefault(_identity(written), name)
            if other != name:
                raise InputError(f"which is also {other}; use a separate file", name, written)

    @property
    def summary(self) -> Path | None:
        """Return the file that GitHub shows on the page of the run; None elsewhere."""
        path = os.environ.get(SUMMARY_VARIABLE)
        return Path(path) if path else None

    def write(self, result: VerifyResult, costs: Mapping[str, float]) -> None:
        """Write the files that are asked for."""
        if self.junit is not None:
            _write("--junit", self.junit, to_junit(result, costs))
        if self.sarif is not None:
            _write("--sarif", self.sarif, to_sarif(result))
        if self.summary is not None:
            _write(SUMMARY_VARIABLE, self.summary, to_summary(result), append=True)


@dataclass(frozen=True, kw_only=True)
class LedgerFlags:
    """The ledger that a run enters its decisions in.

    Audit:
        ledger FILE: Share one error rate among all runs with it. Their decisions are recorded in it.
        new_ledger: Begin a new ledger, with a new error rate. Allowed even if another was used at the same path.
    """

    ledger: Path | None = None
    new_ledger: bool = False

    def open(self, gate: "Gate", memory: LedgerMemory) -> None:
        """Tell a gate the error rate that the ledger leaves to its run, and at which looks its claims are decided.

        Raises `InputError` for a ledger that is wrong, or full.
        """
        if self.ledger is None:
            if self.new_ledger:
                raise InputError("--new-ledger needs --ledger FILE")
            return
        book = open_ledger(self.ledger, gate.file.alpha, memory, new=self.new_ledger)
        check_room(self.ledger, book, len(gate.file.claims))
        with about(self.ledger):
            book.check()
        digests = [placed.digest() for placed in gate.file.claims]
        gate.share = level_of(book.look_of(digests, gate.made, resume=gate.resume), book.alpha)
        gate.looks = book.first_looks(digests)


@dataclass(frozen=True, kw_only=True)
class CacheFlags:
    """The cache of evidence.

    Execution:
        no_cache: Audit everything again and keep nothing.
        cache DIR: Folder of evidence from earlier runs. By default dpzv-audit in the user's cache folder.
        resume: Continue an interrupted run of this command.
    """

    no_cache: bool = False
    cache: Path | None = None
    resume: bool = False

    @property
    def folder(self) -> Path:
        """Return the folder, whether it may be used or not."""
        return self.cache or default_cache()

    def opened(self) -> Cache:
        """Return the cache; `InputError` for flags that do not go together."""
        if self.no_cache and (self.resume or self.cache):
            raise InputError("--no-cache keeps nothing, so it goes with neither --resume nor --cache")
        return Cache(None if self.no_cache else self.folder)

    @property
    def memory(self) -> LedgerMemory:
        """Return the memory of ledgers in the folder."""
        return LedgerMemory(self.folder, keeps=not self.no_cache)


@takes
def verify(
    *,
    claims: Annotated[Path | None, typer.Argument(metavar="CLAIMS.TOML", help="The claims file.")] = None,
    only: list[str] | None = None,
    alpha: Annotated[float | None, _below_half] = None,
    max_minutes: Positive | None = None,
    max_trials: Count | None = None,
    workers: WorkerFlags,
    trial_seconds: Positive = TRIAL_SECONDS,
    strict: bool = False,
    allow: list[Literal["overclaimed", "not-tested"]] | None = None,
    trust_code: bool = False,
    root: Path | None = None,
    ledger: LedgerFlags,
    reports: ReportFlags,
    keeping: CacheFlags,
    check: bool = False,
    schema: bool = False,
    run: RunFlags,
    output: Answered,
) -> None:
    """Check every claim of a file; the gate for CI.

    Each claim is refuted, not tested, supported, overclaimed, held or inconclusive. The exit code is 1 if one is
    refuted, not tested or overclaimed. An unchanged claim is not audited again.

    Example: dpzv-audit verify examples/claims.toml --junit junit.xml --sarif claims.sarif

    Basics:
        only NAME: Check only the claim of this name. May be given several times.
        check: Check the file without running anything. Says what each claim could be refuted at; writes nothing.
        strict: Exit with 1 if a claim is inconclusive. Also if it was cut off or not audited.
        allow VERDICT: Exit with 0 despite overclaimed, or not-tested. May be given twice.
        trust_code: Run the Python code that the file names. Use it only for files that you trust.
    Audit:
        alpha X: Error rate of all claims together. The largest probability that any true claim of the file is refuted;
            by default the file's, else 1e-3.
        max_trials N: Most trainings, or runs, per claim. By default 200 trainings for a claim of success.
    Execution:
        max_minutes X: Most minutes for the whole file. After them the verdicts rest on the evidence there is.
        trial_seconds X: Longest run or training, in seconds. This limits mechanisms and systems.
        root DIR: Folder that paths in the file lie in. By default the file's own.
    Output:
        schema: Print the JSON schema of claims files.
    """
    if schema:
        typer.echo(json.dumps(claims_schema(), indent=2))
        return
    if claims is None:
        raise InputError("CLAIMS.TOML is missing: give the claims file, such as dpzv-audit verify claims.toml")
    cache = keeping.opened()
    from ..claims.access import Access
    from ..claims.gate import Gate

    file = load_claims(claims)
    gate = Gate(
        file=(file if alpha is None else replace(file, alpha=alpha)).only(only),
        access=Access.of(
            claims,
            root=root,
            trust_code=trust_code,
            device=choose_device(run.device),
            outputs=(reports.junit, reports.sarif, reports.summary, *ledger_files(ledger.ledger)),
            trial_seconds=trial_seconds,
        ),
        cache=cache,
        seed=run.seed,
        resume=keeping.resume,
        max_minutes=max_minutes,
        max_trials=max_trials,
        workers=workers.workers(),
    )
    # What is wrong is told now, not after an hour of audits.
    if not check:
        reports.check(ledger.ledger, gate.file)
    ledger.open(gate, keeping.memory)
    if check:
        _check(gate, output)
        return
    if not keeping.no_cache:
        check_untracked(keeping.folder, "cache" if keeping.cache else CACHE_VARIABLE)
    _verify(gate, GateOptions(allow=sorted(set(allow or [])), strict=strict), ledger, reports, keeping, run, output)


def _check(gate: "Gate", output: Answered) -> None:
    """Check every claim of a file without running anything, and say what each could be refuted at."""
    gate.check()
    limits = gate.refutable_at()
    output.result({"schema": "dpzv-audit/verify-check/1", "claims": list(limits), "refutable_at": limits})
    counted = "1 claim," if len(limits) == 1 else f"{len(limits)} claims, all of them"
    output.say(f"{gate.file.path}: {counted} valid")
    lines = [f"  claim {name!r}: {words}" for name, words in limits.items()]
    if not (output.as_json or output.quiet):
        typer.echo(inert("\n".join(lines)))


def _verify(
    gate: "Gate",
    options: GateOptions,
    ledger: LedgerFlags,
    reports: ReportFlags,
    keeping: CacheFlags,
    run: RunFlags,
    output: Answered,
) -> None:
    """Put every claim to the test, decide on all of them together, write and show the result, and exit as it asks."""
    from ..claims.result import decided, decided_by_ledger, measured, verify_result

    path = ledger.ledger
    begins = path is not None and not os.path.exists(path)
    with showing_rehearsals(quiet=output.quiet):
        runs = gate.prepare()
    out_of_reach = {}
    interrupted = False
    try:
        out_of_reach = gate.out_of_reach(runs)
        planned = shows_bars(sys.stderr) and not (output.quiet or output.as_json)
        _announce(gate, out_of_reach, gate.plans(runs) if planned else {})
        with live_status(output, [entry.placed.name for entry in runs]) as gate.status:
            gate.gather(runs)
    except KeyboardInterrupt:
        interrupted = True
    if path is None:
        decisions = decided(runs, gate.file.alpha)
    else:
        decisions = decided_by_ledger(path, keeping.memory, gate, runs, new=ledger.new_ledger)
    result = verify_result(gate.file, runs, decisions, options, seed=run.seed, interrupted=interrupted)
    result = result.with_command_line(_command_line()).model_copy(update={"versions": versions()})
    costs = measured(runs)
    files = {MEASURED_FILE: json_text(costs)}
    try:
        folder = write_folder(result, run, "verify", gate.file.path.stem, files=files, drawings=gate.cache.drawing)
        reports.write(result, costs)
    except KeyboardInterrupt:
        if keeping.no_cache:
            raise
        raise Interrupted(f"all claims were judged, but not all files are written; {GO_ON}") from None
    cached = [entry.placed.name for entry in runs if entry.cached]
    unkept = {} if keeping.no_cache else {entry.placed.name: entry.unkept for entry in runs if entry.unkept}
    extra = {"measured": costs, "run": str(folder), "cached": cached, "not_cached": unkept}
    stored = result.model_copy(update={"run": str(folder)})
    output.result({**result.to_json(), **extra, "out_of_reach": out_of_reach}, stored)
    notes = dict.fromkeys(cached, "from the cache") | {name: f"not cached: {why}" for name, why in unkept.items()}
    output.show(result)
    if cached:
        output.say(f"From the cache: {len(cached)} of {len(runs)} claims.")
    for reason in dict.fromkeys(unkept.values()):
        output.say(f"Not cached: {inert(reason)}.")
    if output.verbose:
        _show(result, notes, output)
    if begins:
        output.say(f"A new ledger begins in {path}: keep it between runs, where git does not track it.")
    output.report(folder)
    if interrupted:
        left = "--no-cache kept nothing to go on from" if keeping.no_cache else f"the report is partial; {GO_ON}"
        raise Interrupted(left)
    if result.failed:
        raise typer.Exit(1)


def _announce(gate: "Gate", out_of_reach: Mapping[str, str], plans: Mapping[str, str]) -> None:
    """Warn of claims that can never be refuted, and say what the planned trials of the others can show."""
    for placed in gate.file.claims:
        if placed.name in out_of_reach:
            warning = f"claim {placed.name!r} can never be refuted: {out_of_reach[placed.name]}"
            typer.echo(f"dpzv-audit: warning: {one_line(f'{gate.file.path}:{placed.line}: {warning}')}", err=True)
    for name, words in plans.items():
        if name not in out_of_reach:
            typer.echo(f"plan: claim {one_line(repr(name))}: {words}", err=True)


def _show(result: VerifyResult, notes: Mapping[str, str], output: Answered) -> None:
    """Print all verdicts as a table and in sentences, with notes on claims by name."""
    output.tell(verdict_table(result.claims))
    for entry in result.claims:
        text = Text(inert(entry.name), style="bold") + Text(": ")
        text += coloured(inert(" ".join(lines_of(entry.judged))))
        if entry.name in notes:
            text.append(inert(f" [{notes[entry.name]}]"), style="dim")
        output.console.print(text)
    output.say(result.sentence)
    if result.noise is not None:
        output.say(result.noise.words or "")


_CHANGE_NOTHING = ("--out", "--cache", "--junit", "--sarif", "--jobs", "--executor", "--scheduler")
"""Flags on which no number depends; all have a value."""


def _command_line() -> list[str]:
    """Return the command line as a repeat of the result needs it; in full it stands in environment.json."""
    from ..claims.result import shown_path

    shown = []
    for argument in repeatable_command_line(without=_CHANGE_NOTHING, plain=("--no-cache",)):
        flag, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        shown.append(f"{flag}{equals}{shown_path(value)}")
    return shown


def _write(named: str, path: Path, text: str, *, append: bool = False) -> None:
    try:
        if append:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        else:
            write_atomically(path, text, shared=True)
    except OSError as error:
        cure = "" if append else "; give a file in a folder that exists"
        raise AuditError(f"which cannot be written ({error.strerror}){cure}", named, path) from error


@contextmanager
def live_status(output: Answered, names: Sequence[str]) -> Iterator[Callable[[int, str | None], None]]:
    """Show what each claim that is under way is doing, on stderr while the block runs, and how many are done.

    A claim that does None has ended.
    """
    with progress_bars(TextColumn("{task.fields[note]}", markup=False), quiet=output.quiet) as bars:
        whole = bars.add_task("claims", total=len(names), note=f"0 of {len(names)} done")
        under_way: dict[int, TaskID] = {}

        def show(index: int, doing: str | None) -> None:
            if doing is None:
                if index in under_way:
                    bars.remove_task(under_way.pop(index))
                bars.advance(whole)
                bars.update(whole, note=f"{bars.tasks[0].completed:.0f} of {len(names)} done")
            elif index in under_way:
                bars.update(under_way[index], note=doing)
            else:
                under_way[index] = bars.add_task(inert(names[index][:60]), total=None, note=doing)

        yield show


def verdict_table(claims: Sequence[ClaimResult]) -> Table:
    """Return the verdicts in one glance: claim, verdict, claimed, measured, proved, p-value over the file."""
    numbers = dict.fromkeys(("claimed", "measured", "proved", "p (Holm)"), "number")
    table = table_of({"claim": "text", "verdict": "text", **numbers}, rule=True)
    table.columns[1].min_width = len("inconclusive *")
    for entry in claims:
        limit = f"{100 * entry.claimed:g}%" if entry.form == "attack" else as_claimed(entry.claimed)
        proven = "" if entry.form == "attack" else "–"
        words = words_of(entry.judged)
        if entry.missing:
            words += " *"
        shown = (measured_of(entry.judged) or "–", proven_of(entry.judged) or proven)
        cells = (f"≤ {limit}", *(text.removeprefix("ε ") for text in shown), p_value(entry.adjusted_p_value))
        table.add_row(Text(inert(entry.name)), Text(words, style=VERDICT_STYLES[entry.verdict]), *cells)
    return table
