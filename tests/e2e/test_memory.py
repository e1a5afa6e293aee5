"""A memory limit that the system enforces: allocations fail for real, and the audit goes on in halves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ("audit", "--method", "dpzv", "--runs", "16", "--chunk", "16", "--epochs", "1", "--batch-size", "256")
LARGE = (*SMALL, "--set", "embedding=256", "--json", "--seed", "0")
LIMITED = """
import resource
import sys

# What libraries take of the address space is none of the run's: they are there before the limit is.
import scipy.optimize
import scipy.stats

import dpzv_audit.cli.audit
import dpzv_audit.evaluation.lower
import reports.render
from dpzv_audit.cli import main



def kilobytes(what):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


before, most = kilobytes("VmSize"), int(sys.argv.pop(1))
if most:
    resource.setrlimit(resource.RLIMIT_AS, 2 * (1024 * (before + most),))
code = main()
print(kilobytes("VmPeak") - before, file=sys.stderr)
sys.exit(code)
"""


def limited(tool, kilobytes: int, out: Path) -> subprocess.CompletedProcess:
    """The audit in a process that gets no more than this beside its libraries, 0 for all; says last what it took."""
    command = [sys.executable, "-P", "-c", LIMITED, str(kilobytes), *LARGE, "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, env=tool.environment, timeout=300, check=False)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the size of its address space from Linux")
def test_where_the_system_refuses_memory_an_audit_goes_on_in_halves_to_the_same_bounds(tool, tmp_path):
    whole = limited(tool, 0, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    halved = limited(tool, int(whole.stderr.split()[-1]) // 2, tmp_path / "halved")
    assert halved.returncode == 0, halved.stderr
    a, b = json.loads(whole.stdout), json.loads(halved.stdout)
    assert "memory" not in a["compute"]
    assert b["compute"]["memory"].startswith("ran out: from then on ")
    for one, other in zip(a["privacy"]["bounds"], b["privacy"]["bounds"], strict=True):
        assert one["epsilon"] == other["epsilon"] or one["epsilon"] == pytest.approx(other["epsilon"], rel=1e-4)
