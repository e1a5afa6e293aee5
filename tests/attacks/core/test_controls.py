"""Every attack's controls: the rules of attacks.md hold for all in the registry, and controls can fail."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks import ATTACKS
from attacks.core.spec import DoesNotApply, LabelGuesses, no_baselines
from dpzv_audit.base.findings import ADVERSARIES, SERVERS, Control, Interval
from dpzv_audit.data import load
from dpzv_audit.data.vertical import Records, VerticalDataset, sample_of_training
from dpzv_audit.evidence.matrix import measured_cell, negative_controls
from dpzv_audit.results import AttackResult, Cell, Utility
from dpzv_audit.testing import check_attack
from mechanisms import METHODS

from ...helpers.refusals import refused
from ..conftest import mount, small_setting

CHEAP = {
    "label_completion": {"steps": 150},
    "label_completion_active": {"steps": 150},
    "label_matching": {"starts": 2, "steps": 60},
    "feature_inversion": {"known_records": 40, "permutations": 4},
    "feature_hijacking": {"known_records": 40, "embeddings": "mean", "permutations": 2},
    "attribute_inference": {"known_records": 60, "embeddings": "mean", "permutations": 2},
    "record_linkage": {"known_records": 60, "candidates": 60, "embeddings": "mean", "permutations": 2},
    "membership_loss": {"pool": 256},
    "membership_lira": {"pool": 256, "shadows": 16},
    # So soon no record beats another twice over: all scores would be 0.
    "membership_rmia": {"pool": 256, "shadows": 16, "gamma": 1.0},
}
TRIALS = {"label_probe": 48, "label_norm": 32, "label_precision": 96, "attribute_inference": 2, "feature_hijacking": 2}
"""More where a trial has few guesses, or luck that all of them share; fewer where records are what varies."""
LONG = {
    "feature_inversion": pytest.mark.ci,
    "label_completion": pytest.mark.ci,
    "label_completion_active": pytest.mark.slow,
    "label_denoised": pytest.mark.slow,
    "label_enumeration": pytest.mark.ci,
    "label_matching": pytest.mark.ci,
    "label_precision": pytest.mark.ci,
    "label_signature": pytest.mark.ci,
}
"""Attacks that take many seconds, and how often each is tried; the slow ones fit what `label_completion` fits."""
EPOCHS = {"membership_loss": 40, "membership_lira": 40, "membership_rmia": 80, "label_norm": 10}


def fitting(name, digits, **rest):
    """A setting in which the attack applies: binary data or digits, a method without noise, or its planted one."""
    spec = ATTACKS[name]
    for data in (digits, load("breast-cancer")):
        for method in ("dpzv", "split"):
            setting = small_setting(
                spec,
                method,
                data,
                options={"batch_size": 32, "epochs": EPOCHS.get(name, 4), **rest.get("options", {})},
                queries=spec.setup.queries if spec.setup.queries == 1 else 10,
                trials=TRIALS.get(name, 8),
                options_of_attack=CHEAP.get(name, {}),
                with_positive=rest.get("with_positive", False),
            )
            if spec.needs.unmet(setting) is None:
                return spec, setting
    planted = replace(spec.goal.positive.setting(setting), trials=16)
    assert spec.needs.unmet(planted) is None, f"{name} applies to nothing"
    return spec, planted


@pytest.mark.parametrize("name", [pytest.param(n, marks=LONG[n]) if n in LONG else n for n in ATTACKS])
def test_every_attack_keeps_the_contract(name, digits):
    """Shapes, the same answer twice, a view that stays, and a negative control at chance: one false alarm in 10,000.

    On few records: an attack's fits are what takes time, and the rules hold at any number.
    """
    spec, setting = fitting(name, sample_of_training(digits, 384))
    check_attack(spec, setting)


@pytest.mark.parametrize("name", ATTACKS)
def test_the_specification_of_an_attack_is_whole(name):
    spec = ATTACKS[name]
    assert spec.name == name
    assert spec.adversaries
    assert set(spec.adversaries) <= set(ADVERSARIES)
    assert "\n" not in spec.summary
    assert bool(spec.needs.requires) == bool(spec.needs.requires_because)
    # Of a correlation chance is 0.
    least = 0.3 if name in ("feature_inversion", "feature_hijacking") else 0.5
    assert least < spec.goal.positive.least <= 1.0
    with refused(f"{name} is mounted by"):
        spec.check("nobody", {})
    for key, value in spec.needs.requires.items():
        with refused(f"{name} does not apply with {key}", DoesNotApply):
            spec.check(spec.adversaries[0], {key: not value})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_applies_to_a_method_or_says_why_in_one_line(name, method, digits):
    spec = ATTACKS[name]
    reason = spec.needs.unmet(small_setting(spec, method, digits))
    if reason is not None:
        assert reason
        assert "\n" not in reason
        needs_more = " with top_model True" if "top_model" in METHODS[method].config.unused else None
        with refused(f"{name} does not apply( to {method}:{f'|{needs_more}' if needs_more else ''})", DoesNotApply):
            mount(spec, method, digits)


def test_nothing_is_left_to_find_for_those_who_are_sent_the_labels(digits):
    for spec in ATTACKS.values():
        reason = spec.needs.unmet(small_setting(spec, "compressed", digits, options={"local_gradient": "recomputed"}))
        told = spec.adversaries[0] not in (*SERVERS, "release") and spec.name != "label_received"
        assert ("label_received reads them" in (reason or "")) == told, spec.name


@pytest.mark.parametrize("method", ["dpzv", "vafl"])
def test_an_attack_that_peeks_at_the_truth_fails_its_negative_control(method, digits):
    """The control can fail: guesses that follow the true labels, not those trained on, are found out."""
    truth = torch.from_numpy(digits.train.labels)
    honest = ATTACKS["label_direct"]

    def peeking(view, known):
        guesses = honest.infer(view, known)
        return LabelGuesses(truth[guesses.ids], guesses.ids)

    spec = replace(honest, infer=peeking)
    # By their number: trials that agree in everything count as one guess each.
    outcome = mount(spec, method, digits, options={"batch_size": 64, "epochs": 4}, trials=16)
    assert outcome.success.value == 1.0
    shuffled = outcome.controls["shuffled_labels"]
    assert not shuffled.holds
    cells = [Cell(attack="a", control_p=p) for p in (shuffled.p_value, *[0.5] * 99)]
    assert not negative_controls(cells).hold


def test_an_attack_that_guesses_fails_its_positive_control(digits):
    honest = ATTACKS["label_direct"]

    def guessing(view, known):
        guesses = honest.infer(view, known)
        return LabelGuesses(torch.zeros_like(guesses.labels), guesses.ids)

    spec = replace(honest, infer=guessing)
    outcome = mount(spec, "vafl", digits, options={"batch_size": 64, "epochs": 4}, with_positive=True)
    assert not outcome.controls["positive"].holds
    assert outcome.controls["shuffled_labels"].holds


def scores_at_random(spec):
    """`spec` with scores of a generator's own, whatever was learnt."""
    generator = np.random.default_rng(7)

    def infer(view, known):
        guesses = spec.infer(view, known)
        if isinstance(guesses, np.ndarray):
            return generator.random(guesses.shape)
        return replace(guesses, scores=torch.from_numpy(generator.random(guesses.scores.shape)))

    return replace(spec, infer=infer, goal=replace(spec.goal, baselines=no_baselines))


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("label_norm", 3),
        pytest.param("label_spectral", 3, marks=pytest.mark.slow),
        pytest.param("membership_loss", 1, marks=pytest.mark.ci),
    ],
)
def test_scores_at_random_fail_the_positive_control_and_the_attack_passes(name, seeds, digits):
    """At a self-check's confidence, where an interval over two trainings is all of [0, 1].

    Areas of random scores lie 0.5 +- 0.04 at most over two trainings, and 0.5 +- 0.01 over membership's sixteen: they
    are five standard errors or more below what must be reached, so that one passes once in 1e6 runs.
    """
    spec = ATTACKS[name]
    data = digits if name == "membership_loss" else load("breast-cancer")
    for seed in range(seeds):
        setting = replace(
            small_setting(spec, "split", data, options={"batch_size": 32}, seed=seed), confidence=1.0 - 5e-4
        )
        guessed = scores_at_random(spec).positive_control(setting)
        assert not guessed.holds, guessed
        assert spec.positive_control(setting).holds


@pytest.mark.parametrize(
    ("kind", "value", "p", "expected", "holds"),
    [
        ("negative", 0.6, 0.051, 0.5, True),
        ("negative", 0.6, 0.049, 0.5, False),
        ("negative", 0.9, None, 0.5, True),
        ("positive", 0.95, None, 1.0, False),
        ("positive", 1.0, None, 1.0, True),
        ("positive", 0.5, None, 0.95, False),
        ("positive", 0.96, None, 0.95, True),
    ],
)
def test_a_control_holds_where_its_p_value_or_its_value_says_so(kind, value, p, expected, holds):
    shown = {"value": value, "low": 0.0, "high": 1.0, "n": 9, "confidence": 0.95}
    made = Control(**shown, what="", kind=kind, expected=expected, p_value=p)
    assert made.holds is holds
    rate = Interval(**shown)
    result = AttackResult(success=rate, controls={"it": made}, utility=Utility(test_accuracy=rate))
    assert measured_cell(Cell(), result, "run").controls_hold is holds


def hostile(labels, classes, *blocks):
    """Data of a user's own of which features and labels say nothing, in a train and a test part."""
    wild = tuple(np.ascontiguousarray(block, np.float32) for block in blocks)
    part = Records(wild, np.asarray(labels))
    return VerticalDataset("own", part, part, classes, "", {})


@pytest.mark.parametrize("name", ["label_direct", "label_direction", "label_corrected", "label_scalar"])
@pytest.mark.parametrize("data", ["constant", "huge", "few", "rare"])
def test_a_positive_control_holds_whatever_the_users_data_are(name, data, digits):
    """Constant and huge features, few records, a class with four: the attack is right, and so is its control."""
    rng = np.random.default_rng(2)
    many = rng.integers(2, size=300)
    labels, features = {
        "constant": (many, np.zeros((300, 3))),
        "huge": (many, 1e9 * rng.normal(size=(300, 3))),
        "few": (np.arange(40) % 2, rng.normal(size=(40, 3))),
        "rare": (np.arange(300) % 300 < 4, rng.normal(size=(300, 3))),
    }[data]
    own = hostile(np.asarray(labels, np.int64), 2, features, features)
    spec = ATTACKS[name]
    control = spec.positive_control(small_setting(spec, "split", own, options={"batch_size": 32, "epochs": 1}))
    assert control.holds, control
