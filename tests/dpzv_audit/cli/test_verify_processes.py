"""`dpzv-audit verify` in processes: workers give the same answer, and Ctrl-C leaves a report and goes on."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from dpzv_audit.evidence.gathering import FIT_PAIRS
from dpzv_audit.games.mechanism import BATCH_RUNS

from ...helpers.places import ROOT

MODULE = '''
"""A mechanism of mu = 1 that takes its time and notes every block."""
import os, pathlib, time

HERE = pathlib.Path(__file__).parent.parent


class Slow:
    def run_batch(self, world, rng, n):
        deaths = int(os.environ.get("DEATHS", "0"))
        if len(list((HERE / "deaths").iterdir())) < deaths:
            (HERE / "deaths" / f"{os.getpid()}-{time.time_ns()}").write_text("")
            os._exit(9)
        time.sleep(float(os.environ["SECONDS_A_BLOCK"]) / 2)
        if world:
            (HERE / "blocks" / f"{os.getpid()}-{time.time_ns()}").write_text("")
        return rng.normal(float(world), 1.0, n)


def build():
    return Slow()
'''
CLAIMS = """
[[claim]]
name = "slow"
mechanism = "slow_vault:build"
epsilon = 4.5

[[claim]]
name = "also slow"
mechanism = "slow_vault:build"
epsilon = 5.0

[[claim]]
name = "quick"
scores = { in = "scores.csv", out = "others.csv" }
epsilon = 1.0
"""
BLOCKS = 18
CALLS_A_BLOCK = math.ceil(125 / BATCH_RUNS)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "slow_vault").mkdir()  # a package: the marks lie beside it, and are no part of it
    (tmp_path / "slow_vault" / "__init__.py").write_text(MODULE)
    (tmp_path / "claims.toml").write_text(CLAIMS)
    (tmp_path / "blocks").mkdir()
    (tmp_path / "deaths").mkdir()
    for name, first in (("scores.csv", 0.0), ("others.csv", 0.5)):
        (tmp_path / name).write_text("\n".join(str(first + k) for k in range(100)))
    return tmp_path


def started(folder, flags, seconds=0.0, stderr=subprocess.PIPE):
    """`dpzv-audit verify` as a terminal starts it: in a process group of its own, which Ctrl-C reaches as a whole."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SECONDS_A_BLOCK": str(seconds)}
    command = [sys.executable, "-m", "dpzv_audit", "verify", "claims.toml", "--trust-code", "--json", *flags.split()]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def ended(process, code):
    printed, said = process.communicate(timeout=300)
    assert process.returncode == code, said
    assert "Traceback" not in said
    return json.loads(printed), said


@pytest.mark.ci
def test_an_interrupt_by_hand_leaves_a_partial_report_and_goes_on_in_workers(folder):
    whole = ended(started(folder, "--no-cache"), 0)[0]
    calls = len(list((folder / "blocks").iterdir()))
    for path in (folder / "blocks").iterdir():
        path.unlink()
    process = started(folder, "--cache cache", seconds=0.04)
    limit = time.monotonic() + 300
    while len(list(folder.glob("cache/*/*/block-runs-*.json"))) < 6:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    result, said = ended(process, 130)
    *heartbeats, last = said.splitlines()
    assert last == "dpzv-audit: interrupted; the report is partial; the same command with --resume goes on from there"
    assert all(re.match(r"dpzv-audit: \d+:\d\d:\d\d: claims: ", line) for line in heartbeats), "of a slow machine"
    assert result["interrupted"]
    assert set(result["missing"]) == {"slow", "also slow"}
    for entry in result["claims"]:
        assert (entry["name"] in result["missing"]) == any(
            "interrupted " in text for text in entry["judged"]["not_tested"]
        )
    page = (folder / result["run"] / "report.html").read_text()
    assert "the run was interrupted" in page
    assert "Incomplete evidence" in page
    resumed = ended(started(folder, "--cache cache --resume --jobs 2"), 0)[0]
    assert not resumed["interrupted"]
    assert resumed["missing"] == []
    # A block of either claim was lost to the interrupt; none of the six that had ended was run again. The scores of
    # both claims were chosen before the interrupt, and by each of two workers after it.
    again = 6 * (FIT_PAIRS // BATCH_RUNS) + 2 * CALLS_A_BLOCK
    assert len(list((folder / "blocks").iterdir())) <= calls + again
    assert resumed["claims"] == whole["claims"]


def test_a_terminal_shows_a_table_while_it_runs(folder):
    ours, theirs = pytest.importorskip("pty", reason="terminals of POSIX").openpty()
    process = started(folder, "--no-cache --only quick", stderr=theirs)
    os.close(theirs)
    process.communicate(timeout=300)
    shown = b""
    while chunk := read_to_the_end(ours):
        shown += chunk
    os.close(ours)
    assert process.returncode == 0
    assert b"0 of 1 done" in shown
    assert b"1 of 1 done" in shown


def read_to_the_end(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says so where a terminal is closed
        return b""


@pytest.mark.ci
def test_a_budget_ends_what_workers_have_under_way(folder):
    result, said = ended(started(folder, "--cache cache --jobs 2 --max-minutes 0.001", seconds=100.0), 1)
    assert said == ""
    assert list((folder / "blocks").iterdir()) == [], "no block was waited for"
    assert result["missing"] == ["slow", "also slow"]
    for entry in result["claims"][:2]:
        assert entry["missing"] == "the budget of 0.001 minutes ended in the sequential test on runs"
        assert entry["verdict"] == "not-tested"
    assert result["claims"][2]["looks"], "what is there already is tested all the same"


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [2, 1000])
def test_a_worker_that_dies_costs_its_block_or_is_named(folder, deaths, monkeypatch):
    monkeypatch.setenv("DEATHS", str(deaths))
    process = started(folder, "--cache cache --jobs 2")
    if deaths == 2:
        assert ended(process, 0)[0]["missing"] == []
        assert len(list((folder / "blocks").iterdir())) >= 2 * BLOCKS
        return
    printed, said = process.communicate(timeout=300)
    assert (process.returncode, printed) == (3, "")
    assert said.startswith("dpzv-audit: error: claims.toml:")
    assert "a worker died 3 times on it" in said


@pytest.mark.slow
def test_an_interrupt_ends_the_workers_too(folder):
    process = started(folder, "--cache cache --jobs 2", seconds=0.04)
    limit = time.monotonic() + 300
    while len(list(folder.glob("cache/*/*/block-runs-*.json"))) < 1:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    result, _ = ended(process, 130)
    assert result["missing"]
    seen = len(list((folder / "blocks").iterdir()))
    time.sleep(1.5)
    assert len(list((folder / "blocks").iterdir())) == seen, "no worker goes on"
