"""A job in a process of its own, while the caller goes on: its answer, its error, its end."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from dpzv_audit.base import executor
from dpzv_audit.base.errors import AuditError
from dpzv_audit.base.executor import alongside

from ...helpers.refusals import refused


def test_the_answer_comes_from_another_process():
    with alongside(os.getpid) as answer:
        assert answer() != os.getpid()


def test_what_the_job_raises_is_raised_where_its_answer_is_asked_for():
    with alongside(int, "nine") as answer, pytest.raises(ValueError, match="nine"):
        answer()


def test_a_process_that_dies_is_one_line():
    with alongside(os._exit, 7) as answer, refused("a process of this command died", AuditError):
        answer()


def test_who_leaves_the_block_does_not_wait_for_the_job():
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="mine"), alongside(time.sleep, 600):
        raise RuntimeError("mine")
    assert time.monotonic() - begun < 60


MARKED = """
import sys, threading
from dpzv_audit.base.executor import alongside
def marked():
    return getattr(sys, "marked", "no")
if __name__ == "__main__":
    sys.marked = "yes"
    over = threading.Event()
    if sys.argv[1] == "threads":
        threading.Thread(target=over.wait).start()
    with alongside(marked) as answer:
        print(answer())
    over.set()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="nothing is forked elsewhere")
@pytest.mark.parametrize(("threads", "inherited"), [("alone", "yes"), ("threads", "no")])
def test_a_process_of_one_thread_is_forked_and_another_is_not(tmp_path, threads, inherited):
    """A fork has what this process has; of threads it would have none, and locks that these hold for ever."""
    script = tmp_path / "marked.py"
    script.write_text(MARKED)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, threads], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == [inherited]


@pytest.mark.parametrize(("left", "alone"), [(3, True), (1000, False)])
def test_a_thread_that_was_joined_is_waited_for_until_the_system_has_ended_it(monkeypatch, left, alone):
    """It is still listed for `left` looks, though Python knows of it no more."""
    looks = iter(range(left, -1, -1))
    monkeypatch.setattr(executor, "threading", SimpleNamespace(active_count=lambda: 1))
    monkeypatch.setattr(executor.os, "listdir", lambda folder: ["1", "2"] if next(looks) else ["1"])
    monkeypatch.setattr(executor, "_LOOK_SECONDS", 0.0)
    assert executor._single_threaded() is alone
