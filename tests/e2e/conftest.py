"""Runs the installed command as its users do: a process of its own, output to pipes, one thread."""

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(sysconfig.get_path("scripts")) / "dpzv-audit"
SMALL = ("--runs", "200", "--trials", "4", "--epochs", "8", "--seed", "0")
"""The main command at a size that takes seconds; the same options in the same order stand in the result."""


@dataclass(frozen=True)
class Tool:
    """The installed command; `cache` holds matplotlib's font list, so that it is built once a session."""

    cache: Path

    @property
    def environment(self) -> dict[str, str]:
        """One thread a process, no data folder, and nothing of the checkout on the import path."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DPZV_AUDIT_DATA", "COLUMNS")}
        return {**kept, "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(self.cache)}

    @property
    def command(self) -> list[str]:
        """The console script, as a list to which arguments can be added."""
        return [str(SCRIPT)]

    def __call__(self, *arguments, cwd=None, module=False, env=None, limit=120, **options):
        """Run `dpzv-audit ARGUMENTS` (`module`: `python -m dpzv_audit`) and return the finished process."""
        start = [sys.executable, "-m", "dpzv_audit"] if module else self.command
        return subprocess.run(
            [*start, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**self.environment, **(env or {})},
            timeout=limit,
            check=False,
            **options,
        )

    def json(self, *arguments, **options):
        """Run with `--json`; return the object on stdout, which must be all there is, with a silent stderr."""
        done = self(*arguments, "--json", **options)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        value = json.loads(done.stdout)
        assert isinstance(value, dict)
        return value


def refusal(done, code):
    """Return the one line of a refused command: exit code `code`, nothing on stdout, no traceback."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("dpzv-audit: error: ")
    return lines[0].removeprefix("dpzv-audit: error: ")


@pytest.fixture(scope="session")
def tool(tmp_path_factory):
    assert SCRIPT.exists(), f"the console script is not installed at {SCRIPT}"
    return Tool(tmp_path_factory.mktemp("matplotlib"))


@pytest.fixture(scope="session")
def refused():
    return refusal


@pytest.fixture(scope="session")
def main_run(tool, tmp_path_factory):
    """The main command, small, with `--json`: what it printed, and its run folder."""
    out = tmp_path_factory.mktemp("main") / "dpzv-runs"
    printed = tool.json("attack", *SMALL, "--out", out)
    return printed, Path(printed["run"])
