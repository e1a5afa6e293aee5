"""Scorers: each keeps one contract, and the best on held-out records is taken."""

import numpy as np
import pytest

from attacks.feature.scorers import _fitted, areas, best_scorer, classifiers, rank_correlations, regressions


def records(seed=0, n=300):
    """Inputs of which the first two tell which side of a bent line a record is on, and how far."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((n, 6))
    return inputs, inputs[:, 0] + 0.5 * inputs[:, 1] ** 2 - 0.3


@pytest.mark.parametrize(("numbers", "name"), [(False, n) for n in classifiers()] + [(True, n) for n in regressions()])
def test_every_scorer_keeps_the_contract(numbers, name):
    inputs, depth = records()
    targets = depth[:, None] if numbers else np.c_[depth > 0, depth < -1].astype(float)
    make = (regressions() if numbers else classifiers())[name]
    scores = _fitted(make, inputs[:150], targets[:150])(inputs[150:])
    assert scores.shape == (150, targets.shape[1])
    merit = rank_correlations if numbers else areas
    assert (merit(scores, targets[150:]) > (0.4 if numbers else 0.65)).all()


@pytest.mark.parametrize("numbers", [False, True])
def test_inputs_that_tell_more_win(numbers):
    inputs, depth = records(1)
    targets = depth[:, None] if numbers else (depth > 0)[:, None].astype(float)
    noise = np.random.default_rng(2).standard_normal(inputs.shape)
    best = best_scorer({"noise": noise, "clear": inputs}, targets, numbers=numbers, seed=0)
    assert best.inputs == "clear"


def test_few_records_of_a_rare_category_suffice():
    inputs, _ = records(3, n=30)
    targets = np.zeros((30, 1))
    targets[:5] = 1.0
    inputs[:5, 0] += 6.0
    best = best_scorer({"all": inputs}, targets, numbers=False, seed=0)
    assert areas(best.predict(inputs), targets)[0] > 0.9
