"""The pytest plugin in a project that uses it: messages, alpha shared over the session, pytest-xdist."""

import os
import re
import subprocess
import sys

import pytest

from dpzv_audit.claims.ledger import level_of

from ..helpers.places import ROOT

EXAMPLE = ROOT / "examples" / "own-mechanism"
TESTS = """
def sharp(world, rng):
    return float(world) + 0.01 * rng.normal()

def dull(world, rng):
    return rng.normal()

def test_refuted(privacy_audit):
    privacy_audit(mechanism=sharp, epsilon=1.0, name="our claim")

def test_strict(privacy_audit):
    privacy_audit(mechanism=dull, epsilon=1.0, max_trials=500, strict=True)

def test_fine(privacy_audit):
    found = privacy_audit(mechanism=dull, epsilon=1.0, max_trials=500)
    assert found.entry.level == 0.03 / 3 / 3.1055473
    again = privacy_audit(mechanism=dull, epsilon=1.0, max_trials=500)
    assert again.entry.level == 0.03 / 3 / (3.1055473 * 2**1.4)

def test_wrong(request):
    assert request.config.getini("dpzv_audit_alpha") == "0.03"
"""


def pytest_in(folder, *arguments, ini="[pytest]\ndpzv_audit_alpha = 0.03\n"):
    (folder / "pytest.ini").write_text(ini)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "dpzv_audit.pytest_plugin", "-p", "xdist", "-q", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", [pytest.param((), marks=pytest.mark.slow), ("-n", "2")])
def test_a_session_fails_with_the_claim_and_the_reason(tmp_path, workers):
    (tmp_path / "test_ours.py").write_text(TESTS)
    code, text = pytest_in(tmp_path, *workers)
    assert code == 1, text
    assert re.search(r"2 failed, 2 passed", text), text
    assert "REFUTED: our claim" in text
    assert "which refutes the claimed 1" in text
    assert "INCONCLUSIVE: test_strict" in text
    assert "Traceback" not in text


SYSTEMS = """
import numpy as np

ARRAYS = {"features": [np.random.default_rng(0).normal(size=(60, 2))] * 2, "labels": np.arange(60) % 3 == 0}
RELEASE = {"channel": "gradient", "clip": 1.0, "clip_scope": "record", "sigma": 9.0, "batch_size": 48}
RELEASE |= {"rounds": 4, "sampler": "shuffled", "server_update": "frozen", "noise": "grid"}

def leaky(task, record, seed):
    rows = (0.5 - task.labels + 0.01 * np.random.default_rng(seed).random())[:, None] * np.ones(2)
    record.sent(0, 1, 0, "embeddings", task.features[0], range(task.records))
    record.sent(0, 0, 1, "gradient", rows, range(task.records))

def test_refuted(privacy_system):
    privacy_system(leaky, attack="label_direction", success_at_most=0.6, data=ARRAYS, name="our claim")

def noisy(task, record, seed):
    noise = np.round(9216.0 * np.random.default_rng(seed).normal(size=(task.records, 1))) / 1024.0
    rows = 0.5 - task.labels[:, None] + noise
    record.sent(0, 1, 0, "embeddings", task.features[0], range(task.records))
    record.sent(0, 0, 1, "gradient", rows, range(task.records))

def test_not_as_stated(privacy_system):
    privacy_system(leaky, epsilon=2.0, release=RELEASE, data=ARRAYS, name="our noise")

def test_fine(privacy_system, privacy_audit):
    found = privacy_system(noisy, epsilon=2.0, release=RELEASE, data=ARRAYS)
    assert (found.verdict, found.entry.audited, found.entry.level) == ("supported", True, 0.03 / 3 / 3.1055473)
    again = privacy_audit(mechanism=lambda world, rng: rng.normal(), epsilon=1.0, max_trials=500)
    assert again.entry.level == 0.03 / 3 / (3.1055473 * 2**1.4), "both fixtures of a test spend one share"
"""


@pytest.mark.ci
def test_claims_on_a_system_fail_and_pass_a_session(tmp_path):
    (tmp_path / "test_ours.py").write_text(SYSTEMS)
    code, text = pytest_in(tmp_path)
    assert code == 1, text
    assert re.search(r"2 failed, 1 passed", text), text
    assert "REFUTED: our claim" in text
    assert "REFUTED: our noise" in text
    assert "Theory supports this configuration. Either the code differs from its configuration" in " ".join(
        text.split()
    )
    assert "label_direction by the client has a mean success of 100.0%" in text
    assert "Traceback" not in text


def test_pytest_starts_without_what_a_verdict_needs_and_beside_packages_of_the_same_names(tmp_path):
    for name in ("reports", "attacks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OURS = True\n")
    (tmp_path / "test_ours.py").write_text(
        "import sys\nfrom attacks import OURS\nfrom reports import OURS as OURS_TOO\n"
        "def test_started():\n    assert OURS and OURS_TOO\n"
        "    assert not {'dpzv_audit.claims', 'torch', 'numpy'} & set(sys.modules)\n"
        "def test_asks(privacy_audit):\n    privacy_audit(mechanism=lambda world, rng: 0.0, epsilon=1.0)\n"
    )
    code, text = pytest_in(tmp_path)
    assert code == 1, text
    assert "1 failed, 1 passed" in text, text
    assert re.search(
        r"ImportError: dpzv-audit needs its own package 'attacks', but Python finds .*; set PYTHONSAFEPATH=1", text
    )


def test_a_wrong_alpha_is_told(tmp_path):
    (tmp_path / "test_ours.py").write_text("def test_one(privacy_audit):\n    pass\n")
    code, text = pytest_in(tmp_path, ini="[pytest]\ndpzv_audit_alpha = 3\n")
    assert code == 1
    assert "dpzv_audit_alpha is '3'; use a number between 0 and 0.5" in text


@pytest.mark.ci
def test_the_example_project_passes_its_own_audit(tmp_path):
    for file in ("noisy_vfl.py", "test_privacy.py"):
        (tmp_path / file).write_text((EXAMPLE / file).read_text())
    code, text = pytest_in(tmp_path)
    assert code == 0, text


def test_all_claims_of_a_session_spend_alpha_and_late_ones_keep_some():
    share = [level_of(call, 0.01 / 4) for call in range(1, 10_001)]
    # What is left for the claims after n lies below the integral of 1 / k^1.4 from n on.
    assert 0.0 < 0.01 / 4 - sum(share) < 0.01 / 4 * 10_000**-0.4 / 0.4 / 3.1
    assert share[99] > 5 * 0.01 / 4 / (100 * 101)
