"""Likelihood ratios of scalar transcripts against enumeration, and participation laws against the sampler itself."""

import itertools

import numpy as np
import pytest
from scipy import stats

from dpzv_audit.games.scores import GaussianGiven
from dpzv_audit.games.transcript import (
    Sampling,
    cap_weights,
    known_ids_score,
    mixture_score,
    participation_law,
    telling_count,
)
from mechanisms.core.streams import BatchStream, Streams

LEVEL = 1e-4
"""False-alarm rate of every statistical test here."""


def sampling(sampler="shuffled", records=10, batch_size=3, active=(1, 2, 1, 2, 1, 2, 1, 2)):
    return Sampling(sampler=sampler, records=records, batch_size=batch_size, active=active)


def enumerated(scalars, of, sigma, mean):
    """Log-density of one transcript (T,) over that without a canary, by summing over all places of the canary."""
    ratio = np.exp((mean * scalars - mean**2 / 2) / sigma**2)
    rate = of.batch_size / of.records
    if of.sampler != "shuffled":
        masks = itertools.product((0, 1), repeat=len(scalars))
        return np.log(
            sum(np.prod(np.where(m, rate * ratio, 1 - rate)) for m in (np.array(m, dtype=bool) for m in masks))
        )
    total = 0.0
    for rows in of.passes:
        total += np.log(1 - len(rows) * rate + rate * ratio[rows].sum())
    return total


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
@pytest.mark.parametrize(("mean_in", "mean_out"), [(0.7, -0.7), (0.7, 0.0), (0.0, -1.4)])
def test_the_mixture_score_is_the_likelihood_ratio(sampler, mean_in, mean_out):
    of, sigma = sampling(sampler), 0.9
    scalars = np.random.default_rng(0).normal(size=(8, 5))
    got = mixture_score(scalars, of, sigma=sigma, mean_in=mean_in, mean_out=mean_out)
    wanted = [enumerated(x, of, sigma, mean_in) - enumerated(x, of, sigma, mean_out) for x in scalars.T]
    assert np.allclose(got, wanted, rtol=1e-10)


@pytest.mark.parametrize("sampler", ["shuffled", "poisson"])
def test_far_scalars_neither_overflow_nor_lose_precision(sampler):
    """Far out the sum is its largest term: a score of hundreds, finite, and the same in single precision."""
    of = sampling(sampler)
    scalars = np.random.default_rng(1).normal(size=(8, 4)) + 40.0
    score = mixture_score(scalars, of, sigma=1.0, mean_in=20.0, mean_out=-20.0)
    assert np.isfinite(score).all()
    assert (score > 500).all()
    single = mixture_score(scalars.astype(np.float32), of, sigma=1.0, mean_in=20.0, mean_out=-20.0)
    assert np.allclose(single, score, rtol=1e-5)


def test_single_precision_agrees_on_ordinary_scalars():
    of = sampling("poisson", active=(1,) * 500)
    scalars = np.random.default_rng(2).normal(size=(500, 20))
    double = mixture_score(scalars, of, sigma=1.0, mean_in=0.4, mean_out=-0.4)
    single = mixture_score(scalars.astype(np.float32), of, sigma=1.0, mean_in=0.4, mean_out=-0.4)
    assert np.allclose(single, double, atol=1e-3)


def test_passes_hold_every_round_of_a_client_once_and_in_order():
    of = sampling(active=(1, 2, 1, 1, 2, 1, 1, 1, 2, 1))
    assert [rows.tolist() for rows in of.passes] == [[0, 2, 3], [5, 6, 7], [9], [1, 4, 8]]


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
def test_the_participation_law_is_that_of_the_sampler(sampler):
    """Counts of one record in 11 rounds of the real batch streams of two clients: chi-square, level 1e-4."""
    replicas, rounds = range(600), (7, 4)
    counts = np.zeros(600, dtype=int)
    for client, number in enumerate(rounds, start=1):
        batches = BatchStream(sampler, Streams(seed=5, replicas=replicas), records=10, batch_size=3, client=client)
        for _ in range(number):
            counts += (batches.next().members == 4).any(1).numpy()
    law = participation_law(sampling(sampler), rounds)
    assert law.sum() == pytest.approx(1.0)
    assert counts.max() < len(law)
    seen, expected = np.bincount(counts, minlength=len(law)), 600 * law
    few = expected < 5
    seen, expected = np.append(seen[~few], seen[few].sum()), np.append(expected[~few], expected[few].sum())
    kept = expected > 0
    assert stats.chisquare(seen[kept], expected[kept]).pvalue > LEVEL


def test_counts_that_are_certain_have_probability_one():
    of = sampling(records=9)
    assert np.argmax(participation_law(of, (6, 3))) == 3
    # Nothing to condition on where every run has the same count.
    assert telling_count(participation_law(of, (6, 3))) == GaussianGiven(probability=1.0, count=None)
    assert telling_count(np.array([0.7, 0.3])) == GaussianGiven(probability=0.3, count=1)
    assert participation_law(sampling("poisson", records=3), (2,)).tolist() == [0, 0, 1]


def test_cap_weights_are_the_chance_that_a_participation_still_counts():
    """By simulation of the order in which a record takes part: within 5 standard errors, cells of 200 or more."""
    active = tuple(itertools.islice(itertools.cycle((1, 2, 3)), 24))
    of, cap = sampling(active=active), 3
    weights = cap_weights(of, 1, cap)
    assert weights.shape == (8, cap + 1)
    generator = np.random.default_rng(3)
    took = np.zeros((24, 40_000), dtype=bool)
    for rows in of.passes:
        place = (generator.random(40_000) / of.rate).astype(int)
        inside = np.flatnonzero(place < len(rows))
        took[rows[place[inside]], inside] = True
    before = np.cumsum(took, 0) - took
    own = took * (np.array(active) == 1)[:, None]
    own_before = np.cumsum(own, 0) - own
    cells = 0
    for number, row in enumerate(np.flatnonzero(np.array(active) == 1)):
        for k in range(cap + 1):
            cell = took[row] & (own_before[row] == k)
            if cell.sum() < 200:
                continue
            cells += 1
            counted = (before[row, cell] < cap).mean()
            error = np.sqrt(max(counted * (1 - counted), 1e-3) / cell.sum())
            assert abs(counted - weights[number, k]) < 5 * error
    assert cells >= 8


def test_known_ids_count_the_canarys_rounds_alone():
    scalars = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    held = np.array([[True, False], [False, False], [True, True]])
    assert known_ids_score(scalars, held, 0.5).tolist() == [100.0, 199.5]
