import math

import numpy as np
import pytest
from riskcal import analysis

from dpzv_audit.base.findings import EmpiricalBound, EpsilonRange, UpperBound
from dpzv_audit.results import Privacy, Tradeoff
from reports import risk

EVEN = 0.5


@pytest.mark.parametrize("mu", [1e-3, 0.268, 1.257, 5.0, 30.0])
def test_gaussian_risk_is_that_of_riskcal(mu):
    computed = risk.risk_from_mu(mu)
    assert computed.advantage == pytest.approx(analysis.get_advantage_from_gdp(mu), rel=1e-9)
    assert computed.true_positives == pytest.approx(
        1.0 - analysis.get_beta_from_gdp(mu, np.array(risk.RATES)), rel=1e-9
    )
    assert computed.wrong == pytest.approx(analysis.get_bayes_risk_from_gdp(mu, EVEN), abs=1e-12)
    assert computed.wrong_if_rare == pytest.approx(analysis.get_bayes_risk_from_gdp(mu, risk.RARE), abs=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 1e-5), (1.0, 0.1), (4.0, 1e-3), (40.0, 0.0)])
def test_risk_of_epsilon_and_delta_is_that_of_riskcal(epsilon, delta):
    computed = risk.risk_from_epsilon(epsilon, delta)
    assert computed.advantage == pytest.approx(analysis.get_advantage_from_adp(epsilon, delta), rel=1e-9)
    rates = 1.0 - analysis.get_beta_from_adp(epsilon, delta, np.array(risk.RATES))
    assert computed.true_positives == pytest.approx(rates, rel=1e-9)
    alpha = np.linspace(0.0, 1.0, 100_001)
    beta = analysis.get_beta_from_adp(epsilon, delta, alpha)
    for prior, wrong in ((EVEN, computed.wrong), (risk.RARE, computed.wrong_if_rare)):
        assert wrong == pytest.approx(((1.0 - prior) * alpha + prior * beta).min(), abs=1e-5)


def test_nothing_told_is_a_blind_guess():
    nothing = risk.risk_from_mu(0.0)
    assert (nothing.advantage, nothing.wrong, nothing.wrong_if_rare) == (0.0, 0.5, 0.1)
    assert nothing.true_positives == pytest.approx(risk.RATES)
    straight = risk.risk_from_points([0.0, 0.5, 1.0], [1.0, 0.6, 0.0])
    assert (straight.advantage, straight.wrong, straight.wrong_if_rare) == (0.0, 0.5, pytest.approx(0.1))
    assert straight.true_positives == pytest.approx(risk.RATES)


def bound(**more):
    given = {"accountant": "a", "adversary": "client", "neighbours": "replace-label", "delta": 1e-5, "sound": True}
    return UpperBound(epsilon=EpsilonRange(lower=1.0, estimate=1.0, upper=1.0), **given | more)


def test_the_upper_risk_is_of_a_sound_bound_alone():
    assert risk.at_most(bound(mu=0.5)) == risk.risk_from_mu(0.5)
    assert risk.at_most(bound()) == risk.risk_from_epsilon(1.0, 1e-5)
    assert risk.at_most(bound(sound=False, gap="known-ids")) is None
    assert risk.at_most(None) is None


def estimator(name, epsilon_lower, mu_lower, assumes=""):
    return EmpiricalBound(
        name=name,
        epsilon_lower=epsilon_lower,
        delta=1e-5,
        confidence=0.95,
        claim_kind="epsilon-delta" if mu_lower is None else "trade-off",
        assumes=assumes,
        mu_lower=mu_lower,
        threshold_rule="",
        directions=1,
        looks=1,
        n_in=9,
        n_out=9,
        ceiling=9.0,
    )


def test_the_lower_risk_takes_nothing_as_given_that_the_verdict_does_not():
    band = Tradeoff(alpha=[0.0, 0.25, 1.0], empirical=[1.0, 0.2, 0.0], empirical_high=[1.0, 0.5, 0.0], confidence=0.9)
    curve, joint = estimator("curve", 2.0, 0.5), estimator("joint", 2.0, None)
    low, words = risk.at_least(Privacy(empirical_lower=2.0, estimators=[curve], given="given Gaussian noise"), band)
    assert (low, words) == (risk.risk_from_mu(0.5), "given Gaussian noise, at 95% confidence")
    # The bound is the largest of several, which hold together at 90%.
    audit = Privacy(empirical_lower=2.0, estimators=[curve], given="given Gaussian noise", confidence=0.9)
    assert risk.at_least(audit, band)[1] == "given Gaussian noise, at 90% confidence"
    for other in (joint, estimator("gaussian", 2.0, 0.5, assumes="Gaussian scores")):
        low, words = risk.at_least(Privacy(empirical_lower=2.0, estimators=[other]), band)
        assert low is not None
        assert low.advantage == 0.25
        assert low.true_positives == pytest.approx((0.02, 0.002))
        assert words == "from the band of the measured curve, at 90% confidence"
    assert risk.at_least(Privacy(empirical_lower=2.0, estimators=[joint]), None) == (None, "")


def test_rows_never_overstate():
    low, high = risk.risk_from_mu(0.5523), risk.risk_from_mu(1.2573)
    advantage, at_1, at_01, right, rare = risk.rows(low, high)
    assert advantage == {
        "risk": "true-positive minus false-positive rate",
        "shown by the audit": "≥ 0.217",
        "proven limit": "≤ 0.471",
        "a blind guess": "0",
    }
    for row, name, value in (
        (at_1, "shown by the audit", low.true_positives[0]),
        (at_01, "shown by the audit", low.true_positives[1]),
    ):
        assert float(str(row[name]).removeprefix("≥ ")) <= value
    assert str(right["shown by the audit"]).startswith("≥ 0.6")
    assert rare["shown by the audit"] == "not shown"  # 0.09997 prints as the 0.1 of a blind guess
    much = risk.risk_from_mu(1.2)
    assert float(str(risk.rows(much, high)[-1]["shown by the audit"]).removeprefix("≤ ")) >= much.wrong_if_rare
    assert float(str(rare["proven limit"]).removeprefix("≥ ")) <= high.wrong_if_rare
    blind = risk.rows(risk.risk_from_mu(0.0), high)
    assert {str(row["shown by the audit"]) for row in blind} == {"not shown"}
    assert risk.in_words("replace-label", risk.risk_from_mu(0.0), None) == ""
    assert "at most 74 times in 100" in risk.in_words("replace-label", risk.risk_from_mu(0.0), high)
    assert {str(row["proven limit"]) for row in risk.rows(low, None)} == {"no bound"}
    often = "the best guess between two labels is right"
    assert (
        risk.in_words("replace-label", low, high) == f"{often} 60 (measured) to 74 (proven) times in 100 (a coin: 50)"
    )
    unlimited = f"{often} at least 60 times in 100, and no theory sets a limit (a coin: 50)"
    assert risk.in_words("replace-label", low, None) == unlimited
    assert risk.in_words("replace-label", None, high) == f"{often} at most 74 times in 100 (a coin: 50)"
    assert risk.in_words("replace-label", None, None) == ""


def test_what_is_claimed_stands_beside_what_the_audit_shows_where_that_is_more():
    """Noise of epsilon 1 at delta 1e-5 has mu 0.26805: a guess is right with probability Phi(mu / 2) = 0.5533."""
    low, high = risk.risk_from_mu(0.5523), risk.risk_from_mu(1.2573)
    gaussian = Privacy(claimed=1.0, delta=1e-5, given="given Gaussian noise")
    words = risk.in_words("replace-label", low, high, risk.by_claim(gaussian))
    assert words.endswith("60 (measured) to 74 (proven) times in 100 (claim, if Gaussian: 56; coin: 50)")
    # Any mechanism of (1, 1e-5): e / (1 + e) = 0.7311, which 0.6088 does not break.
    any_noise = risk.by_claim(Privacy(claimed=1.0, delta=1e-5))
    assert any_noise.right == pytest.approx(math.e / (1.0 + math.e), abs=1e-5)
    assert risk.in_words("replace-label", low, high, any_noise).endswith("(a coin: 50)")
    assert "claim: at most 74;" in risk.in_words("replace-label", risk.risk_from_mu(3.0), None, any_noise)
    assert "claim" not in risk.in_words("replace-label", None, high, any_noise)
    assert risk.by_claim(Privacy(claimed=1.0, delta=0.0, given="given Gaussian noise")).right < 0.7311
    assert risk.by_claim(Privacy(claimed=math.inf, delta=1e-5)) is None
    assert risk.by_claim(Privacy(claimed=10**30, delta=1e-5)).right == 1.0  # all is lost, not nothing
    assert risk.risk_from_epsilon(1000.0, 1e-5).true_positives == (1.0, 1.0)
    assert risk.by_claim(Privacy()) is None
