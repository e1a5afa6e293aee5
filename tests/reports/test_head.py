"""The head of a page: a claim that fell comes first, no badge stands without its object, chance is no alarm."""

import copy
import shlex
from dataclasses import replace

import pytest

from dpzv_audit.base.findings import Control, Interval, OverTrainings
from dpzv_audit.games.system import TRAININGS
from dpzv_audit.results import (
    AttackResult,
    AttacksResult,
    Cell,
    CertifiedBound,
    CoinGameBeside,
    MatrixResult,
    SelfCheck,
    read,
)
from mechanisms import METHODS
from mechanisms.core.baselines import PROTECTS
from reports.answer import answer_of
from reports.content import report_content
from reports.document import Judgement
from reports.head import AttackSuccess, strongest, typed
from reports.head import head_of as judgement_of
from reports.matrix import worst_first
from reports.render import to_html
from reports.svg import ACCENT

from .conftest import judged

CELL = {"attack": "label_direct", "adversary": "client", "method": "m", "metric": "labels found", "state": "measured"}


def head_of(result):
    """The judgement of a result without its next step, and that step."""
    judgement = judgement_of(result)
    return replace(judgement, step=None), judgement.step


def head(result):
    return head_of(read(result)[0])


def drawn_without_style(svg):
    return svg.split("</style>", 1)[1]


def changed(result, **privacy):
    return {**copy.deepcopy(result), "privacy": {**result["privacy"], **privacy}}


def test_a_claim_that_fell_comes_before_the_attack_that_found_nothing(results):
    judgement, step = head(results["attack"])
    assert (judgement.word, judgement.about, judgement.alarming) == (
        "refuted",
        "ε ≤ 1 (δ = 1e-05, one label changed) against one curious client",
        True,
    )
    sentence = "The audit shows epsilon of at least 2.13 at 95% confidence, which is more than the claimed 1."
    assert judgement.why == f"{sentence} Theory proves epsilon of at most 5.82, above the claim."
    assert step.command.startswith("dpzv-audit calibrate --method dpzv --batch-size 64 --set clip=1 ")


@pytest.mark.parametrize(
    ("privacy", "theory", "word", "why"),
    [
        ({"upper": 0.9}, True, "supported", "Theory proves epsilon of at most 0.9, at or below the claim"),
        ({}, True, "overclaimed", "which does not refute the claim. Theory proves epsilon of at most 5.82, above the"),
        ({"upper": None}, False, "inconclusive", "No theorem covers it. The claim survived this test; that does not"),
        ({"upper": None, "estimators": []}, False, "not tested", "This much evidence could not have refuted the claim"),
        ({"upper": None, "gap": "server-state"}, True, "overclaimed", "(gap server-state: The server's updates use"),
    ],
)
def test_a_verdict_stands_with_its_object_and_its_reason(privacy, theory, word, why, results, judge):
    section = judge({**results["audit"]["privacy"], "empirical_lower": 0.5, "upper": 5.8127, **privacy}, theory=theory)
    judgement, step = head(changed(results["audit"], **section))
    assert (judgement.word, judgement.about) == (
        word,
        "ε ≤ 1 (δ = 1e-05, one label changed) against one curious client",
    )
    assert judgement.alarming == (word == "overclaimed")
    assert why in judgement.why
    assert step is not None


def test_the_fix_for_your_training_is_no_other_method(results, judge):
    section = judge({**results["audit"]["privacy"], "upper": None, "gap": "server-state"})
    methods = ("dpzv", "system:m:train")
    steps = [head({**changed(results["audit"], **section), "method": method})[1] for method in methods]
    assert ["dpzv-sound" in f"{step.words} {step.command}" for step in steps] == [True, False]


def test_a_measured_bound_names_what_it_takes_as_given_beside_a_word_that_takes_nothing(results):
    given = "given Gaussian noise"
    judged = results["attack"]["privacy"]["judged"]
    stored = [changed(results["attack"], given=given, judged={**judged, "given": words}) for words in ("", given)]
    answers = [answer_of(read(result)[0]) for result in stored]
    assert [given in answer.judgement.word for answer in answers] == [False, True]
    assert [given in answer.facts["measured"] for answer in answers] == [True, False]


def control(kind, value, p_value=None):
    return Control(
        value=value, low=0.0, high=1.0, n=900, confidence=0.95, what=kind, kind=kind, expected=0.95, p_value=p_value
    )


@pytest.mark.parametrize("success", [(0.9, 0.88, 0.92), (0.09, 0.08, 0.11)])
@pytest.mark.parametrize(
    ("name", "failed"), [("positive", control("positive", 0.5)), ("dealt", control("", 0.5, 1e-4))]
)
def test_an_attack_whose_control_failed_neither_leaks_nor_reassures(success, name, failed):
    trusted = attacked(interval(*success))
    result = trusted.model_copy(update={"controls": {name: failed}})
    judgement, step = head_of(result)
    assert (judgement.word, judgement.alarming) == ("not to be trusted", True)
    assert (
        judgement.notes[0] == f"Warning: the {name} control of a failed. What it finds or does not find means nothing."
    )
    assert "another --seed" in step.words
    assert [row["result"] for row in answer_of(result).rows] == ["a control failed"]
    passed = trusted.model_copy(update={"controls": {"dealt": control("negative", 0.5, 0.03)}})  # as one in twenty does
    assert head_of(passed)[0] == head_of(trusted)[0]
    assert head_of(passed)[0].word in ("leaks", "no leak seen")


def test_scores_are_about_anyone_who_can_compute_them(results):
    against = "against anyone who can compute these scores"
    assert head(results["audit-scores"])[0].about == f"ε ≤ 1 (δ = 1e-05) {against}"
    unclaimed = {key: value for key, value in results["audit-scores"].items() if key != "claim"}
    assert head(unclaimed)[0].about == f"ε ≥ 2.13 {against}"


def interval(value, low, high, trainings=9):
    few = trainings < 8
    over = OverTrainings(count=trainings, least=low, most=high, low=None if few else low, high=None if few else high)
    return Interval(value=value, low=low, high=high, n=900, over_trainings=over)


def attacked(success, baselines=None):
    line = ["dpzv-audit", "attack", "--method", "m", "--attack", "a", "--trials", "2"]
    return AttackResult(
        method="m",
        attack="a",
        adversary="client",
        success=success,
        baselines=baselines or {"majority": 0.107},
        command_line=line,
    )


def test_an_attack_without_a_claim_leaks_finds_nothing_or_has_too_few_trainings():
    leaks, _ = head_of(attacked(interval(0.9, 0.88, 0.92)))
    assert leaks == Judgement(
        word="leaks",
        about="a by the client finds 90.0% of labels",
        why="a finds 90.0% of labels (baseline 10.7%); no theorem covers it.",
        alarming=True,
    )
    nothing, step = head_of(attacked(interval(0.09, 0.08, 0.11)))
    assert (nothing.word, nothing.alarming) == ("no leak seen", False)
    assert step.command == "dpzv-audit attack --method m --trials 2 --attack strongest"
    few, step = head_of(attacked(interval(0.5, 0.05, 0.9, trainings=2), {"features": interval(0.4, 0.3, 0.5, 2)}))
    assert (few.word, few.alarming) == ("too few trainings to tell", False)
    assert step.command == "dpzv-audit attack --method m --attack a --trials 8"


def test_a_success_below_guessing_has_no_colour_of_alarm():
    for success, alarming in ((interval(0.09, 0.08, 0.1), False), (interval(0.9, 0.88, 0.92), True)):
        report = report_content(attacked(success))
        assert report.answer.judgement.alarming == alarming
        assert [row["result"] for row in report.answer.rows] == ["leaks" if alarming else "no leak seen"]
        assert (ACCENT in drawn_without_style(report.deciding.svg)) == alarming


def found(value, *, reference):
    options = {"chance": None, "leaks": True, "undecided": False}
    return AttackSuccess(attack="a", adversary="client", value=value, reference=reference, **options)


def test_another_attack_on_the_same_system_may_be_the_strongest_and_one_on_another_is_not():
    other = {**CELL, "attack": "b", "method": "m", "success": 0.4, "reference": 0.1, "clear": True, "trainings": 9}
    plain = {**other, "method": "split", "success": 1.0}
    result = attacked(interval(0.1, 0.05, 0.15)).model_copy(
        update={"beside": [Cell.model_validate(cell) for cell in (other, plain)]}
    )
    judgement, _ = head_of(result)
    assert judgement.about == "b by the client finds 40.0% of labels"
    assert judgement.alarming


def test_what_was_trained_is_attacked_as_it_was_trained():
    line = "dpzv-audit train --method dpzv --preset paper --epochs 3 --clip=2 --seed 4 --no-controls"
    _, step = head({"schema": "dpzv-audit/train/1", "method": "dpzv", "command_line": line.split()})
    proposed = "dpzv-audit attack --method dpzv --preset paper --epochs 3 --clip=2 --attack strongest"
    assert step.command == proposed


def test_the_strongest_is_that_of_most_damage():
    weak = found(0.95, reference=0.94)
    strong = found(0.5, reference=0.1)
    assert strongest([weak, strong]) is strong
    assert strongest([]) is None


@pytest.mark.parametrize(
    ("leaking", "all_of_them", "words"),
    [
        (("a", "b"), ("a", "b", "c"), "2 of 3 attacks on {} find more than their baselines (attacker: client)"),
        (
            ("a", "a", "a"),
            ("a", "a", "a", "b", "b"),
            "1 of 2 attacks on {} finds more than its baseline (attacker: client)",
        ),
        ((), ("a", "a"), "0 of 1 attacks on {} find more than their baselines (attacker: client)"),
    ],
)
def test_attacks_are_counted_and_not_their_cells(leaking, all_of_them, words):
    left = list(leaking)
    cells = []
    for name in all_of_them:
        clear = name in left
        if clear:
            left.remove(name)
        cells.append({**CELL, "attack": name, "success": 0.9, "reference": 0.1, "damage": 0.9, "clear": clear})
    for result in (MatrixResult(cells=cells, dataset="digits"), AttacksResult(attacks=cells, method="m")):
        assert head_of(result)[0].about == words.format("digits" if isinstance(result, MatrixResult) else "m")


def test_many_attacks_are_judged_by_the_worst_and_by_their_controls():
    cells = [
        {**CELL, "attack": name, "success": s, "reference": 0.1, "damage": s, "clear": s > 0.5, "trainings": 9}
        for name, s in (("label_norm", 0.2), ("label_direct", 0.9))
    ]
    for result in (MatrixResult(cells=cells, dataset="digits"), AttacksResult(attacks=cells, method="m")):
        judgement, step = head_of(result)
        assert judgement.word == "leaks"
        assert judgement.about.startswith("1 of 2 attacks on ")
        assert "label_direct by the client on m: 90.0% of labels (baseline 10.0%)." in judgement.why
        assert step.command == "dpzv-audit list defences"
    controls = {
        "tests": 7,
        "smallest_p": 1e-5,
        "together_p": 7e-5,
        "false_alarm": 1e-3,
        "hold": False,
        "worst": "a on m",
    }
    assert head_of(MatrixResult(cells=cells, negative_controls=controls))[0].word == "not to be trusted"
    few = [{**cell, "trainings": 2, "clear": False} for cell in cells]
    assert head_of(MatrixResult(cells=few))[0].word == "too few trainings to tell"
    leaks = [{**cells[0], "success": success, "clear": True, "trainings": 2} for success in (0.9, 1.0)]
    proposed = [head_of(AttacksResult(attacks=[cell], method="m"))[1] for cell in leaks]
    assert ["--trials" in step.command for step in proposed] == [True, False]
    assert head_of(MatrixResult())[0].word == "not measured"


def test_a_bound_that_was_set_aside_is_said_with_a_claim_and_without(results):
    scores = results["audit-scores"]
    assumes = "the view is exactly Gaussian (the scores contradict it: p = 0.01)"
    bounds = [{**bound, "assumes": assumes if bound["name"] == "gaussian" else ""} for bound in scores["estimators"]]
    note = (
        "Warning: a stronger bound, epsilon at least 4.86, was set aside: the scores contradict its assumption that "
        "the view is exactly Gaussian (p = 0.01)."
    )
    unclaimed = {key: value for key, value in scores.items() if key != "claim"} | {"estimators": bounds}
    assert note in head(unclaimed)[0].notes
    audit = results["audit"]
    aside = [{**audit["privacy"]["estimators"][0], "assumes": "", "epsilon_lower": 1.0}, bounds[1]]
    plain = [{key: value for key, value in bound.items() if key != "verdict"} for bound in aside]
    assert note in head(changed(audit, claimed=None, verdict=None, judged=None, estimators=plain))[0].notes
    claimed = judged({**audit["privacy"], "empirical_lower": 1.0, "estimators": plain}, theory=False)
    assert note in head(changed(audit, **claimed))[0].notes
    weaker = [{**bound, "epsilon_lower": 0.5 if bound["assumes"] else 1.0} for bound in plain]
    assert head(changed(audit, claimed=None, verdict=None, judged=None, estimators=weaker))[0].notes == []


def test_what_was_not_tested_is_said_first(results):
    for success in (interval(0.09, 0.08, 0.11), interval(0.9, 0.88, 0.92)):
        first, *_ = answer_of(attacked(success)).judgement.notes
        assert first == "Not tested: other attackers, attacks and data; features."
    assert head(results["train"])[0].notes[0] == "Not tested: no attack was run."
    cells = [{**CELL, "success": 0.1, "reference": 0.1, "clear": False, "learnt": False}]
    cells += [{**CELL, "attack": "b", "state": "does not apply"}]
    judgement, _ = head_of(MatrixResult(cells=[Cell(**cell) for cell in cells]))
    assert judgement.notes == [
        "Not tested: b, which cannot be mounted here.",
        "Warning: the model has not learnt on m: its test accuracy is not shown to be above the majority class.",
    ]
    (row,) = answer_of(MatrixResult(cells=[Cell(**cell) for cell in cells])).rows
    assert row["result"] == "no leak seen, model not learnt"
    elsewhere = MatrixResult(cells=[Cell(**cells[0]), Cell(**{**cells[0], "attack": "c", "learnt": True})])
    (note,) = head_of(elsewhere)[0].notes
    assert note.startswith("Warning: the model has not learnt on m for label_direct: its test accuracy")


def test_a_matrix_counts_attacks_and_shows_each_where_it_finds_most():
    cells = [
        Cell(
            **{
                **CELL,
                "attack": name,
                "method": method,
                "success": success,
                "damage": success,
                "reference": 0.1,
                "clear": success > 0.2,
                "run": f"cells/{name}-{method}/report.html",
            }
        )
        for name, method, success in (("a", "m", 0.3), ("a", "n", 0.9), ("b", "m", 0.1), ("b", "n", 0.15))
    ]
    strongest_of_n = cells[1].model_copy(update={"attack": "strongest", "chosen": "a"})
    answer = answer_of(MatrixResult(cells=[*cells, strongest_of_n], dataset="d"))
    assert answer.subject == "2 attacks on 2 methods, data set d."
    assert answer.judgement.about == "1 of 2 attacks on d finds more than its baseline (attacker: client)"
    assert [row["attack"] for row in answer.rows] == ["a (client) on n", "b (client) on n"]
    assert answer.links == ["cells/a-n/report.html", "cells/b-n/report.html"]
    page = to_html(report_content(MatrixResult(cells=cells, dataset="d")))
    assert '<a href="cells/a-n/report.html">a (client) on n</a>' in page


def test_a_training_without_a_claim_says_so_and_is_to_be_attacked(results):
    result = results["train"] | {"command_line": ["dpzv-audit", "train", "--method", "vafl", "--epochs", "3"]}
    judgement, step = head(result)
    assert (judgement.word, judgement.about) == ("no claim", "vafl promises no ε")
    assert step.command == "dpzv-audit attack --method vafl --epochs 3 --attack strongest"


def test_no_command_but_ours_is_ever_proposed(results):
    hostile = ["rm", "-rf", "/", "; reboot"]
    for name in ("attack", "train", "audit"):
        for privacy in ({}, {"claimed": None, "verdict": None}):
            _, step = head(changed(results[name], **privacy) | {"command_line": hostile})
            words = shlex.split(step.command)
            assert words[0] == "dpzv-audit"
            assert not {"rm", "; reboot"} & set(words)


def audited(results, line, lower, ceiling, **privacy):
    """An unclaimed audit whose one estimator showed `lower` of `ceiling`."""
    estimator = {
        **results["audit"]["privacy"]["estimators"][0],
        "epsilon_lower": lower,
        "ceiling": ceiling,
        "assumes": "",
    }
    result = changed(
        results["audit"], claimed=None, verdict=None, empirical_lower=lower, estimators=[estimator], **privacy
    )
    return {**result, "command_line": ["dpzv-audit", *line]}


def test_an_audit_without_a_claim_asks_for_more_evidence_or_says_that_it_leaks(results):
    system = ["audit", "system", "our_vfl:train"]
    of_system = {**audited(results, system, 1.5, 6.6), "method": "system:our_vfl:train"}
    judgement, step = head(of_system)
    assert (judgement.word, judgement.alarming) == ("measured", False)
    assert step.command == f"dpzv-audit audit system our_vfl:train --trials {2 * TRAININGS}"
    assert head({**of_system, "command_line": ["dpzv-audit", *system, "--trials", "8"]})[1].command.endswith(
        "--trials 16"
    )
    runs = results["audit"]["privacy"]["estimators"][0]["n_in"]
    _, step = head(audited(results, ["audit", "method", "dpzv"], 1.5, 6.6))
    assert step.command == f"dpzv-audit audit method dpzv --runs {2 * runs}"
    judgement, step = head(audited(results, system, 6.6, 6.6))
    assert (judgement.word, judgement.alarming, step.command) == ("leaks", True, "dpzv-audit list defences")


def test_anyone_who_sees_a_view_has_no_article(results):
    claimed = changed(results["audit"], adversary="anyone who sees its output")
    assert head(claimed)[0].about == "ε ≤ 1 (δ = 1e-05, one label changed) against anyone who sees its output"
    page = report_content(read({**claimed, "adversary": "anyone who sees its output", "dataset": "its own"})[0])
    assert page.title == "dpzv-sound audited, against anyone who sees its output"


def test_what_a_verdict_takes_as_given_is_said_to_be_configured(results):
    attack = copy.deepcopy(results["attack"])
    assert answer_of(read(attack)[0]).condition == ""  # nothing is taken as given
    attack["privacy"]["judged"]["given"] = "given Gaussian noise"
    for noise, words in {"grid": "Gaussian noise, rounded to", "float": "add Gaussian noise.", "other": ""}.items():
        attack["config"]["noise"] = noise
        condition = answer_of(read(attack)[0]).condition
        assert words in condition
        assert bool(condition) == bool(words)
        assert condition in to_html(report_content(read(attack)[0]))


def test_a_system_without_a_top_model_is_one_in_its_subject(results):
    attack = copy.deepcopy(results["attack"])
    assert answer_of(read(attack)[0]).subject.startswith("dpzv on digits. ")
    attack["config"]["top_model"] = False
    answer = answer_of(read(attack)[0])
    assert answer.subject.startswith("dpzv on digits, no top model. ")
    assert answer.judgement.step.words == "Data owners decide: claim ε ≤ 5.82, or add noise"


@pytest.mark.parametrize(
    ("protects", "features"),
    [
        (METHODS["dpzv"].protects(METHODS["dpzv"].configure()), "features (unprotected)"),
        (PROTECTS["gradient"], "features (unprotected)"),
        (PROTECTS["embedding"], "features"),
        (METHODS["dp-zo"].protects(METHODS["dp-zo"].configure()), "features"),
        ("what the method does not say: it draws noise", "features"),
        (PROTECTS["none"], "features (unprotected)"),
        ("labels, privatised once before training by label-rr", "features (unprotected)"),
    ],
)
def test_features_that_no_noise_protects_are_named(protects, features):
    result = attacked(interval(0.09, 0.08, 0.11)).model_copy(update={"protects": protects})
    assert answer_of(result).judgement.notes[0] == f"Not tested: other attackers, attacks and data; {features}."
    other = result.model_copy(update={"metric": "correlation of records"})
    assert answer_of(other).judgement.notes[0] == "Not tested: other attackers, attacks and data."


def test_a_bound_says_that_no_attack_gave_it_and_what_it_is_without_assumptions(results):
    attack, audit = results["attack"], results["audit"]
    assert answer_of(read(attack)[0]).facts["measured"] == "ε ≥ 2.13, 95% confidence (audit)"
    exact = {"assumes": "", "delta": 1e-5}
    bounds = [
        {**audit["privacy"]["estimators"][0], **exact, "name": name, "claim_kind": kind, "epsilon_lower": lower}
        for name, kind, lower in (("joint", "epsilon-delta", 0.364), ("gaussian", "trade-off", 1.65))
    ]
    given = {"estimators": bounds, "empirical_lower": 1.65, "given": "given Gaussian noise"}
    shown = {**audit, "privacy": judged({**audit["privacy"], **given})}
    assert answer_of(read(shown)[0]).facts["measured"] == "ε ≥ 1.65, 95% confidence; 0.364 without assumptions"
    survived = {**audit, "privacy": judged({**audit["privacy"], **given, "claimed": 3.0})}
    words = "ε ≥ 1.65, 95% confidence, given Gaussian noise; 0.364 without assumptions"
    assert answer_of(read(survived)[0]).facts["measured"] == words
    assert words in repr(read(survived)[0])


@pytest.mark.parametrize(
    ("success", "after"),
    [
        (interval(0.09, 0.08, 0.11), ": no gain over its baseline seen"),
        (interval(0.9, 0.88, 0.92), ""),
        (interval(0.11, 0.05, 0.9, trainings=2), ""),
    ],
)
def test_the_title_of_a_page_says_that_an_attack_found_nothing(success, after):
    assert report_content(attacked(success)).title == f"a against m{after}"
    failed = {"positive": Control(value=0.2, low=0.1, high=0.3, n=9, what="", kind="positive", expected=1.0)}
    result = attacked(success).model_copy(update={"controls": failed})
    assert report_content(result).title == "a against m"


def test_what_leaks_comes_first_everywhere():
    unclear = {**CELL, "attack": "label_completion", "damage": 0.5, "success": 0.98, "reference": 0.95, "clear": False}
    clear = [
        {**CELL, "attack": name, "damage": damage, "success": damage, "reference": 0.0, "clear": True}
        for name, damage in (("membership_loss", 0.2), ("label_enumeration", 1.0), ("label_denoised", 1.0))
    ]
    result = read({"schema": AttacksResult.SCHEMA, "attacks": [unclear, *clear]})[0]
    order = ["label_enumeration", "label_denoised", "membership_loss", "label_completion"]
    assert [cell.attack for cell in worst_first(result.attacks)] == order
    assert "The worst is label_enumeration by the client" in head_of(result)[0].why


@pytest.mark.parametrize(("epsilon", "word"), [(0.0, "no leak seen"), (0.05, "measured")])
def test_an_attack_whose_coins_prove_an_epsilon_is_not_one_without_a_leak(epsilon, word):
    bound = {"name": "one-run", "delta": 1e-5, "confidence": 0.95, "claim_kind": "epsilon-delta", "assumes": ""}
    bound |= {
        "mu_lower": None,
        "threshold_rule": "",
        "directions": 1,
        "looks": 1,
        "n_in": 9,
        "n_out": 9,
        "ceiling": 5.0,
    }
    certified = CertifiedBound(epsilon_lower=epsilon, neighbours="replace-label", game="coins", **bound)
    result = attacked(interval(0.09, 0.08, 0.11)).model_copy(update={"certified": certified})
    assert head_of(result)[0].word == word
    (row,) = answer_of(result).rows
    assert row["result"] == ("no gain seen; ε ≥ 0.05" if epsilon else word)


def test_an_answer_says_what_was_not_looked_at_and_which_controls_were_not_tested():
    result = AttacksResult(
        method="m", attacks=[Cell.model_validate(CELL | {"control": 0.1})], not_tested=["no x was read"]
    )
    answer = answer_of(result)
    assert answer.judgement.notes[0] == "Not tested: no x was read."
    assert answer.checks == "negative controls not tested, for lack of trainings"
    few = attacked(interval(0.09, 0.08, 0.11)).model_copy(
        update={"controls": {"positive": control("positive", 1.0), "shuffled": control("negative", 0.1)}}
    )
    assert answer_of(few).checks == "1 of 1 controls passed; 1 not tested, for lack of trainings"


def test_a_failed_positive_control_is_at_the_top_of_a_matrix():
    cells = [Cell.model_validate({**CELL, "success": 0.1, "reference": 0.1, "trainings": 9})]
    check = SelfCheck(attack="label_direct", what="", value=0.2, expected=0.9, holds=False)
    answer = answer_of(MatrixResult(cells=cells, self_checks=[check]))
    assert (answer.judgement.word, answer.judgement.alarming) == ("not to be trusted", True)
    assert "the positive control of label_direct failed" in answer.judgement.notes[0]
    assert "positive control of label_direct FAILED" in answer.checks


def test_a_bound_of_a_system_without_a_claim_says_on_what_it_rests(results):
    privacy = {"adversary": "client", "upper": 2.0, "neighbours": "replace-label", "delta": 1e-5}
    audit = read(
        {"schema": "dpzv-audit/audit/1", "method": "system:m:train", "adversary": "client", "privacy": privacy}
    )[0]
    assert answer_of(audit).facts["proven"] == "ε ≤ 2, on what the system states"


@pytest.mark.parametrize(
    ("value", "words"), [(1e-5, "1e-05"), (1.0, "1"), (1 / 60000, repr(1 / 60000)), (True, "true")]
)
def test_a_command_asks_for_every_digit(value, words):
    assert typed(value) == words


@pytest.mark.parametrize(
    ("certified", "game", "words"),
    [
        (None, {"reason": "no time", "command": "play it"}, "no epsilon: no coin game was played, no time; play it"),
        (
            4.387,
            {"reason": "no time", "command": "play it"},
            "ε ≥ 4.38 (coins of a); no coin game was played, no time; play it",
        ),
        (4.387, {"epsilon_lower": 5.31}, "ε ≥ 5.31 (coin game of the client)"),
        (4.387, {"epsilon_lower": 0.5}, "ε ≥ 4.38 (coins of a)"),
        (None, {"epsilon_lower": 0.0}, "ε ≥ 0 (coin game of the client)"),
    ],
)
def test_the_largest_epsilon_that_coins_certify_stands_beside_all_attacks(certified, game, words):
    cell = Cell(**{**CELL, "attack": "a"}, success=0.5, reference=0.1, certified=certified)
    beside = CoinGameBeside(adversary="client", **game)
    result = AttacksResult(method="m", dataset="d", attacks=[cell], coin_game=beside)
    assert answer_of(result).facts["measured"] == words
    assert "measured" not in answer_of(AttacksResult(method="m", dataset="d", attacks=[cell])).facts
