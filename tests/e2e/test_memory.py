"""A memory limit that the system enforces: allocations fail for real, and the audit goes on in halves."""

import json
import resource
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

pages = int(open("/proc/self/statm").read().split()[0])
most = pages * resource.getpagesize() + int(sys.argv.pop(1)) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (most, most))
sys.exit(main())
"""


def limited(tool, megabytes: int, out: Path) -> subprocess.CompletedProcess:
    """The audit in a process that gets no more than this beside its libraries."""
    command = [sys.executable, "-P", "-c", LIMITED, str(megabytes), *LARGE, "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, env=tool.environment, timeout=300, check=False)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the size of its address space from Linux")
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="limits its address space")
def test_where_the_system_refuses_memory_an_audit_goes_on_in_halves_to_the_same_bounds(tool, tmp_path):
    whole = tool(*LARGE, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    halved = limited(tool, 120, tmp_path / "halved")
    assert halved.returncode == 0, halved.stderr
    a, b = json.loads(whole.stdout), json.loads(halved.stdout)
    assert "memory" not in a["compute"]
    assert b["compute"]["memory"].startswith("ran out: from then on ")
    for one, other in zip(a["privacy"]["bounds"], b["privacy"]["bounds"], strict=True):
        assert one["epsilon"] == other["epsilon"] or one["epsilon"] == pytest.approx(other["epsilon"], rel=1e-4)
    refused = limited(tool, 30, tmp_path / "refused")
    assert refused.returncode == 3
    assert refused.stderr.splitlines()[-1].startswith("dpzv-audit: error: memory ran out; use fewer --trials or --runs")
    assert "Traceback" not in refused.stderr
    assert not list((tmp_path / "refused").glob("*/result.json"))
