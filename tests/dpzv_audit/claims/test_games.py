"""Which game puts a claim to the test where its adversary has none of its own."""

import pytest

from dpzv_audit.claims.games import games_of
from dpzv_audit.claims.model import MethodClaim
from mechanisms import METHODS
from mechanisms.context import Deployment


@pytest.mark.parametrize(
    ("adversary", "played"),
    [("client", "client"), ("malicious-client", "client"), ("all-but-one", "colluding-clients")],
)
def test_an_adversary_without_a_game_is_played_by_one_that_knows_no_more(adversary, played):
    claim = MethodClaim(method="dpzv", name="a", epsilon=1.0, delta=1e-5, adversary=adversary, records=1000)
    games = games_of(claim, METHODS["dpzv"], METHODS["dpzv"].configure(), None, Deployment(records=1000, clients=3))
    assert games.game.adversary == played


def test_an_adversary_with_nothing_left_to_tell_has_no_game():
    claim = MethodClaim(method="dpzv", name="a", epsilon=1.0, delta=1e-5, adversary="server", records=1000)
    games = games_of(claim, METHODS["dpzv"], METHODS["dpzv"].configure(), None, Deployment(records=1000, clients=3))
    assert games.played == ()
    assert "owns the labels" in games.why_not
