"""Tests of negative controls: exact on small cases, rarely wrong whatever shape luck has, and able to fail."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from attacks.core import controls
from attacks.core.controls import by_bets, by_coins, by_names, by_order
from attacks.core.metrics import trial_areas
from dpzv_audit.base.findings import LEAST_TRAININGS
from dpzv_audit.evidence.matrix import FALSE_ALARM, negative_controls
from dpzv_audit.results import Cell

CELLS = 16
SKEWED = {
    "mostly a little more, rarely far less": lambda rng, k: np.where(rng.random(k) < 0.1, 0.05, 0.55),
    "mostly a little less, rarely far more": lambda rng, k: np.where(rng.random(k) < 0.1, 0.95, 0.45),
    "Beta(0.1, 0.1)": lambda rng, k: rng.beta(0.1, 0.1, k),
}
"""Laws of what a control's training gives, all with the mean 0.5 that is expected."""


def alarm(tests):
    cells = [Cell(attack="a", adversary="b", method="m", control_p=None if t is None else t.p) for t in tests]
    found = negative_controls(cells)
    return found is not None and not found.hold


@pytest.mark.parametrize("law", SKEWED)
@pytest.mark.parametrize(
    ("trainings", "repetitions"), [(8, 200), *(pytest.param(k, 2000, marks=pytest.mark.slow) for k in (3, 8, 16, 64))]
)
def test_the_joint_test_rarely_alarms_whatever_the_shape_of_a_trainings_luck(law, trainings, repetitions):
    """More alarms than the 1 - 1e-4 quantile at a false-alarm rate of 1e-3 are a bug."""
    rng = np.random.default_rng(1)
    draw = SKEWED[law]
    alarms = 0
    for _ in range(repetitions):
        values = [np.clip(draw(rng, trainings) + 1e-3 * rng.normal(size=trainings), 0, 1) for _ in range(CELLS)]
        alarms += alarm([by_bets(v, 0.5) for v in values])
    assert alarms <= stats.binom.ppf(1 - 1e-4, repetitions, FALSE_ALARM)


def test_bets_find_what_is_off_and_few_trainings_are_not_tested():
    assert by_bets(np.full(LEAST_TRAININGS - 1, 1.0), 0.1) is None
    assert by_bets(np.full(8, 1.0), 0.1).p < 1e-6
    assert by_bets(np.full(16, 1.0), 0.5).p < 5e-4
    assert by_bets(np.full(64, 0.14), 0.1).p < 1e-4
    assert by_bets(np.full(64, 0.1), 0.1).p == 1.0
    assert by_bets(np.full(30, 0.6), 0.0, least=-1.0).p < 1e-4
    assert by_bets(np.full(30, -0.6), 0.0, least=-1.0).p == pytest.approx(by_bets(np.full(30, 0.6), 0.0, least=-1.0).p)


def test_coins_tossed_again_bound_how_often_an_area_lies_so_far_off():
    """Against all tosses of seven pairs, exactly: the bound holds for every one of them, and no fewer than it says."""
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(1, 14))
    tosses = np.array(list(product((0, 1), repeat=7)))
    members = np.zeros((len(tosses), 14), bool)
    np.put_along_axis(members, 2 * np.arange(7) + tosses, True, axis=1)
    areas = trial_areas(np.tile(scores, (len(tosses), 1)), members)
    assert areas.mean() == pytest.approx(0.5)
    for row in range(len(tosses)):
        exact = np.mean(np.abs(areas - 0.5) >= abs(areas[row] - 0.5) - 1e-12)
        assert by_coins(scores, tosses[row : row + 1]).p >= exact - 1e-12
    follows = np.where(tosses[5][:, None] == [[0, 1]], 1.0, 0.0).reshape(1, 14)
    assert by_coins(np.tile(follows, (8, 1)), np.tile(tosses[5], (8, 1))).p < 1e-6
    assert by_coins(np.tile(1.0 - follows, (8, 1)), np.tile(tosses[5], (8, 1))).p < 1e-6


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_labels_in_another_order_bound_how_often_an_area_lies_so_far_off(share):
    """Orders of 60 labels in two trainings: p-values below x come at most as often, by the 1 - 1e-4 quantile."""
    rng = np.random.default_rng(3)
    scores = np.round(rng.gamma(0.3, size=(2, 60)), 1)  # skewed, and many alike
    kind = np.arange(60) < 60 * share
    p_values = np.array(
        [by_order(scores, np.stack([rng.permutation(kind), rng.permutation(kind)])).p for _ in range(400)]
    )
    for x in (0.05, 0.3):
        assert (p_values <= x).sum() <= stats.binom.ppf(1 - 1e-4, 400, x)
    sorted_too = np.sort(scores, axis=1)
    truth = np.tile(np.arange(60) >= 60 * (1 - share), (2, 1))
    assert by_order(sorted_too, truth).p < 0.01
    assert by_order(-sorted_too, truth).p == pytest.approx(by_order(sorted_too, truth).p)


def clusters(rng, trainings, labels, classes):
    """Guesses that follow the true classes under names dealt at random: by luck far above or below chance."""
    names = np.stack([rng.permutation(classes) for _ in range(trainings)])
    return np.take_along_axis(names, labels, axis=1)


def test_other_names_of_the_classes_are_as_likely_where_only_the_names_were_dealt(monkeypatch):
    """All guesses of a class share one name: as skewed as luck gets. P-values below x come at most as often."""
    monkeypatch.setattr(controls, "_EXCHANGES", 2000)
    controls._names.cache_clear()
    rng = np.random.default_rng(4)
    labels = np.tile(np.arange(5), (3, 40))
    p_values = np.array([by_names(clusters(rng, 3, labels, 5), labels, 5).p for _ in range(300)])
    controls._names.cache_clear()
    for x in (0.01, 0.1, 0.5):
        assert (p_values <= x).sum() <= stats.binom.ppf(1 - 1e-4, 300, x)


def test_guesses_that_follow_the_truth_are_found_in_three_trainings_among_a_hundred_cells():
    labels = np.tile(np.arange(10), (3, 140))
    follows = by_names(labels, labels, 10)
    rng = np.random.default_rng(5)
    others = [by_names(rng.permuted(labels, axis=1), labels, 10) for _ in range(4)]
    assert alarm([follows, *others * 25])
    assert not alarm(others)
    assert by_names(np.zeros_like(labels), labels, 10).p == 1.0  # one class for all: chance whatever its name
    uneven = np.where(np.arange(300)[None] < 290, 0, np.arange(300)[None] % 10)
    assert by_names(uneven, uneven, 10) is None
