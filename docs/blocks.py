"""The commands that stand in the pages: finds them, runs them as a reader would, and says what they print.

A comment on the line above a fenced block says how its commands are tested (`tests/docs/test_commands.py`):

    <!-- run: now -->                   by the ordinary tests, as printed; what a console block shows is compared
                                        (of pages that take long by `pytest -m ci`, which .ci/run runs)
    <!-- run: now with --trials 2 -->   by the ordinary tests with these arguments added; as printed by `pytest -m slow`
    <!-- run: slow -->                  by `pytest -m slow`, as printed: also what no comment means
    <!-- run: small with --epochs 1 --> by the ordinary tests with these arguments added; as printed, which takes long,
                                        by hand alone
    <!-- run: slow small with ... -->   the same by `pytest -m slow`
    <!-- run: elsewhere, FILE ... -->   not from here: the file runs it

`on data` after the first words (`slow on data`, `small on data with ...`): where DPZV_AUDIT_DATA names the data sets,
in a link called data. `, exit 1` says which code a block ends with where it is not 0, `, needs MODULE` what must be
installed, `, in a checkout` that the packages and tests must stand there. Arguments are added to each `dpzv-audit` and
to each script of `benchmarks` or `tests`. Whatever a comment says, every command must be one that the command line
takes. A python block runs where a text block follows, with what it prints.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
    r"(?P<when>now|slow small|small|slow|elsewhere)(?P<data> on data)?(?: with (?P<extra>.*?))?"
    r"(?:, exit (?P<code>\d+))?(?:, needs (?P<needs>\w+))?(?P<checkout>, in a checkout)?(?:, (?P<why>.+))?"
)
HEARTBEAT = re.compile(r"dpzv-audit: (?:\d+:\d\d:\d\d|plan): ")
SHELLS = ("sh", "console")
MARK = "@@@ end of output @@@"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and how it is to be run."""

    page: Path
    line: int
    language: str
    text: str
    when: Literal["now", "small", "slow", "slow small", "elsewhere"] = "slow"
    data: bool = False
    extra: str = ""
    code: int = 0
    needs: str | None = None
    checkout: bool = False
    why: str = ""
    printed: str | None = None

    @property
    def can_run(self) -> bool:
        """Whether what it needs is there."""
        if self.when == "elsewhere" or (self.data and "DPZV_AUDIT_DATA" not in os.environ):
            return False
        return self.needs is None or importlib.util.find_spec(self.needs) is not None

    @property
    def only_small(self) -> bool:
        """Whether tests never run it as printed."""
        return self.when.endswith("small")

    def runs(self, *, slow: bool) -> bool:
        """Whether the ordinary tests run it, or the slow ones, where what it needs is there."""
        command = self.language in SHELLS or (self.language == "python" and self.printed is not None)
        return command and self.when != "elsewhere" and (slow or self.when in ("now", "small"))

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
        if how is None or (how["when"] == "elsewhere") != bool(how["why"]) or _without_size(how):
            raise ValueError(f"{page.name}:{line}: <!-- run: {found['how']} --> is none that docs/blocks.py knows")
        printed = found["printed"]
        yield (
            Block(
                page=page,
                line=line,
                language=found["language"],
                text=found["text"],
                when=how["when"],  # type: ignore[arg-type]
                data=bool(how["data"]),
                extra=how["extra"] or "",
                code=int(how["code"] or 0),
                needs=how["needs"],
                checkout=bool(how["checkout"]),
                why=how["why"] or "",
                printed=None if printed is None else printed.split("\n", 3)[3].removesuffix("```"),
            ),
            found,
        )


def _without_size(how: re.Match[str]) -> bool:
    """Whether a comment asks for a small run and does not say how small, or says so where nothing small is run."""
    return bool(how["extra"]) != how["when"].endswith("small") and how["when"] != "now"


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


def prepare(folder: Path, *, checkout: bool = False, start: Sequence[str] = ()) -> dict[str, str]:
    """Put into `folder` what pages take for granted, and return the environment in which their commands run.

    There are the examples, the benchmarks, the pages' pictures, the data sets under `data` where there are any, and
    before everything else on the path a `dpzv-audit` and a `python` that run this Python, or the former what follows
    the words of `start`. With `checkout` the packages and all tests stand there too, and are what runs.
    """
    packages = ("dpzv_audit", "mechanisms", "attacks", "reports", "tests") if checkout else ()
    for name in ("examples", "benchmarks", "docs/images", *packages):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    if checkout:
        shutil.copy(ROOT / "pyproject.toml", folder)
    if data := os.environ.get("DPZV_AUDIT_DATA"):
        (folder / "data").symlink_to(Path(data).resolve())
    tools = folder / ".tools"
    tools.mkdir()
    python = shlex.quote(sys.executable)
    command = shlex.join(start) if start and not checkout else f"{python} -P -m dpzv_audit"
    for name, script in (
        ("dpzv-audit", f'exec {command} "$@" $MORE_ARGUMENTS'),
        (
            "python",
            f'case $1 in tests/*|benchmarks/*) exec {python} "$@" $MORE_ARGUMENTS ;; *) exec {python} "$@" ;; esac',
        ),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    path = os.pathsep.join((str(tools), str(Path(sys.executable).parent), os.environ["PATH"]))
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    home = {"DPZV_AUDIT_CACHE": str(folder / ".cache"), "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    own = {"PYTHONPATH": str(folder)} if checkout else {}
    return {"PYTHONPATH": str(ROOT), **kept, **home, "PATH": path, **own}


@dataclass(frozen=True)
class Ran:
    """What a block printed, as it would stand in the page, and the exit code of its last command."""

    text: str
    code: int


def run(block: Block, folder: Path, environment: dict[str, str], *, extra: str = "", limit: float | None = None) -> Ran:
    """Run a shell block in `folder`, `extra` added to what takes it, or a python block; console blocks go on after a
    command that fails, others stop."""
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
    """Return output as it is shown: without the blanks that pad lines and the empty lines around it.

    Nor has it the lines that say on a slow machine how far a command is.
    """
    lines = (line.rstrip() for line in text.splitlines() if not HEARTBEAT.match(line))
    return "\n".join(lines).strip("\n")


def refreshed(page: Path, folder: Path) -> str:
    """Return the text of `page` with what its console and python blocks print made anew in `folder`, in order."""
    text, environment = page.read_text(encoding="utf-8"), prepare(folder)
    parts, last = [], 0
    for block, found in _found(page, text):
        if not block.can_run or block.only_small:
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
