"""One training with coin-flip canaries: fair coins, labels that follow them, and scores that tell them."""

import numpy as np
import pytest
from scipy import stats

from dpzv_audit.games.game import Game
from dpzv_audit.games.real import RealTrials, coin_scores, play_one_run
from mechanisms.core.context import TrainingData

from ...helpers.refusals import refused
from .small import small

LEVEL = 1e-4
"""False-alarm rate of every statistical test here."""


def test_scores_are_the_best_linear_guesses():
    """Against the posterior mean of a Gaussian model of the coins, by conditioning a joint covariance."""
    generator = np.random.default_rng(0)
    held, unit, sigma = generator.random((7, 4)) < 0.5, 0.3, 0.2
    scalars = generator.normal(size=7)
    design = unit * held
    joint = np.block([[np.eye(4), design.T], [design, design @ design.T + sigma**2 * np.eye(7)]])
    wanted = joint[:4, 4:] @ np.linalg.inv(joint[4:, 4:]) @ scalars
    assert np.allclose(coin_scores(scalars, held, unit=unit, sigma=sigma), wanted)


def one_run(config, data, *, canaries, adversary, seed=0):
    return play_one_run(RealTrials(Game(config=config, adversary=adversary), data, seed), canaries)


def test_labels_follow_the_coins_and_the_scores_tell_them(dataset, monkeypatch):
    """With little noise every coin is read; chance alone would do so with probability 2^-30."""
    given = []
    original = TrainingData.of.__func__

    def spy(cls, data, **options):
        given.append(options["labels"])
        return original(cls, data, **options)

    monkeypatch.setattr(TrainingData, "of", classmethod(spy))
    data = dataset(records=40)
    config = small(sigma=0.001)
    played = one_run(config, data, canaries=30, adversary="colluding-clients", seed=3)
    assert played.saturated
    assert ((played.scores > 0) == played.coins).all()
    changed = given[0][0] != data.train.labels
    assert changed.sum() <= 30
    assert set(given[0][0][changed]) <= {0, 1}
    ones, zeros = played.sides
    assert len(ones) + len(zeros) == 30
    assert ones.min() > 0 > zeros.max()


def test_coins_are_fair_and_differ_by_seed(dataset):
    data, config = dataset(records=40), small(epochs=1)
    coins = [one_run(config, data, canaries=40, adversary="client", seed=seed).coins for seed in range(10)]
    assert len({tuple(row) for row in coins}) == 10
    assert stats.binomtest(int(np.sum(coins)), 400).pvalue > LEVEL


def test_noise_that_drowns_everything_leaves_guesses_of_a_coin(dataset):
    """Right in half of the cases: binomial test at 1e-4 over 400 guesses."""
    data, config = dataset(records=40), small(sigma=1e4)
    right = [
        (played.scores > 0) == played.coins
        for seed in range(10)
        for played in [one_run(config, data, canaries=40, adversary="colluding-clients", seed=seed)]
    ]
    assert stats.binomtest(int(np.sum(right)), 400).pvalue > LEVEL


@pytest.mark.parametrize(
    ("canaries", "adversary", "words"),
    [
        (1, "client", "canaries is 1; use 2 to the 12"),
        (13, "client", "canaries is 13"),
    ],
)
def test_what_cannot_be_played_is_one_line(canaries, adversary, words, dataset):
    with refused(words):
        one_run(small(), dataset(), canaries=canaries, adversary=adversary)
