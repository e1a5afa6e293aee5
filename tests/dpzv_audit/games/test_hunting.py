"""A hunt finds the worlds in which a mechanism is wrong, and looking costs no error."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpzv_audit.games.engine import MechanismFailed
from dpzv_audit.games.hunting import ALONE, hunted, variants_of
from dpzv_audit.games.mechanism import MechanismTrials

from ...helpers.refusals import refused

CODE = """
import numpy as np

class Shifted:
    def __init__(self, shift, columns=3, says=None):
        self.shift, self.columns, self.says = shift, columns, says
    def run(self, world, rng):
        view = rng.normal(size=self.columns)
        view[-1] += world * self.shift
        return view
    def claimed(self, delta):
        return self.says

class Many:
    def __init__(self, *shifts):
        self.shifts = shifts
    def run(self, world, rng):
        return rng.normal()
    def variants(self):
        return {f"shift {shift}": Shifted(shift, says=1.0) for shift in self.shifts}

def wrong():
    return Many(0.0, 0.1, 9.0, 0.2)

def right():
    return Many(*[0.0] * 6)

def alone():
    return lambda world, rng: rng.normal() + world

def none():
    made = Many()
    return made

def failing():
    raise ValueError("no empty batches")

def broken(*shifts):
    made = Many(*shifts)
    others = made.variants()
    bad = Shifted(0.0, says=1.0)
    bad.run = lambda world, rng: failing()
    made.variants = lambda: {"bad": bad, **others}
    return made

def broken_once():
    return broken(9.0)

def broken_whole():
    return broken()

def claims():
    made = Many()
    made.variants = lambda: {"much": Shifted(4.0, says=50.0), "little": Shifted(4.0, says=0.1)}
    return made
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hunted_here.py").write_text(CODE)
    yield "hunted_here"
    sys.modules.pop("hunted_here", None)


def candidates(path, runs=40, epsilon=None):
    return ranked(path, runs, epsilon).candidates


def ranked(path, runs=40, epsilon=None):
    return hunted(MechanismTrials(path, 0, 30.0), runs=runs, delta=1e-5, epsilon=epsilon, done=lambda *_: None)


def test_the_variant_and_the_column_that_tell_are_found(module):
    found = candidates(f"{module}:wrong")
    assert (found[0].variant, found[0].score.column) == ("shift 9.0", 2)
    assert len(found) == 4
    assert found[0].lower > 2 > found[1].lower


def test_what_a_variant_claims_counts(module):
    assert candidates(f"{module}:claims")[0].variant == "little"
    assert [one.claimed for one in candidates(f"{module}:claims", epsilon=3.0)] == [3.0] * 2


def test_a_mechanism_without_variants_is_hunted_as_it_is(module):
    (found,) = candidates(f"{module}:alone")
    assert (found.variant, found.score.own, found.claimed) == (ALONE, True, None)


def test_variants_must_be_there(module):
    with refused("variants\\(\\) gives dict of 0; return mechanisms by name, at least one"):
        variants_of(f"{module}:none")


def test_a_variant_that_fails_is_left_out_and_said(module, cli):
    found = ranked(f"{module}:broken_once")
    assert [one.variant for one in found.candidates] == ["shift 9.0"]
    assert list(found.failures) == ["bad"]
    with refused("no empty batches", MechanismFailed):
        ranked(f"{module}:broken_whole")
    (warning,) = cli.answer(f"hunt {module}:broken_once --runs 50 --out out")["warnings"]
    assert warning.startswith(
        "1 of 2 variants failed and were left out, first 'bad': mechanism hunted_here:broken_once"
    )


@pytest.mark.ci
def test_the_command_refutes_what_is_wrong_and_says_where(module, cli):
    command = f"hunt {module}:wrong --runs 200"
    found = cli.answer(f"{command} --out out --fail-on refuted", code=1)
    assert found["game"]["variant"] == "shift 9.0"
    assert found["game"]["fitted_score"] == "column: number 3 of the view"
    assert found["game"]["fitted_on"] == "50 + 50 further runs"
    assert found["game"]["runs_in"] == 200
    assert found["privacy"]["claimed"] == 1.0
    assert found["privacy"]["verdict"] == "refuted"
    assert "hunted_here:wrong (shift 9.0)" in found["sentence"]
    done = cli(f"{command} --out again")
    assert done.code == 0
    shown = " ".join(done.out.split())
    assert "shift 9.0: 4 variants, " in shown
    assert "column: number 3 of the view; chosen on" in shown


@pytest.mark.slow
def test_looking_costs_no_error(module):
    """Eighteen scores without any difference: chosen on pilots, tested on fresh runs at 0.05, in 20 hunts.

    More than six refutations have probability 4e-5 at most; seeds are fixed.
    """
    from dpzv_audit.evidence.auditing import hunted_outcome
    from dpzv_audit.evidence.bounding import AuditPlan

    refuted = 0
    for seed in range(20):
        plan = AuditPlan(runs=120, confidence=0.95)
        outcome = hunted_outcome(
            f"{module}:right", plan, epsilon=0.01, delta=1e-5, trial_seconds=30.0, pilot=12, seed=seed
        )
        refuted += outcome.result.privacy.verdict == "refuted"
    assert stats.binom.sf(6, 20, 0.05) < 1e-4
    assert refuted <= 6


def test_pilots_and_what_is_tested_share_no_run(module):
    trials = MechanismTrials(f"{module}:alone", 0, 30.0, pilots=40)
    arrays = trials(0, 80)["in_scores"]
    assert not np.intersect1d(arrays[:40], arrays[40:]).size
    np.testing.assert_array_equal(arrays[:40], trials.piloted(40)[0]["in_scores"])
    np.testing.assert_array_equal(arrays[40:], replace(trials, pilots=0)(0, 40)["in_scores"])
    np.testing.assert_array_equal(arrays[30:50], trials(30, 50)["in_scores"])
