"""Bets on the success of whole trainings: known answers, and how often true limits are refuted or false ones held."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from dpzv_audit.base.errors import AuditError
from dpzv_audit.statistics.one_run import Guesses, p_value
from dpzv_audit.statistics.success import (
    excess_p_value,
    largest_limit,
    least_p_value,
    success_p_value,
    success_upper,
    trainings_needed,
)

from ...helpers.refusals import refused

LAWS = {
    "0 or 1": lambda rng, n: (rng.random(n) < 0.9) * 1.0,
    "0.5 or 1": lambda rng, n: np.where(rng.random(n) < 0.8, 1.0, 0.5),
    "arcsine": lambda rng, n: 0.8 + 0.2 * rng.beta(0.5, 0.5, n),
    "near": lambda rng, n: 0.9 + 0.01 * (2.0 * rng.random(n) - 1.0),
}
"""Laws of success with mean 0.9."""


def test_bets_on_an_attack_that_succeeds_win_at_once():
    assert success_p_value([1.0] * 8, 0.15) < 1e-5
    assert success_p_value([], 0.15) == 1.0
    assert success_p_value([0.1] * 50, 0.15) == 1.0
    with refused(r"success_at_most is 0.5; use more than 0.5, the least success"):
        success_p_value([0.9] * 16, 0.5, least=0.5)
    assert success_p_value([0.3] * 64, 0.15) < 1e-6


@pytest.mark.parametrize("least", [0.0, -1.0])
@pytest.mark.parametrize("limit", [0.15, 0.5, 0.9])
def test_bets_against_a_true_limit_seldom_win(limit, least):
    # 600 fair games looked at throughout: 1/p >= 20 in at most a share 0.05. False alarm: 1e-5 a case.
    rng = np.random.default_rng(3)
    chance = (limit - least) / (1.0 - least)
    games = (np.where(rng.random(60) < chance, 1.0, least) for _ in range(600))
    wins = sum(success_p_value(rates, limit, least=least) <= 0.05 for rates in games)
    assert wins <= binom.isf(1e-5, 600, 0.05)


def test_a_cosine_below_zero_is_one_poor_training_and_not_the_end_of_the_bets():
    rates = [-0.05] + [0.95] * 15
    assert success_p_value(rates, 0.05, least=-1.0) < 1e-3
    # On its way to [0, 1] the limit goes along.
    moved = [(rate + 1.0) / 2.0 for rate in rates]
    assert success_p_value(rates, 0.05, least=-1.0) == pytest.approx(success_p_value(moved, 0.525))
    # What lies below 0 counts in full: cut off at 0, these rates of mean 0 would seem to exceed the limit.
    assert success_p_value([-1.0, 1.0] * 30, 0.1, least=-1.0) > 0.5


@pytest.mark.parametrize("rate", [-0.05, 1.05, math.nan])
def test_a_success_outside_its_range_is_refused(rate):
    with refused(r"use a number in \[0, 1\]", AuditError):
        success_p_value([0.5, rate], 0.15)


@pytest.mark.parametrize(("limit", "needed"), [(0.9, 73), (0.95, 149), (0.99, 757)])
def test_the_trainings_follow_from_the_limit_and_the_error(limit, needed):
    assert trainings_needed(limit, 1e-3) == needed
    assert least_p_value(needed, limit) <= 1e-3
    assert success_p_value([1.0] * needed, limit) == pytest.approx(least_p_value(needed, limit))
    moved = 2.0 * limit - 1.0
    assert trainings_needed(moved, 1e-3, least=-1.0) == needed, "a scale from -1 to 1 is one from 0 to 1"
    assert least_p_value(needed, moved, least=-1.0) == pytest.approx(least_p_value(needed, limit))
    assert trainings_needed(limit, 5e-4) > needed


def test_half_of_the_wealth_on_everything_gives_the_limits_of_the_specification():
    # No valid limit exceeds 1e-3^(1/64) = 0.898; the arcsine law alone gives 0.876.
    assert largest_limit(64, 1e-3) == pytest.approx(0.891, abs=5e-4)
    rates = 0.56 + 0.01 * np.random.default_rng(0).normal(size=16)
    # No valid limit lies below 0.7125 where all rates are 0.56; the arcsine law alone gives 0.738.
    assert success_upper(rates, 1e-3) == pytest.approx(0.721, abs=1e-3)
    assert success_upper(2.0 * rates - 1.0, 1e-3, least=-1.0) == pytest.approx(2.0 * success_upper(rates, 1e-3) - 1.0)
    assert success_upper([], 1e-3) == 1.0
    assert success_upper([1.0] * 100, 1e-3) == 1.0


def test_a_limit_is_refuted_exactly_below_the_largest_that_is():
    for count in (1, 16, 73, 200):
        most = largest_limit(count, 1e-3)
        assert success_p_value([1.0] * count, most - 1e-9) <= 1e-3 < success_p_value([1.0] * count, most + 1e-9)
    assert largest_limit(0, 1e-3) == 0.0


@pytest.mark.parametrize("least", [0.0, -1.0])
def test_the_upper_limit_is_the_least_limit_that_the_bets_on_failures_hold(least):
    rng = np.random.default_rng(5)
    for count in (4, 16, 50):
        rates = least + (1.0 - least) * rng.beta(4, 4, count)
        upper = success_upper(rates, 0.01, least=least)
        assert excess_p_value(rates, upper, least=least) <= 0.01 < excess_p_value(rates, upper - 1e-6, least=least)


@pytest.mark.parametrize("law", LAWS)
def test_of_1000_files_at_the_limit_few_are_refuted_and_just_above_it_few_are_held(law):
    """Both stop as soon as they can. 77 is the 1 - 1e-4 quantile of a rate of 5%: 8 tests err in at most 8e-4."""
    most = binom.isf(1e-4, 1000, 0.05)
    assert most == 77
    limit = 0.9
    rng = np.random.default_rng(36)
    refuted = held = 0
    for _ in range(1000):
        rates = LAWS[law](rng, 60)
        refuted += success_p_value(rates, limit) <= 0.05
        # The mean is 1e-6 above this limit: an upper limit at or below it misses the mean.
        held += excess_p_value(rates, limit - 1e-6) <= 0.05
    assert refuted <= most
    assert held <= most


def test_500_of_500_coins_refute_a_chance_that_a_mean_over_trainings_may_have(rng):
    """All coins right refute a chance of 0.986 for each; where 4 of 5 trainings leak, a true mean of 0.9 falls too."""

    def p_of_coins(right, chance):
        return p_value(Guesses(500, 500, right), math.log(chance / (1.0 - chance)), 0.0)

    assert p_of_coins(500, 0.986) <= 1e-3 < p_of_coins(500, 0.9864)
    leaks = rng.random(200) < 0.8
    right = np.where(leaks, 500, rng.binomial(500, 0.5, 200))
    # The mean over trainings is 0.8 + 0.2 / 2 = 0.9, as is claimed: the bets on whole trainings keep it.
    assert sum(p_of_coins(int(count), 0.9) <= 1e-3 for count in right) == leaks.sum()
    assert success_p_value(right / 500, 0.9) > 1e-3
