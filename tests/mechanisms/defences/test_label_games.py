"""Coin games on label mechanisms: none certifies more than it states, and those that are wrong on purpose are found.

A coin decides which of two candidates a label is; the adversary knows everything else, and scores what is released by
the chances that it has. A certified epsilon is a one-run bound, which is wrong at most 5% of the time whatever the
coins of one game have to do with each other.
"""

from math import exp, log, sqrt

import numpy as np
import pytest
from scipy.stats import binom

from dpzv_audit.accounting import mu_from_epsilon
from dpzv_audit.base.seeds import Purpose
from dpzv_audit.statistics.estimators import audit_scores
from mechanisms.core.bits import BitSource, permute_and_flip, randomised_response
from mechanisms.core.noise import Grid
from mechanisms.defences.private_labels import Whitened, by_prior, by_response, by_shares, by_votes, class_sums

CLASSES = 3
EPSILON = 1.0
# Other records of a group: those of the second candidate lead by two, so that the first wins against the odds.
OTHERS = np.array([1, 1, 1])


def dealt(count, generator):
    """Candidates (count, 2), which differ, coins (count,), and the labels that these pick."""
    first = generator.integers(CLASSES, size=count)
    candidates = np.stack((first, (first + generator.integers(1, CLASSES, size=count)) % CLASSES), 1)
    coins = generator.integers(2, size=count)
    return candidates, coins, candidates[np.arange(count), coins]


def certified(scores, coins, seed, confidence=0.95, delta=1e-9):
    """Epsilon of a game of coins; above delta 1e-9 of independent games: records that share no feature share no sum."""
    estimator, coin_flips = ("one-run", True) if delta == 1e-9 else ("joint", False)
    sides = scores[coins == 1], scores[coins == 0]
    options = {"confidence": confidence, "estimators": (estimator,), "coin_flips": coin_flips}
    (bound,) = audit_scores(*sides, delta=delta, seed=seed, **options)
    return bound.epsilon_lower


def evidence(rows, candidates):
    both = np.take_along_axis(rows, candidates, 1)
    return both[:, 1] - both[:, 0]


def bits(seed):
    return BitSource(seed, Purpose.LABELS, (0, 0))


def of_responses(count, seed, epsilon=EPSILON):
    candidates, coins, labels = dealt(count, np.random.default_rng(seed))
    found = by_response(labels, CLASSES, epsilon, bits(seed))
    return evidence(np.log(found.likelihoods), candidates), coins


def of_priors(count, seed):
    generator = np.random.default_rng(seed)
    candidates, coins, labels = dealt(count, generator)
    first = generator.permutation(count) % 2 == 0
    answers = by_prior(labels, np.arange(count) // 20, CLASSES, EPSILON, bits(seed), first=first)
    return evidence(np.log(answers.likelihoods), candidates), coins


def groups_of_one(count, seed):
    """Groups of a record with a coin and three of its first candidate's rival: class 0 against class 1."""
    coins = np.random.default_rng(seed).integers(2, size=count)
    labels = np.concatenate((1 - coins, np.tile(OTHERS, count)))
    groups = np.concatenate((np.arange(count), np.repeat(np.arange(count), len(OTHERS))))
    return labels, groups, coins


def of_votes(count, seed):
    labels, groups, coins = groups_of_one(count, seed)
    found = by_votes(labels, groups, CLASSES, EPSILON, bits(seed))
    return (found.labels[:count] == 0).astype(float), coins


def of_shares(count, seed):
    labels, groups, coins = groups_of_one(count, seed)
    found = by_shares(labels, groups, CLASSES, EPSILON, bits(seed))
    return found.shares[:count, 0] - found.shares[:count, 1], coins


@pytest.mark.parametrize("games", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mechanism", [of_responses, of_priors, of_votes, of_shares])
def test_no_game_certifies_more_than_is_stated_more_often_than_it_may(mechanism, games):
    """At 5% a game; more than the 1 - 1e-4 quantile of as many coins of 5% is an alarm."""
    found = np.array([certified(*mechanism(400, seed), seed) for seed in range(games)])
    assert (found > EPSILON).sum() <= binom.ppf(1 - 1e-4, games, 0.05)
    assert found.max() > 0.1  # something is seen at all


@pytest.mark.parametrize("mechanism", [of_responses, of_priors, of_votes, of_shares])
def test_of_many_coins_a_good_part_of_epsilon_is_seen(mechanism):
    assert 0.5 * EPSILON < certified(*mechanism(40_000, 2), 2) <= EPSILON


def kept_too_often(count, seed):
    """Planted: the chance of k - 1 classes."""
    candidates, coins, labels = dealt(count, np.random.default_rng(seed))
    generator = np.random.default_rng((seed, 1))
    kept = generator.random(count) < exp(EPSILON) / (exp(EPSILON) + CLASSES - 2)
    answers = np.where(kept, labels, (labels + generator.integers(1, CLASSES, size=count)) % CLASSES)
    return evidence(np.eye(CLASSES)[answers], candidates), coins


def grouped_by_labels(count, seed):
    """Planted: groups that labels were looked at for."""
    candidates, coins, labels = dealt(count, np.random.default_rng(seed))
    found = by_votes(labels, labels, CLASSES, EPSILON, bits(seed))
    return evidence(np.eye(CLASSES)[found.labels], candidates), coins


def drawn_in_every_epoch(count, seed):
    """Planted: five epochs, each with responses of its own."""
    candidates, coins, labels = dealt(count, np.random.default_rng(seed))
    source = bits(seed)
    drawn = [np.eye(CLASSES)[randomised_response(labels, CLASSES, EPSILON, source)] for _ in range(5)]
    return evidence(np.sum(drawn, 0), candidates), coins


def one_count_taken_to_move(count, seed):
    """Planted: the exponent of a score that neighbours move one way alone."""
    coins = np.random.default_rng(seed).integers(2, size=count)
    counts = np.bincount(OTHERS, minlength=CLASSES) + np.eye(CLASSES, dtype=np.int64)[1 - coins]
    return (permute_and_flip(counts, 2 * EPSILON, bits(seed)) == 0).astype(float), coins


@pytest.mark.parametrize("planted", [kept_too_often, grouped_by_labels, drawn_in_every_epoch, one_count_taken_to_move])
def test_planted_mechanisms_are_refuted(planted):
    assert certified(*planted(40_000, 0), 0, confidence=0.999) > EPSILON


def test_the_game_of_votes_is_one_that_the_bound_is_tight_for():
    """The first class wins against a lead of two with chances whose ratio is near e^epsilon."""
    count = 400_000
    scores, coins = of_votes(count, 3)
    ratio = scores[coins == 1].mean() / scores[coins == 0].mean()
    assert 0.85 * EPSILON < log(ratio) <= EPSILON + 0.05


# Delta of the Gaussian release, large so that few enough coins show a planted fault.
DELTA = 0.1


def alone(count):
    """Features of records that have one to themselves, so that a game on each is a game by itself, all of one norm."""
    return Whitened(np.eye(count, dtype=np.float32), 1.0, np.ones(count), np.ones(count))


def of_sums(count, seed, multiplier=None, epochs=1):
    """Sums over a hundred records at a time, the noisy difference of whose candidates is the best score there is."""
    multiplier = sqrt(2.0) / mu_from_epsilon(EPSILON, DELTA) if multiplier is None else multiplier
    candidates, coins, labels = dealt(count, np.random.default_rng(seed))
    scores = np.zeros(count)
    source = bits(seed)
    for first in range(0, count, 100):
        some = slice(first, first + 100)
        size = len(labels[some])
        grid = Grid.fit(1.0, multiplier, bits=20, records=size)
        sums = class_sums(labels[some], alone(size), CLASSES, grid)
        for _ in range(epochs):
            noised = sums + source.normals(sums.shape, grid.radius * multiplier)
            scores[some] += evidence(noised.T, candidates[some])
    return scores, coins


def test_sums_certify_no_more_than_is_stated_and_a_good_part_of_it():
    """Four bounds at a confidence of 1 - 1e-5 each: an alarm by chance at 4e-5."""
    found = [certified(*of_sums(4000, seed), seed, 1 - 1e-5, DELTA) for seed in range(4)]
    assert max(found) <= EPSILON
    assert certified(*of_sums(40_000, 2), 2, delta=DELTA) > 0.8 * EPSILON


@pytest.mark.parametrize(
    "planted",
    [
        # One sum is taken to move: a label that is replaced moves two, each by the clip.
        {"multiplier": 1.0 / mu_from_epsilon(EPSILON, DELTA)},
        # Noise is drawn anew in every epoch.
        {"epochs": 5},
    ],
)
def test_sums_with_too_little_noise_are_refuted(planted):
    assert certified(*of_sums(40_000, 0, **planted), 0, 0.999, DELTA) > EPSILON
