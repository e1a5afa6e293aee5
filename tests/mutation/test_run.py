"""The mutation runner on a module of six lines: what is tested dies, what is not survives and is said so."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")

MODULE = """
LIMIT = 3.0


def inside(x):
    return x < LIMIT


def unused(x):
    return x * 2
"""

TESTS = """
import toy


def test_inside():
    assert toy.inside(2.5)
    assert not toy.inside(3.5)
"""


def test_targets_their_tests_and_the_modules_of_known_survivors_are_there():
    root = RUN.parents[2]
    groups = tomllib.loads(RUN.with_name("targets.toml").read_text())["group"]
    known = tomllib.loads(RUN.with_name("survivors.toml").read_text())["mutant"]
    targets = [f"{group['modules']}/{name}.py" for group in groups for name in group["names"]]
    wanted = {*targets, *(test for group in groups for test in group["tests"]), *(entry["module"] for entry in known)}
    assert [path for path in sorted(wanted) if not (root / path).exists()] == []


@pytest.mark.slow
def test_killed_survived_explained_and_not_covered(tmp_path):
    pytest.importorskip("cosmic_ray")
    (tmp_path / "toy.py").write_text(MODULE)
    (tmp_path / "test_toy.py").write_text(TESTS)
    (tmp_path / "survivors.toml").write_text(
        '[[mutant]]\nmodule = "toy.py"\nwhere = "inside"\nbefore = "return x < LIMIT"\nafter = "return x <= LIMIT"\n'
        'verdict = "equivalent"\nwhy = "nobody asks about 3"\n'
    )
    command = [sys.executable, str(RUN), "--module", "toy.py", "--tests", "test_toy.py", "--results", "toy.jsonl"]
    done = subprocess.run(
        [*command, "--survivors", "survivors.toml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    rows = [json.loads(line) for line in (tmp_path / "toy.jsonl").read_text().splitlines()]
    outcomes = {row["after"]: row["outcome"] for row in rows}
    assert outcomes == {
        "return x <= LIMIT": "survived",
        "return x >= LIMIT": "killed",
        "LIMIT = 4.0": "killed",
        "LIMIT = 2.0": "killed",
        "return x / 2": "not-covered",
        "return x * 3": "not-covered",
        "return x * 1": "not-covered",
    }
    # The explained survivor is not printed; the others are, and fail the command.
    assert done.returncode == 1
    assert "x <= LIMIT" not in done.stdout
    assert "+ return x * 3" in done.stdout
    assert "| toy.py | 7 | 3 | 0 | 1 | 0 | 3 |" in done.stdout
