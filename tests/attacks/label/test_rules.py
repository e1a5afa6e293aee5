import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.label.direct import RULES, argmin, first_negative
from dpzv_audit.base.errors import NotFinite

from ...helpers.refusals import refused


@pytest.mark.parametrize("rule", sorted(RULES))
@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(2, 200),
    records=st.integers(1, 300),
    spread=st.floats(0.0, 8.0),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_exact_gradients_give_every_label(rule, classes, records, spread, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (records,), generator=generator)
    logits = (spread * torch.randn(records, classes, generator=generator, dtype=dtype)).requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits, labels)
    (gradients,) = torch.autograd.grad(loss, logits)
    assert torch.equal(RULES[rule](gradients), labels)


def test_rules_differ_where_several_coordinates_are_negative():
    gradients = torch.tensor([[0.1, -0.1, -0.8, 0.2]])
    assert argmin(gradients).tolist() == [2]
    assert first_negative(gradients).tolist() == [1]


def test_without_a_negative_coordinate_the_published_rule_takes_the_smallest():
    # Softmax that rounded to the label's one-hot vector leaves 0 there and positive numbers elsewhere.
    gradients = torch.tensor([[1e-20, 0.0, 3e-20], [0.3, 0.2, 0.1]])
    assert first_negative(gradients).tolist() == [1, 2]


def test_rules_work_over_any_leading_shape():
    gradients = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1))
    for rule in RULES.values():
        labels = rule(gradients)
        assert labels.shape == (3, 5)
        assert labels.dtype == torch.int64
        assert labels[2, 4] == rule(gradients[2, 4])


@pytest.mark.parametrize("rule", sorted(RULES))
def test_gradients_of_a_training_that_diverged_are_named(rule):
    with refused("gradients", NotFinite):
        RULES[rule](torch.tensor([[0.0, float("nan")]]))
