"""One choice of a score serves `hunt`, `audit mechanism` and `verify`: what it must find, and what it must not."""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpzv_audit.claims.api import verify_claim
from dpzv_audit.evidence.auditing import hunted_outcome, mechanism_outcome
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.games.exact import common_step, low_bits, repeats
from dpzv_audit.games.fitting import EXACT, fit_score
from dpzv_audit.statistics.fixed import fixed_test

from ...helpers.places import read_json

GIVEN = {"epsilon": None, "trial_seconds": 30.0}
FAULTS = ("half", "half_between", "half_scaled", "half_wide", "single", "skipping", "skipping_wide", "few_seeds")
CORRECT = (
    "gaussian",
    "gaussian_whole",
    "gaussian_wide",
    "laplace",
    "geometric",
    "on_a_grid",
    "randomised_response",
    "rounded",
)
CASES_REFUTED = (
    "key_reuse",
    "key_prefix",
    "key_far",
    "steps_same",
    "sparse",
    "no_noise_hidden",
    "mixed",
    "noise_then_clip",
    "no_noise",
    "no_noise_scalar",
    "mean_of_n",
)
CASES_TRUE = ("key_fresh", "over_noised", "sparse_fixed")


@pytest.fixture
def faulty(monkeypatch):
    """The folder of `faulty` on the import path."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    yield
    sys.modules.pop("faulty", None)


@pytest.fixture
def trainers(cases, monkeypatch):
    """The mechanisms of other people's reports."""
    monkeypatch.syspath_prepend(cases / "mechanisms" / "30-trainers")
    yield
    sys.modules.pop("faults", None)


def outcomes(path, *, runs, seed=0, alpha=0.05, delta=1e-5):
    """What `audit mechanism` and `hunt` find with as many tested runs."""
    plan = AuditPlan(runs=runs, confidence=1.0 - alpha)
    audited = mechanism_outcome(path, plan, delta=delta, seed=seed, **GIVEN)
    return audited, hunted_outcome(path, plan, delta=delta, seed=seed, pilot=40, **GIVEN)


def p_value(outcome, *, delta=1e-5, alpha=0.05):
    """The p-value of the claim by the one test that may refute it."""
    scores = outcome.bounded.scores
    test = fixed_test(*scores.sides, delta=delta, design_error=alpha, pilot=scores.pilot)
    return test.p_value(outcome.result.privacy.claimed)


def verdicts(found):
    return [one.result.privacy.verdict for one in found]


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("half", range(1)),
        ("skipping", range(1)),
        *(pytest.param(name, range(3), marks=pytest.mark.slow) for name in FAULTS),
    ],
)
def test_a_fault_that_no_threshold_sees_is_refuted_by_both_commands(faulty, name, seeds):
    """At 2,000 runs in each world, in every seed."""
    for seed in seeds:
        found = outcomes(f"faulty:{name}", runs=2000, seed=seed)
        for one in found:
            print(name, seed, one.result.game["fitted_score"], f"{one.result.privacy.empirical_lower:.3f}")
        assert verdicts(found) == ["refuted"] * 2
        assert all(one.result.game["runs_in"] == 2000 for one in found)
        assert all(one.result.game["fitted_on"] == "500 + 500 further runs" for one in found)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["half", "skipping"])
def test_verify_refutes_it_too(faulty, name):
    import faulty as module

    made = getattr(module, name)()
    found = verify_claim(mechanism=made, epsilon=made.claimed(1e-5), delta=1e-5, alpha=0.05)
    assert found.verdict == "refuted"
    assert found.entry.facts["fitted_score"].partition(":")[0] in EXACT


@pytest.mark.parametrize(
    ("hunts", "runs"), [(8, 150), pytest.param(200, 500, marks=pytest.mark.slow, id="200 hunts of 500 runs")]
)
def test_correct_mechanisms_are_not_refuted(faulty, hunts, runs):
    """Each claim is exact. At alpha 1e-3 more refutations than `most` have probability 1e-4 at most."""
    alpha = 1e-3
    most = stats.binom.ppf(1 - 1e-4, hunts, alpha)
    assert most == {8: 1, 200: 3}[hunts]
    refuted = 0
    plan = AuditPlan(runs=runs, confidence=1.0 - alpha)
    for number in range(hunts):
        path = f"faulty:{CORRECT[number % len(CORRECT)]}"
        found = hunted_outcome(path, plan, delta=1e-5, pilot=40, seed=1000 + number, **GIVEN)
        refuted += found.result.privacy.verdict == "refuted"
    print(f"{refuted} of {hunts} hunts refuted")
    assert refuted <= most


@cache
def planted():
    from dpzv_audit.games.planted import PLANTED

    return [name for name, one in PLANTED.items() if one.build.__name__ == "build"]


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        pytest.param(("sensitivity-halved", "sound"), 500, marks=pytest.mark.ci),
        pytest.param(None, 2000, marks=pytest.mark.slow, id="all planted mechanisms"),
    ],
)
def test_hunt_refutes_what_audit_mechanism_finds_at_1e_6(faulty, names, runs):
    """With the same number of tested runs; mechanisms of the tool's own that are drawn in numpy, as a user's."""
    import faulty as module

    found = module.drawn_planted()
    assert len(found) > 15
    for name in names or found:
        _, delta, wrong = found[name]
        audited, hunts = outcomes(f"faulty:planted_{name.replace('-', '_')}", runs=runs, delta=delta)
        p = p_value(audited, delta=delta)
        conclusion = hunts.result.privacy.verdict
        print(name, f"p = {p:.1g}", conclusion, hunts.result.game["fitted_score"])
        assert conclusion == "refuted" or p > 1e-6
        assert wrong or conclusion != "refuted"


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        pytest.param(("key_far", "key_reuse", "no_noise_hidden", "key_fresh"), 500, marks=pytest.mark.ci),
        pytest.param(
            CASES_REFUTED + CASES_TRUE + ("per_tensor",), 2000, marks=pytest.mark.slow, id="all at 2,000 runs"
        ),
    ],
)
def test_reported_faults_of_trainers(trainers, names, runs):
    """`hunt` and `audit mechanism` agree."""
    for name in names:
        found = outcomes(f"faults:{name}", runs=runs)
        print(
            name, *(f"{one.result.privacy.empirical_lower:.3f}" for one in found), found[1].result.game["fitted_score"]
        )
        assert verdicts(found) == ["inconclusive" if name in CASES_TRUE else "refuted"] * 2


@pytest.mark.ci
def test_a_hunt_says_which_score_it_chose_and_on_how_many_runs(faulty, tmp_path, cli):
    done = cli(f"hunt faulty:half_between --runs 100 --out {tmp_path}")
    assert done.code == 0
    shown = " ".join(done.out.replace("│", " ").split())
    assert "low bits: remainders on a coarse grid" in shown
    assert "chosen on 40 + 40 further runs" in shown
    (path,) = tmp_path.glob("*/result.json")
    game = read_json(path)["game"]
    assert game["fitted_score"].startswith("low bits: ")
    assert game["fitted_on"] == "40 + 40 further runs"
    assert "low bits 3." in game["chosen_by"]
    assert game["hunted"].startswith("1 variant, ")


def test_all_scores_are_tested_where_other_runs_choose_the_rule():
    """Values that come in 2% of runs: a tenth of the scores may hold none, and the test then sees nothing."""
    rng = np.random.default_rng(3)

    def side(world, n):
        return np.where(rng.random(n) < 0.02, 2.0 * world - 1.0, 0.0)

    pilot = side(1, 400), side(0, 400)
    inside, outside = side(1, 1000), side(0, 1000)
    test = fixed_test(inside, outside, delta=1e-5, design_error=0.05, pilot=pilot)
    assert (test.n_in, test.n_out, test.pilot, test.separate) == (1000, 1000, (400, 400), True)
    assert "a separate sample of 400 + 400 scores" in test.rule
    assert test.epsilon_lower(0.05) > 1.0
    other = fixed_test(inside, outside, delta=1e-5, design_error=0.05, pilot=pilot[::-1])
    assert other.epsilon_lower(0.05) == 0.0


@pytest.mark.parametrize("step", [2.0**-9, 2.0**-20, 3.7 * 2.0**-12, 0.1 / 3])
def test_the_step_of_a_grid_is_found(step, rng):
    values = 0.3 + step * rng.integers(-5000, 5000, size=200)
    least = 2.0**12 * np.spacing(np.abs(values).max())
    assert common_step(values, least) == pytest.approx(step, rel=1e-12)
    assert common_step(rng.normal(size=200), least) == 0.0


def test_values_that_never_came_say_nothing():
    truth = np.repeat([1, 0], 20)
    values = np.r_[np.arange(20.0), np.arange(100.0, 120.0)][:, None]
    values[[0, 1, 2]] = 7.5
    score = repeats(values, truth)
    assert score(np.array([[7.5], [-0.0], [3.0]])) == pytest.approx([np.log(7), 0.0, np.log(3)])
    assert score(np.array([[100.0], [np.nextafter(7.5, 8.0)]])) == pytest.approx([-np.log(3), 0.0])


@pytest.mark.parametrize("signals", [(0.0, 1.0), (0.0, 1.0 / 3.0), (0.1, 0.7), (1234.5, 1234.75)])
def test_doubles_have_no_low_bits_that_refute(faulty, signals):
    """Gaussian noise in float64 at its exact claim; a p-value below 2.5e-5 comes once in 40,000 times each."""
    from faulty import Gaussian

    made = Gaussian(signals)
    rng = np.random.default_rng(1)
    pilot, tested = (np.array([[made.run(world, rng) for _ in range(n)] for world in (1, 0)]) for n in (400, 2000))
    score = low_bits(pilot.reshape(-1, 1), np.repeat([1, 0], 400))
    sides = [score(side[:, None]) for side in tested]
    test = fixed_test(*sides, delta=1e-5, design_error=0.05, pilot=tuple(score(side[:, None]) for side in pilot))
    assert test.p_value(made.claimed(1e-5)) > 2.5e-5


def test_a_column_that_agrees_in_fifteen_digits_is_read_from_its_median():
    views = [np.stack([np.full(50, 1e15), 1e15 + 0.125 * np.full(50, world)], 1) for world in (1, 0)]
    found = fit_score(*views)
    assert found.column == 1
    assert set(np.concatenate([found.score(side) for side in views])) in ({0.0, 0.125}, {0.0, -0.125})
