"""Thresholds follow from the order of the pilot's scores alone, and rounding makes no order."""

import numpy as np
import pytest

from dpzv_audit import audit_scores, verify_claim
from dpzv_audit.statistics.assumptions import remarks
from dpzv_audit.statistics.estimators import ESTIMATORS
from dpzv_audit.statistics.one_run import coin_test
from dpzv_audit.statistics.thresholds import candidate_rates, rounding_of

from ...helpers.refusals import refused
from ...helpers.scores import bound_of, gaussian

DELTA = 1e-5
THRESHOLDS = ("joint", "clopper-pearson", "gaussian", "one-run")
SLOW_THRESHOLDS = ("bayes", "curve", "one-run-fdp", "sequential")


def bounds(inside, outside, names=THRESHOLDS):
    return [bound.epsilon_lower for bound in audit_scores(inside, outside, delta=DELTA, estimators=names)]


def laws(rng):
    """Scores of both sides: of smooth curves that the ranks follow and do not follow, with and without ties."""
    n, m = rng.permutation([60, 80])
    kind = rng.integers(5)
    if kind == 0:
        return rng.normal(rng.choice([0.5, 1.5, 4.0]), 1.0, n), rng.normal(size=m)
    if kind == 1:
        return rng.laplace(2.0, 1.0, n), rng.laplace(size=m)
    if kind == 2:
        return np.round(rng.normal(1.5, 1.0, n)), np.round(rng.normal(size=m))
    if kind == 3:
        return rng.normal(size=n) + 6.0 * (rng.random(n) < 0.4), rng.normal(size=m)
    return rng.exponential(size=n), -rng.exponential(size=m)


def increasing(rng, count):
    """`count` numbers in order, of any type and scale, whose neighbours lie farther apart than rounding moves them."""
    kind = rng.choice([np.float64, np.float64, np.float32, np.float16, np.int64])
    while True:
        if kind is np.int64:
            values = np.cumsum(rng.integers(1, 10**9, count)) - int(rng.integers(10**12))
        else:
            wide = {np.float16: 0.3, np.float32: 1.0, np.float64: 3.0}[kind]
            scale = 1.0 if kind is np.float16 else 10.0 ** rng.uniform(-30, 30)
            steps = 10.0 ** rng.uniform(-wide, wide, count)
            values = scale * (np.cumsum(steps) - rng.uniform(0.0, 1.0) * steps.sum())
        with np.errstate(over="ignore"):
            values = values.astype(kind)
        if kind is np.int64:
            return values
        if np.isfinite(values).all():
            size = np.maximum(np.abs(values[1:]), np.abs(values[:-1]))
            if np.all(np.diff(values.astype(np.float64)) > 8.0 * np.spacing(size).astype(np.float64)):
                break
        kind = np.float64
    if rng.random() < 0.3:
        values[0] = -np.inf
    if rng.random() < 0.3:
        values[-1] = np.inf
    return values


def mapped(rng, inside, outside):
    values, places = np.unique(np.concatenate([inside, outside]), return_inverse=True)
    return np.split(increasing(rng, values.size)[places], [inside.size])


@pytest.mark.parametrize(
    ("laws_drawn", "maps", "names"),
    [
        (15, 8, THRESHOLDS),
        pytest.param(25, 40, THRESHOLDS, marks=pytest.mark.slow, id="1,000 maps"),
        (2, 2, SLOW_THRESHOLDS),
    ],
)
def test_strictly_increasing_maps_leave_all_threshold_bounds_as_they_are(laws_drawn, maps, names):
    rng = np.random.default_rng(3)
    proved = 0
    for _ in range(laws_drawn):
        inside, outside = laws(rng)
        expected = bounds(inside, outside, names)
        proved += any(expected)
        for _ in range(maps):
            assert bounds(*mapped(rng, inside, outside), names) == expected
    assert proved >= 0.4 * laws_drawn  # else 0 would equal 0


def test_maps_leave_bets_on_coins_of_many_trainings_as_they_are():
    rng = np.random.default_rng(4)
    inside, outside = gaussian(rng, 2.0, 200)

    def tested(one, other):
        trainings = [(one[k : k + 40], other[k : k + 40]) for k in range(0, 200, 40)]
        return coin_test(trainings, delta=DELTA, design_error=1e-3)

    expected = tested(inside, outside)
    assert expected.p_value(0.0) < 1e-3
    for _ in range(20):
        assert tested(*mapped(rng, inside, outside)).guesses == expected.guesses


@pytest.mark.parametrize("big", [1e12, 1e30, np.finfo(float).max, np.inf])
def test_one_huge_score_in_a_hundred_takes_nothing_from_a_bound(big):
    inside, outside = gaussian(0, 3.0, 1000)
    for side in (inside, outside):
        side[::100] = -big
    low = [np.where(side == -big, -50.0, side) for side in (inside, outside)]
    assert bounds(inside, outside) == bounds(*low)
    assert all(bound > 2.0 for bound in bounds(inside, outside))


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "sequential-gaussian"])
def test_rounding_that_differs_by_side_proves_nothing_and_is_said(name, kind):
    value = kind(0.6)
    inside, outside = np.full(300, value), np.full(300, np.nextafter(value, kind(1.0)))
    bound = bound_of(inside, outside, name)
    assert bound.epsilon_lower == 0.0
    assert f"within 4 units in the last place of {np.dtype(kind)} of the next one" in bound.threshold_rule


def test_ties_go_to_one_answer_and_the_order_of_rows_breaks_none():
    for name in THRESHOLDS + SLOW_THRESHOLDS:
        assert bounds(np.zeros(300), np.zeros(300), [name]) == [0.0]
    inside, outside = (np.random.default_rng(1).random((400, 2)) < [0.75, 0.25]).T.astype(float)
    for name in ("joint", "clopper-pearson", "bayes"):
        assert 0.5 < bounds(inside, outside, [name])[0] <= np.log(3.0)


def test_whole_numbers_are_told_apart_however_large_and_dense_half_floats_too():
    assert bounds([2**53 + 2] * 200, [2**53] * 200, ["joint"])[0] > 3.0
    assert bounds([2.0**52 + 1] * 200, [2.0**52] * 200, ["joint"])[0] > 3.0
    assert remarks(np.array([2**53 + 2]), np.array([2**53])) == []
    assert rounding_of(np.array([0.5], dtype=np.float16), np.array([0.25])) == np.float16
    # Each half-precision number near 1 occurs: as one run of scores that rounding told apart they would be one score.
    rng = np.random.default_rng(2)
    dense = [(1.0 + 0.2 * rng.random(20_000) ** power).astype(np.float16) for power in (0.5, 2.0)]
    assert bounds(*dense, ["joint"])[0] > 1.0
    assert candidate_rates(*dense).above.size > 5


@pytest.mark.parametrize(
    "scores",
    [
        [2**53 + 1, 0],
        [2**53 + 1, 0.5],
        (np.int64(2**53 + 1), 0.5),
        np.array([2**53 + 1, 0]),
        np.array([2**63 - 1, 0]),
        np.array([2**64 - 1, 0], dtype=np.uint64),
        np.array([2**53 + 1, 0], dtype=np.longdouble),
    ],
    ids=["list", "mixed", "tuple", "int64", "largest", "uint64", "longdouble"],
)
def test_whole_numbers_that_no_double_holds_are_refused(scores):
    with refused(r"in_scores: row 1 is .*, which no double holds exactly: subtract"):
        audit_scores(scores, [0.0], delta=DELTA)
    with refused(r"scores\[1\]: row 1 is .*, which no double holds exactly"):
        verify_claim(scores=([0.0], scores), epsilon=1.0, delta=DELTA)


def test_infinite_scores_are_ordered_and_what_needs_finite_ones_says_so():
    inside, outside = gaussian(5, 1.0, 600)
    inside[:30] = np.inf
    bound, ratio = audit_scores(
        inside, outside, delta=DELTA, estimators=["gaussian", "sequential-gaussian"], exactly_gaussian=True
    )
    assert "30 of them are infinite" in bound.assumes
    assert bound.mu_lower > 0.0
    assert "standard errors apart" not in bound.threshold_rule
    assert (ratio.epsilon_lower, ratio.ceiling) == (0.0, 0.0)
    assert "30 scores are infinite" in ratio.threshold_rule
    found = verify_claim(scores=(inside, outside), epsilon=0.1, delta=DELTA, exactly_gaussian=True)
    assert found.verdict == "refuted"
    with refused("row 2 is nan; use a number"):
        audit_scores([1.0, np.nan], [0.0], delta=DELTA)


def test_equal_sides_are_said_to_be_equal_and_independent_ones_are_not():
    rng = np.random.default_rng(6)
    one, other = rng.normal(size=200), rng.normal(size=200)
    assert remarks(one, one, "files") == ["the two files hold the same scores"]
    assert remarks(one, rng.permutation(one)) == ["the two sides hold the same scores, in another order"]
    (half,) = remarks(one, np.concatenate([other[:100], one[:100]]))
    assert half.startswith("100 of the 200 scores")
    assert remarks(one, other) == []
    # On a grid as fine as makes most numbers occur once, independent scores share one in five at most.
    for levels in (2, 20, 200, 400, 1000, 10_000):
        assert remarks(*(rng.integers(0, levels, 1000).astype(float) for _ in range(2))) == []
    coins = rng.permutation(np.repeat([0.0, 1.0], 100))
    assert remarks(coins, rng.permutation(coins)) == []
    assert "; the two sides hold the same scores" in audit_scores(one, one, delta=DELTA)[0].threshold_rule
    found = verify_claim(scores=(one, one), epsilon=1.0, delta=DELTA)
    assert (found.verdict, found.entry.judged.reason) == ("not-tested", "same-scores")
    assert found.sentence.startswith("The two sides hold the same scores.")
