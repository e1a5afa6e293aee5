"""Estimation of gradients through the real training paths, by number of queries."""

import pytest
import torch

from attacks.gradient.estimation import CURVE, KNOWN, NOISELESS, SPEC, UNKNOWN, GradientTruth
from mechanisms.core.channel import Adversary, ViewRecorder
from mechanisms.core.context import TrainingData

from ...helpers.built_in import train
from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting

EXACT = {"batch_size": 4, "epochs": 30, "dtype": "float64", "smoothing": 1e-4, "client_rate": 0.0}


def rows(outcome):
    table = outcome.curves["gradient estimates by number of queries"]
    return {(row["estimator"], row["queries"]): (row["cosine"], row["relative error"]) for row in table}


@pytest.mark.parametrize("method", ["dpzv", "zoo-vfl", "syn-zoo-vfl", "cascaded"])
def test_exact_from_the_dimension_on_without_noise(method):
    """4 records of 4 classes are 16 unknowns; 20 queries of a method whose clients stand still give them all."""
    data = random_dataset(records=40)
    outcome = mount(SPEC, method, data, options=EXACT, queries=20, trials=2)
    table = rows(outcome)
    assert table["least squares", 20][0] > 0.99999
    assert table["least squares", 20][1] < 5e-3
    assert table["minimum norm", 10][1] > 0.1
    assert table["minimum norm", 1][0] < table["minimum norm", 3][0] < table["minimum norm", 10][0]
    assert abs(table["ridge, directions unknown", 20][0]) < 0.5
    assert outcome.success.value > 0.99999


def test_a_record_at_a_time_needs_as_many_queries_as_classes():
    """VFL-CZOFO shares its directions: an honest client of 8 of them knows each record's 4 coordinates exactly."""
    options = {"directions": 8, "scalars": "record", "dtype": "float64", "smoothing": 1e-6}
    outcome = mount(SPEC, "czofo", options=options, trials=2)
    cosine, error = rows(outcome)["least squares", 8]
    assert cosine > 0.99999
    assert error < 1e-3


def test_noise_is_what_keeps_the_gradient_apart():
    data = random_dataset(records=40)
    clean, noisy = (mount(SPEC, data=data, options={**EXACT, "sigma": s}, queries=20) for s in (0.0, 100.0))
    assert clean.success.value > 0.999
    assert clean.success.low > 0.1  # of 20 batches at this confidence: others may lie anywhere
    # A cosine of 16 unknown coordinates has a standard deviation of 1/4; 40 of them are far below this on average.
    assert abs(noisy.success.value) < 0.3


def test_the_same_training_without_the_noise_stands_beside_it_and_both_follow_theory():
    """16 unknowns; 10 batches of 16 trials: a mean cosine has a standard error of about 0.02."""
    data = random_dataset(records=40)
    options = {**EXACT, "epochs": 30, "sigma": 0.5}
    outcome = mount(SPEC, data=data, options=options, queries=16, trials=16)
    table = {(r["estimator"], r["queries"]): r for r in outcome.curves[CURVE]}
    for name in (KNOWN, NOISELESS):
        for queries in (10, 16):
            row = table[name, queries]
            assert row["low"] < row["cosine"] < row["high"]
            assert abs(row["cosine"] - row["theory"]) < 0.1, row
    assert table[NOISELESS, 16]["low"] > table[KNOWN, 16]["high"]
    assert table[UNKNOWN, 16]["theory"] == 0.0
    assert table["correlation", 16]["theory"] is None


@pytest.mark.parametrize("options", [{"sigma": 0.0}, {"calibration": "none"}])
def test_where_there_is_no_noise_nothing_is_trained_again(options):
    setting = small_setting(SPEC, options=options, queries=4, trials=2, with_positive=False)
    assert not any(r["estimator"] == NOISELESS for r in SPEC.mount(setting).curves[CURVE])


@pytest.mark.parametrize("method", ["dpzv", "cascaded", "czofo"])
def test_an_eavesdropper_estimates_nothing(method):
    outcome = mount(SPEC, method, adversary="eavesdropper", trials=12)
    assert outcome.success.low <= 0.0 <= outcome.success.high
    assert outcome.success.high - outcome.success.low < 0.4


@pytest.mark.ci
def test_controls_come_out_as_they_must(digits):
    outcome = mount(SPEC, data=digits, options={"epochs": 8}, queries=64, trials=6, with_positive=True)
    assert outcome.success.value > 0.8
    assert outcome.success.low > 0.2
    assert set(outcome.controls) == {"shuffled_labels", "positive"}
    assert all(control.holds for control in outcome.controls.values())
    assert outcome.controls["positive"].value > 0.999


@pytest.mark.parametrize("method", ["vafl", "split"])
def test_the_truth_is_the_gradient_that_a_first_order_server_sends(method):
    data = random_dataset()
    setting = small_setting(SPEC, method, data, options={"batch_size": 8, "top_model": False}, trials=2)
    labels = torch.from_numpy(data.train.labels)
    truth = GradientTruth(setting, labels)
    mail = ViewRecorder(Adversary("client", (1,)))
    tensors = TrainingData.of(data, dtype=torch.float32, device="cpu")
    train(tensors, setting.config, seed=0, replicas=(0, 1), observers=(truth, mail))
    sent = [message.payload * 8 for message in mail.view.received("gradient")]
    assert len(sent) > 5
    assert torch.allclose(truth.gradients(), torch.stack(sent).double(), atol=1e-6)


@pytest.mark.parametrize("method", ["split", "vafl", "compressed"])
def test_where_the_gradient_is_sent_there_is_nothing_to_estimate(method):
    with refused(f"gradient_estimation does not apply to {method}: its server sends"):
        mount(SPEC, method)
