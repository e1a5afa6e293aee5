"""The malicious local optimiser, and the active attack through the real training paths."""

from types import SimpleNamespace

import pytest
import torch

from attacks.label.completion import ACTIVE_SPEC, MaliciousOptimiser
from mechanisms.core.context import TrainingData
from mechanisms.core.replicas import MomentumSGD

from ...helpers.built_in import train
from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting


def test_gradients_grow_where_they_keep_their_sign_and_never_shrink():
    optimiser = MaliciousOptimiser()
    first = torch.tensor([[1.0, 1.0, 1.0, 0.0, 1.0]])
    assert torch.equal(optimiser.own_gradient(first), first)
    second = torch.tensor([[0.5, -2.0, 100.0, 3.0, 0.0]])
    kept = second.clone()
    expected = torch.tensor([[0.5 * 1.5, -2.0 * 1.0, 100.0 * 5.0, 3.0, 0.0]])
    assert torch.allclose(optimiser.own_gradient(second), expected)
    # The storage may be written again; what is compared with is what was there.
    second.zero_()
    assert torch.allclose(optimiser.own_gradient(kept), kept * torch.tensor([[2.0, 2.0, 2.0, 2.0, 1.0]]))


@pytest.mark.parametrize("reading", ["scaled", "velocity"])
def test_what_was_scaled_is_what_the_next_is_compared_with(reading):
    """Gradients 1, 1, 1 by hand, and the steps of a client with momentum that are made of them.

    Scaled: 1, 1 (1 + 1), 1 (1 + 1/2). With the momentum: v = 1, 1.5 (1 + 1.5), (1.875 + 1)(1 + 2.875 / 3.75).
    """
    parameters = SimpleNamespace(flat=torch.zeros(1, 1))
    steps = MomentumSGD(parameters, rate=1.0, momentum=0.5)
    optimiser = MaliciousOptimiser(reading, momentum=0.5)
    taken = []
    for _ in range(3):
        before = parameters.flat.clone()
        steps.step(optimiser.own_gradient(torch.ones(1, 1)))
        taken.append((before - parameters.flat).item())
    expected = {
        "scaled": [1.0, 0.5 + 2.0, 0.25 + 1.0 + 1.5],
        "velocity": [1.0, 3.75, 2.875 * (1 + 2.875 / 3.75)],
    }
    assert taken == pytest.approx(expected[reading])


@pytest.mark.parametrize("method", ["split", "vafl", "compressed"])
def test_only_the_adversarys_model_steps_by_its_rule(method):
    """Of the first round of its own on, client 1's parameters differ from an honest run's; at the first they do not."""
    setting = small_setting(ACTIVE_SPEC, method, random_dataset(), options={"epochs": 1, "batch_size": 16})
    data = TrainingData.of(setting.dataset, dtype=torch.float32, device="cpu")
    honest = train(data, setting.config, seed=0)
    played = train(data, setting.config, seed=0, behaviours={1: MaliciousOptimiser()})
    same = torch.equal(honest.clients[0].flat, played.clients[0].flat)
    # One round of client 1 among three in an asynchronous epoch has nothing to compare with yet.
    assert same is (method == "vafl")
    if same:
        assert torch.equal(honest.clients[1].flat, played.clients[1].flat)


@pytest.mark.slow
def test_the_attack_finds_planted_labels_and_its_controls_hold(digits):
    outcome = mount(
        ACTIVE_SPEC,
        "split",
        digits,
        options={"batch_size": 64},
        options_of_attack={"steps": 200},
        trials=2,
        with_positive=True,
    )
    assert outcome.controls["positive"].value > 0.95
    assert outcome.controls["positive"].holds
    assert outcome.success.value > outcome.chance


def test_scalars_leave_no_gradient_to_scale():
    with refused("there is no gradient to scale"):
        mount(ACTIVE_SPEC, "dpzv")
