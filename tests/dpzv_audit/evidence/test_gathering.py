"""The sequential test inside a claim: what it says, what it may be asked, and the runs that it is given."""

import json
from dataclasses import replace

import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy.stats import binom

from dpzv_audit.accounting.gaussian import epsilon_from_mu
from dpzv_audit.base.findings import to_jsonable
from dpzv_audit.claims.cache import Cache
from dpzv_audit.evidence.gathering import Question, full_looks, sequential_looks
from dpzv_audit.evidence.verdict import Evidence, Look, Theory
from dpzv_audit.games.scores import GameScores, GaussianGiven, joined
from dpzv_audit.statistics.assumptions import gaussian_assumption
from dpzv_audit.statistics.panel import GAUSSIAN_TESTS
from dpzv_audit.statistics.sequential import bet_on, evidence_against, likelihood_of

from ...helpers.scores import gaussian

DELTA = 1e-5


def gaussian_game(mu, pairs, seed=0):
    return GameScores(*gaussian(seed, mu, pairs), given=GaussianGiven())


def bet(sides, **options):
    return bet_on(sides.in_scores, sides.out_scores, **options)


def likelihood(sides, **options):
    return likelihood_of(sides.in_scores, sides.out_scores, **options)


def claim(epsilon):
    return Question(epsilon=epsilon, delta=DELTA, alpha=1e-3, stop=1e-6)


@pytest.mark.parametrize("bound", [True, False])
def test_the_p_value_is_the_same_with_and_without_other_claims_beside_it(bound):
    sides = gaussian_game(1.5, 1500)
    bets = bet(sides, epsilon=1.23, delta=DELTA, most_pairs=1500, bound=bound)
    ratio = likelihood(sides, epsilon=1.23, delta=DELTA, bound=bound)
    assert bets.least_p_value == bet(sides, epsilon=1.23, delta=DELTA, most_pairs=1500).least_p_value < 1e-3
    assert ratio.least_p_value == likelihood(sides, epsilon=1.23, delta=DELTA).least_p_value < 1e-6


def test_bounds_fall_with_the_error_and_lie_below_the_truth():
    sides = gaussian_game(1.5, 4000)
    truth = float(epsilon_from_mu(1.5, DELTA))
    for test in (
        bet(sides, epsilon=1.0, delta=DELTA, most_pairs=4000),
        likelihood(sides, epsilon=1.0, delta=DELTA),
    ):
        bounds = [test.epsilon_lower(error) for error in (0.05, 1e-3, 1e-6)]
        assert bounds == sorted(bounds, reverse=True)
        assert 1.0 < bounds[0] < truth
        assert test.ceiling(0.05) >= bounds[0]
        assert test.least_p_value < 1e-6


def test_a_claim_that_no_planned_number_of_pairs_could_refute_is_not_bet_on():
    sides = gaussian_game(3.0, 100)
    assert bet(sides, epsilon=10.0, delta=DELTA, most_pairs=2000) is None
    assert bet(sides, epsilon=1e5, delta=DELTA, most_pairs=10**9) is None
    assert bet(sides, epsilon=3.0, delta=DELTA, most_pairs=2000) is not None


@pytest.mark.ci
def test_looks_over_time_err_no_more_than_one_look():
    """Looked at after every 125 pairs of 1,000, a true claim reaches p <= 0.1 in at most 10%. False alarm: 1e-5."""
    truth = float(epsilon_from_mu(0.5, DELTA))
    wrong = 0
    for seed in range(50):
        sides = gaussian_game(0.5, 1000, seed)
        blocks = [sides.rows(slice(k, k + 125), slice(k, k + 125)) for k in range(0, 1000, 125)]
        options = {"stage": "s", "share": 1.0, "gaussian": True, "most_pairs": 1000, "bound": False}
        p_values = [
            min(look.p_value / look.weight for look in sequential_looks(blocks[:n], claim(truth), **options))
            for n in range(1, 9)
        ]
        wrong += min(p_values) <= 0.1
    assert wrong <= binom.isf(1e-5, 50, 0.1)


def test_only_the_runs_with_the_count_are_gaussian_and_their_delta_pays_for_it(rng):
    counts = rng.integers(1, 3, (2, 400))
    inside, outside = counts[0] + rng.normal(size=400), -counts[1] + rng.normal(size=400)
    block = GameScores(inside, outside, counts=(counts[0], counts[1]), given=GaussianGiven(probability=0.5, count=2))
    part, given = TypeAdapter(GameScores).validate_python(json.loads(json.dumps(to_jsonable(block)))).gaussian
    assert given == block.given
    assert (part.in_scores == inside[counts[0] == 2]).all()
    assert (part.out_scores == outside[counts[1] == 2]).all()
    assert gaussian_assumption(part.in_scores, part.out_scores, vouched=False) == ""
    looks = full_looks(block, claim(1.0), stage="s", share=1.0, on_gaussian=GAUSSIAN_TESTS)
    assert [(look.test.name, look.test.delta) for look in looks] == [
        ("joint", DELTA),
        ("gaussian", 2 * DELTA),
        ("curve", 2 * DELTA),
    ]
    assert looks[1].test.n_in < looks[0].test.n_in / 1.5
    bets = sequential_looks([block], claim(1.0), stage="s", share=1.0, gaussian=True, most_pairs=400)
    assert [look.test.delta for look in bets] == [DELTA, 2 * DELTA]
    assert joined([block, block]).gaussian[0].in_scores.size == 2 * part.in_scores.size
    other = replace(block, given=GaussianGiven(probability=0.4, count=2))
    assert joined([block, other]).gaussian is None, "blocks that disagree are not one sample"
    assert joined([replace(block, given=None)]).gaussian is None


def test_evidence_with_both_kinds_of_test_reads_back_from_the_cache(tmp_path):
    sides = gaussian_game(2.0, 300)
    looks = [
        *sequential_looks([sides], claim(1.0), stage="a", share=0.3, gaussian=True, most_pairs=300),
        *full_looks(sides, claim(1.0), stage="b", share=0.6, on_gaussian=GAUSSIAN_TESTS),
    ]
    assert all(isinstance(look, Look) for look in looks)
    evidence = Evidence(p_value=0.1, theory=Theory(), looks=tuple(looks), split={"a": 0.3, "b": 0.6})
    Cache(tmp_path).keep("key", evidence)
    again = Cache(tmp_path).evidence("key")
    assert again == evidence
    assert again.epsilon_lower(1e-3) == evidence.epsilon_lower(1e-3) > 1.0
    assert again.given(1e-3) == "given Gaussian noise"


def test_a_likelihood_ratio_agrees_with_the_test_that_it_wraps():
    sides = gaussian_game(0.8, 500)
    found = likelihood(sides, epsilon=2.0, delta=DELTA)
    assert (
        list(found.evidence) == evidence_against(np.asarray(found.claims), sides.in_scores, sides.out_scores).tolist()
    )
