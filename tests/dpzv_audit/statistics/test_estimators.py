from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binom

from dpzv_audit.accounting.gaussian import epsilon_from_mu
from dpzv_audit.statistics.binomial import upper_limit
from dpzv_audit.statistics.estimators import ESTIMATORS, audit_scores, can_refute, may_refute
from dpzv_audit.statistics.fixed import FixedTest
from dpzv_audit.statistics.thresholds import (
    Pilot,
    Rule,
    choose_rule,
    error_counts,
    pilot_size,
    split_pilot,
)

from ...helpers.refusals import refused
from ...helpers.scores import bound_of, gaussian

DELTA = 1e-5


def rounded_scores(seed, mu):
    inside, outside = gaussian(seed, mu)
    return np.round(inside), np.round(outside)


def paired_scores(seed, mu):
    noise = np.random.default_rng(seed).normal(size=500)
    return noise + mu, noise


def laplace_scores(seed, epsilon):
    rng = np.random.default_rng(seed)
    return rng.laplace(epsilon, 1.0, 500), rng.laplace(0.0, 1.0, 500)


def randomised_response(seed, epsilon):
    rng = np.random.default_rng(seed)
    truth = np.exp(epsilon) / (1.0 + np.exp(epsilon))
    return (rng.random(500) < truth) * 1.0, (rng.random(500) >= truth) * 1.0


@pytest.mark.parametrize(
    ("scores", "parameter", "epsilon", "names"),
    [
        (gaussian, 0.388, epsilon_from_mu(0.388, DELTA), ("joint", "clopper-pearson", "gaussian")),
        (gaussian, 1.0, epsilon_from_mu(1.0, DELTA), ("joint", "clopper-pearson", "gaussian")),
        (gaussian, 3.0, epsilon_from_mu(3.0, DELTA), ("joint", "clopper-pearson", "gaussian")),
        (gaussian, 0.0, 0.0, ("joint", "clopper-pearson", "gaussian")),
        (paired_scores, 1.0, epsilon_from_mu(1.0, DELTA), ("clopper-pearson", "gaussian")),
        (rounded_scores, 1.0, epsilon_from_mu(1.0, DELTA), ("joint", "clopper-pearson", "gaussian")),
        (laplace_scores, 1.0, 1.0, ("joint", "clopper-pearson")),
        (randomised_response, 1.0, 1.0, ("joint", "clopper-pearson")),
    ],
    ids=["mu=0.388", "mu=1", "mu=3", "mu=0", "paired", "rounded", "laplace", "response"],
)
@pytest.mark.parametrize("audits", [20, pytest.param(150, marks=pytest.mark.slow)])
def test_coverage_of_mechanisms_with_known_epsilon(scores, parameter, epsilon, names, audits):
    # Eight cells, up to three estimators each: together a correct build fails with probability below 3e-4.
    bounds = [audit_scores(*scores(seed, parameter), delta=DELTA, estimators=names) for seed in range(audits)]
    for place in range(len(names)):
        exceeded = sum(bound[place].epsilon_lower > epsilon + 1e-12 for bound in bounds)
        assert exceeded <= binom.isf(1e-5, audits, 0.05), names[place]


@pytest.mark.parametrize(
    ("mu", "n", "audits", "least"),
    [(1.0, 1000, 40, (1.36, 3.35)), (3.0, 1000, 20, (4.2, 14.6)), (0.388, 10_000, 20, (0.59, 1.15))],
)
def test_power_on_gaussian_scores(mu, n, audits, least):
    # The floors lie at least four standard errors below the means (1.60, 3.53), (4.57, 14.9), (0.75, 1.27),
    # so a build with this power fails one of the six cells with probability below 2e-4.
    bounds = [audit_scores(*gaussian(seed, mu, n), delta=DELTA) for seed in range(audits)]
    for place, floor in enumerate(least):
        assert np.mean([bound[place].epsilon_lower for bound in bounds]) >= floor


def test_power_on_scores_that_are_not_gaussian():
    rng = np.random.default_rng(4)
    lognormal = [
        audit_scores(
            np.exp(rng.normal(1, 1, 2000)),
            np.exp(rng.normal(0, 1, 2000)),
            delta=DELTA,
            estimators=["clopper-pearson"],
        )[0]
        for _ in range(10)
    ]
    assert np.mean([bound.epsilon_lower for bound in lognormal]) > 1.2
    binary = audit_scores(*(np.repeat(x, 50) for x in randomised_response(1, 2.0)), delta=DELTA)[0]
    assert 1.6 < binary.epsilon_lower <= 2.3  # 25,000 a side; truth near 2, resampled from 500 draws


@pytest.mark.ci
@pytest.mark.parametrize(
    ("n_in", "n_out", "errors", "few", "at_none"),
    [(20, 16, 16, 20, True), (900, 900, 60, 2, False), (400, 1900, 60, 1, True)],
)
def test_no_counts_prove_more_than_the_ceiling_of_joint_and_some_prove_it(n_in, n_out, errors, few, at_none):
    """All counts of few scores; of more, a few errors on the confined side prove more than none."""
    test = FixedTest(name="joint", delta=1e-5, n_in=n_in, n_out=n_out)
    proved = {
        (wrong, other, strict): replace(
            test,
            false_negatives=wrong if strict else other,
            false_positives=other if strict else wrong,
            strict_on_fpr=strict,
        ).epsilon_lower(0.05)
        for wrong, other, strict in product(range(errors + 1), range(few + 1), (True, False))
        if other <= (n_out if strict else n_in) and wrong <= (n_in if strict else n_out)
    }
    most = max(proved, key=proved.__getitem__)
    assert test.ceiling(0.05) == proved[most]
    assert (most[:2] == (0, 0)) == at_none


def test_perfect_separation_reaches_the_ceiling_which_has_a_closed_form():
    inside, outside = np.full(2000, 1000.0), np.zeros(2000)
    rest = 2000 - pilot_size(2000)
    shares = np.array([0.5, 0.7, 0.8, 0.9])
    strict, other = -np.expm1(np.log(0.05 * shares) / rest), -np.expm1(np.log(0.05 * (1 - shares)) / rest)
    best = float(np.max(np.log((1 - DELTA - other) / strict)))
    bound, curve = audit_scores(inside, outside, delta=DELTA, estimators=["clopper-pearson", "gaussian"])
    assert bound.ceiling == pytest.approx(best, rel=1e-9)
    assert bound.epsilon_lower == pytest.approx(best, rel=1e-9)
    assert curve.epsilon_lower == pytest.approx(curve.ceiling, rel=1e-9)


def test_the_bound_is_what_the_counts_of_the_rule_prove():
    inside, outside = gaussian(3, 1.5, 1500)
    rule = Rule(threshold=2.0, in_is_high=True, strict_on_fpr=True, share=0.8, fitted=True)
    found = error_counts(inside, outside, rule)
    false_positives, false_negatives = found.false_positives, found.false_negatives
    counts = {"n_in": 1500, "n_out": 1500, "false_positives": false_positives, "false_negatives": false_negatives}
    test = FixedTest(name="clopper-pearson", delta=DELTA, strict_on_fpr=True, share=0.8, **counts)
    strict = float(upper_limit(np.sum(outside >= 2.0), 1500, 0.04))
    other = float(upper_limit(np.sum(inside < 2.0), 1500, 0.05 * (1 - 0.8)))
    assert test.epsilon_lower(0.05) == pytest.approx(np.log((1.0 - DELTA - other) / strict), rel=1e-12)


@pytest.mark.parametrize(
    ("in_is_high", "strict_on_fpr", "counts"),
    [(True, True, (2, 1)), (True, False, (1, 3)), (False, True, (3, 1)), (False, False, (2, 3))],
)
def test_scores_equal_to_the_threshold_get_one_answer_whatever_side_they_are_on(in_is_high, strict_on_fpr, counts):
    inside, outside = np.array([0.0, 1.0, 1.0, 2.0]), np.array([0.0, 0.0, 1.0, 2.0])
    rule = Rule(threshold=1.0, in_is_high=in_is_high, strict_on_fpr=strict_on_fpr, share=0.5, fitted=False)
    found = error_counts(inside, outside, rule)
    assert (found.false_positives, found.false_negatives) == counts
    mirrored = error_counts(-inside, -outside, replace(rule, threshold=-1.0, in_is_high=not in_is_high))
    assert (mirrored.false_positives, mirrored.false_negatives) == counts


@pytest.mark.parametrize("value", [0.0, -3.5, 1e300, 5e-324])
@pytest.mark.parametrize("n", [1, 8, 300])
def test_constant_scores_prove_nothing(value, n):
    for bound in audit_scores(np.full(n, value), np.full(n, value), delta=DELTA, estimators=tuple(ESTIMATORS)):
        assert bound.epsilon_lower == 0.0


def test_separated_constants_are_told_apart():
    bound, curve = audit_scores(np.full(500, 1.0), np.full(400, -1.0), delta=DELTA)
    assert bound.epsilon_lower == pytest.approx(bound.ceiling)
    assert curve.mu_lower > 4.0
    assert (bound.n_in, bound.n_out) == (500, 400)


@given(
    arrays(np.float64, st.integers(1, 40), elements=st.floats(allow_nan=False, allow_infinity=False)),
    arrays(np.float64, st.integers(1, 40), elements=st.floats(allow_nan=False, allow_infinity=False)),
    st.floats(1e-12, 0.4),
    st.floats(0.5, 0.9999),
)
@example(np.array([1.0, *[0.0] * 5, 2.3e83, *[0.0] * 10, 1.6e67, 0.0, 0.0]), np.array([0.0, *[1.0] * 15]), 0.25, 0.5)
@settings(max_examples=60, deadline=None)
def test_any_finite_scores_give_a_bound_between_nothing_and_the_ceiling(inside, outside, delta, confidence):
    for bound in audit_scores(inside, outside, delta=delta, confidence=confidence, estimators=tuple(ESTIMATORS)):
        assert 0.0 <= bound.epsilon_lower <= bound.ceiling + 1e-9 < np.inf


@given(st.integers(0, 10_000), st.sampled_from([1.0, 2.5]), st.sampled_from([0.25, 8.0, 2.0**60]))
@example(170, 2.5, 0.25)
@settings(max_examples=25, deadline=None)
def test_invariance_under_scale_and_sign(seed, mu, scale):
    # Worlds that a pilot can tell apart: where it promises nothing all rules tie, and their order decides.
    inside, outside = gaussian(seed, mu, 300)
    expected = [bound.epsilon_lower for bound in audit_scores(inside, outside, delta=DELTA)]
    for changed in ((scale * inside, scale * outside), (-inside, -outside)):
        found = [bound.epsilon_lower for bound in audit_scores(*changed, delta=DELTA)]
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.integers(0, 10_000), st.integers(-50, 50))
@settings(max_examples=25, deadline=None)
def test_invariance_under_shift(seed, shift):
    # Multiples of 2^-20 shifted by whole numbers are exact, so no two scores change their order.
    inside, outside = (np.round(x * 2.0**20) / 2.0**20 for x in gaussian(seed, 1.0, 300))
    expected = [bound.epsilon_lower for bound in audit_scores(inside, outside, delta=DELTA)]
    found = [bound.epsilon_lower for bound in audit_scores(inside + shift, outside + shift, delta=DELTA)]
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_swapping_the_sides_changes_the_tail_at_most():
    # Which tail is tried is a coin toss between equals, so a swap may change one audit, but not their mean:
    # the mean of 40 differences has a standard error of about 0.04.
    differences = []
    for seed in range(40):
        inside, outside = gaussian(seed, 1.0, 1000)
        one, other = (audit_scores(*pair, delta=DELTA)[0] for pair in ((inside, outside), (outside, inside)))
        assert one.ceiling == other.ceiling
        differences.append(one.epsilon_lower - other.epsilon_lower)
    assert abs(np.mean(differences)) < 0.2


def test_the_answer_follows_from_the_seed_alone_and_leaves_its_input_be():
    inside, outside = gaussian(1, 1.0)
    before = inside.copy()
    first = audit_scores(inside, outside, delta=DELTA, seed=5)
    assert audit_scores(inside.tolist(), outside.tolist(), delta=DELTA, seed=5) == first
    assert audit_scores(inside, outside, delta=DELTA, seed=6) != first
    assert np.array_equal(inside, before)


def test_more_confidence_never_proves_more_at_one_rule():
    inside, outside = gaussian(2, 2.0, 2000)
    values = [
        [b.epsilon_lower for b in audit_scores(inside, outside, delta=DELTA, confidence=c)] for c in (0.5, 0.95, 0.999)
    ]
    assert values[0][1] > values[1][1] > values[2][1]
    assert values[0][0] > values[2][0]


@pytest.mark.parametrize("n", [8, 9, 40, 100, 1000, 2000, 10_000, 1_000_000])
def test_the_pilot_is_five_to_ten_per_cent_or_as_little_as_a_fit_needs(n):
    size = pilot_size(n)
    assert 2 <= size <= max(n // 4, 2)
    if n >= 100:
        assert 0.05 * n <= size <= 0.1 * n + 1


def test_pilots_of_known_sizes():
    sizes = {8: 2, 20: 5, 40: 5, 61: 7, 100: 10, 101: 11, 999: 100, 2000: 100, 2001: 101, 10_000: 500}
    assert {n: pilot_size(n) for n in sizes} == sizes


def test_the_pilot_is_random_complete_and_pairs_stay_together():
    scores = np.arange(1000.0)
    pilot, rest = split_pilot(scores, 3)
    assert np.array_equal(np.sort(np.concatenate([pilot, rest])), scores)
    assert pilot.max() > 800
    assert pilot.min() < 200
    other_pilot, _ = split_pilot(scores + 0.5, 3)
    assert np.array_equal(other_pilot, pilot + 0.5)


def test_a_rule_finds_the_direction_and_the_tail(rng):

    def objective(strict, other):
        return np.log(np.maximum(1.0 - other, 1e-12)) - np.log(strict)

    # "out" has the wider spread: the safe answers lie where "in" is rare, so few false negatives
    # are worth more.
    inside, outside = rng.normal(-2.0, 0.5, 400), rng.normal(0.0, 3.0, 400)
    rule = choose_rule(Pilot(inside, outside, 9000, 9000), 0.05, objective=objective, shares=(0.5, 0.8))
    assert not rule.in_is_high
    assert not rule.strict_on_fpr


def test_fewer_scores_than_a_pilot_needs_prove_nothing_and_say_so():
    names = ["joint", "clopper-pearson", "gaussian", "curve", "bayes"]
    for found in audit_scores([9.0] * 7, [0.0] * 500, delta=DELTA, estimators=names):
        assert (found.epsilon_lower, found.ceiling, found.looks, found.directions) == (0.0, 0.0, 0, 0)
        assert "fewer than 8" in found.threshold_rule


def test_every_registered_estimator_fills_in_its_bound():
    inside, outside = gaussian(0, 1.0)
    bounds = audit_scores(inside, outside, delta=1e-3, confidence=0.9, estimators=tuple(ESTIMATORS))
    for (name, entry), bound in zip(ESTIMATORS.items(), bounds, strict=True):
        assert (bound.name, bound.claim_kind) == (name, entry.claim_kind)
        assert (bound.delta, bound.confidence, bound.n_in, bound.n_out) == (1e-3, 0.9, 500, 500)
        if name.startswith("sequential"):
            assert bound.looks > 400
            assert bound.directions == 2
            assert "500 pairs, each side in a random order" in bound.threshold_rule
        else:
            assert (bound.looks, bound.directions) == (1, 1)
            assert "a random sample of " in bound.threshold_rule
        assert bound.ceiling > bound.epsilon_lower > 0.0
        assert "error 0.1" in bound.threshold_rule
        assert may_refute(name, exactly_gaussian=True) == entry.refutes
        assert may_refute(name, exactly_gaussian=False) == can_refute(bound)
        assert entry.summary
        assert "\n" not in entry.summary


def test_mu_converts_by_the_gaussian_curve():
    curve = bound_of(*gaussian(0, 2.0), "gaussian", delta=1e-6)
    assert curve.mu_lower > 1.0
    assert curve.epsilon_lower == epsilon_from_mu(curve.mu_lower, 1e-6)


def test_a_gaussian_bound_gates_only_where_told_and_not_contradicted(rng):
    gaussian_view = gaussian(0, 1.0, 2000)
    for told, gates in ((False, False), (True, True)):
        bounds = audit_scores(*gaussian_view, delta=DELTA, exactly_gaussian=told)
        assert [can_refute(bound) for bound in bounds] == [True, gates]
    laplace = rng.laplace(1, 1, 10_000), rng.laplace(0, 1, 10_000)
    bound, curve = audit_scores(*laplace, delta=DELTA, exactly_gaussian=True)
    assert bound.epsilon_lower <= 1.0
    assert curve.epsilon_lower > 1.0  # the number is wrong for this mechanism,
    assert not can_refute(curve)  # and so it may refute nothing
    assert "contradict" in curve.assumes


@pytest.mark.parametrize(("n_in", "n_out"), [(7, 200), (200, 7)])
def test_too_few_scores_to_test_gate_nothing(n_in, n_out):
    scores = np.linspace(4.0, 5.0, n_in), np.linspace(0.0, 1.0, n_out)
    curve = bound_of(*scores, "gaussian", exactly_gaussian=True)
    assert "too few scores" in curve.assumes
    assert not can_refute(curve)


@pytest.mark.parametrize(
    ("inside", "outside", "words"),
    [
        ([], [1.0], "in_scores is empty"),
        ([1.0], [], "out_scores is empty"),
        ([[1.0, 2.0]], [1.0], r"in_scores has shape \(1, 2\); use one dimension"),
        (3.0, [1.0], r"in_scores has shape \(\)"),
        ([1.0], [1.0, float("nan"), 2.0, float("inf")], "out_scores: row 2 is nan; use a number"),
        (["a"], [1.0], "in_scores holds values of type"),
        ([1.0, None], [1.0], "in_scores holds values of type object"),
        ([True], [1.0], "in_scores holds values of type bool"),
        ([1j], [1.0], "in_scores holds values of type complex128"),
        ([[1.0], [1.0, 2.0]], [1.0], "in_scores is ragged"),
    ],
)
def test_wrong_scores_are_named_with_side_and_row(inside, outside, words):
    with refused(words):
        audit_scores(inside, outside, delta=DELTA)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": float("nan")}, "delta is nan"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"seed": -1}, "seed is -1"),
        ({"estimators": ["gausian"]}, "did you mean 'gaussian'"),
    ],
)
def test_wrong_options_are_named(options, words):
    with refused(words):
        audit_scores([1.0], [0.0], **{"delta": DELTA, **options})
