"""The permutation test of labels against what an attack guessed: its law, and its p-values where nothing is told."""

from itertools import combinations

import numpy as np
import pytest

from attacks.core.controls import ORDERS, by_permutation
from attacks.core.metrics import areas_of_one, trial_areas


def test_areas_of_one_training_are_those_of_each_order():
    rng = np.random.default_rng(0)
    scores = rng.integers(5, size=40).astype(float)
    positive = rng.permuted(np.tile(np.arange(40) < 9, (20, 1)), axis=1)
    np.testing.assert_allclose(areas_of_one(scores, positive), trial_areas(np.tile(scores, (20, 1)), positive))


def test_the_p_value_is_that_of_the_exact_law():
    """Of 8 records 3 are positive: 56 orders. 5 standard errors are left at 6e-7 (normal tails; fixed seed)."""
    scores = np.array([0.1, 0.9, 0.4, 0.8, 0.3, 0.7, 0.2, 0.6])
    labels = np.array([0, 1, 0, 1, 0, 0, 0, 1])
    all_orders = np.zeros((56, 8), bool)
    for row, places in enumerate(combinations(range(8), 3)):
        all_orders[row, list(places)] = True
    own = areas_of_one(scores, labels[None] == 1)[0]
    exact = (areas_of_one(scores, all_orders) >= own - 1e-9).mean()
    drawn, test = by_permutation(
        lambda rows: areas_of_one(scores, rows == 1), labels, np.arange(8), np.random.default_rng(1)
    )
    assert len(drawn) == ORDERS
    assert test.p == pytest.approx(exact, abs=5 * (exact * (1 - exact) / ORDERS) ** 0.5 + 1e-4)


def test_labels_that_scores_owe_nothing_to_have_uniform_p_values():
    """Of 200 independent p-values at most 0.05 each counts with probability 0.05: more than 26 do at 3e-6.

    (Binomial tail; fixed seed.)
    """
    rng = np.random.default_rng(2)
    small = 0
    for _ in range(200):
        scores = rng.standard_normal(30)
        labels = (np.arange(30) < 6).astype(np.int64)
        _, test = by_permutation(lambda rows, s=scores: areas_of_one(s, rows == 1), labels, np.arange(30), rng)
        small += test.p <= 0.05
    assert small <= 26


def test_labels_that_were_granted_stay_where_they_are():
    labels = np.array([1, 0, 1, 0, 0])
    seen = []

    def success(rows):
        seen.append(rows.copy())
        return rows[:, 2].astype(float)

    drawn, test = by_permutation(success, labels, np.array([2, 3, 4]), np.random.default_rng(0))
    rows = np.concatenate(seen)
    assert (rows[:, :2] == [1, 0]).all()
    assert (rows.sum(1) == 2).all()
    assert test.p == pytest.approx(1 / 3, abs=0.03)
    assert drawn.mean() == pytest.approx(1 / 3, abs=0.03)
