"""The wealth of the betting test by pairs."""

from dataclasses import replace

import numpy as np
import pytest

from dpzv_audit.evidence.bounding import wealth_by_pairs
from dpzv_audit.games.scores import GameScores
from dpzv_audit.results import AuditResult, Wealth
from reports.content import report_content
from reports.curves import wealth_figure


def scores(mu, pairs=3000, seed=0):
    rng = np.random.default_rng(seed)
    return GameScores(in_scores=rng.normal(mu, 1.0, pairs), out_scores=rng.normal(0.0, 1.0, pairs), kind="residual-sum")


def test_wealth_grows_against_a_false_claim_and_says_where_it_refutes():
    wealth = wealth_by_pairs(scores(2.0), epsilon=0.5, delta=1e-5, confidence=0.95)
    path = np.array(wealth.log10_wealth)
    assert wealth.goal == pytest.approx(-np.log10(0.05))
    assert 20 < wealth.refuted_at < 1000
    before = np.array(wealth.pairs) < wealth.refuted_at
    assert np.all(path[before] < wealth.goal)
    assert path.max() > wealth.goal
    drawn = wealth_figure(wealth)
    for words in (
        "wealth against",
        "refuted from here on",
        f"reached at pair {wealth.refuted_at}",
        "in the order of the runs",
    ):
        assert words in drawn


def test_the_path_depends_on_the_order_of_the_pairs_and_the_report_says_so():
    # Wealth is a number with 53 bits: that another order refutes at the same pair with the same path is out of reach.
    pairs = scores(2.0)
    turned = replace(pairs, in_scores=pairs.in_scores[::-1], out_scores=pairs.out_scores[::-1])
    first, second = (wealth_by_pairs(s, epsilon=0.5, delta=1e-5, confidence=0.95) for s in (pairs, turned))
    assert first.log10_wealth != second.log10_wealth
    (picture,) = report_content(AuditResult(wealth=first)).pictures
    assert "depends on the order of the pairs, here that of the runs" in picture.caption


def test_wealth_against_a_true_claim_stays_below_the_goal():
    # A true claim is refuted with probability 0.05 at most by Ville's inequality: at goal 1e4 with 1e-4 (fixed seed).
    wealth = wealth_by_pairs(scores(0.5), epsilon=3.0, delta=1e-5, confidence=1.0 - 1e-4)
    assert wealth.refuted_at is None
    assert max(wealth.log10_wealth) < wealth.goal
    assert "never reached" in wealth_figure(wealth)


def test_without_a_wealth_nothing_is_drawn():
    assert wealth_by_pairs(scores(0.0), epsilon=301.0, delta=1e-5, confidence=0.95) is None
    assert wealth_figure(None) == ""
    one = Wealth(pairs=[1], log10_wealth=[0.0], goal=1.3, epsilon=1.0)
    assert wealth_figure(one) == ""
