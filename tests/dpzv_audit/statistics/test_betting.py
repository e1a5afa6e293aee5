import math

import numpy as np
import pytest
from scipy.special import bdtrc

from dpzv_audit.errors import InputError
from dpzv_audit.statistics.estimators import audit_scores, can_refute
from dpzv_audit.statistics.sequential import FIRST, BettingTest, _Bet, _log_gains, claims, most_refutable, pairs_needed

DELTA = 1e-5


def gaussian_pairs(seed: int, mu: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(mu, 1.0, n), rng.normal(0.0, 1.0, n)


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


def test_ties_never_pay_and_always_cost():
    x, y = np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0])
    for high in (True, False):
        for in_pays in (True, False):
            pays, costs = _Bet(1.0, high, in_pays).events(x, y)
            assert not pays[1]
            assert costs[1]
    pays, costs = _Bet(1.0, True, True).events(x, y)
    assert pays.tolist() == [False, False, True]
    assert costs.tolist() == [True, True, True]


def test_the_result_does_not_depend_on_the_cuts():
    x, y = gaussian_pairs(0, 2.0, 700)
    whole = BettingTest([1.0, 2.0, 3.0], delta=DELTA, keep_path=True)
    whole.update(x, y)
    pieces = BettingTest([3.0, 1.0, 2.0], delta=DELTA, keep_path=True)
    for start, stop in ((0, 1), (1, 2), (2, 16), (16, 17), (17, 300), (300, 700)):
        pieces.update(x[start:stop], y[start:stop])
    assert pieces.pairs == whole.pairs == 700
    assert pieces.log_wealth == pytest.approx(whole.log_wealth, rel=1e-10)
    assert pieces.path == pytest.approx(whole.path, abs=1e-9)
    assert whole.path.shape == (700, 3)
    assert np.all(whole.path[:FIRST] == 0.0)
    assert whole.best == pytest.approx(np.maximum(whole.path.max(axis=0), 0.0), abs=1e-9)
    assert whole.p_values == pytest.approx(np.exp(-whole.best))


def test_a_bet_is_fixed_before_its_pair_is_seen():
    # Changing the last pair must not change the wealth before it.
    x, y = gaussian_pairs(1, 2.0, 200)
    first, second = (BettingTest([1.0], delta=DELTA, keep_path=True) for _ in range(2))
    first.update(x, y)
    x[-1], y[-1] = 9.0, -9.0
    second.update(x, y)
    assert np.array_equal(first.path[:-1], second.path[:-1])


@pytest.mark.parametrize("kind", ["plain", "swapped", "rounded"])
def test_looking_after_every_pair_keeps_the_error(kind):
    # 200 audits: more than `allowed` reach 20 at any of 600 looks with probability at most 2e-5 if each may with 5%.
    allowed, exceeded = next(k for k in range(200) if bdtrc(k, 200, 0.05) < 2e-5), 0
    truth = 4.377
    for seed in range(200):
        x, y = gaussian_pairs(seed, 1.0, 600)
        if kind == "swapped":
            x, y = y, x
        elif kind == "rounded":
            x, y = np.round(x), np.round(y)
        test = BettingTest([truth, 4.6], delta=DELTA)
        test.update(x, y)
        exceeded += bool(test.refuted.any())
    assert exceeded <= allowed


def test_power_and_early_stopping():
    test = BettingTest([0.5, 1.0, 2.0], delta=DELTA, keep_path=True)
    test.update(*gaussian_pairs(2, 3.0, 3000))
    assert test.refuted.all()
    first = [int(np.argmax(test.path[:, g] >= test.goal)) for g in range(3)]
    assert first[0] < first[1] < first[2] < 1000
    assert test.epsilon_lower == 2.0


def test_separated_worlds_come_near_the_best_there_is():
    bound = audit_scores([1.0] * 3000, [0.0] * 3000, delta=DELTA, estimators=["sequential"])[0]
    assert most_refutable(3000, DELTA, 0.95) - 0.8 < bound.epsilon_lower <= bound.ceiling
    assert bound.looks == 3000
    assert can_refute(bound)
    assert "in a random order" in bound.threshold_rule


def test_claims_are_those_that_could_be_refuted():
    tested = claims(1000, DELTA, 0.95)
    assert tested[0] == 0.0
    assert pairs_needed(float(tested[-1]), DELTA) <= 1000 - FIRST
    assert claims(3, DELTA, 0.95).tolist() == [0.0]
    assert most_refutable(3, DELTA, 0.95) == 0.0
    assert claims(10**11, DELTA, 0.95) == pytest.approx([*(i / 10 for i in range(60)), *(6 + i / 5 for i in range(70))])


@pytest.mark.parametrize(("n", "most"), [(4, 0.0), (5, 0.1), (6, 0.4), (7, 0.6)])
def test_the_most_that_few_pairs_refute_by_hand(n, most):
    # At best each pair pays 1 + (1 - delta) / (e^c + delta), and 20 is to be reached.
    assert most_refutable(FIRST + n, DELTA, 0.95) == pytest.approx(most)
    best = [1 + (1 - DELTA) / (math.exp(c) + DELTA) for c in (most, most + 0.1)]
    assert (best[0] ** n >= 20.0) == (n > 4)
    assert best[1] ** n < 20.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BettingTest([], delta=DELTA), "epsilons is"),
        (lambda: BettingTest([-1.0], delta=DELTA), "epsilons is"),
        (lambda: BettingTest([1.0], delta=0.0), "delta is 0.0"),
        (lambda: BettingTest([1.0], delta=DELTA).update([1.0, 2.0], [1.0]), "must be pairs"),
        (lambda: BettingTest([1.0], delta=DELTA).update([np.nan], [1.0]), "in_scores: row 1 is nan"),
        (lambda: BettingTest([1.0], delta=DELTA).path, "keep_path"),
        (lambda: pairs_needed(-1.0, DELTA), "epsilon is -1.0"),
    ],
)
def test_wrong_input_is_named(make, words):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.2), (0.4, 0.1), (1.0, 1e-3)])
def test_pairs_needed_stake_all_and_win_every_time(epsilon, delta):
    # 1 + W / (e^epsilon + delta) at W = 1 - delta, to the power n, is to reach 20.
    n = pairs_needed(epsilon, delta)
    growth = 1.0 + (1.0 - delta) / (math.exp(epsilon) + delta)
    assert growth**n >= 20.0 > growth ** (n - 1)


@pytest.mark.parametrize("keep_path", [False, True])
@pytest.mark.parametrize("mu", [0.0, 3.0])
def test_wealth_is_the_product_over_every_pair(mu, keep_path):
    # By definition: W = 1[pays] - e^epsilon 1[costs] - delta, of pairs without an event too; delta is large to be seen.
    epsilons, delta = np.array([0.05, 0.3]), 0.1
    x, y = gaussian_pairs(5, mu, 70)
    whole, stepwise = (
        BettingTest(epsilons, delta=delta, confidence=1.0 - 1e-12, keep_path=keep) for keep in (keep_path, False)
    )
    whole.update(x, y)
    wealth, best, idle = np.full((2, 2), 0.5), np.zeros(2), 0
    for one, other in zip(x, y, strict=True):
        stepwise.update([one], [other])  # leaves behind the bets that this pair was played with
        for g, (bet, stake) in enumerate(zip(stepwise._bets, stepwise._stakes, strict=True)):
            if bet is None:
                continue
            pays, costs = (bool(event[0]) for event in bet.events(np.array([one]), np.array([other])))
            idle += not (pays or costs)
            odds = math.exp(epsilons[g])
            winnings = pays - odds * costs - delta
            for j, fraction in enumerate((1.0, 0.4)):
                wealth[j, g] *= 1.0 + fraction * stake / (odds + delta) * winnings
        best = np.maximum(best, np.log(wealth.sum(axis=0)))
    assert idle > 0 or mu == 0.0
    for test in (whole, stepwise):
        assert test.log_wealth == pytest.approx(np.log(wealth.sum(axis=0)), abs=1e-9)
        assert test.best == pytest.approx(best, abs=1e-9)
