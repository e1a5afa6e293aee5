"""What nobody expected: one line, exit code 3 and a log file for its owner alone, never a traceback on the terminal."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dpzv_audit.cli import failures, listing

from ...helpers.places import ROOT


class Panic(BaseException):
    """As extensions written in other languages raise it."""


@pytest.fixture
def logs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}/state")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "dpzv-audit"


def failing(monkeypatch, error):
    def wrong(*_):
        raise error

    monkeypatch.setattr(listing, "listed", wrong)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("a bug"), "RuntimeError: a bug;"),
        (KeyError("two\nlines"), "KeyError: 'two\\nlines';"),
        (AssertionError(), "AssertionError;"),
        (RecursionError("x" * 5000), "RecursionError: xxx"),
        (ValueError("::error::x ##vso[task.complete result=Succeeded;]"), "ValueError: : :error: :x # #vso[task"),
        (Panic("native"), "Panic: native;"),
        (SystemExit(0), "SystemExit: 0;"),
    ],
)
@pytest.mark.parametrize("more", ["", "--json"])
def test_an_unexpected_error_is_one_line_and_a_log_that_its_owner_alone_reads(
    error, says, more, monkeypatch, cli, logs
):
    failing(monkeypatch, error)
    printed = cli.refusal(f"list methods {more}", code=3)
    assert printed.startswith(f"dpzv-audit: error: unexpected {says}")
    assert len(printed) < 600
    assert printed.isprintable()
    (log,) = logs.iterdir()
    assert str(log) in printed
    assert log.read_text().startswith("Traceback (most recent call last)")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(logs.stat().st_mode) == 0o700


def test_a_log_lies_in_the_current_folder_where_it_can_lie_nowhere_else(monkeypatch, cli, tmp_path, logs):
    (tmp_path / "state").write_text("a file")
    failing(monkeypatch, RuntimeError("a bug"))
    line = cli.refusal("list methods", code=3)
    (log,) = tmp_path.glob("dpzv-audit-error-*.log")
    assert str(log) in line
    monkeypatch.setattr(failures, "private_file", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    assert cli.refusal("list methods", code=3).endswith("its traceback could not be written anywhere")


def test_a_failing_thread_fails_the_command(monkeypatch, cli, logs):
    def threaded(*_):
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        return []

    before = threading.excepthook
    monkeypatch.setattr(listing, "listed", threaded)
    said = cli.refusal("list methods", code=3)
    assert said.startswith("dpzv-audit: error: unexpected ZeroDivisionError: division by zero;")
    assert threading.excepthook is before


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("raise SystemExit(0)", 3, "mechanism trap:build: run 1 of the world 'in' raised SystemExit: 0"),
        ("import sys; sys.exit('::error::green')", 3, "raised SystemExit: : :error: :green"),
        ("raise Panic('native')", 3, "unexpected Panic: native; this is a fault of the tool, its traceback is in "),
    ],
)
@pytest.mark.parametrize("jobs", [(), pytest.param("--jobs 2", marks=pytest.mark.slow)])
def test_whatever_a_mechanism_raises_is_one_line_from_workers_too(tmp_path, forked, body, code, says, jobs):
    (tmp_path / "trap.py").write_text(
        "class Panic(BaseException):\n    pass\n\n\n"
        f"def run(world, rng):\n    {body}\n\n\ndef build():\n    return run\n"
    )
    (tmp_path / "claims.toml").write_text('[[claim]]\nname = "c"\nmechanism = "trap:build"\nepsilon = 1.0\n')
    command = [*forked, "verify", "claims.toml", "--trust-code", "--no-cache", "--quiet", *jobs]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": f"{tmp_path}/state"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert says in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.ci
def test_a_full_stdout_is_told_before_the_interpreter_ends():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dpzv_audit", "list", "methods"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (3, "dpzv-audit: error: No space left on device\n")
