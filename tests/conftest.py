"""What all tests share: a process that has loaded the tool, of which forks run commands."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from dpzv_audit.cli import heartbeat
from dpzv_audit.cli.flags import RUNNING

# The same examples in every build; `--hypothesis-profile default` draws others.
settings.register_profile("fixed", derandomize=True, phases=set(Phase) - {Phase.explain})
settings.load_profile("fixed")

FORKED = Path(__file__).parent / "helpers" / "forked.py"


@pytest.fixture(autouse=True)
def no_command_runs(monkeypatch):
    """A command that an earlier test ran in this process is over: errors name no flag of its.

    One that a slow machine takes long over says nothing more for it.
    """
    RUNNING.set(None)
    monkeypatch.setattr(heartbeat, "EVERY_SECONDS", 1e6)


@pytest.fixture(scope="session")
def cases():
    """The folder of small inputs with right answers that `DPZV_AUDIT_CASES` names; skips without one."""
    folder = Path(os.environ.get("DPZV_AUDIT_CASES", ""))
    if not os.environ.get("DPZV_AUDIT_CASES") or not folder.is_dir():
        pytest.skip("DPZV_AUDIT_CASES names no folder of cases")
    return folder


@pytest.fixture(scope="session")
def forked():
    """Words that start `dpzv-audit` in a fork: arguments follow them. See `tests/helpers/forked.py`."""
    with tempfile.TemporaryDirectory() as folder:  # a socket's path has to be short
        place = f"{folder}/s"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": folder}
        serving = [sys.executable, "-P", str(FORKED), "serve", place]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        with subprocess.Popen(serving, env=environment, **quiet) as server:
            try:
                assert server.stdout.readline() == b"listens\n"
                yield [sys.executable, "-S", "-E", str(FORKED), place]
            finally:
                server.kill()
