import math

import numpy as np
import pytest
from scipy.stats import binom

from dpzv_audit.statistics.estimators import can_refute
from dpzv_audit.statistics.sequential import (
    FIRST,
    _Bet,
    _choose,
    _log_gains,
    bet_on,
    claims,
    pairs_needed,
    wealth_against,
)

from ...helpers.refusals import refused
from ...helpers.scores import bound_of, gaussian

DELTA = 1e-5
ONE = np.ones(1)


def test_pairs_needed_at_best():
    # ln 20 / ln(1 + 1 / e^epsilon), rounded up: 165 pairs at epsilon = 4 reach a wealth of 19.98 only.
    assert [pairs_needed(e, 1e-12) for e in (4.0, 8.0, 10.0)] == [166, 8932, 65987]
    assert 165 * math.log1p(math.exp(-4.0)) < math.log(20.0) < 166 * math.log1p(math.exp(-4.0))
    assert pairs_needed(1.0, 1e-5) < pairs_needed(1.0, 1e-5, confidence=0.999)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("stake", [0.1, 0.99])
def test_no_bet_gains_in_expectation_under_the_claim(epsilon, stake):
    # Every true rate of costs q and the largest rate of pays that the claim allows; sides independent or not.
    odds, delta = math.exp(epsilon), 0.01
    kinds = np.array([[False, False], [False, True], [True, False], [True, True]])
    gains = np.exp(_log_gains(kinds[:, 0], kinds[:, 1], stake, epsilon, delta))
    assert np.all(gains > 0.0)
    for q in np.linspace(0.0, 1.0, 21):
        p = min(1.0, odds * q + delta, 1.0 - (1.0 - delta - q) / odds)
        for together in (p * q, min(p, q), max(0.0, p + q - 1.0)):
            chances = np.array([1.0 - p - q + together, q - together, p - together, together])
            assert chances @ gains <= 1.0 + 1e-12


def test_ties_pay_and_cost_alike():
    x, y = np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0])
    for upper in (True, False):
        for in_pays in (True, False):
            pays, costs = _Bet(1.0, upper, in_pays).events(x, y)
            assert pays[1]
            assert costs[1]
    pays, costs = _Bet(1.0, True, True).events(x, y)
    assert pays.tolist() == [False, True, True]
    assert costs.tolist() == [True, True, True]


def path_of(x, y, *epsilons, delta=DELTA):
    return wealth_against(np.array(epsilons), x, y, delta=delta)[1]


@pytest.mark.parametrize("cut", [1, 2, 15, 16, 17, 300])
def test_what_comes_later_changes_nothing(cut):
    x, y = gaussian(0, 2.0, 700)
    best, path = wealth_against(np.array([1.0, 2.0, 3.0]), x, y, delta=DELTA)
    assert np.array_equal(path_of(x[:cut], y[:cut], 1.0, 2.0, 3.0), path[:cut])
    assert path.shape == (700, 3)
    assert np.all(path[:FIRST] == 0.0)
    assert np.array_equal(best, np.maximum(path.max(axis=0), 0.0))


def test_each_claim_is_bet_against_by_itself():
    x, y = gaussian(0, 2.0, 700)
    whole = path_of(x, y, 3.0, 1.0, 2.0)
    assert [np.array_equal(path_of(x, y, one)[:, 0], whole[:, g]) for g, one in enumerate((3.0, 1.0, 2.0))] == [
        True
    ] * 3


def test_a_bet_is_fixed_before_its_pair_is_seen():
    # Changing the last pair must not change the wealth before it.
    x, y = gaussian(1, 2.0, 200)
    first = path_of(x, y, 1.0)
    x[-1], y[-1] = 9.0, -9.0
    assert np.array_equal(first[:-1], path_of(x, y, 1.0)[:-1])
    assert first[-1] != path_of(x, y, 1.0)[-1]


@pytest.mark.parametrize(
    "kind", [pytest.param("plain", marks=pytest.mark.slow), "swapped", pytest.param("rounded", marks=pytest.mark.slow)]
)
def test_looking_after_every_pair_keeps_the_error(kind):
    # 100 audits: more than `allowed` reach 20 at any of 600 looks with probability at most 2e-5 if each may with 5%.
    allowed, exceeded = binom.isf(2e-5, 100, 0.05), 0
    truth = 4.377
    for seed in range(100):
        x, y = gaussian(seed, 1.0, 600)
        if kind == "swapped":
            x, y = y, x
        elif kind == "rounded":
            x, y = np.round(x), np.round(y)
        best, _ = wealth_against(np.array([truth, 4.6]), x, y, delta=DELTA, confidence=0.95)
        exceeded += bool((best >= math.log(20.0)).any())
    assert exceeded <= allowed


def test_power_and_early_stopping():
    reached = path_of(*gaussian(2, 3.0, 3000), 0.5, 1.0, 2.0) >= math.log(20.0)
    assert reached.any(axis=0).all()
    first = np.argmax(reached, axis=0)
    assert first[0] < first[1] < first[2] < 1000


def test_separated_worlds_come_near_the_best_there_is():
    bound = bound_of([1.0] * 3000, [0.0] * 3000, "sequential")
    assert claims(3000, DELTA, 0.95)[-1] - 0.8 < bound.epsilon_lower <= bound.ceiling
    assert bound.looks == 3000
    assert can_refute(bound)
    assert "in a random order" in bound.threshold_rule


def test_claims_are_those_that_could_be_refuted():
    tested = claims(1000, DELTA, 0.95)
    assert tested[0] == 0.0
    assert pairs_needed(float(tested[-1]), DELTA) <= 1000 - FIRST
    assert claims(3, DELTA, 0.95).tolist() == [0.0]
    assert claims(10**11, DELTA, 0.95) == pytest.approx([*(i / 10 for i in range(60)), *(6 + i / 5 for i in range(70))])


@pytest.mark.parametrize(("n", "most"), [(4, 0.0), (5, 0.1), (6, 0.4), (7, 0.6)])
def test_the_most_that_few_pairs_refute_by_hand(n, most):
    # At best each pair pays 1 + (1 - delta) / (e^c + delta), and 20 is to be reached.
    assert claims(FIRST + n, DELTA, 0.95)[-1] == pytest.approx(most)
    best = [1 + (1 - DELTA) / (math.exp(c) + DELTA) for c in (most, most + 0.1)]
    assert (best[0] ** n >= 20.0) == (n > 4)
    assert best[1] ** n < 20.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: bet_on(ONE, ONE, delta=DELTA, epsilon=-1.0), "epsilon is -1.0"),
        (lambda: bet_on(ONE, ONE, delta=0.0), "delta is 0.0"),
        (lambda: bet_on(ONE[:0], ONE, delta=DELTA), "in_scores is empty"),
        (lambda: bet_on(np.array([np.nan]), ONE, delta=DELTA), "in_scores: row 1 is nan"),
        (lambda: pairs_needed(-1.0, DELTA), "epsilon is -1.0"),
    ],
)
def test_wrong_input_is_named(make, words):
    with refused(words):
        make()


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.2), (0.4, 0.1), (1.0, 1e-3)])
def test_pairs_needed_stake_all_and_win_every_time(epsilon, delta):
    # 1 + W / (e^epsilon + delta) at W = 1 - delta, to the power n, is to reach 20.
    n = pairs_needed(epsilon, delta)
    growth = 1.0 + (1.0 - delta) / (math.exp(epsilon) + delta)
    assert growth**n >= 20.0 > growth ** (n - 1)


@pytest.mark.parametrize("mu", [0.0, 3.0])
def test_wealth_is_the_product_over_every_pair(mu):
    # By definition: W = 1[pays] - e^epsilon 1[costs] - delta, of pairs without an event too; delta is large to be seen.
    epsilons, delta = np.array([0.05, 0.3]), 0.1
    x, y = gaussian(5, mu, 70)
    best, path = wealth_against(epsilons, x, y, delta=delta)
    assert wealth_against(epsilons, x, y, delta=delta, confidence=1.0 - 1e-12)[0] == pytest.approx(best, abs=1e-9)
    wealth, idle, bets, again = np.full((2, 2), 0.5), 0, [], FIRST
    for i, (one, other) in enumerate(zip(x, y, strict=True)):
        if i == again:
            bets, again = list(_choose(epsilons, x[:i], y[:i], delta)), max(i + 1, math.ceil(1.3 * i))
        for g, (bet, stake) in enumerate(bets):
            if bet is None:
                continue
            pays, costs = (bool(event[0]) for event in bet.events(np.array([one]), np.array([other])))
            idle += not (pays or costs)
            odds = math.exp(epsilons[g])
            winnings = pays - odds * costs - delta
            for j, fraction in enumerate((1.0, 0.4)):
                wealth[j, g] *= 1.0 + fraction * stake / (odds + delta) * winnings
        assert path[i] == pytest.approx(np.log(wealth.sum(axis=0)), abs=1e-9)
    assert idle > 0 or mu == 0.0
    assert best == pytest.approx(np.maximum(path.max(axis=0), 0.0), abs=1e-9)
