"""Without torch and the rest of what trains: scores are audited, verified and reported.

Blocks of docs/guide/install.md and docs/printed/guide/install.md say that they are run here.
"""

import os
import subprocess
import sys

import pytest

from dpzv_audit.cli import LEFT_OUT

from ...helpers.places import ROOT, read_json

WITHOUT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {tuple(LEFT_OUT)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from dpzv_audit.cli import main
for words in sys.stdin.read().splitlines():
    print(main(words.split()))
"""
CLAIM = """
[[claim]]
name = "our own system"
scores = { in = "in.csv", out = "out.csv" }
epsilon = 0.1
"""


@pytest.mark.ci
def test_scores_are_audited_verified_and_reported_without_torch(tmp_path):
    for side in ("in", "out"):
        (tmp_path / f"{side}.csv").write_bytes((ROOT / "examples" / "scores" / f"{side}.csv").read_bytes())
    (tmp_path / "claims.toml").write_text(CLAIM)
    commands = (
        "audit scores in.csv out.csv --epsilon 0.1 --fail-on refuted --quiet",
        "verify claims.toml --check --quiet",
        "verify claims.toml --no-cache --sarif claims.sarif --junit claims.xml --quiet",
        "attack",
        "account --method dpzv",
    )
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    sentence, refuted, checked, folder, failed, *missing = done.stdout.splitlines()
    assert "refutes the claimed epsilon of 0.1" in sentence
    assert (refuted, checked, failed) == ("1", "0", "1")
    result = read_json(tmp_path / folder / "result.json")
    assert [claim["verdict"] for claim in result["claims"]] == ["refuted"]
    assert (tmp_path / folder / "report.html").exists()
    assert missing == ["3", "3"]
    said = "dpzv-audit: error: {0} is not installed, which this command needs: pip install {0}"
    needed = [said.format("torch"), said.format("prv-accountant")]  # an upper bound on DPZV needs no torch either
    assert [line for line in done.stderr.splitlines() if "error" in line] == needed
