"""The commands that stand in the pages: finds them, runs them as a reader would, and says what they print.

A comment on the line above a fenced block says how its commands are tested (`tests/docs/test_commands.py`):

    <!-- run: now -->                 by the ordinary tests, as printed; what a console block shows is compared
    <!-- run: now with --trials 2 --> by the ordinary tests with these arguments added; as printed by `pytest -m slow`
    <!-- run: slow -->                by `pytest -m slow`, as printed: also what no comment means
    <!-- run: data -->                the same where DPZV_AUDIT_DATA names the data sets, in a link called data
    <!-- run: never, REASON -->       not at all

`, exit 1` says which code a block ends with where it is not 0, `, needs MODULE` what must be installed. Whatever a
comment says, every command must be one that the command line takes. A python block runs where a text block follows,
with what it prints.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(
    r"(?:^<!-- run: (?P<how>[^>]*?) -->\n+)?^(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$"
    r"(?P<printed>\n\n```text\n.*?^```$)?",
    re.DOTALL | re.MULTILINE,
)
HOW = re.compile(
    r"(?P<when>now|slow|data|never)(?: with (?P<extra>.*?))?(?:, exit (?P<code>\d+))?(?:, needs (?P<needs>\w+))?"
    r"(?:, (?P<why>.+))?"
)
SHELLS = ("sh", "console")
MARK = "@@@ end of output @@@"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and how it is to be run."""

    page: Path
    line: int
    language: str
    text: str
    when: Literal["now", "slow", "data", "never"] = "slow"
    extra: str = ""
    code: int = 0
    needs: str | None = None
    printed: str | None = None

    @property
    def can_run(self) -> bool:
        """Whether what it needs is there."""
        data = self.when != "data" or "DPZV_AUDIT_DATA" in os.environ
        return (
            self.when != "never" and data and (self.needs is None or importlib.util.find_spec(self.needs) is not None)
        )

    @property
    def where(self) -> str:
        """Page and line, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page with commands, in order."""
    folders = sorted((*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")))
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *folders]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of `page`; `ValueError` where a comment above one is none of those that there are."""
    return [block for block, _ in _found(page, page.read_text(encoding="utf-8"))]


def _found(page: Path, text: str) -> Iterator[tuple[Block, re.Match[str]]]:
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        how = HOW.fullmatch(found["how"] or "slow")
        if how is None or (how["when"] == "never") != bool(how["why"]):
            raise ValueError(f"{page.name}:{line}: <!-- run: {found['how']} --> is none that docs/blocks.py knows")
        printed = found["printed"]
        yield (
            Block(
                page=page,
                line=line,
                language=found["language"],
                text=found["text"],
                when=how["when"],  # type: ignore[arg-type]
                extra=how["extra"] or "",
                code=int(how["code"] or 0),
                needs=how["needs"],
                printed=None if printed is None else printed.split("\n", 3)[3].removesuffix("```"),
            ),
            found,
        )


def commands(console: str) -> list[str]:
    """Return the commands of a console block; a continued one has several lines."""
    found: list[str] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append(line[2:])
        elif found and (line == ">" or line.startswith("> ")):
            found[-1] += "\n" + line[2:]
    return found


def arguments(text: str) -> list[list[str]]:
    """What follows `dpzv-audit` in each command of `text`, a block or a page's inline code, as a shell splits it."""
    found = []
    for line in re.sub(r"\\\n(?:> )?", " ", text).splitlines():
        for start in re.finditer(r"(?:^|[\s;&/])dpzv-audit (?=[a-z-])", line):
            lexer = shlex.shlex(line[start.end() :], posix=True, punctuation_chars=True)
            lexer.whitespace_split, lexer.commenters = True, "#"
            words = []
            for word in lexer:
                if set(word) <= set("();<>|&"):
                    break
                words.append(word)
            found.append(words)
    return found


def prepare(folder: Path) -> dict[str, str]:
    """Put into `folder` what pages take for granted, and return the environment in which their commands run.

    There are the examples, the benchmarks, the data sets under `data` where there are any, and before everything else
    on the path a `dpzv-audit` that runs the package of this Python.
    """
    for name in ("examples", "tests/bench"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    if data := os.environ.get("DPZV_AUDIT_DATA"):
        (folder / "data").symlink_to(Path(data).resolve())
    tools = folder / ".tools"
    tools.mkdir()
    python = shlex.quote(sys.executable)
    (tools / "dpzv-audit").write_text(f'#!/bin/sh\nexec {python} -P -m dpzv_audit "$@" $MORE_ARGUMENTS\n')
    (tools / "dpzv-audit").chmod(0o755)
    path = os.pathsep.join((str(tools), str(Path(sys.executable).parent), os.environ["PATH"]))
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    home = {"DPZV_AUDIT_CACHE": str(folder / ".cache"), "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    return {"PYTHONPATH": str(ROOT), **kept, **home, "PATH": path}


@dataclass(frozen=True)
class Ran:
    """What a block printed, as it would stand in the page, and the exit code of its last command."""

    text: str
    code: int


def run(block: Block, folder: Path, environment: dict[str, str], *, extra: str = "", limit: float | None = None) -> Ran:
    """Run a shell block in `folder`, `extra` added to every `dpzv-audit`, or a python block; console blocks go on
    after a command that fails, others stop."""
    wanted = commands(block.text)
    if block.language == "console":
        script = "\n".join(f"{command}\ncode=$?; echo '{MARK}'; (exit $code)" for command in wanted)
        start = ["bash", "-c", script]
    elif block.language == "python":
        start = [sys.executable, "-c", block.text]
    else:
        start = ["bash", "-euc", block.text]
    done = subprocess.run(
        start,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**environment, "MORE_ARGUMENTS": extra},
        timeout=limit,
        check=False,
    )
    if block.language != "console":
        return Ran(shown(done.stdout) + "\n", done.returncode)
    parts: list[str] = []
    for command, output in zip(wanted, done.stdout.split(MARK + "\n"), strict=False):
        parts.append("$ " + command.replace("\n", "\n> ").replace("> \n", ">\n"))
        if shown(output):
            parts.append(shown(output))
    return Ran("\n".join(parts) + "\n", done.returncode)


def shown(text: str) -> str:
    """Return output as it is shown: without the blanks that pad lines and the empty lines around it."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def refreshed(page: Path, folder: Path) -> str:
    """Return the text of `page` with what its console and python blocks print made anew in `folder`, in order."""
    text, environment = page.read_text(encoding="utf-8"), prepare(folder)
    parts, last = [], 0
    for block, found in _found(page, text):
        if not block.can_run:
            continue
        if block.language in SHELLS:
            ran = run(block, folder, environment)
            if block.language == "console":
                parts += [text[last : found.start("text")], ran.text]
                last = found.end("text")
        elif block.language == "python" and block.printed is not None:
            ran = run(block, folder, environment)
            parts += [text[last : found.start("printed")], f"\n\n```text\n{ran.text}```"]
            last = found.end("printed")
    return "".join((*parts, text[last:]))
