"""Two processes on one unfinished run: the second is told who works on it, and a dead one's lock is no lock."""

import os
import re
import signal
import subprocess
import sys

import pytest

from dpzv_audit.base.errors import AuditError
from dpzv_audit.base.store import hold

from ...helpers.places import ROOT, read_json
from ...helpers.refusals import refused

HOLDS = """
import sys, time
from pathlib import Path
from dpzv_audit.base.store import hold
with hold(Path(sys.argv[1]), "the run"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds `tmp_path`/a/run.lock until its input ends."""
    command = [sys.executable, "-c", HOLDS, f"{tmp_path}/a/run.lock"]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def held(folder):
    return hold(folder / "a" / "run.lock", "the run")


def test_a_second_process_is_told_who_holds_it_since_when_and_what_to_do(holder, tmp_path):
    with pytest.raises(AuditError) as caught, held(tmp_path):
        pytest.fail("both hold it")
    said = str(caught.value)
    assert re.fullmatch(
        rf"the run is in use by process {holder.pid} on \S+ since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(-c .*\): "
        "wait until it ends, end it, or give another out DIR",
        said,
    )
    assert (tmp_path / "a" / "run.lock").exists()  # the refused one took nothing away


def test_the_lock_of_a_killed_process_is_taken_over(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    left = tmp_path / "a" / "run.lock"
    assert read_json(left)["process"] == holder.pid
    with held(tmp_path):
        assert read_json(left)["process"] == os.getpid()
    assert not left.exists()


def test_it_is_free_once_its_holder_ended(holder, tmp_path):
    holder.communicate("")
    assert not (tmp_path / "a").exists()
    with held(tmp_path):
        pass


@pytest.mark.parametrize("left", ["", "{", "[]", '{"process": 1}', "\x00" * 100, '{"command": 3}', "[" * 5000])
def test_what_stands_in_a_left_lock_does_not_matter(tmp_path, left):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.lock").write_text(left)
    with held(tmp_path):
        (tmp_path / "a" / "run.lock").write_text(left)
        with refused("in use by another process", AuditError), held(tmp_path):
            pytest.fail("both hold it")


def test_nothing_is_left_behind_but_what_was_there(tmp_path):
    with held(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    with held(tmp_path):
        (tmp_path / "a" / "kept").write_text("mine")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["kept"]


def test_a_place_that_cannot_be_written_to_is_one_line(tmp_path):
    (tmp_path / "a").write_text("a file")
    with refused(r"the run cannot be locked by .*; give another out DIR", AuditError), held(tmp_path):
        pytest.fail("held nothing")


def test_removal_between_opening_and_locking_is_noticed(tmp_path, monkeypatch):
    """The file that is locked must be the one that others would open."""
    import fcntl

    lock, taken = fcntl.flock, []

    def slow(handle, kind):
        if not taken:
            taken.append((tmp_path / "a" / "run.lock").unlink())
        lock(handle, kind)

    monkeypatch.setattr(fcntl, "flock", slow)
    with held(tmp_path):
        assert (tmp_path / "a" / "run.lock").exists()


COMMANDS = [
    "train --method vafl --epochs 1 --no-controls --quiet",
    "audit method dpzv --epsilon 1 --runs 20 --epochs 1 --quiet",
    "matrix --methods vafl --attacks label_norm --epochs 1 --trials 1 --no-self-check",
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_a_second_command_on_the_same_unfinished_run_is_refused(command, tmp_path, monkeypatch, cli):
    """The lock that the first command takes is held by this process, so that the second finds it taken."""
    from dpzv_audit.base import store

    monkeypatch.chdir(tmp_path)
    acquired, taken = store._acquired, []

    def recorded(path, *arguments):
        taken.append(path)
        return acquired(path, *arguments)

    monkeypatch.setattr(store, "_acquired", recorded)
    assert cli(command).code == 0
    assert taken
    with hold(taken[0], "the run"):
        line = cli.refusal(command, code=3)
    assert re.fullmatch(
        rf"dpzv-audit: error: the .* is in use by process {os.getpid()} on .*: wait until it ends, end it, "
        r"or give another --out DIR",
        line,
    )
