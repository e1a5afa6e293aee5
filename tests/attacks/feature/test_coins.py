"""The game of an attribute: coins pick one of two values of it, and an attack's scores guess them."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from attacks.feature.attribute import ELSEWHERE, ONE_VALUE
from attacks.feature.coins import dealt, values_of
from attacks.feature.variables import Attribute
from dpzv_audit.data.vertical import Variable

from .test_attribute import coins, mounted


def block_of(values):
    """The data of `coins` whose client 1 holds a variable of these rows (400, c) and a last number."""
    data = coins()
    block = np.concatenate((np.asarray(values, np.float32), data.train.features[0][:, -1:]), 1)
    train, test = (
        replace(part, features=(rows, *part.features[1:]))
        for part, rows in ((data.train, block), (data.test, block[:20]))
    )
    return replace(data, train=train, test=test, variables=())


@pytest.mark.parametrize(
    ("rows", "two"),
    [
        (np.arange(400.0)[:, None], ([39.9], [359.1])),  # quantiles of a number, to the nearest record
        (np.eye(3)[np.arange(400) % 4 % 3], ([1, 0, 0], [0, 1, 0])),  # the most frequent categories
    ],
)
def test_coins_decide_one_of_two_values_and_nothing_else(rows, two):
    data = block_of(rows)
    attribute = Attribute.of(data, Variable("a", 1, slice(0, rows.shape[1])))
    flips = np.random.default_rng(0).integers(2, size=400) == 1
    found = dealt(data, attribute, flips)
    block = found.train.features[0]
    for side, value in zip((~flips, flips), two, strict=True):
        assert np.abs(block[side, :-1] - np.asarray(value)).max() < 1.0
        assert len(np.unique(block[side, :-1], axis=0)) == 1
    assert np.array_equal(block[:, -1], data.train.features[0][:, -1])
    assert all(map(np.array_equal, found.train.features[1:], data.train.features[1:]))
    assert np.array_equal(found.train.labels, data.train.labels)


def test_one_value_leaves_no_coin():
    data = block_of(np.ones((400, 1)))
    attribute = Attribute.of(data, Variable("a", 1, slice(0, 1)))
    assert values_of(attribute) is None
    assert dealt(data, attribute, np.ones(400, bool)) is None
    assert ONE_VALUE


def area(game):
    scores = np.concatenate((game.on_one, game.on_zero))
    return roc_auc_score(np.arange(len(scores)) < len(game.on_one), scores)


def test_embeddings_in_the_clear_give_coins_away_and_private_ones_do_not():
    """320 coins: by chance an area has a deviation of 0.032, so that 0.63 is four of them (3e-5 each way)."""
    clear = mounted("split", coins(), with_positive=False).game
    assert (clear.neighbours, len(clear.on_one) + len(clear.on_zero)) == ("replace-record", 320)
    assert area(clear) > 0.9
    options = {"epsilon": 0.5, "batch_size": 64, "epochs": 1}
    private = mounted("feature-private", coins(), options=options, with_positive=False).game
    assert abs(area(private) - 0.5) < 0.13


def test_where_another_client_is_attacked_no_coin_is_guessed():
    outcome = mounted("split", coins(told=1.0), own={"attribute": "coin", "target": "2"}, with_positive=False)
    assert outcome.game is None
    assert outcome.no_game == ELSEWHERE
