"""A memory limit that the system enforces: allocations fail for real, and audits and trainings go on in halves."""

import functools
import json
import operator
import re
import subprocess
import sys
from pathlib import Path

import pytest

COMMON = ("--epochs", "1", "--batch-size", "256", "--json", "--seed", "0")
AUDIT = ("audit", "method", "dpzv", *COMMON, "--set", "embedding=256", "--runs", "16", "--chunk", "16")
TRAIN = ("train", "--method", "dpzv", *COMMON, "--preset", "paper", "--set", "embedding=256", "--trials", "16")
WARM = {"audit": ("audit", "method", "dpzv", *COMMON, "--runs", "2"), "train": ("train", "--method", "dpzv", *COMMON)}
needs_linux = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the size of its address space from Linux"
)
LIMITED = """
import contextlib
import io
import resource
import sys

from dpzv_audit.cli import main


def kilobytes(what):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


most, warm, out = int(sys.argv[1]), sys.argv[2].split(), sys.argv[-1]
arguments = sys.argv[3:]
# What libraries take of the address space is none of the run's: a small one loads all of them before the limit is set.
sys.argv[1:] = [*warm, "--out", out + "-warm"]
with contextlib.redirect_stdout(io.StringIO()):
    assert not main()
before = kilobytes("VmSize")
if most:
    resource.setrlimit(resource.RLIMIT_AS, 2 * (1024 * (before + most),))
sys.argv[1:] = arguments
code = main()
print(kilobytes("VmPeak") - before, file=sys.stderr)
sys.exit(code)
"""


def limited(tool, large, kilobytes, out):
    """`large` in a process that gets no more than this beside its libraries, 0 for all; says last what it took."""
    warm = " ".join(WARM[large[0]])
    command = [sys.executable, "-P", "-c", LIMITED, str(kilobytes), warm, *large, "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, env=tool.environment, timeout=300, check=False)


def whole_and_halved(tool, large, tmp_path):
    """The results of `large` with all the memory that it takes, and with half of that."""
    whole = limited(tool, large, 0, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    halved = limited(tool, large, int(whole.stderr.split()[-1]) // 2, tmp_path / "halved")
    assert halved.returncode == 0, halved.stderr
    a, b = json.loads(whole.stdout), json.loads(halved.stdout)
    assert "memory" not in a["compute"]
    assert b["compute"]["memory"].startswith("ran out: from then on ")
    return a, b


@pytest.mark.ci
@needs_linux
@pytest.mark.slow
def test_where_the_system_refuses_memory_an_audit_goes_on_in_halves_to_the_same_scores(tool, tmp_path):
    a, b = whole_and_halved(tool, AUDIT, tmp_path)
    # Chosen by the scores of the pilot: other scores would give another one.
    chosen, again = (
        float(re.search(r"score is at (?:least|most) ([-\d.e]+)", r["privacy"]["estimators"][0]["threshold_rule"])[1])
        for r in (a, b)
    )
    assert again == pytest.approx(chosen, rel=1e-4)


@pytest.mark.slow
@needs_linux
def test_where_the_system_refuses_memory_trainings_go_on_in_halves_to_the_same_numbers(tool, tmp_path):
    a, b = whole_and_halved(tool, TRAIN, tmp_path)
    assert b["utility"]["test_accuracy"]["n"] == a["utility"]["test_accuracy"]["n"]
    for where in (("test_accuracy", "value"), ("final_loss",), ("controls", "frozen-clients-tuned", "value")):
        first, second = (functools.reduce(operator.getitem, where, r["utility"]) for r in (a, b))
        assert second == pytest.approx(first, rel=1e-3)
    assert b["bytes"] == a["bytes"]
    assert b["staleness"] == a["staleness"]
    assert not (tmp_path / "halved" / "checkpoints").exists()
