"""Tests share one error evenly, looks by their shares, and the claims of a file by Holm's method."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.statistics.panel import (
    CUT_SHARE,
    SIMULATED_SHARE,
    TRAINED_SHARE,
    Panel,
    adjusted_p_values,
    at_once,
    combined_p_value,
    holm,
    in_two_stages,
    stopping_level,
)

P_VALUES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


def step_down(p_values, alpha):
    """Holm's method as he wrote it: from the smallest p-value up, until one is not below its level."""
    refuted = [False] * len(p_values)
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[index] > alpha / (len(p_values) - rank):
            break
        refuted[index] = True
    return tuple(refuted)


@given(P_VALUES, st.sampled_from([1e-3, 0.05, 0.3]))
def test_holm_is_the_step_down_procedure(p_values, alpha):
    # Products such as 3 * (0.05 / 3) round: thresholds a hair away decide nothing.
    if all(abs(p * (len(p_values) - k) - alpha) > 1e-12 for p in p_values for k in range(len(p_values))):
        assert holm(p_values, alpha) == step_down(p_values, alpha)


@given(P_VALUES)
def test_adjusted_p_values_never_fall_below_the_raw_ones_and_keep_their_order(p_values):
    adjusted = adjusted_p_values(p_values)
    for p, a in zip(p_values, adjusted, strict=True):
        assert p <= a <= 1.0
    for (p, a), (q, b) in itertools.combinations(zip(p_values, adjusted, strict=True), 2):
        if p < q:
            assert a <= b


def test_holm_refutes_what_bonferroni_does_and_sometimes_more():
    assert holm([0.004, 0.012], 0.02) == (True, True)  # Bonferroni alone would ask for 0.01 twice
    assert holm([0.011, 0.001, 0.9], 0.03) == (True, True, False)
    assert holm([0.016, 0.011], 0.02) == (False, False)
    assert holm([], 0.05) == ()


def test_looks_share_one_alpha():
    assert combined_p_value([]) == 1.0
    assert combined_p_value([(0.01, 0.2), (0.01, 0.7)]) == pytest.approx(0.01 / 0.7)
    assert combined_p_value([(0.9, 0.2)]) == 1.0


def test_the_stopping_level_moves_only_with_files_of_more_than_a_thousand_claims():
    assert stopping_level(1e-3, 1) == stopping_level(1e-3, 1000) == 1e-6
    assert stopping_level(1e-3, 5000) == pytest.approx(1e-7)


@pytest.mark.parametrize("tests", [(), ("a",), ("a", "b", "c")])
def test_tests_of_a_panel_spend_its_share_of_an_error_and_no_more(tests):
    panel = Panel(tests, 0.4)
    count = max(1, len(tests))
    assert count * panel.weight == pytest.approx(0.4)
    assert panel.level(0.05) == pytest.approx(0.05 * panel.weight)
    assert Panel(tests).confidence(0.95) == pytest.approx(1.0 - 0.05 / count)


def test_what_is_kept_back_and_what_is_planned_sum_to_one():
    assert pytest.approx(1.0) == CUT_SHARE + SIMULATED_SHARE + TRAINED_SHARE
    assert sum(in_two_stages(0.9)) == pytest.approx(0.9)
    assert sum(at_once(0.9)) == pytest.approx(0.9)
