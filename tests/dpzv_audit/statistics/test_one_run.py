import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import bdtr, ndtr
from scipy.stats import binom

from dpzv_audit.statistics import one_run
from dpzv_audit.statistics.estimators import audit_scores, can_refute
from dpzv_audit.statistics.families import GAUSSIAN, LAPLACE, PURE, sampled_family
from dpzv_audit.statistics.one_run import (
    Guesses,
    GuessRule,
    best_coin_test,
    coin_test,
    count_guesses,
    draw_canaries,
    search_guesses,
)
from dpzv_audit.statistics.settings import AuditSettings

from ...helpers.refusals import refused
from ...helpers.scores import bound_of, gaussian

DELTA = 1e-5


def masses(r, q):
    return np.diff(np.concatenate([[0.0], bdtr(np.arange(r + 1.0), r, q)]))


def p_by_the_letter(m, r, v, epsilon, delta):
    mass = masses(r, 1 / (1 + math.exp(-epsilon)))
    most = max((mass[v - i : v].sum() / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, mass[v:].sum() + 2 * m * delta * most)


def refuted_by_the_letter(m, made, right, curve, error):
    r, h = {right: error * right / m}, {right: error * (made - right) / m}
    for i in range(right - 1, -1, -1):
        h[i] = max(h[i + 1], float(curve(np.array([1.0 - r[i + 1]]))[0]))
        r[i] = min(1.0, r[i + 1] + i / (made - i) * (h[i] - h[i + 1]))
    return r[0] + h[0] > made / m


def test_the_published_p_value():
    # Appendix D of Steinke, Nasr and Jagielski: 75 of 100 right against epsilon = ln 3.
    assert one_run.p_value(Guesses(100, 100, 75), math.log(3.0), 0.0) == pytest.approx(0.5535, abs=5e-5)


@given(
    st.integers(1, 60).flatmap(lambda m: st.tuples(st.just(m), st.integers(1, m))),
    st.floats(0.0, 1.0),
    st.floats(0.0, 4.0),
    st.sampled_from([0.0, 1e-5, 1e-2]),
)
@settings(max_examples=100, deadline=None)
def test_p_value_by_the_letter(sizes, share, epsilon, delta):
    m, r = sizes
    v = round(share * r)
    found = one_run.p_value(Guesses(m, r, v), epsilon, delta)
    assert found == pytest.approx(p_by_the_letter(m, r, v, epsilon, delta) if v else 1.0, abs=1e-9)


@pytest.mark.parametrize(("r", "v"), [(10_000, 10_000), (10_000, 9_000), (10_000, 5_100), (400, 399)])
def test_what_delta_allows_is_found_however_far_the_bulk_is_below(r, v):
    # All guesses right: the sum that is to be largest grows only once it reaches the bulk, 100 deviations further down.
    for epsilon in (0.0, 1.0):
        found = one_run.p_value(Guesses(r, r, v), epsilon, DELTA)
        assert found == pytest.approx(p_by_the_letter(r, r, v, epsilon, DELTA), rel=1e-6)
        assert found > 0.5 * DELTA


@pytest.mark.parametrize("family", [GAUSSIAN, LAPLACE, PURE], ids=lambda f: f.name)
def test_the_recursion_by_the_letter(family, rng):
    answers = []
    for _ in range(40):
        m = int(rng.integers(5, 400))
        made = int(rng.integers(1, m + 1))
        right = int(rng.integers(made // 2, made + 1))
        theta = float(rng.choice([0.05, 0.2, 0.5]))
        found = one_run.refuted(Guesses(m, made, right), family.blow_up, theta, 0.05)
        assert found == refuted_by_the_letter(m, made, right, lambda a, t=theta: family.curve(a, t), 0.05)
        answers.append(found)
    assert {True, False} == set(answers)


@pytest.mark.parametrize("theta", [0.0, 0.4])
@pytest.mark.parametrize("error", [0.05, 0.2, 0.6])
def test_the_recursion_of_few_guesses_by_the_letter(theta, error):
    for m, made in itertools.combinations_with_replacement(range(1, 8), 2):
        for right in range(1, m + 1):
            found = one_run.refuted(Guesses(made, m, right), PURE.blow_up, theta, error)
            assert found == refuted_by_the_letter(made, m, right, lambda a: PURE.curve(a, theta), error)


@pytest.mark.parametrize("m", [1, 2, 5, 20, 200])
@pytest.mark.parametrize("error", [0.05, 0.3, 0.9, 0.99])
def test_all_guesses_right_have_a_closed_form(m, error):
    # Randomised response is right m times with probability (e^epsilon / (1 + e^epsilon))^m, which is to be `error`.
    each = error ** (1.0 / m)
    truth = max(0.0, math.log(each / (1.0 - each)))
    found = one_run.largest_refuted_curve(Guesses(m, m, m), PURE, error)
    assert truth - 1e-4 * math.log(2 * m + 1) <= found <= truth * (1 + 1e-12)


@pytest.mark.parametrize("family", [GAUSSIAN, LAPLACE, PURE], ids=lambda f: f.name)
@pytest.mark.parametrize("right", [0, 1, 48, 52])
def test_guesses_as_good_as_chance_refute_no_curve(family, right):
    # 52 or more of 100 fair coins come up heads with probability 0.38: nothing at 5%.
    assert one_run.largest_refuted_curve(Guesses(100, 100, right), family, 0.05) == 0.0


@pytest.mark.parametrize("m", [2, 3, 5, 12])
def test_all_of_few_coin_flips_right_have_the_chance_they_have(m):
    for share, answer in ((1.0 - 1e-9, False), (1.0 + 1e-9, True)):
        assert one_run.refuted(Guesses(m, m, m), PURE.blow_up, 0.0, share * 0.5**m) == answer


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("made", [30, 100])
def test_exact_size_on_randomised_response(epsilon, made):
    # Right guesses of randomised response are Binomial(made, q): the chance that a bound exceeds the truth is a sum.
    m, q, error = 100, 1 / (1 + math.exp(-epsilon)), 0.05
    mass = masses(made, q)
    plain = [one_run.largest_refuted(Guesses(m, made, v), 0.0, error) > epsilon for v in range(made + 1)]
    curve = [one_run.refuted(Guesses(m, made, v), PURE.blow_up, epsilon, error) for v in range(made + 1)]
    assert 0.01 < mass @ plain <= error + 1e-12
    assert mass @ curve <= error + 1e-12
    if made == m:
        assert mass @ curve > 0.0


@pytest.mark.parametrize("mu", [0.5, 1.0])
def test_size_of_the_curve_on_gaussian_canaries(mu):
    # Fixed guesses beyond +-1.5 of the middle: right ones are binomial given how many are made. The chance of
    # refuting the true mu, an exact sum at the expected number of guesses, stays far below the error.
    m, cut = 2000, 1.5
    right, wrong = float(ndtr(mu / 2 - cut)), float(ndtr(-mu / 2 - cut))
    made = round(m * (right + wrong))
    mass = masses(made, right / (right + wrong))
    exceeds = [one_run.refuted(Guesses(m, made, v), GAUSSIAN.blow_up, mu, 0.05) for v in range(made + 1)]
    assert mass @ np.array(exceeds) <= 0.05


def test_bits_of_one_training_are_kept_and_fresh_coins_are_fair():
    inside, outside = np.arange(1000.0), -1.0 - np.arange(1100.0)
    one = draw_canaries(inside, outside, AuditSettings(delta=DELTA, coin_flips=True, seed=3))
    assert np.array_equal(one.scores >= 0.0, one.bits)
    everything = np.concatenate([one.scores, one.pilot_in, one.pilot_out])
    assert np.array_equal(np.sort(everything), np.sort(np.concatenate([inside, outside])))
    drawn = draw_canaries(inside, outside, AuditSettings(delta=DELTA, seed=3))
    assert np.array_equal(drawn.scores >= 0.0, drawn.bits)
    assert drawn.scores.size == np.unique(drawn.scores).size
    assert drawn.pilot_in.size + drawn.pilot_out.size + drawn.scores.size == 2100
    # 200 seeds of about 1,800 coins: the mean share strays by 0.005 (6 standard errors) with probability below 1e-8.
    shares = [draw_canaries(inside, outside, AuditSettings(delta=DELTA, seed=s)).bits.mean() for s in range(200)]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.005)


def test_a_score_between_the_thresholds_is_no_guess_and_none_is_two():
    canaries = draw_canaries(np.full(100, 1.0), np.full(100, 0.0), AuditSettings(delta=DELTA))
    assert count_guesses(canaries, GuessRule(1.5, -0.5, True)).made == 0
    for rule in (GuessRule(1.0, 0.0, True), GuessRule(0.5, 0.5, True)):
        every = count_guesses(canaries, rule)
        assert every.made == every.right == every.canaries
    reverse = count_guesses(canaries, GuessRule(0.0, 1.0, False))
    assert (reverse.made, reverse.right) == (every.canaries, 0)
    one_side = count_guesses(canaries, GuessRule(1.0, np.nan, True))
    assert one_side.made == one_side.right == np.count_nonzero(canaries.bits)
    assert count_guesses(canaries, GuessRule(0.0, 1.0, True)).made == every.canaries


def test_a_slow_promise_is_asked_seldom_and_finds_the_best():
    canaries = draw_canaries(*gaussian(2, 2.0, 2000), AuditSettings(delta=DELTA))
    asked = []

    def promise(made, right):
        asked.append(made)
        return right - 3.0 * (made - right)

    rule = search_guesses(canaries, promise)
    assert len(asked) < 20
    best = count_guesses(canaries, rule)
    assert best.right - 3 * (best.made - best.right) > 0.7 * best.canaries / 2


@pytest.mark.parametrize("coin_flips", [False, True])
@pytest.mark.parametrize("high", [1.0, -1.0])
def test_bounds_of_both_kinds_and_directions(coin_flips, high):
    rng = np.random.default_rng(1)
    inside, outside = high * rng.normal(2.0, 1, 3000), high * rng.normal(0, 1, 3100)
    plain, curve = audit_scores(
        inside, outside, delta=DELTA, estimators=["one-run", "one-run-fdp"], coin_flips=coin_flips
    )
    assert 2.5 < plain.epsilon_lower < plain.ceiling < 9.0
    assert 0.9 < curve.mu_lower < 2.0
    assert plain.epsilon_lower < curve.epsilon_lower < curve.ceiling
    assert can_refute(plain)
    assert not can_refute(curve)
    assert ("fresh coin flips" in plain.threshold_rule) != coin_flips


@pytest.mark.parametrize("high", [1.0, -1.0])
def test_of_sides_far_apart_nearly_every_canary_is_guessed(high, rng):
    """Gaussian sides a thousand deviations apart: no guess is wrong, and those beyond the pilot's scores are few."""
    inside, outside = (high * (side * 1000.0 + rng.standard_normal(300)) for side in (1.0, 0.0))
    bound = bound_of(inside, outside, "one-run", coin_flips=True)
    assert bound.ceiling > bound.epsilon_lower > bound.ceiling - 0.1 > 4.0


def test_canaries_of_one_training_that_share_their_noise():
    # All scores shifted by one common draw: canaries of one training are no independent runs.
    # 60 audits at 95%; more than `allowed` exceed the truth with probability below 1e-5.
    allowed = binom.isf(1e-5, 60, 0.05)
    exceeded = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        bits, common = rng.random(1500) < 0.5, rng.normal() * 3.0
        scores = bits * 1.0 + rng.normal(size=1500) + common
        bound = bound_of(scores[bits], scores[~bits], "one-run", coin_flips=True, seed=seed)
        exceeded += bound.epsilon_lower > 4.377
    assert exceeded <= allowed


def test_few_or_useless_scores_prove_nothing():
    for inside, outside in (([1.0] * 3, [0.0] * 3), ([0.0] * 500, [0.0] * 500), ([1.0] * 9, [0.0] * 8)):
        for bound in audit_scores(inside, outside, delta=DELTA, estimators=["one-run", "one-run-fdp"]):
            assert bound.epsilon_lower == 0.0
            assert bound.mu_lower in (0.0, None)


def test_a_curve_that_is_not_its_own_inverse_is_refused():
    with refused("needs a curve that is its own inverse"):
        audit_scores(
            [1.0] * 50, [0.0] * 50, delta=DELTA, estimators=["one-run-fdp"], family=sampled_family(rate=0.1, rounds=2)
        )


def trainings_of(rng, law, number=6, coins=60):
    """Scores of coins by side: of randomised response at epsilon = 1, or of what tells all with a chance of 1%."""
    found = []
    for _ in range(number):
        bits = rng.random(coins) < 0.5
        lie = rng.random(coins) < (0.5 if law == "mishap" else 1.0 / (1.0 + math.exp(float(law))))
        scores = (bits ^ (lie & (law != "mishap" or rng.random() > 0.01))) + 0.01 * rng.random(coins)
        found.append((scores[bits], scores[~bits]))
    return found


@pytest.mark.ci
@pytest.mark.parametrize(("law", "epsilon", "delta"), [("1", 1.0, 1e-9), ("mishap", 0.1, 0.01)])
def test_bets_on_trainings_refute_a_true_claim_as_rarely_as_they_say(law, epsilon, delta):
    """At nominal 5% of 300 games: a correct build fails with probability at most 1e-4, the quantile of a binomial."""
    rng = np.random.default_rng(4)
    tests = [coin_test(trainings_of(rng, law), delta=delta, design_error=1e-3) for _ in range(300)]
    assert sum(test.p_value(epsilon) <= 0.05 for test in tests) <= binom.isf(1e-4, 300, 0.05)


def test_bets_on_trainings_refute_what_one_training_cannot():
    """With a chance of delta a training may tell all: one alone is no proof at a small error, several are."""
    every = trainings_of(np.random.default_rng(5), "8", number=8, coins=300)
    test = coin_test(every, delta=DELTA, design_error=1e-3)
    assert one_run.p_value(Guesses(2100, 2100, 2100), 4.0, DELTA) > 5e-4
    assert test.p_value(4.0) < 1e-6
    assert test.p_value(test.epsilon_lower(1e-3)) == pytest.approx(1e-3, rel=1e-2)
    assert 4.0 < test.epsilon_lower(1e-3) <= test.ceiling(1e-3)
    assert "guesses right about 2,100 fair coins of 7 trainings" in test.rule
    sharp = [(np.arange(30.0) + 100.0, np.arange(30.0))] * 6
    best = best_coin_test(6, 60, delta=DELTA)
    assert coin_test(sharp, delta=DELTA, design_error=1e-3) == best
    assert best.p_value(best.ceiling(1e-3)) <= 1e-3 < best.p_value(best.ceiling(1e-3) + 1e-3)
    for few in (0, 1):
        assert coin_test(sharp[:few], delta=DELTA, design_error=1e-3).p_value(0.1) == 1.0
        assert best_coin_test(few, 60, delta=DELTA).ceiling(1e-3) == 0.0
    assert coin_test([(np.arange(60.0), np.zeros(0))] * 3, delta=DELTA, design_error=1e-3).p_value(0.1) == 1.0
