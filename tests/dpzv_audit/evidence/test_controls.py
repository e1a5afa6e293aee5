"""Failed controls in `verify`: what they void, what stands, and the one false-alarm rate of all controls of a file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from attacks import ATTACKS, AttackSpec
from attacks.core.spec import LabelGuesses
from dpzv_audit.base.findings import FALSE_ALARM, Control
from dpzv_audit.base.registry import Registry
from dpzv_audit.claims import method as method_claims
from dpzv_audit.data import load
from dpzv_audit.evidence.controls import Judge, pooled
from dpzv_audit.evidence.verdict import AttackEvidence, Evidence

CLAIMS = """
[[claim]]
name = "{name}"
kind = "attack"
method = "split"
attack = "{attack}"
adversary = "client"
success_at_most = {limit}
dataset = "digits"
config = {{ top_model = false, batch_size = 64, epochs = 1 }}
"""


def run_of(value=0.1, p_value=None, kind="negative", expected=0.1, what="planted"):
    about = {"low": 0.0, "high": 1.0, "n": 10, "tested_by": "names" if p_value else None}
    return Control(value=value, what=what, kind=kind, expected=expected, p_value=p_value, **about)


def one_of(runs, least=0.0):
    (found,) = pooled("planted", [{"control": (run,)} for run in runs], least=least)
    return found


def evidence_of(*controls, **more):
    attack = {"success": 0.9, "mounted": "planted", "baselines": {}, "controls": {}}
    measured = AttackEvidence(rates=(0.9,) * 16, means=attack, controls=controls)
    return Evidence(p_value=1e-9, attack=measured, **more)


def test_p_values_of_blocks_are_combined_as_fisher_does():
    p_values = [0.2, 0.01, 0.5, 0.04]
    found = one_of([run_of(p_value=p) for p in p_values])
    assert found.p_value == pytest.approx(stats.combine_pvalues(p_values, method="fisher").pvalue)
    assert (found.runs, found.tested_by) == (4, "names")


@pytest.mark.parametrize(("blocks", "tested"), [(7, False), (8, True), (64, True)])
def test_blocks_without_a_p_value_are_units_of_bets(blocks, tested):
    found = one_of([run_of(1.0, expected=0.5)] * blocks)
    assert (found.p_value is not None) == tested
    if blocks == 64:
        assert found.p_value < 1e-9


def test_a_correct_build_fails_its_negative_control_as_seldom_as_stated():
    """Uniform p-values, and areas of few records about 0.5: 2,000 claims each, of which at 1e-3 at most 10 may fail.

    More than 10 of 2,000 at 1e-3 has probability 1e-5 (binomial), for the fixed seed once.
    """
    generator = np.random.default_rng(3)
    fails = {"fisher": 0, "bets": 0}
    for _ in range(2_000):
        p_values = generator.random(6)
        areas = generator.binomial(20, 0.5, size=16) / 20.0
        fails["fisher"] += not one_of([run_of(p_value=p) for p in p_values]).holds(FALSE_ALARM)
        fails["bets"] += not one_of([run_of(area, expected=0.5) for area in areas]).holds(FALSE_ALARM)
    assert max(fails.values()) <= stats.binom.isf(1e-4, 2_000, FALSE_ALARM)


def test_a_failed_negative_control_voids_a_refutation_of_its_own_attack():
    failed = one_of([run_of(0.9, p_value=1e-5)] * 4)
    own = Judge()(evidence_of(failed))
    (void,) = own.voids
    assert (own.p_value, void.reason, void.refutations) == (1.0, "failed-control", True)
    assert "the negative control control of planted failed: it found 0.900 where chance is 0.100" in void.words
    other = Judge()(evidence_of(replace(failed, attack="another")))
    (void,) = other.voids
    assert (other.p_value, void.refutations) == (1e-9, False)


def test_a_failed_positive_control_lets_a_refutation_stand():
    about = {"kind": "positive", "expected": 1.0 - 1e-9, "what": "must be 1"}
    failed = one_of([run_of(1.0 - 1e-5, **about), run_of(1.0, **about)])
    found = Judge()(evidence_of(failed))
    (void,) = found.voids
    assert (found.p_value, void.refutations) == (1e-9, False)
    # What failed is not shown as what it had to reach.
    assert "failed in 1 of 2 runs: it reached 0.99999 (must be 1)" in void.words


def test_controls_that_hold_leave_the_evidence_as_it_is():
    evidence = evidence_of(one_of([run_of(p_value=0.3)] * 4), one_of([run_of(1.0, kind="positive", expected=0.9)]))
    assert Judge()(evidence) == evidence


def test_a_control_that_could_not_be_tested_is_said():
    found = Judge()(evidence_of(one_of([run_of()] * 3)))
    assert not found.voids
    assert found.not_tested == ("the negative control control of planted ran in 3 blocks, too few to test it",)


@pytest.mark.parametrize(("claims", "controls"), [(1, 1), (1, 4), (5, 1), (5, 4)])
def test_all_controls_of_a_file_share_one_rate(claims, controls):
    tested = [one_of([run_of(p_value=0.5)])] * controls
    assert Judge.of_file(range(claims)).level(tested) * controls * claims == pytest.approx(FALSE_ALARM)


def peeking(view, known):
    """Look the labels up where they are stored, not in the view."""
    found = ATTACKS["label_direct"].infer(view, known)
    truth = load("digits").train.labels
    return LabelGuesses(found.ids.new_tensor(truth[found.ids.cpu().numpy() % len(truth)]), found.ids)


def guessing(view, known):
    found = ATTACKS["label_direct"].infer(view, known)
    return LabelGuesses(found.labels.new_zeros(found.labels.shape), found.ids)


@pytest.fixture
def verify(tmp_path, monkeypatch, cli):
    """Verify claims on attacks of which one peeks at the truth and one guesses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(method_claims, "POSITIVE_BLOCKS", 1)
    planted = {"label_peeks": peeking, "label_guesses": guessing}
    honest = ATTACKS["label_direct"]
    specs = [*ATTACKS.values(), *(replace(honest, name=name, infer=infer) for name, infer in planted.items())]
    monkeypatch.setattr("attacks.ATTACKS", Registry(ATTACKS.group, AttackSpec, specs))
    monkeypatch.setattr("dpzv_audit.evidence.choosing.ATTACKS", Registry(ATTACKS.group, AttackSpec, specs))
    monkeypatch.setattr(
        "dpzv_audit.evidence.choosing.attack_named",
        lambda name: next(spec for spec in specs if spec.name == name),
    )

    def run(*claims, flags=""):
        texts = [CLAIMS.format(name=name, attack=attack, limit=limit) for name, attack, limit in claims]
        (tmp_path / "claims.toml").write_text("\n".join(texts))
        done = cli(f"verify claims.toml --json --out out --cache kept {flags}")
        assert done.out, done.err
        return done.code, done.json

    return run


@pytest.mark.ci
def test_an_attack_that_peeks_refutes_nothing_and_json_names_the_control(verify):
    code, found = verify(("peeks", "label_peeks", 0.5))
    (claim,) = found["claims"]
    assert claim["attack"]["success"] == 1.0
    assert (code, claim["verdict"], claim["judged"]["reason"]) == (1, "not-tested", "failed-control")
    assert "negative control shuffled labels of label_peeks" in claim["judged"]["why"]
    failed = {one["name"]: one for one in claim["controls"] if not one["holds"]}
    assert failed["shuffled_labels"]["p_value"] < failed["shuffled_labels"]["level"] == FALSE_ALARM
    assert found["controls"]["false_alarm"] == FALSE_ALARM
    assert any(name.endswith(": shuffled_labels") for name in found["controls"]["failed"])
    assert "with probability at most 0.001" in found["sentence"]
    # The same from the cache.
    again, kept = verify(("peeks", "label_peeks", 0.5))
    assert kept["cached"]
    assert (again, kept["claims"]) == (code, found["claims"])


@pytest.mark.ci
def test_a_refutation_stands_beside_a_positive_control_that_fails_and_a_pass_does_not(verify, monkeypatch):
    monkeypatch.setattr(
        AttackSpec,
        "positive_control",
        lambda spec, setting: run_of(0.2, kind="positive", expected=0.95, what="planted: must be 0.95 at least"),
    )
    flags = "--allow not-tested"
    code, found = verify(("false", "label_direct", 0.5), ("blind", "label_guesses", 0.5), flags=flags)
    false, blind = found["claims"]
    assert (code, false["verdict"], blind["verdict"]) == (1, "refuted", "not-tested")
    assert "positive control positive of label_direct" in false["judged"]["why"]
    assert blind["judged"]["reason"] == "failed-control"
    assert [one["level"] for one in false["controls"] if one["p_value"] is not None] == [FALSE_ALARM / 2]
    # Another client, whom the claim is about too, has a control of its own.
    assert {name.partition(":")[0] for name in found["controls"]["failed"]} == {"false", "blind"}
    page = next(Path("out").glob("*/report.html")).read_text()
    assert "share a false-alarm rate of 0.001" in page
    assert "FAILED" in page
