"""What the planned trials of a claim could show at most, told before anything is drawn: both sides of the boundary."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.base.rounding import down
from dpzv_audit.claims.access import Access
from dpzv_audit.claims.file import ClaimsFile, one_claim
from dpzv_audit.claims.mechanism import mechanism_subject
from dpzv_audit.claims.reach import MOST_PLANS, Plans, refutable_at
from dpzv_audit.claims.scores import scores_subject
from dpzv_audit.evidence.gathering import Pool, Question, Stage, Subject, Success, gather, reach_of
from dpzv_audit.evidence.trainings import MOST_TRAININGS
from dpzv_audit.statistics.scores import LoadedScores

from ...helpers.gates import gate_of

LEVEL = 1e-3
BUDGETS = {"whole": None, "cut in the second stage": 2000, "cut in the first": 600, "one block": 250, "none": 100}


def sharp(world, rng):
    """Tell the worlds apart without any error: by two values, between which every threshold is as good."""
    return float(world)


def apart(n_in, n_out):
    return scores_subject(lambda: LoadedScores(np.ones(n_in), np.zeros(n_out)), exactly_gaussian=False)


def asked(epsilon, **options):
    return Question(epsilon=epsilon, delta=1e-5, alpha=LEVEL, stop=1e-12, **options)


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
def test_of_runs_none_of_which_errs_a_claim_below_the_reach_is_refuted_and_one_above_is_not(budget):
    subject = mechanism_subject(sharp, "sharp", 0)
    most = BUDGETS[budget]
    reach = reach_of(subject, asked(100.0, max_trials=most), LEVEL)
    assert reach.trials == (4500 if most is None else most // 250 * 250)
    if budget in ("one block", "none"):
        assert (reach.most > 0.0) == (budget == "one block")
    for claimed in (0.9 * reach.most, 1.01 * reach.most + 0.1):
        question = asked(claimed, max_trials=most)
        least = reach_of(subject, question, LEVEL).p_value
        found = gather(subject, question) if claimed else None
        refutable = claimed < reach.most
        assert (least <= LEVEL) == refutable
        if found is not None:
            assert (found.p_value <= LEVEL) == refutable
            assert found.p_value >= least


@pytest.mark.parametrize("sizes", [(500, 500), (100, 2000), (7, 50)])
def test_of_scores_that_are_there_already(sizes):
    subject = apart(*sizes)
    reach = reach_of(subject, asked(100.0), LEVEL)
    assert reach.trials == sum(sizes)
    assert (reach.most == 0.0) == (min(sizes) < 8)
    for claimed, refutable in ((0.99 * reach.most, True), (1.01 * reach.most + 0.01, False)):
        if claimed:
            assert (reach_of(subject, asked(claimed), LEVEL).p_value <= LEVEL) == refutable
            assert (gather(subject, asked(claimed)).p_value <= LEVEL) == refutable


@pytest.mark.parametrize(("most", "least"), [(64, 0.0), (None, 0.0), (64, -1.0), (12, 0.0)])
def test_of_attacks_that_always_succeed(most, least):
    """A limit just below the reach is refuted within the budget, one just above it is not."""

    def draw(number):
        return Success(rates=(1.0,) * 4, baselines={}, controls={})

    subject = Subject(
        stages=(Stage(name="t", pool="t", blocks=10**6, sequential=1.0, stops=True),),
        pools={"t": Pool(draw=draw, trials=4)},
    )
    question = Question(alpha=LEVEL, stop=LEVEL, success_at_most=0.5, least_success=least, max_trials=most)
    reach = reach_of(subject, question, LEVEL)
    assert reach.trials == (most or MOST_TRAININGS)
    for limit in (reach.most - 1e-3, reach.most + 1e-3):
        if limit > least:
            claimed = replace(question, success_at_most=limit)
            found = gather(subject, claimed)
            assert found.trials <= reach.trials
            assert (found.p_value <= LEVEL) == (limit < reach.most)
            assert (reach_of(subject, claimed, LEVEL).p_value <= LEVEL) == (limit < reach.most)


def test_a_likelihood_ratio_has_no_largest_result_and_a_subject_without_a_test_no_reach():
    subject = mechanism_subject(sharp, "sharp", 0, exactly_gaussian=True)
    assert reach_of(subject, asked(300.0), LEVEL).p_value == 0.0
    assert reach_of(Subject(unaudited="no game"), asked(1.0), LEVEL) is None


def claim(name, epsilon, file):
    scores = f'{{ in = "{file}-in.csv", out = "{file}-out.csv" }}'
    return f'[[claim]]\nname = "{name}"\nscores = {scores}\nepsilon = {epsilon}\n'


@pytest.fixture
def verified(tmp_path, monkeypatch, cli, own_cache):
    """Verify claims on score files of 100 and of 1,000 scores a side; return the warnings, and the result."""
    monkeypatch.chdir(tmp_path)
    for size in (100, 1000):
        np.savetxt(tmp_path / f"{size}-in.csv", np.ones(size))
        np.savetxt(tmp_path / f"{size}-out.csv", np.zeros(size))

    def verify(text, flags=""):
        (tmp_path / "claims.toml").write_text(text)
        done = cli(f"verify claims.toml --json {flags}")
        return done.err.splitlines(), done.json

    return verify


def test_a_warning_names_the_claims_that_can_never_be_refuted(verified):
    warnings, result = verified(claim("few", 8.0, 100) + claim("enough", 4.0, 1000) + claim("fewer", 2.0, 100))
    few = result["claims"][0]
    assert few["verdict"] == "not-tested"
    most = down(few["ceiling"])
    said = f"200 trials can certify at most {most} of the claimed 8"
    assert warnings == [f"dpzv-audit: warning: claims.toml:1: claim 'few' can never be refuted: {said}"]
    assert result["out_of_reach"] == {"few": said}
    assert [entry["verdict"] for entry in result["claims"][1:]] == ["refuted", "refuted"]


def test_the_plan_of_each_claim_is_told_on_a_terminal_before_it_runs(verified, cli, monkeypatch):
    assert "plan: " not in "".join(verified(claim("few", 8.0, 100) + claim("enough", 4.0, 1000))[0])
    monkeypatch.setattr("dpzv_audit.cli.verify.shows_bars", lambda stream: True)
    assert "plan: " not in cli("verify claims.toml").err, "both are in the cache"
    done = cli("verify claims.toml --no-cache")
    most = reach_of(apart(1000, 1000), asked(4.0), LEVEL / 2).most
    plans = [line for line in done.err.splitlines() if line.startswith("plan: ")]
    assert plans == [f"plan: claim 'enough': 2,000 trials can refute an epsilon below {down(most)}"]


def test_claims_are_told_as_holm_s_method_decides_on_all_of_them(verified):
    """A claim within reach of the file's whole error rate, and out of reach of a half of it."""
    sizes = (100, 100)
    at = [reach_of(apart(*sizes), asked(9.0), level).most for level in (LEVEL / 2, LEVEL)]
    between = sum(at) / 2.0
    assert at[0] < between < at[1]
    assert verified(claim("a", between, 100))[0] == []
    alone, result = verified(claim("a", between, 100) + claim("b", between, 100), "--no-cache")
    assert len(alone) == 2
    assert [entry["verdict"] for entry in result["claims"]] == ["not-tested"] * 2
    beside, result = verified(claim("a", between, 100) + claim("c", 1.0, 1000), "--no-cache")
    assert beside == [], "the other claim is refuted first, and leaves all of the error rate to this one"
    assert [entry["verdict"] for entry in result["claims"]] == ["refuted"] * 2


def test_a_ledger_s_next_look_has_a_level_of_its_own(verified, tmp_path):
    text = claim("a", reach_of(apart(100, 100), asked(9.0), LEVEL).most - 0.01, 100)
    assert verified(text)[0] == []
    warnings, result = verified(text, f"--no-cache --ledger {tmp_path}/ledger.jsonl")
    assert len(warnings) == 1
    assert result["claims"][0]["verdict"] == "not-tested"


def test_what_is_answered_from_the_cache_is_said_to_be_out_of_reach_too(verified):
    text = claim("few", 8.0, 100)
    warnings, first = verified(text)
    assert len(warnings) == 1
    again, result = verified(text)
    assert (again, result["cached"]) == (warnings, ["few"])
    assert result["out_of_reach"] == first["out_of_reach"]


CHECKED = """
[[claim]]
name = "most labels"
method = "vafl"
kind = "attack"
attack = "label_direct"
success_at_most = 0.9

[[claim]]
name = "nearly all"
method = "vafl"
kind = "attack"
attack = "label_direct"
success_at_most = 0.99

[[claim]]
name = "scores"
scores = { in = "100-in.csv", out = "100-out.csv" }
epsilon = 1.0
"""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        # Three claims share 1e-3: 83 trainings are needed for 0.9, 866 for 0.99.
        ("", ("83 trainings can refute a limit below 90.2%", "866 trainings")),
        ("--alpha 0.003", ("73 trainings can refute a limit below 90.3%", "757 trainings")),
        ("--max-trials 50", ("50 trainings can refute a limit below 84.", "866 trainings")),
    ],
)
def test_a_check_says_what_each_claim_could_be_refuted_at(verified, tmp_path, cli, flags, words):
    (tmp_path / "claims.toml").write_text(CHECKED)
    found = cli.answer(f"verify claims.toml --check {flags}")["refutable_at"]
    assert list(found) == ["most labels", "nearly all", "scores"]
    assert found["most labels"].startswith(words[0])
    assert found["nearly all"].endswith(f"the claimed 99% takes {words[1]}")
    assert found["scores"] == "known when read"
    done = cli(f"verify claims.toml --check {flags}")
    assert done.code == 0
    assert f"claim 'most labels': {words[0]}" in done.out


HERE = Access.of(Path("claims.toml"), root=None)


def test_a_check_says_at_most_what_the_plan_of_a_method_says_and_nothing_where_a_schedule_must_be_made():
    keys = {"name": "c", "method": "dpzv", "records": 1000, "epsilon": 1.0, "config": {"batch_size": 50, "epochs": 2}}
    placed = one_claim({**keys, "adversary": "client"})
    said = refutable_at(placed.claim, HERE, LEVEL, None, Plans())
    gate = gate_of(ClaimsFile(HERE.folder / "c", LEVEL, (placed,)))
    assert said == "16,384 trials can refute any epsilon, given Gaussian noise"
    assert gate.plans(gate.prepare()) == {"c": said}
    hidden = one_claim({**keys, "records": 10**6, "adversary": "eavesdropper", "config": {"batch_size": 1}})
    assert refutable_at(hidden.claim, HERE, LEVEL, None, Plans()) == "known when planned"
    private = {**keys, "config": {**keys["config"], "defences": {"name": "label-rr", "epsilon": 1.0}}}
    assert refutable_at(one_claim(private).claim, HERE, LEVEL, None, Plans()) == "known when planned"


def test_the_reach_of_runs_is_that_of_their_plan_and_few_plans_are_worked_out():
    keys = {"name": "c", "mechanism": "a.b:c"}
    plans = Plans()
    first = refutable_at(one_claim({**keys, "epsilon": 1.0}).claim, HERE, LEVEL, None, plans)
    most = reach_of(mechanism_subject(sharp, "sharp", 0), asked(1.0), LEVEL).most
    assert first == f"4,500 trials can refute an epsilon below {down(most)}"
    gaussian = one_claim({**keys, "epsilon": 1.0, "exactly_gaussian": True}).claim
    assert (
        refutable_at(gaussian, HERE, LEVEL, None, plans) == "4,500 trials can refute any epsilon, given Gaussian noise"
    )
    others = [one_claim({**keys, "epsilon": 1.0, "delta": 1e-6 / n}).claim for n in range(1, 6)]
    said = [refutable_at(claim, HERE, LEVEL, None, plans) for claim in others]
    assert said.count("known when planned") == len(others) + 2 - MOST_PLANS
