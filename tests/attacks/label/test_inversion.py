"""Labels from the gradient of a client's own linear model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks.core.knowledge import OwnParty
from attacks.core.run import attacked_run
from attacks.label.binary import base_rate_alone
from attacks.label.inversion import SPEC, by_labels, by_least_norm, own_gradient, solve

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting


def test_a_batch_no_larger_than_the_features_and_one_is_solved_exactly():
    """Three features and a one: four records' gradients follow from the gradient of the model, up to precision."""
    outcome = mount(SPEC, "split", options={"batch_size": 4, "epochs": 1, "dtype": "float64"})
    assert outcome.success.value == 1.0
    assert outcome.controls["shuffled_labels"].value < 0.6


@pytest.mark.slow
def test_larger_batches_hide_labels_better(digits):
    small, large = (mount(SPEC, "vafl", digits, options={"batch_size": b}, trials=2) for b in (4, 64))
    assert small.success.value > 0.9
    assert 0.2 < large.success.value < small.success.value - 0.2
    assert large.controls["shuffled_labels"].value < 0.2


def test_labels_beat_the_least_norm_where_batches_are_larger_than_the_system(digits):
    """Of batches of 32 and a system of rank 9 labels find 0.71 (split) or 0.79, least norm 0.59 or 0.62."""
    shares = [
        mount(
            SPEC,
            "vafl",
            digits,
            options={"batch_size": 32},
            options_of_attack={"fit": fit},
            trials=2,
        ).success.value
        for fit in ("labels", "least-norm")
    ]
    assert shares[0] > shares[1] + 0.08


def test_labels_whose_gradient_is_received_are_found():
    """As many independent rows as records: whatever the model predicts, mirror descent ends at the labels."""
    generator = np.random.default_rng(0)
    labels = torch.from_numpy(generator.integers(5, size=(3, 6)))
    inputs = torch.from_numpy(generator.standard_normal((3, 6, 9)))
    shares = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1]).double()
    truth, certain = (torch.nn.functional.one_hot(of % 5, 5).double() for of in (labels, labels + 1))
    for predicted in (0.2, shares, 0.1 / 5 + 0.9 * certain):  # and of a model that is sure of another class
        gradient = own_gradient(inputs, predicted - truth)
        for fit in (by_labels, by_least_norm):
            assert torch.equal(fit(inputs, gradient, shares).argmax(2), labels)
    soft = torch.softmax(by_labels(inputs, own_gradient(inputs, 0.2 - truth), shares), 2)
    assert (soft.gather(2, labels.unsqueeze(2)) > 0.98).all()


def test_where_one_class_is_common_its_share_is_what_is_predicted():
    """One record in ten is of class 1: a model learns that first, and batches then tell who it is."""
    dataset = base_rate_alone(small_setting(SPEC, "split")).dataset
    generator = np.random.default_rng(0)

    def told_apart(records):
        noise = generator.standard_normal((len(records), 6)).astype(np.float32)
        return replace(records, features=(noise, *records.features[1:]))

    data = replace(dataset, train=told_apart(dataset.train), test=told_apart(dataset.test))
    setting = small_setting(SPEC, "split", data, options={"batch_size": 16, "epochs": 4})
    outcome = SPEC.mount(replace(setting, trials=2, pilot=True))
    assert outcome.success.value > 0.95  # naming class 0 always finds 0.9


def test_what_it_takes_from_the_mail_is_the_models_own_gradient():
    """The sum over records is the gradient that the client's model gets by its own backward pass."""
    setting = small_setting(SPEC, "split", options={"dtype": "float64"}, trials=2)
    run = attacked_run(SPEC, setting)
    first = run.view.received("gradient")[0]
    own = run.known.granted(OwnParty)
    features = own.features[first.ids]
    inputs = torch.cat((features, torch.ones_like(features[..., :1])), 2)
    _, pullback = own.evaluator.vjp(own.initial(), features)
    flat, _ = pullback(first.payload)
    expected = torch.cat((flat[:, :12].unflatten(1, (4, 3)), flat[:, 12:].unsqueeze(2)), 2).mT
    assert torch.allclose(own_gradient(inputs, first.payload), expected)


def test_the_smallest_solution_fits():
    generator = np.random.default_rng(0)
    inputs = torch.from_numpy(generator.standard_normal((2, 7, 4)))
    gradient = torch.from_numpy(generator.standard_normal((2, 4, 3)))
    assert torch.allclose(inputs.mT @ solve(inputs, gradient), gradient)


@pytest.mark.parametrize("method", ["dpzv", "czofo", "cascaded"])
def test_it_needs_a_gradient(method):
    with refused("its server sends no gradient of a record"):
        mount(SPEC, method, random_dataset())
