"""The search behind `cost-of-soundness`, on digits: what is held out, what is chosen, what the noise is worth."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from dpzv_audit.accounting import mu_from_epsilon
from dpzv_audit.reproduce import TABLES, Setting, reproduce, search, to_markdown
from dpzv_audit.reproduce.search import Federated, Guarantee, SearchRow, capped, distinct, held_out
from dpzv_audit.runs import json_text
from mechanisms.core.context import Deployment, TrainingData

from .conftest import drawn_figure

TABLE = TABLES["cost-of-soundness"]
CONTROL, DP_SGD, SUMMING, JOINT, PAPER = TABLE.items


def small(item):
    """Two settings of a row, of the size of digits."""

    def fit(options):
        options = {**options, "batch_size": 64} if "batch_size" in options else options
        return {**options, "embedding": 8} if "embedding" in options else options

    return dataclasses.replace(item, dataset={"clients": 4}, tried=tuple(fit(o) for o in item.tried[:2]))


@pytest.fixture(scope="module")
def table():
    return dataclasses.replace(TABLE, items=tuple(small(item) for item in TABLE.items))


@pytest.fixture(scope="module")
def result(table, digits):
    return reproduce(table, Setting(load=digits, epochs=3, seeds=2))


def test_held_out_records_are_training_records_that_are_not_trained_on(digits):
    data = TrainingData.of(digits({"clients": 4}), dtype=torch.float32, device="cpu")
    searching = held_out(data)
    assert searching.records + len(searching.test_labels) == data.records
    assert len(searching.test_labels) == data.records // 6
    assert torch.equal(torch.cat((searching.labels, searching.test_labels)), data.labels)
    for own, back, whole in zip(searching.features, searching.test_features, data.features, strict=True):
        assert torch.equal(torch.cat((own, back)), whole)


def test_lengths_are_capped_and_settings_that_become_the_same_are_tried_once():
    tried = [{"epochs": 500, "clip": 1.0}, {"epochs": 100, "clip": 1.0}, {"steps": 3}]
    assert [capped(options, 100) for options in tried] == [{"epochs": 100, "clip": 1.0}] * 2 + [{"steps": 3}]
    assert distinct([capped(options, 100) for options in tried]) == [{"epochs": 100, "clip": 1.0}, {"steps": 3}]


@pytest.mark.parametrize("item", TABLE.items, ids=lambda item: item.label)
def test_every_setting_can_be_trained_on_mnist_and_claims_the_same(item):
    assert len(distinct(item.tried)) == len(item.tried)
    assert (item.trainer.epsilon, item.trainer.delta) == (1.0, 1e-5)
    for options in item.tried:
        assert {"epochs", "steps"} & set(options)
        assert options.get("epochs", options.get("steps")) <= TABLE.epochs
        if isinstance(item.trainer, Federated):
            assert item.trainer.config(options, Deployment(records=60_000, clients=7, seed=0)).client_rate > 0


def test_the_control_is_tuned_as_hard_as_any_form_of_dpzv():
    tried = {item.label: len(item.tried) for item in TABLE.items}
    assert max(tried.values()) == tried[CONTROL.label]


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_shared_budget_is_spent_whole_and_as_shared(share):
    trainer = DP_SGD.trainer
    options = {**DP_SGD.tried[0], "batch_size": 50, "epochs": 4, "scalar_share": share}
    size = Deployment(records=200, clients=7, seed=0)
    config = trainer.config(options, size)
    n = 7  # 16 rounds, two or three a client: each is in its first pass, of four rounds
    whole = mu_from_epsilon(1.0, 1e-5)
    scalars = 2 * config.clip * n**0.5 / (config.batch_size * config.sigma)
    server = 2 * n**0.5 / config.server_noise_multiplier
    assert scalars**2 / whole**2 == pytest.approx(share)
    assert server**2 / whole**2 == pytest.approx(1 - share)
    found = trainer.guarantee(options, size)
    assert found.sound
    assert 0.999 < found.epsilon <= 1.0


@pytest.mark.ci
def test_settings_chosen_by_accuracy_leave_no_bound_sound(result, table):
    """Taken as given, the sound rows keep their claim and the paper's noise does not."""
    for row in result.rows:
        found = row.guarantee
        assert len(row.tried) > 1
        assert not found.sound
        if row.kind != "claimed":
            assert found.gap == "data-dependent-side"
            assert 0.99 < found.epsilon <= 1.0
            assert found.lower is None or found.lower <= 1.0
        else:
            assert found.gap == "server-state,data-dependent-side"
            assert found.lower > 1.0
    assert to_markdown(table, result).count("| none (data-dependent-side; 1.00 without it) |") == 4


def test_a_setting_that_nobody_chose_among_others_keeps_its_bound(table, digits):
    alone = dataclasses.replace(table.items[0], tried=table.items[0].tried[:1])
    result = reproduce(dataclasses.replace(table, items=(alone,)), Setting(load=digits, epochs=3, seeds=1))
    found = result.rows[0].guarantee
    assert found.sound
    assert found.gap is None
    assert 0.99 < found.epsilon <= 1.0


def test_the_setting_is_chosen_by_held_out_records_and_its_trainings_are_reported(result):
    for row in result.to_json()["rows"]:
        best = max(row["tried"], key=lambda trial: trial["accuracy"])
        assert row["validation"] == best["accuracy"]
        assert row["chosen"] == best["options"]
        assert len(row["by_seed"]) == 2
        assert row["accuracy"]["value"] == pytest.approx(np.mean(row["by_seed"]))
        assert row["accuracy"]["low"] < row["accuracy"]["value"] < row["accuracy"]["high"]
        assert ("frozen" in row["variants"]) == (row["label"] in (JOINT.label, DP_SGD.label, PAPER.label))


def test_the_result_is_plain_json_and_the_same_again(result, table, digits):
    assert json.loads(json_text(result)) == result.to_json()
    again = reproduce(dataclasses.replace(table, items=table.items[:2]), Setting(load=digits, epochs=3, seeds=2))
    assert again.rows == result.rows[:2]


def outcome(label, kind, value, half, **more):
    accuracy = {"value": value, "low": value - half, "high": value + half, "n": 10_000, "confidence": 0.95}
    guarantee = Guarantee(sound=True, gap=None, epsilon=1.0, lower=None)
    given = {"tried": [], "validation": value, "variants": {}, "guarantee": guarantee, **more}
    return SearchRow(label=label, kind=kind, accuracy=accuracy, **given)


@pytest.mark.parametrize(
    ("sound", "verdict"),
    [(0.87, "the control wins"), (0.95, "trained clients win"), (0.911, "neither wins")],
)
def test_the_first_paragraph_says_who_wins_by_the_intervals(sound, verdict, result, table):
    rows = [
        outcome("private control: frozen clients", "control", 0.91, 0.005),
        outcome("sound, other", "sound", 0.5, 0.001),
        outcome("sound, best", "sound", sound, 0.005, variants={"frozen": sound - 0.02}),
    ]
    text = search.who_wins(rows)
    assert verdict in text
    assert f"{100 * sound:.1f}" in text
    assert "“best”" in text
    assert "+2.00 points" in text
    assert "other 50.0 [49.9, 50.1]%" in text
    assert to_markdown(table, result).split("\n\n")[1] == search.who_wins(result.rows)


def test_the_figure_marks_every_setting_and_names_every_row(result, table):
    drawn = drawn_figure(table, result)
    for row in result.rows:
        assert row.label in drawn.split("aria-label=")[1].split(">")[0]
    marks = sum(len(row.tried) for row in result.rows if row.kind != "control")
    # Each mark is used once on the axes and each row once more in the legend.
    assert drawn.count("<use ") >= marks
