"""Mistakes of zeroth-order trainers: what is drawn, what a search finds, and that the right one is not refuted."""

import numpy as np
import pytest
from scipy import stats

from dpzv_audit.accounting import upper_bounds
from dpzv_audit.evidence.auditing import planted_row
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.games import zeroth_order
from dpzv_audit.games.planted import PLANTED
from dpzv_audit.games.transcript import World

AUDITS, MOST, ALPHA = 200, 3, 1e-3
"""A true claim is refuted with chance ALPHA at most: more than MOST of AUDITS are with chance 6e-5 at most."""


def scores(draw, runs=4000, seed=0):
    return [draw(World(np.random.default_rng((seed, k)), runs, sign)) for k, sign in enumerate((1.0, -1.0))]


@pytest.mark.ci
def test_the_right_one_is_not_refuted():
    assert stats.binom.sf(MOST, AUDITS, ALPHA) < 1e-4
    plan = AuditPlan(confidence=1.0 - ALPHA)
    rows = [planted_row(PLANTED["dp-zo"], plan, runs=300, seed=seed) for seed in range(AUDITS)]
    assert sum(row.verdict == "refuted" for row in rows) <= MOST


@pytest.mark.slow
def test_the_right_one_is_not_refuted_at_its_own_size():
    plan = AuditPlan(confidence=1.0 - ALPHA)
    rows = [planted_row(PLANTED["dp-zo"], plan, seed=seed) for seed in range(AUDITS)]
    assert sum(row.verdict == "refuted" for row in rows) <= MOST


@pytest.mark.parametrize("draw", [zeroth_order.noise_by_seed, zeroth_order.seed_searched, zeroth_order.noise_shared])
def test_noise_that_can_be_removed_leaves_the_canary_alone(draw):
    inside, out = scores(draw, runs=50)
    sums = zeroth_order.COUNT * zeroth_order.UNIT * (2 if draw is zeroth_order.noise_shared else 1)
    np.testing.assert_allclose(inside, sums, rtol=1e-9)
    np.testing.assert_allclose(out, -sums, rtol=1e-9)


@pytest.mark.parametrize("draw", [zeroth_order.as_designed, zeroth_order.batches_in_order])
def test_noise_that_stays_is_gaussian_of_the_deviation_that_is_stated(draw):
    """Kolmogorov-Smirnov at 2.5e-5 for each of four samples: a false alarm has chance 1e-4 at most."""
    sigma = zeroth_order.SIGMA if draw is zeroth_order.as_designed else zeroth_order.amplified().sigma
    for sign, found in zip((1.0, -1.0), scores(draw), strict=True):
        assert stats.kstest(found, stats.norm(sign * 4 * zeroth_order.UNIT, 2 * sigma).cdf).pvalue > 2.5e-5


def test_every_seed_of_the_space_is_found_by_the_direction_alone():
    seeds = np.arange(0, zeroth_order.SEARCHED, 97)
    directions = np.array([zeroth_order.drawn_from(int(seed))[:-1] for seed in seeds])
    for step in (1.0, -1e-4):
        np.testing.assert_array_equal(zeroth_order.seed_of(step * directions), seeds)


def test_the_noise_of_a_seed_has_the_law_that_is_claimed():
    """As seeds go it is Gaussian: who does not look them up sees nothing. Kolmogorov-Smirnov at 1e-4."""
    seeds = np.random.default_rng(0).integers(zeroth_order.SEEDS, size=4000)
    assert stats.kstest(zeroth_order.after_the_direction(seeds), stats.norm.cdf).pvalue > 1e-4


@pytest.mark.parametrize("release", [zeroth_order.STEPS, zeroth_order.SEVERAL, zeroth_order.amplified()], ids=str)
def test_what_is_claimed_would_be_kept_by_a_trainer_as_designed(release):
    found = upper_bounds(release, delta=1e-5, adversaries=["release"], neighbours=["replace-record"])
    assert 0.99 < min(bound.upper for bound in found if bound.sound) <= 1.0
