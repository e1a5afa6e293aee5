"""Nothing depends on the wall clock: it may jump, go backwards, or stand still."""

import ast
import random
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from dpzv_audit.games.engine import Effort, collect
from dpzv_audit.runs import run_name, write_run

from .helpers.shipped import MODULES, tree_of

WALL_CLOCK = {
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
    *(f"time.{name}" for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "clock_gettime")),
}
ALLOWED = {
    ("dpzv_audit/runs.py", "datetime.now"): "the name of a run folder, which gets a number where it is taken; its date",
    ("dpzv_audit/base/store.py", "datetime.now"): "since when a lock is held, for people to read",
    ("dpzv_audit/reproduce/kept.py", "datetime.now"): "the date of a finished row, for people to read",
    ("dpzv_audit/cli/failures.py", "datetime.now"): "the name of the log of an unexpected error",
}


def test_the_wall_clock_is_read_for_people_alone():
    reads = set()
    for name in MODULES:
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in WALL_CLOCK:
                reads.add((name, ast.unparse(node)))
            elif isinstance(node, ast.ImportFrom) and node.module == "time":
                reads.add((name, "from time"))
    assert reads == set(ALLOWED)


@pytest.mark.parametrize("step", [timedelta(0), timedelta(hours=-3), timedelta(days=-20000), timedelta(days=900)])
def test_runs_never_replace_each_other_whatever_the_clock_does(tmp_path, step):
    now = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
    for number in range(3):
        with write_run(tmp_path, run_name("train", seed=0, now=now + number * step)) as folder:
            folder.write("number", str(number))
    assert sorted(path.read_text() for path in tmp_path.glob("*/number")) == ["0", "1", "2"]


def test_a_time_limit_does_not_follow_a_clock_that_jumps(monkeypatch):
    """An hour's limit, and a wall clock that leaps by years: every chunk is done."""
    monkeypatch.setattr(time, "time", lambda: random.uniform(-1e9, 1e10))

    def trials(first, last):
        rows = np.arange(first, last, dtype=np.float64)
        return {"in_scores": rows, "out_scores": -rows}

    assert collect(trials, 50, Effort(chunk=5, max_seconds=3600.0)).stopped is None
