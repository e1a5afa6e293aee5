"""What every command shares: the common options, where output goes, and progress on long work."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpzv_audit.errors import InputError, Interrupted
from dpzv_audit.findings import to_jsonable
from dpzv_audit.inert import inert_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from dpzv_audit.evaluation import Reporter
    from dpzv_audit.evidence.bounding import Stage
    from dpzv_audit.results import Noise


ARGUMENTS: ContextVar[tuple[str, ...]] = ContextVar("ARGUMENTS", default=())
"""The command line being run, set by `main`."""


def repeatable_command_line(*, without: Collection[str] = ("--out",), plain: Collection[str] = ()) -> list[str]:
    """The command line without what does not change the result: `--json`, `--quiet`, `--resume` and more.

    `without` are flags with a value (`--out DIR`), `plain` further ones that have none.
    """
    kept = ["dpzv-audit"]
    arguments = iter(ARGUMENTS.get())
    for argument in arguments:
        if argument in without:
            next(arguments, None)
        elif argument.partition("=")[0] not in without and argument not in ("--json", "--quiet", "--resume", *plain):
            kept.append(argument)
    return kept


@dataclass(frozen=True)
class Output:
    """Where a command writes: JSON alone on stdout with `--json`, readable text otherwise, progress on stderr.

    Options:
        as_json: Print one JSON object on stdout and nothing else.
        quiet: No progress and no tables: only where the result is, or the answer if it is nowhere.
    """

    as_json: Annotated[bool, "--json"] = False
    quiet: bool = False

    @property
    def console(self) -> Console:
        """Console for readable text; silent when the answer goes out as JSON or `--quiet` was given."""
        from rich.console import Console

        return Console(quiet=self.as_json or self.quiet, highlight=False)

    def say(self, text: str) -> None:
        """Print a sentence, wrapped at the terminal's width."""
        from rich.text import Text

        self.console.print(Text(text))

    def answer(self, text: str) -> None:
        """Print what was asked for, a sentence; with `--quiet` too, then as one line."""
        if self.quiet and not self.as_json:
            typer.echo(text)
        else:
            self.say(text)

    def memory(self, compute: Mapping[str, object]) -> None:
        """Say where memory did not suffice for all that was to be done at once."""
        if "memory" in compute:
            self.say(f"Memory {compute['memory']}.")

    def noise(self, noise: Noise | None) -> None:
        """Say where noise came from, where there was any."""
        if noise is not None:
            self.say(noise.words or "")

    def path(self, path: object) -> None:
        """Print where the run folder is, unwrapped; the one thing that `--quiet` leaves."""
        if not self.as_json:
            typer.echo(str(path))

    def result(self, value: Any) -> None:
        """Print `value` as the one JSON object of `--json`; does nothing without it."""
        if self.as_json:
            sys.stdout.write(inert_json(json.dumps(to_jsonable(value), indent=2, allow_nan=False)) + "\n")

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Progress bars on stderr while the block runs; silent when stderr is no terminal or `--quiet` was given."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=console, transient=True, disable=self.quiet or not console.is_terminal) as bars:
            yield bars


@contextmanager
def kept_for_resume(folder: Path, pattern: str) -> Iterator[None]:
    """Let an interrupt of the block say how to go on, where a file like `pattern` below `folder` was kept."""
    try:
        yield
    except KeyboardInterrupt:
        if not any(folder.rglob(pattern)):
            raise
        go_on = "the same command with --resume goes on from there"
        raise Interrupted(f"what was done is kept in {folder}; {go_on}") from None


def progress_reporter(bars: Progress) -> Reporter:
    """A reporter of `dpzv_audit.evaluation` that shows each stage as a bar."""
    from dpzv_audit.evaluation import Reporter

    def stage(name: str, total: int) -> Stage:
        task = bars.add_task(name, total=total, note="")

        def update(done: int | None = None, /, note: str | None = None) -> None:
            if note is not None:
                bars.update(task, note=note)
            bars.update(task, completed=done)

        return update

    return Reporter(stage)


def refuse_beside(flag: str, others: Iterable[str], does: str) -> None:
    """Raise `InputError` for the first of `others`: flags that are given though `flag`, which `does` so, needs none."""
    for other in others:
        raise InputError(f"{other} does not go with {flag}, which {does}")


def choose_device(name: str) -> str:
    """Return the torch device for `--device` (`auto`: cuda where there is one); `InputError` where torch finds none."""
    if name == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if name == "cuda":
        raise InputError("--device is 'cuda', but torch finds no CUDA device here; use cpu or auto")
    return "cpu"
