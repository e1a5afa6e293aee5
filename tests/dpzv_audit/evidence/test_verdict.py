"""Verdicts are pure functions of p-values and upper bounds."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from dpzv_audit.base.findings import Void
from dpzv_audit.claims.file import ClaimsFile, one_claim
from dpzv_audit.claims.gate import ClaimRun
from dpzv_audit.evidence.gathering import Gathering, Stage, Subject, Success
from dpzv_audit.evidence.verdict import VERDICTS, decide, fails
from dpzv_audit.statistics.binomial import LEAST_P
from dpzv_audit.statistics.fixed import FixedTest, fixed_test

from ...helpers.gates import gate_of
from ...helpers.scores import gaussian

VOID = Void(reason="failed-control", words="the positive control of label_norm failed")
NEGATIVE = Void(reason="failed-control", words="the negative control of label_norm is off chance", refutations=True)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"refuted": True, "theory": True, "upper": 0.5}, ("refuted", "measured-above-claim")),
        ({"refuted": True, "voids": [VOID]}, ("refuted", "measured-above-claim")),
        ({"refuted": True, "voids": [VOID, NEGATIVE]}, ("not-tested", "failed-control")),
        ({"refuted_before": True, "voids": [NEGATIVE]}, ("refuted", "refuted-before")),
        ({"theory": True, "upper": 0.5, "voids": [VOID]}, ("not-tested", "failed-control")),
        ({"theory": True, "upper": 0.5}, ("supported", "proven")),
        ({"theory": True, "upper": 0.5, "powerless": "no-test"}, ("supported", "proven")),
        ({"theory": True, "upper": 1.0}, ("supported", "proven")),
        ({"theory": True, "upper": 1.0 + 1e-8}, ("overclaimed", "bound-above-claim")),
        ({"theory": True, "upper": 1.0 + 1e-15}, ("supported", "proven")),
        ({"theory": True, "upper": None}, ("overclaimed", "no-sound-bound")),
        ({"theory": True, "upper": None, "powerless": "never-refutable"}, ("overclaimed", "no-sound-bound")),
        ({"claimed": None, "held": True}, ("held", "limit-below-claim")),
        ({"claimed": None, "held": True, "powerless": "never-refutable"}, ("held", "limit-below-claim")),
        ({"powerless": "never-refutable"}, ("not-tested", "never-refutable")),
        ({"powerless": "no-test"}, ("not-tested", "no-test")),
        ({}, ("inconclusive", "not-refuted")),
        ({"claimed": None}, ("inconclusive", "not-refuted")),
    ],
)
def test_the_verdicts_of_the_table(facts, expected):
    assert decide(**{"refuted": False, "theory": False, "upper": None, "claimed": 1.0, **facts}) == expected


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("audited", [True, False])
@pytest.mark.parametrize("allow", [(), ("overclaimed",), ("not-tested",), ("overclaimed", "not-tested")])
@pytest.mark.parametrize("strict", [False, True])
def test_what_fails_is_as_specified(verdict, audited, allow, strict):
    by_default = {"refuted": True, "overclaimed": "overclaimed" not in allow, "not-tested": "not-tested" not in allow}
    expected = by_default.get(verdict, False) or (strict and (verdict == "inconclusive" or not audited))
    assert fails(verdict, audited=audited, allow=allow, strict=strict) is expected


def exact_test(**changes):
    base = {
        "name": "joint",
        "delta": 1e-5,
        "n_in": 1000,
        "n_out": 1000,
        "false_positives": 3,
        "false_negatives": 400,
        "strict_on_fpr": True,
    }
    return FixedTest(**{**base, **changes})


@pytest.mark.parametrize("name", ["joint", "gaussian"])
@pytest.mark.parametrize("errors", [(3, 400), (0, 0), (0, 700), (50, 120)])
def test_a_p_value_is_the_error_at_which_the_bound_passes_the_claim(name, errors):
    # P-values are rounded up by 0.2% at most, bounds down to a lattice of 0.1%; below 1e-12 the blocks are coarser.
    test = exact_test(name=name, false_positives=errors[0], false_negatives=errors[1])
    for claimed in (0.1, 1.0, 3.0):
        p = test.p_value(claimed)
        if LEAST_P < p < 0.9:
            assert test.epsilon_lower(p * 1.02) > claimed * 0.999
            assert p < 1e-12 or test.epsilon_lower(p * 0.98) <= claimed
        assert test.p_value(claimed + 0.5) >= p


@pytest.mark.parametrize("false_positives", [1, 2, 4, 9, 30])
@pytest.mark.parametrize("claimed", [0.01, 0.5, 1.0, 2.0])
def test_a_p_value_is_found_where_quantiles_are_not(false_positives, claimed):
    """Beta quantiles at errors below 1e-150 are no number for some counts: the limits are then 0 and 1."""
    test = exact_test(n_in=7782, n_out=7782, false_positives=false_positives, false_negatives=0)
    assert LEAST_P <= test.p_value(claimed) < 1e-12


def test_a_p_value_of_nothing_is_one():
    assert exact_test(n_in=0, n_out=0, false_positives=0, false_negatives=0).p_value(0.1) == 1.0
    assert exact_test(false_positives=600).p_value(0.1) == 1.0
    none = fixed_test([1.0] * 7, [0.0] * 7, delta=1e-5, design_error=0.01)
    assert none.p_value(0.01) == 1.0
    assert none.epsilon_lower(0.05) == none.ceiling(0.05) == 0.0
    assert (none.n_in, none.n_out, none.false_positives, none.false_negatives) == (0, 0, 0, 0)


def test_counts_without_errors_give_the_closed_form():
    # No error on either side: the largest (1 - a)^1000 (1 - f(a))^1000 along the claim's curve. 2% of it is what the
    # search may miss, 5% what confines a, 1% what it is rounded up by.
    test = exact_test(false_positives=0, false_negatives=0)
    a = np.linspace(0.0, 0.2, 200_001)
    f = np.maximum(1.0 - 1e-5 - np.exp(2.0) * a, np.exp(-2.0) * (1.0 - 1e-5 - a))
    largest = float(np.exp(np.max(1000 * np.log1p(-a) + 1000 * np.log1p(-f))))
    assert test.p_value(2.0) == pytest.approx(largest * 1.02 / 0.95, rel=0.01)


@pytest.mark.parametrize("strict_on_fpr", [True, False])
def test_p_values_far_out_keep_falling(strict_on_fpr):
    """Ten standard errors and more: what lies beyond the blocks of the sum must not hold the p-value up."""
    counts = {"false_positives": 30, "false_negatives": 500} if strict_on_fpr else {}
    test = exact_test(**{"false_positives": 500, "false_negatives": 30, **counts}, strict_on_fpr=strict_on_fpr)
    p_values = [test.p_value(claimed) for claimed in (0.5, 1.0, 1.5, 2.0)]
    assert p_values[0] < 1e-50
    assert all(10.0 * p < q for p, q in itertools.pairwise(p_values))
    assert p_values[-1] > 1e-12


@pytest.mark.ci
def test_p_values_of_true_claims_are_not_too_small():
    # Randomised response at its exact epsilon: p <= u in at most a share u of 120 audits. False alarm: 1e-5 a level.
    rng = np.random.default_rng(7)
    truth = np.exp(1.0) / (1.0 + np.exp(1.0))
    p_values = [
        fixed_test(
            (rng.random(200) < truth) * 1.0, (rng.random(200) >= truth) * 1.0, delta=1e-9, design_error=0.05, seed=k
        ).p_value(1.0)
        for k in range(120)
    ]
    for error in (0.05, 0.2, 0.5):
        assert 0 < sum(p <= error for p in p_values) <= binom.isf(1e-5, 120, error)


def test_the_rule_has_the_power_to_refute_a_false_claim():
    inside, outside = gaussian(1, 1.0, 10_000)  # epsilon 4.38 at delta 1e-5
    plain = fixed_test(inside, outside, delta=1e-5, design_error=1e-4)
    given_gaussian = fixed_test(inside, outside, name="gaussian", delta=1e-5, design_error=1e-4)
    assert plain.p_value(1.0) < 1e-6
    assert given_gaussian.p_value(2.5) < 1e-6
    assert given_gaussian.p_value(4.5) > 0.1
    assert plain.ceiling(0.05) > plain.epsilon_lower(0.05)


def test_a_claim_on_an_attack_that_finds_cosines_bets_on_cosines():
    keys = {"name": "c", "kind": "attack", "method": "dpzv", "success_at_most": 0.05}
    for attack in ("gradient_estimation", "feature_inversion"):
        placed = one_claim({**keys, "attack": attack})
        gate = gate_of(ClaimsFile(Path("claims.toml"), 1e-3, (placed,)))
        asked = gate.question(ClaimRun(placed, "", seed=0))
        block = Success(rates=(-0.05, *[0.95] * 15), baselines={}, controls={})
        subject = Subject(stages=(Stage(name="trainings", pool="trainings", blocks=1),))
        assert Gathering(subject, asked, pools={"trainings": [block]}).p_value < 1e-3
