"""Attacks on binary labels: norms and directions of gradients, and the spectrum of embeddings."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from attacks import ATTACKS
from attacks.core.spec import DoesNotApply
from attacks.label.binary import by_norm, guesses_of, mean_by_record, projections
from dpzv_audit.data import load
from dpzv_audit.data.vertical import Records

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset

NORM, DIRECTION, SPECTRAL = (ATTACKS[f"label_{name}"] for name in ("norm", "direction", "spectral"))


@pytest.fixture(scope="module")
def cancer():
    return load("breast-cancer")


def mounted(spec, method, data, **rest):
    options = {"batch_size": 32, "epochs": 6, **rest.pop("options", {})}
    return mount(spec, method, data, options=options, **{"trials": 6, **rest})


@pytest.mark.parametrize("method", ["split", "vafl", "compressed"])
def test_directions_of_gradients_name_every_binary_label(method, cancer):
    outcome = mounted(DIRECTION, method, cancer, with_positive=method == "split")
    assert outcome.success.value > 0.99
    assert outcome.measures["labels found"].value > 0.9
    # Three of each class are given to an attacker that uses the positives alone; these are not guessed.
    assert outcome.success.n == 6 * (448 - 3)
    assert all(control.holds for control in outcome.controls.values())
    assert outcome.controls["shuffled_labels"].high - outcome.controls["shuffled_labels"].low < 0.6


def test_noise_on_gradients_hides_directions(cancer):
    noisy = mounted(DIRECTION, "vafl", cancer, options={"dp": "gradient", "dp_clip": 0.1, "dp_sigma": 3.0})
    assert noisy.success.low <= 0.5 <= noisy.success.high
    assert noisy.success.value < 0.6


def test_norms_show_the_rarer_class_where_the_base_rate_is_all_that_is_learnt(cancer):
    outcome = mounted(NORM, "vafl", cancer, options={"epochs": 20}, with_positive=True)
    assert outcome.success.value > 0.9
    assert outcome.controls["positive"].value > 0.95
    assert all(control.holds for control in outcome.controls.values())


def test_the_spectrum_of_features_is_what_the_spectral_attack_finds(cancer):
    """Breast-cancer's first component is its label: training adds nothing, and the baselines say so."""
    outcome = mounted(SPECTRAL, "split", cancer, with_positive=True)
    assert outcome.success.value > 0.9
    assert outcome.baselines["the same on raw features"].value > 0.9
    assert outcome.baselines["features alone, trained on permuted labels"].value > 0.85
    assert outcome.controls["shuffled_labels"].holds
    assert outcome.controls["positive"].value > 0.95


def test_a_mean_by_record_is_over_the_rounds_that_hold_it():
    known = small_known(records=4)
    values = torch.tensor([[[1.0, 2.0]], [[3.0, 5.0]]])
    ids = torch.tensor([[[0, 1]], [[0, 2]]])
    mean, count = mean_by_record(values, ids, known)
    assert mean.tolist() == [[2.0, 2.0, 5.0, 0.0]]
    assert count.tolist() == [[2, 1, 1, 0]]


def test_records_that_were_never_seen_are_not_guessed_and_equally_many_are_in_each_training():
    known = small_known(records=4, share=0.25)
    count = torch.tensor([[1.0, 0.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    guesses = guesses_of(torch.tensor([[4.0, 9.0, 1.0, 8.0], [1.0, 2.0, 3.0, 4.0]]), count, known)
    assert guesses.ids[0, 0].tolist() == [0, 2]
    assert guesses.scores[0, 0, :, 1].tolist() == [4.0, 1.0]
    assert guesses.ids.shape == (1, 2, 2)
    assert guesses.labels.sum(2).tolist() == [[1, 1]]


def test_as_many_records_are_called_one_as_there_are():
    known = small_known(records=8, rarer=1, share=0.25)
    guesses = guesses_of(torch.arange(8.0).unsqueeze(0), None, known)
    assert guesses.labels.tolist() == [[[0, 0, 0, 0, 0, 0, 1, 1]]]
    other = guesses_of(torch.arange(8.0).unsqueeze(0), None, small_known(records=8, rarer=0, share=0.75))
    assert other.labels.tolist() == [[[1, 1, 1, 1, 1, 1, 0, 0]]]


def test_known_positives_are_none_of_those_that_are_left_to_find():
    known = small_known(records=8, rarer=1, share=0.5)
    scores = torch.tensor([[9.0, 9.0, 3.0, 2.0, -1.0, -2.0, -3.0, -4.0]])
    count = torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    guesses = guesses_of(scores, count, known, 2)
    assert guesses.ids.tolist() == [[[2, 3, 4, 5, 6, 7]]]
    assert guesses.labels.tolist() == [[[1, 1, 0, 0, 0, 0]]]


def small_known(records, rarer=1, share=0.5, shares=(0.5, 0.5)):
    return SimpleNamespace(
        records=records, rarer=rarer, share_of_ones=share, seed=0, shares=shares, classes=len(shares)
    )


def test_projections_put_the_smaller_cluster_on_the_positive_side():
    generator = np.random.default_rng(0)
    truth = np.arange(100) < 20
    rows = generator.standard_normal((100, 3)) * 0.1 + np.outer(truth, [1.0, -2.0, 0.5])
    for sign in (1.0, -1.0):
        along = projections(torch.from_numpy(sign * rows)[None])[0].numpy()
        assert along[truth].min() > along[~truth].max()


def test_more_than_two_classes_are_one_line():
    with refused("label_spectral does not apply to split: random has 4 classes; use data with 2"):
        mount(SPECTRAL, "split")


def test_norms_order_several_classes_by_how_rare_they_are(monkeypatch):
    """Class 1 is the commonest and class 2 the rarest; as many records are named as each class has."""
    truth = np.repeat([1, 0, 2], [60, 30, 10])
    norms = np.array([2.0, 1.0, 3.0])[truth] + 0.4 * np.random.default_rng(0).random(100)
    gradients, ids = torch.from_numpy(norms).view(1, 1, 100, 1), torch.arange(100).view(1, 1, 100)
    monkeypatch.setattr("attacks.label.binary.cut_layer", lambda view, known: (gradients, ids))
    guesses = by_norm(None, small_known(records=100, shares=(0.3, 0.6, 0.1)))
    assert np.array_equal(guesses.labels[0, 0].numpy(), truth)
    assert np.array_equal(guesses.scores.argmax(3)[0, 0, [0, 99]].numpy(), [1, 2])


@pytest.mark.parametrize("attack", ["label_direction", "label_denoised"])
def test_a_class_that_is_too_small_is_left_out_and_the_attack_is_not(attack):
    """Of four classes one has two records, and three labels of each are known: the others are found."""
    data = random_dataset(records=160, held_out=8)
    labels = np.where(np.arange(160) < 2, 3, np.arange(160) % 3)
    data = replace(data, train=Records(data.train.features, labels))
    outcome = mount(ATTACKS[attack], "split", data, options={"top_model": False, "epochs": 3}, trials=2)
    assert outcome.success.value > 0.9
    assert outcome.measures["records of classes without a known label"].value == pytest.approx(2 / 151)
    rare = replace(data, train=Records(data.train.features, np.where(np.arange(160) < 157, 0, np.arange(160) % 4)))
    with refused("option labels_per_class is 3; use at most 0: no two classes have more records", DoesNotApply):
        mount(ATTACKS[attack], "split", rare, trials=2)


@pytest.mark.parametrize("spec", [NORM, DIRECTION], ids=lambda spec: spec.name)
def test_scalars_carry_no_gradient_of_a_record(spec):
    with refused("its server sends no gradient of a record"):
        mount(spec, "dpzv", random_dataset(classes=2))


def test_norms_agree_with_their_authors_leak_by_batch(monkeypatch):
    """Li et al. 2022 (section 3) give the area under the curve of raw norms in each batch; theirs is its mean."""
    generator = np.random.default_rng(0)
    batches, size = 200, 64
    truth = generator.random(batches * size) < 0.25
    # Norms shrink by a factor of 100 from the first batch to the last.
    norms = np.exp(0.5 * generator.standard_normal(truth.size) + 0.7 * truth) * np.logspace(0, -2, truth.size)
    ids = torch.arange(truth.size).view(batches, 1, size)
    gradients = torch.from_numpy(norms).view(batches, 1, size, 1)
    monkeypatch.setattr("attacks.label.binary.cut_layer", lambda view, known: (gradients, ids))
    guesses = by_norm(None, small_known(records=truth.size, share=0.25))
    ours = roc_auc_score(truth, guesses.scores[0, 0, :, 1].numpy())
    pairs = zip(truth.reshape(batches, size), norms.reshape(batches, size), strict=True)
    theirs = np.mean([roc_auc_score(*pair) for pair in pairs])
    assert ours == pytest.approx(theirs, abs=0.02)
    assert roc_auc_score(truth, norms) < theirs - 0.1  # what raw norms over all rounds lose
