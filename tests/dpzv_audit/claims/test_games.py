"""Which game puts a claim to the test where its adversary has none of its own."""

import pytest

from dpzv_audit.evidence.games import games_of
from mechanisms import METHODS
from mechanisms.core.context import Deployment


def played_on(adversary):
    method, deployment = METHODS["dpzv"], Deployment(records=1000, clients=3)
    return games_of(method, method.configure(), None, deployment, adversary=adversary, neighbours="replace-label")


@pytest.mark.parametrize(
    ("adversary", "played"),
    [("client", "client"), ("malicious-client", "client"), ("all-but-one", "colluding-clients")],
)
def test_an_adversary_without_a_game_is_played_by_one_that_knows_no_more(adversary, played):
    games = played_on(adversary)
    assert games.game.adversary == played


def test_an_adversary_with_nothing_left_to_tell_has_no_game():
    games = played_on("server")
    assert games.pools == {}
    assert "owns the labels" in games.why_not
