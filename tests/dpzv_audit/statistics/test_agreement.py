"""The same scores give the same bound, ceiling and claimed curve, whichever command reads them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from dpzv_audit import verify_claim
from dpzv_audit.accounting import epsilon_delta_tradeoff, gaussian_tradeoff, mu_from_epsilon
from dpzv_audit.cli import main
from dpzv_audit.evidence.auditing import mechanism_outcome
from dpzv_audit.evidence.bounding import AuditPlan, lower_bounds
from dpzv_audit.evidence.gathering import Question, full_looks
from dpzv_audit.evidence.verdict import Theory, theory_curves
from dpzv_audit.games.scores import GameScores, GaussianGiven
from dpzv_audit.statistics.assumptions import permuted
from dpzv_audit.statistics.fixed import fixed_test
from dpzv_audit.statistics.panel import GAUSSIAN_TESTS
from dpzv_audit.statistics.sequential import bet_on, likelihood_of

from ...helpers.refusals import refused
from ...helpers.scores import bound_of, gaussian

DELTA = 1e-5


@pytest.fixture(scope="module")
def scores():
    return gaussian(4, 2.0, 1200, 1000)


@pytest.mark.parametrize("name", ["joint", "clopper-pearson", "gaussian", "curve"])
@pytest.mark.parametrize("error", [0.05, 1e-3])
def test_a_fixed_test_is_the_estimator_of_its_name(scores, name, error):
    bound = bound_of(*scores, name, confidence=1.0 - error, seed=7)
    # What the settings hold is 1 - confidence, which is the error but for its last digit.
    spent = 1.0 - (1.0 - error)
    test = fixed_test(*scores, name=name, delta=DELTA, design_error=spent, seed=7)
    assert bound.claim_kind == test.family.claim_kind
    assert bound.epsilon_lower == test.epsilon_lower(spent) > 0.0
    assert bound.ceiling == test.ceiling(spent)


@pytest.mark.parametrize(("name", "follow"), [("sequential", bet_on), ("sequential-gaussian", likelihood_of)])
@pytest.mark.parametrize("error", [0.05, 1e-3])
def test_a_sequential_test_is_the_estimator_of_its_name(scores, name, follow, error):
    bound = bound_of(*scores, name, confidence=1.0 - error, seed=7)
    spent = 1.0 - (1.0 - error)
    test = follow(*permuted(*scores, 7), delta=DELTA)
    assert bound.epsilon_lower == test.epsilon_lower(spent) > 0.0
    assert bound.ceiling == test.ceiling(spent)


def check(looks, bounds):
    assert [look.estimator for look in looks] == [bound.name for bound in bounds]
    for look, bound in zip(looks, bounds, strict=True):
        assert look.epsilon_lower == pytest.approx(bound.epsilon_lower, rel=1e-9)
        assert look.ceiling == pytest.approx(bound.ceiling, rel=1e-9)


@pytest.mark.parametrize("vouched", [False, True])
def test_a_gate_shows_the_bounds_of_score_files(scores, vouched, tmp_path, capsys):
    """One claim at alpha is one audit at 1 - alpha: the same tests share the error, with the same pilot."""
    for side, values in zip(("in", "out"), scores, strict=True):
        np.save(tmp_path / f"{side}.npy", values)
    files = [f"{tmp_path}/in.npy", f"{tmp_path}/out.npy"]
    flags = ["--exactly-gaussian"] if vouched else []
    assert main(["audit", "scores", *files, "--delta", str(DELTA), "--seed", "3", "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)["estimators"]
    bounds = [SimpleNamespace(**bound) for bound in found if not bound["assumes"]]
    entry = verify_claim(scores=scores, epsilon=2.0, delta=DELTA, alpha=0.05, seed=3, exactly_gaussian=vouched).entry
    check(entry.looks, bounds)
    assert entry.epsilon_lower == pytest.approx(max(bound.epsilon_lower for bound in bounds), rel=1e-9)
    assert entry.ceiling == pytest.approx(max(bound.ceiling for bound in bounds), rel=1e-9)


@pytest.mark.parametrize("vouched", [False, True])
def test_a_gate_shows_the_bounds_of_a_game(scores, vouched):
    played = GameScores(*scores, given=GaussianGiven(vouched=True) if vouched else None)
    bounds = lower_bounds(played, delta=DELTA, confidence=0.95, seed=3)
    asked = Question(epsilon=2.0, delta=DELTA, alpha=0.05, stop=1e-6, seed=3)
    looks = full_looks(played, asked, stage="s", share=1.0, on_gaussian=GAUSSIAN_TESTS if vouched else ())
    shown = [
        SimpleNamespace(
            estimator=look.test.name,
            epsilon_lower=look.test.epsilon_lower(0.05 * look.weight),
            ceiling=look.test.ceiling(0.05 * look.weight),
        )
        for look in looks
    ]
    check(shown, [bound for bound in bounds if not bound.assumes])


def test_a_claim_has_one_curve_in_every_result(tmp_path, monkeypatch):
    """Of a mechanism the least that (epsilon, delta) allows, of DPZV's channel the Gaussian one through it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "curves_of_one.py").write_text(
        "class made:\n    def run(self, world, rng): return world + rng.normal()\n"
    )
    alpha = np.linspace(0.0, 1.0, 51)
    options = {"epsilon": 1.0, "delta": DELTA}
    entry = verify_claim(mechanism="curves_of_one:made", max_trials=500, folder=tmp_path, **options).entry
    audited = mechanism_outcome("curves_of_one:made", AuditPlan(runs=50), trial_seconds=30.0, **options).result
    for found in (entry.tradeoff, audited.tradeoff):
        assert list(found.claimed) == epsilon_delta_tradeoff(np.array(found.alpha), 1.0, DELTA).tolist()
    of_method = theory_curves(alpha, Theory(), epsilon=1.0, delta=DELTA, of_method=True)
    assert of_method["claimed"] == pytest.approx(gaussian_tradeoff(alpha, mu_from_epsilon(1.0, DELTA)).tolist())
    assert of_method["recomputed"] is None


def test_a_test_of_no_such_name_is_refused():
    with refused("gausian"):
        fixed_test([0.0], [1.0], name="gausian", delta=DELTA, design_error=0.05)
