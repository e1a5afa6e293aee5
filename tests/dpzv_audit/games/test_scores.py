"""Which scores of a game are Gaussian: counts alone decide, block by block."""

from types import SimpleNamespace

import numpy as np
import pytest

from dpzv_audit.games.real import RealTrials
from dpzv_audit.games.scores import GameScores, GaussianGiven, joined
from dpzv_audit.statistics.sequential import likelihood_of

GIVEN = GaussianGiven(probability=0.05, count=1)


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def block(rng, runs=8, count=None):
    """Scores of 2 standard deviations a participation, whose counts are random unless given."""
    counts = tuple(rng.binomial(1, 0.05, runs) if count is None else np.full(runs, count) for _ in range(2))
    sides = (rng.normal(2.0 * world * held, 1.0) for world, held in zip((1, 0), counts, strict=True))
    return GameScores(*sides, counts=counts, given=GIVEN)


def test_a_block_without_the_count_adds_no_scores_and_takes_none_away(rng):
    blocks = [block(rng, count=1), block(rng, count=0), block(rng, count=1)]
    found, _ = joined(blocks).gaussian
    kept, _ = joined([blocks[0], blocks[2]]).gaussian
    np.testing.assert_array_equal(found.in_scores, kept.in_scores)
    np.testing.assert_array_equal(found.out_scores, kept.out_scores)
    assert joined([block(rng, count=0)]).gaussian is None


def test_the_test_of_mu_keeps_its_level_where_most_blocks_lack_the_count(rng):
    # The scores given the count have mu = 2, which is epsilon = 7.58 at delta = 1e-3: the first claim is just true.
    refuted = [0, 0]
    for _ in range(300):
        found = joined([block(rng) for _ in range(60)]).gaussian
        if found is None:
            continue
        for place, epsilon in enumerate((7.6, 0.1)):
            test = likelihood_of(found[0].in_scores, found[0].out_scores, epsilon=epsilon, delta=1e-3, bound=False)
            refuted[place] += test.least_p_value <= 0.1
    assert refuted[0] <= 30
    assert refuted[1] > 2 * refuted[0]


def test_scores_without_the_counts_they_are_given_are_not_taken_for_gaussian():
    with pytest.raises(ValueError, match="come with the counts"):
        assert GameScores(np.ones(3), np.ones(3), given=GIVEN).gaussian


@pytest.mark.parametrize(
    ("outside", "information", "known"),
    [([1, 0], [2.0, 2.0], True), ([1, 0], [2.0, 2.1], False), ([0, 0], [2.0, 2.0], False)],
)
def test_a_replayed_canary_is_gaussian_where_runs_of_both_worlds_say_that_it_saturates(outside, information, known):
    config = SimpleNamespace(top_model=False, server_update="sgd", clip_rule="symmetric")
    game = SimpleNamespace(config=config, canary="worst-case")
    plan = SimpleNamespace(sigma=1.0)
    trials = SimpleNamespace(kind="replay", game=game, plan=plan, given=lambda found: GIVEN)
    arrays = {
        "in_scores": np.zeros(2),
        "out_scores": np.zeros(2),
        "in_counts": np.array([1, 0]),
        "out_counts": np.array(outside),
        "in_information": np.array([information[0], 0.0]),
        "out_information": np.array([information[1], 0.0]),
    }
    assert RealTrials.scored(trials, arrays).given == (GIVEN if known else None)
