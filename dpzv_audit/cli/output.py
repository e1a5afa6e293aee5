"""Output of all commands: JSON, text and tables on stdout, progress and errors on stderr, run folders."""

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from reports.answer import answer_of
from reports.document import HEADING, TEXTS, Answer
from reports.render import write_report
from reports.verification import Drawings

from ..base.errors import InputError, Interrupted, inert_json, one_line
from ..base.findings import to_jsonable
from ..base.progress import REHEARSING
from ..results import (
    AttackResult,
    AttacksResult,
    AuditResult,
    MatrixResult,
    PlantedResult,
    Reported,
    ReproduceResult,
    Result,
    RunResult,
    TrainResult,
)
from ..runs import RESULT_FILE, environment, run_name, write_run
from .flags import GIVEN, OutFlags
from .heartbeat import TimeLeft, showing, shows_bars

if TYPE_CHECKING:
    from ..evidence.bounding import ProgressStage, Reporter

R = TypeVar("R", bound=Result)
Saved = AttackResult | TrainResult | AuditResult | PlantedResult | MatrixResult | AttacksResult | ReproduceResult
Files = Mapping[str, str | bytes]
TAKES_RESULT: ContextVar[Callable[[object], None] | None] = ContextVar("TAKES_RESULT", default=None)
"""Takes the result of a command that is called as a Python function, in the place of stdout (`cli.functions`)."""
GO_ON = "the same command with --resume goes on from there"


def repeatable_command_line(*, without: Collection[str] = ("--out",), plain: Collection[str] = ()) -> list[str]:
    """Return the command line without what does not change the result: `--json`, `--quiet`, `--verbose` and more.

    `without` are flags with a value (`--out DIR`), `plain` further ones that have none.
    """
    kept = ["dpzv-audit"]
    plain = ("--json", "--quiet", "--verbose", "--resume", *plain)
    arguments = iter(GIVEN.get())
    for argument in arguments:
        if argument in without:
            next(arguments, None)
        elif argument.partition("=")[0] not in without and argument not in plain:
            kept.append(argument)
    return kept


VERDICT_STYLES: Mapping[str, str] = {
    "refuted": "bold red",
    "not-tested": "bold yellow",
    "overclaimed": "yellow",
    "held": "green",
    "supported": "green",
    "inconclusive": "dim",
}
_REFUTED = re.compile(r"(?:^|(?<=claim )|(?<=\d )|(?<=look ))refuted\b|\brefutes(?= the claimed)")
"""Words by which a claim falls, not those by which it might have; a verdict, or within a sentence."""


def coloured(words: str) -> Text:
    """Return words in which those that refute a claim are red, where the terminal has colours."""
    text = Text(words)
    text.highlight_regex(_REFUTED, VERDICT_STYLES["refuted"])
    return text


@dataclass(frozen=True)
class Output:
    """Output of a command: JSON alone on stdout with `--json`, readable text otherwise, progress on stderr.

    Output:
        as_json: Print one JSON object and nothing else.
        quiet: Print only the run folder, or the answer. No progress and no tables.
    """

    as_json: Annotated[bool, "--json"] = False
    quiet: bool = False

    @property
    def console(self) -> Console:
        """Return a console for readable text; silent when the answer goes out as JSON or `--quiet` was given."""
        return Console(quiet=self.as_json or self.quiet, highlight=False, emoji=False)

    def say(self, text: str) -> None:
        """Print a sentence, wrapped at the terminal's width."""
        self.console.print(coloured(text))

    def answer(self, text: str) -> None:
        """Print what was asked for, a sentence; with `--quiet` too, then as one line."""
        if self.quiet and not self.as_json:
            typer.echo(text)
        else:
            self.say(text)

    def line(self, text: str) -> None:
        """Print what was asked for as one line, with `--quiet` too."""
        Console(highlight=False, emoji=False).print(coloured(text), soft_wrap=True)

    def path(self, path: object) -> None:
        """Print where the run folder is, unwrapped; the one thing that `--quiet` leaves."""
        if not self.as_json:
            typer.echo(str(path))

    def result(self, value: Any, model: object = None) -> None:
        """Print `value` as the one JSON object of `--json`; does nothing without it.

        A Python function gets the `model` that `value` is made of instead, by default `value` itself.
        """
        take = TAKES_RESULT.get()
        if take is not None:
            take(value if model is None else model)
        elif self.as_json:
            text = json.dumps(to_jsonable(value), indent=2, allow_nan=False)
            sys.stdout.write(f"{inert_json(text)}\n")

    @contextmanager
    def progress(self, folder: Path | None = None, pattern: str = "*.npz") -> "Iterator[Reporter]":
        """Show stages of work as bars while the block runs.

        An interrupt of the block says how to go on where a file like `pattern` is kept below `folder`.
        """
        columns = (MofNCompleteColumn(), TimeLeft(), TextColumn("{task.fields[note]}"))
        with progress_bars(*columns, quiet=self.quiet) as bars:

            def stage(name: str, total: int) -> "ProgressStage":
                task = bars.add_task(name, total=total, note="")

                def update(done: int | None = None, /, note: str | None = None) -> None:
                    if note is not None:
                        bars.update(task, note=note)
                    bars.update(task, completed=done)

                return update

            try:
                yield stage
            except KeyboardInterrupt:
                if folder is None or not any(folder.rglob(pattern)):
                    raise
                raise Interrupted(f"what was done is kept in {folder}; {GO_ON}") from None


@dataclass(frozen=True)
class Answered(Output):
    """Output of a command that judges: an answer of about 15 lines.

    Output:
        verbose: Print all tables and sentences too.
    """

    verbose: bool = False

    def finish(
        self,
        saved: Saved,
        *tables: Table,
        words: Iterable[str] = (),
        details: Iterable[str] = (),
        source: str = "",
        measured: Mapping[str, object] | None = None,
    ) -> None:
        """Print a `saved` result: as JSON with what was `measured`, or as its answer and `words`.

        With `--verbose` its `tables`, sentences and `details` follow, and `source` text, which is not wrapped.
        """
        self.result({**saved.to_json(), **(measured or {})}, saved)
        self.show(saved)
        for text in (*_always(saved), *words):
            self.say(text)
        if self.verbose:
            self.tell(*tables, words=(*_sentences(saved), *details))
            if source:
                self.console.print(Text(f"\n{source}\n"), soft_wrap=True)
        self.report(saved.run)

    def show(self, result: Reported) -> None:
        """Print the answer that a result gives."""
        _show(self.console, answer_of(result))

    def note(self, text: str) -> None:
        """Print a line on stderr, unless `--quiet` was given."""
        if not self.quiet:
            typer.echo(f"dpzv-audit: {text}", err=True)

    def tell(self, *tables: Table, words: Iterable[str] = ()) -> None:
        """Print tables and sentences, with an empty line before them."""
        self.say("")
        for table in tables:
            print_table(self.console, table)
        for text in words:
            self.say(text)

    def report(self, folder: object) -> None:
        """Print the path of the report, unwrapped; with `--quiet` that of its folder alone."""
        self.path(folder if self.quiet else f"Report: {folder}/report.html")


def _always(saved: Saved) -> Iterator[str]:
    """Yield what a user must know of a run whatever it says: what may leave the folder, and what memory allowed."""
    if isinstance(saved, TrainResult):
        yield saved.published.words or ""
    if isinstance(saved, RunResult):
        if "memory" in saved.compute:
            yield f"Memory {saved.compute['memory']}."
        if "not_kept" in saved.compute:
            yield f"Nothing was kept for --resume: {saved.compute['not_kept']}."


def _sentences(saved: Saved) -> Iterator[str]:
    """Yield what a result says, and where its noise came from."""
    yield saved.sentence
    if not isinstance(saved, PlantedResult | ReproduceResult) and saved.noise is not None:
        yield saved.noise.words or ""


def _plain(text: str) -> str:
    """Return a text as one line without Greek letters and signs, which some terminals lack."""
    for sign, words in {"ε": "epsilon", "δ": "delta", "≤": "<=", "≥": ">="}.items():
        text = text.replace(sign, words)
    return one_line(text)


def _show(console: Console, answer: Answer) -> None:
    """Print an answer: the system, the verdict, notes, facts, attacks or claims, checks, and the next step."""
    judgement = answer.judgement
    subject = _plain(answer.subject)
    if len(subject) > console.width:
        subject = subject.replace(" Attacker", "\nAttacker")
    if subject:
        _print_plain(console, Text(subject))
        console.print("")
    word, *condition = re.split(r"(?= (?:given|if) )", judgement.word, maxsplit=1)
    style = VERDICT_STYLES.get(word.replace(" ", "-"), "bold red" if judgement.alarming else "bold")
    about = judgement.about
    claim, _, whom = about.rpartition(" against ")
    if claim and f"Attacker: {whom}." in answer.subject:  # the line above names it
        about = claim
    _print_plain(console, Text(word.upper(), style=style) + Text(_plain(f"{''.join(condition)}: {about}")))
    for note in filter(None, (*judgement.notes[: answer.printed_notes], answer.more_notes, answer.why)):
        _print_plain(console, Padding(Text(_plain(note)), (0, 0, 0, 2)))
    facts = Table.grid(padding=(0, 2, 0, 0))
    for name, text in answer.facts.items():
        facts.add_row(f"  {name}", Text(_plain(text)))
    if answer.facts:
        _print_plain(console, facts)
    if answer.rows:
        console.print("")
        _print_plain(console, _rows_of(answer))
    for line in filter(None, [answer.more and f"{answer.more}.", answer.checks and f"Checks: {answer.checks}."]):
        _print_plain(console, Text(_plain(line)))
    if judgement.step is not None:
        step = judgement.step
        console.print("")
        _print_plain(console, Text(_plain(f"Next: {step.words.rstrip('.')}{':' if step.command else '.'}")))
        if step.command:
            console.print(Text(f"  {one_line(step.command)}"), soft_wrap=True)


def _print_plain(console: Console, block: Text | Padding | Table) -> None:
    """Print a block without the spaces that fill its lines up."""
    with console.capture() as capture:
        if isinstance(block, Table):
            print_table(console, block)
        else:
            console.print(block)
    for line in capture.get().splitlines():
        text = Text.from_ansi(line)
        text.rstrip()
        console.print(text, soft_wrap=True)


def _rows_of(answer: Answer) -> Table:
    """Return the rows of an answer as a table under its caption, without lines."""
    titles = list(answer.rows[0])
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="")
    for place, title in enumerate(titles):
        width = max(len(str(row[title] or "")) for row in answer.rows)
        heading = "\n".join(wrap(title, max(width, HEADING), break_long_words=False))
        shown = answer.caption if not place else "" if title == "result" else heading
        folds = title in ("attack", "claim", "verdict", "mechanisms", "row")
        table.add_column(shown, justify="left" if title in TEXTS else "right", no_wrap=not folds)
    for row in answer.rows:
        name, *cells = (_plain(str(row[title] or "")) for title in titles)
        table.add_row(Padding(Text(name), (0, 0, 0, 2)), *map(coloured, cells))
    return table


def progress_bars(*columns: ProgressColumn, quiet: bool) -> AbstractContextManager[Progress]:
    """Show progress bars on stderr while a block runs, with further `columns`; none when `quiet`.

    Where stderr is no terminal, the heartbeat tells of them.
    """
    return showing(
        Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *columns,
            console=Console(stderr=True, emoji=False),
            transient=True,
            disable=quiet or not shows_bars(sys.stderr),
        )
    )


@contextmanager
def showing_rehearsals(*, quiet: bool) -> Iterator[None]:
    """Show how far rehearsals of systems are, and how long they still take, while a block runs; none when `quiet`."""
    with progress_bars(MofNCompleteColumn(), TimeLeft(), quiet=quiet) as bars:

        def show(done: int, total: int) -> None:
            if not done:
                for other in bars.task_ids:
                    bars.remove_task(other)
                bars.add_task("rehearsal of the system, trainings", total=total)
            bars.update(bars.task_ids[-1], completed=done, total=total)

        before = REHEARSING.set(show)
        try:
            yield
        finally:
            REHEARSING.reset(before)


def save(result: R, run: OutFlags, *words: str, files: Files | None = None, report: bool = True) -> R:
    """Write the run folder of `result`; return what goes out as JSON: it, with the folder's path as `run`."""
    stored = result.with_command_line(repeatable_command_line())
    folder = write_folder(stored, run, *words, files=files, report=report)
    return stored.model_copy(update={"run": str(folder)})


def environment_of_run() -> dict[str, object]:
    """Return the environment of a run folder; that of a Python function has the command line that does the same."""
    called = TAKES_RESULT.get() is not None
    return environment(["dpzv-audit", *GIVEN.get()] if called else None)


def write_folder(
    stored: object,
    run: OutFlags,
    *words: str,
    files: Files | None = None,
    report: bool = True,
    drawings: Drawings | None = None,
) -> Path:
    """Write a run folder named by `words`, with further `files` by name and its `report`, as one step; return its path.

    Nothing is left behind if anything fails.
    """
    with write_run(run.out, run_name(*words, seed=run.seed)) as folder:
        written = {RESULT_FILE: stored, "environment.json": environment_of_run(), **(files or {})}
        for file, content in written.items():
            folder.write(file, content)
        if report:
            write_report(folder.path, drawings=drawings)
    return folder.path


def choose_device(name: str) -> Literal["cpu", "cuda"]:
    """Return the torch device for `--device` (`auto`: cuda where there is one); `InputError` where torch finds none."""
    if name == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if name == "cuda":
        raise InputError("--device is 'cuda', but torch finds no CUDA device here; use cpu or auto")
    return "cpu"


FOLDED_WIDTH = 24
"""Words up to this long, as `unbounded-participation`, stay whole: folded ones are harder to read than longer lines."""


def table_of(columns: Mapping[str, str], title: str | None = None, *, rule: bool = False, **look: Any) -> Table:
    """Return an empty table of `columns`: each a `number`, a `name` that is never folded, or `text`.

    `rule` draws a line below the names of the columns alone; `look` are further options of rich's table.
    """
    named = None if title is None else Text(title, style="table.title")
    table = Table(title=named, title_justify="left", box=SIMPLE_HEAD if rule else HEAVY_HEAD, **look)
    for name, kind in columns.items():
        table.add_column(name, justify="right" if kind == "number" else "left", no_wrap=kind != "text")
    return table


def print_table(console: Console, table: Table) -> None:
    """Print `table` with columns as wide as they must be, even if that is wider than the terminal.

    A column with `no_wrap` (numbers, verdicts, names that are typed again) is never narrower than its longest cell, any
    other never narrower than its longest word, or than `FOLDED_WIDTH` where words are longer; those fold. What room is
    left is shared out evenly, to each at most what it needs.
    """
    unbounded = console.options.update(max_width=10_000)
    room = console.width - console.measure(table, options=unbounded).minimum
    wanted = []
    for column in table.columns:
        cells = [Measurement.get(console, unbounded, cell) for cell in (column.header, *column.cells)]
        word = max(cell.minimum for cell in cells)
        line = max(cell.maximum for cell in cells)
        column.min_width = line if column.no_wrap else min(word, FOLDED_WIDTH)
        column.overflow = "fold"
        room -= column.min_width - word
        wanted.append((line - column.min_width, column))
    if room < 0:
        table.width = console.width - room
    elif room < sum(more for more, _ in wanted):
        for place, (more, column) in enumerate(sorted(wanted, key=lambda pair: pair[0])):
            extra = min(more, room // (len(wanted) - place))
            column.width = (column.min_width or 0) + extra
            room -= extra
    console.print(table, crop=False)
