"""Runs the command as its users do: arguments, environment, a folder, output to pipes, one thread.

Most runs are forks of a process that has loaded the tool (`helpers/forked.py`); the main command, and whatever is about
imports, the import path, interruption or memory, starts the installed script.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

SCRIPT = Path(sysconfig.get_path("scripts")) / "dpzv-audit"
SMALL = ("--runs", "200", "--trials", "4", "--epochs", "8", "--seed", "0")
"""The main command at a size that takes seconds; the same options in the same order stand in the result."""


def without_heartbeat(said):
    """Return what a process said on stderr without the lines of its plan and of how far it is."""
    return re.sub(r"dpzv-audit: (?:\d+:\d\d:\d\d|plan): .*\n", "", said)


@dataclass(frozen=True)
class Tool:
    """The command; `cache` holds matplotlib's font list, so that it is built once, `forked` starts a fork."""

    cache: Path
    forked: tuple[str, ...]

    @property
    def environment(self):
        """One thread a process, no data folder, and nothing of the checkout on the import path."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DPZV_AUDIT_DATA", "COLUMNS")}
        return {**kept, "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(self.cache)}

    @property
    def command(self):
        """The console script, as a list to which arguments can be added."""
        return [str(SCRIPT)]

    def __call__(self, *arguments, cwd=None, module=False, fresh=False, env=None, limit=120, **options):
        """Run `dpzv-audit ARGUMENTS` and return the finished process.

        A `fresh` one is the installed script, or with `module` `python -m dpzv_audit`; so is one with an import path.
        """
        own = fresh or module or "PYTHONPATH" in (env or {})
        start = [sys.executable, "-m", "dpzv_audit"] if module else self.command if own else self.forked
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
        assert without_heartbeat(done.stderr) == ""
        value = json.loads(done.stdout)
        assert isinstance(value, dict)
        return value


def refusal(done, code):
    """Return the one line of a refused command: exit code `code`, nothing on stdout, no traceback."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = without_heartbeat(done.stderr).splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("dpzv-audit: error: ")
    return lines[0].removeprefix("dpzv-audit: error: ")


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id):
    """A folder of all workers of pytest."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def tool(shared, forked):
    assert SCRIPT.exists(), f"the console script is not installed at {SCRIPT}"
    cache = shared / "matplotlib"
    cache.mkdir(exist_ok=True)
    return Tool(cache, tuple(forked))


@pytest.fixture(scope="session")
def refused():
    return refusal


@pytest.fixture(scope="session")
def main_run(tool, shared):
    """The main command, small, with `--json`: what it printed, and its run folder; workers share one run."""
    kept = shared / "main.json"
    with FileLock(shared / "main.lock"):
        if not kept.exists():
            printed = tool.json("attack", *SMALL, "--out", shared / "main" / "dpzv-runs", fresh=True)
            kept.write_text(json.dumps(printed))
    printed = json.loads(kept.read_text())
    return printed, Path(printed["run"])
