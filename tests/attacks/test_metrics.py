import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attacks.metrics import cosine_similarity, low_rates, majority_baseline, prior_baseline, relative_error
from dpzv_audit.errors import InputError


@given(st.lists(st.integers(0, 6), min_size=1, max_size=50))
def test_baselines_are_ordered_and_bounded(labels):
    majority, prior = majority_baseline(labels, 7), prior_baseline(labels, 7)
    assert 1 / 7 - 1e-12 <= prior <= majority + 1e-12
    assert majority <= 1.0
    assert majority == max(labels.count(k) for k in range(7)) / len(labels)


def test_prior_baseline_is_the_chance_that_two_draws_agree():
    assert prior_baseline([0, 0, 0, 1], 2) == pytest.approx(0.75**2 + 0.25**2)
    assert majority_baseline(torch.tensor([0, 0, 0, 1]), 5) == 0.75


def test_cosine_and_relative_error_of_known_vectors():
    truth = np.array([[3.0, 4.0], [1.0, 0.0], [1.0, 0.0]])
    estimate = np.array([[6.0, 8.0], [0.0, 2.0], [0.0, 0.0]])
    np.testing.assert_allclose(cosine_similarity(estimate, truth), [1.0, 0.0, 0.0])
    np.testing.assert_allclose(relative_error(estimate, truth), [1.0, np.sqrt(5.0), 1.0])


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: majority_baseline([0, 3], 3), "classes = 3"),
        (lambda: prior_baseline([], 3), "labels"),
        (lambda: prior_baseline([0.5], 3), "labels"),
        (lambda: cosine_similarity(np.ones(3), np.zeros(3)), "norm 0"),
        (lambda: relative_error(np.ones(3), np.ones(4)), "estimate"),
    ],
)
def test_bad_input_is_named(call, word):
    with pytest.raises(InputError, match=word):
        call()


def test_low_rates_allow_for_trials_of_different_sizes():
    scores = np.tile(np.linspace(1.0, 0.0, 200), (4, 1))
    truth = np.zeros((4, 200), dtype=bool)
    for row, count in enumerate((1, 2, 3, 4)):
        truth[row, :count] = True
    found = low_rates(scores, truth, 0.95)
    assert found["true positive rate at 1% false positives"].value == 1.0
