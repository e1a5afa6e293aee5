import numpy as np
import pytest

from dpzv_audit.statistics.binomial import Counts
from dpzv_audit.statistics.estimators import audit_scores, can_refute
from dpzv_audit.statistics.fixed import credible_epsilon, mass_allowed

from ...helpers.scores import bound_of, gaussian


def counts(fp, fn, n):
    return Counts(false_positives=fp, n_out=n, false_negatives=fn, n_in=n)


@pytest.mark.parametrize(("fp", "fn", "n"), [(0, 0, 1000), (3, 200, 1000), (400, 450, 1000), (1, 1, 50), (0, 7, 20)])
def test_the_mass_is_that_of_draws_from_the_posterior(fp, fn, n):
    # 400,000 draws: a share of 5% has a standard error of 0.00034, and 6 of them are 0.0021 (below 1e-8).
    delta, rng = 1e-5, np.random.default_rng(fp + 10 * fn)
    a = rng.beta(fp + 0.5, n - fp + 0.5, 400_000)
    b = rng.beta(fn + 0.5, n - fn + 0.5, 400_000)
    epsilon = credible_epsilon(counts(fp, fn, n), delta, 0.05)
    odds = np.exp(epsilon)
    allowed = (b >= 1 - delta - odds * a) & (a >= 1 - delta - odds * b)
    assert mass_allowed(epsilon, counts(fp, fn, n), delta) == pytest.approx(0.05, abs=1e-5)
    assert np.mean(allowed) == pytest.approx(0.05, abs=0.0021)


@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.1])
def test_the_mass_at_any_epsilon_is_that_of_draws(epsilon):
    # As above: 6 standard errors of a share of a half are 0.0048.
    a, b = np.random.default_rng(7).beta([[400.5], [450.5]], [[600.5], [550.5]], (2, 400_000))
    allowed = (b >= 1 - 0.1 - np.exp(epsilon) * a) & (a >= 1 - 0.1 - np.exp(epsilon) * b)
    assert 0.01 < np.mean(allowed) < 0.99
    assert mass_allowed(epsilon, counts(400, 450, 1000), 0.1) == pytest.approx(np.mean(allowed), abs=0.0048)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 5.0, 7.0, 9.0])
@pytest.mark.parametrize(("fp", "n_out", "fn", "n_in"), [(0, 200, 30, 1000), (3, 1000, 200, 1000), (0, 20, 7, 20)])
def test_the_rates_may_change_places(epsilon, fp, n_out, fn, n_in):
    # What is allowed is symmetric in the two rates; the integral takes one by its quantiles, the other by its masses.
    one = Counts(false_positives=fp, n_out=n_out, false_negatives=fn, n_in=n_in)
    other = Counts(false_positives=fn, n_out=n_in, false_negatives=fp, n_in=n_out)
    assert mass_allowed(epsilon, one, 1e-3) == pytest.approx(mass_allowed(epsilon, other, 1e-3), abs=1e-9)


def test_the_ceiling_is_the_bound_of_scores_that_never_overlap():
    rng = np.random.default_rng(1)
    some = bound_of(*gaussian(rng, 2.0, 300, 400), "bayes")
    whole = bound_of(*gaussian(rng, 50.0, 300, 400), "bayes")
    # Scores far apart still fall on the wrong side of a pilot's outermost score now and then: one in 30, of a side.
    assert some.epsilon_lower < whole.epsilon_lower
    assert some.ceiling == whole.ceiling
    constant = bound_of(np.ones(300), np.zeros(400), "bayes")
    assert constant.epsilon_lower == constant.ceiling == whole.ceiling


def test_no_error_in_a_million_is_no_trouble():
    assert 13.5 < credible_epsilon(counts(0, 0, 1_000_000), 1e-9, 0.05) < 14.5
    assert credible_epsilon(counts(500, 500, 1000), 1e-5, 0.05) == 0.0
    # Nothing but ties: every score is an error in both worlds.
    assert credible_epsilon(counts(1000, 1000, 1000), 1e-5, 0.05) == 0.0
    assert mass_allowed(0.0, counts(0, 0, 10), 1e-5) == pytest.approx(0.0, abs=1e-3)


def test_it_informs_and_refutes_nothing(rng):
    bound, plain = audit_scores(*gaussian(rng, 2.0, 2000), delta=1e-5, estimators=["bayes", "clopper-pearson"])
    assert bound.epsilon_lower > plain.epsilon_lower > 0.0
    assert bound.claim_kind == "epsilon-delta"
    assert "prior" in bound.assumes
    assert not can_refute(bound)
