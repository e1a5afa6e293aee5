"""One protocol for mechanisms: what `audit mechanism` runs `verify` runs too, under one time limit."""

import logging
import re
import signal
import sys

import pytest

from dpzv_audit import verify_claim
from dpzv_audit.base.errors import AuditError

from ...helpers.refusals import refused

MODULE = """
import fractions, time
import numpy as np

def function():
    return lambda world, rng: world + rng.normal()

def views():
    return lambda world, rng: np.array([rng.normal(), 3.0 * world + rng.normal()])

def listed():
    return lambda world, rng: [float(rng.normal()), 3.0 * world + float(rng.normal())]

class Batch:
    def run_batch(self, world, rng, n): return [np.array([world + rng.normal()]) for _ in range(n)]
    def score(self, view): return fractions.Fraction(float(view[0]))
def batch(): return Batch()

class Lazy:
    def run(self, world, rng):
        import {name}_later
        return {name}_later.drawn(world, rng)

def matrix():
    return lambda world, rng: np.zeros((2, 2))

class Hangs:
    runs = 0
    def run(self, world, rng):
        self.runs += 1
        if self.runs > 3:
            try: time.sleep(100)
            except Exception: pass
        return 0.0
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the user's module, whose name no other test has imported; the command runs there."""
    name = f"protocol_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE.replace("{name}", name))
    (tmp_path / f"{name}_later.py").write_text("def drawn(world, rng): return 3.0 * world + rng.normal()\n")
    monkeypatch.chdir(tmp_path)
    yield name
    for module in (name, f"{name}_later"):
        sys.modules.pop(module, None)


def audited(cli, name, factory, flags=""):
    return cli(f"audit mechanism {name}:{factory} --runs 60 --json {flags}")


def verified(cli, name, factory, flags=""):
    text = f'[[claim]]\nname = "ours"\nmechanism = "{name}:{factory}"\nepsilon = 1.0\n'
    with open("claims.toml", "w") as file:
        file.write(text)
    return cli(f"verify claims.toml --max-trials 500 --no-cache --trust-code --json {flags}")


@pytest.mark.parametrize(
    "factory",
    ["function", "batch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("views", "listed", "Lazy"))],
)
def test_what_one_command_runs_both_run(place, cli, factory):
    done = audited(cli, place, factory)
    assert done.code == 0, done.err
    assert done.json["game"]["fitted_score"], "a score is chosen on pilot runs, of single numbers too"
    done = verified(cli, place, factory)
    assert done.code in (0, 1), done.err
    (claim,) = done.json["claims"]
    assert claim["facts"]["fitted_score"]
    assert claim["epsilon_lower"] is not None


@pytest.mark.parametrize("command", [audited, verified])
def test_what_is_no_answer_is_the_same_line_from_both(place, cli, command):
    done = command(cli, place, "matrix")
    assert done.code == 2
    answered = rf"mechanism {place}:matrix: run 1 of the world '(in|out)' answered an array of shape \(2, 2\)"
    assert re.search(answered, done.err)


@pytest.mark.parametrize("command", [audited, verified])
def test_a_run_that_hangs_ends_at_its_limit_and_leaves_the_process_as_it_was(place, cli, command):
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    loggers = list(logging.getLogger().handlers), logging.getLogger().level
    done = command(cli, place, "Hangs", "--trial-seconds 0.3")
    assert done.code == 3
    assert re.search("run [12] of the world '(in|out)' took longer than --trial-seconds 0.3", done.err)
    assert {number: signal.getsignal(number) for number in signal.valid_signals()} == handlers
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == loggers
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_limit_holds_in_worker_processes_of_the_gate(place, cli):
    done = verified(cli, place, "Hangs", "--trial-seconds 0.3 --jobs 2")
    assert done.code == 3
    assert "took longer than --trial-seconds 0.3" in done.err


def test_a_mechanism_that_is_handed_over_has_the_limit_too():
    def hangs(world, rng):
        import time

        time.sleep(100)

    with refused(r"run 1 of the world '(in|out)' took longer than trial_seconds 0.2", AuditError):
        verify_claim(mechanism=hangs, epsilon=1.0, trial_seconds=0.2)
