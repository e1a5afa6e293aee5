"""What theory and games say of a training against each adversary."""

import itertools

import pytest

from dpzv_audit.accounting.gaps import ADVERSARY_NAMES
from dpzv_audit.accounting.release import NEIGHBOURS
from dpzv_audit.evidence.games import games_of, theory_of
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
    assert played_on(adversary).facts["game"]["adversary"] == played


def test_an_adversary_with_nothing_left_to_tell_has_no_game():
    games = played_on("server")
    assert games.pools == {}
    assert "owns the labels" in games.unaudited


@pytest.mark.parametrize("server_update", ["sgd", "joint-zo"])
@pytest.mark.parametrize("options", [{}, {"sampler": "poisson", "sample_rate": 0.1}, {"sampler": "uniform"}])
def test_the_gap_is_that_of_the_exact_bound_or_of_another_where_that_accounts_for_nothing(options, server_update):
    method = METHODS["dpzv"]
    config = method.configure(batch_size=16, epochs=1, sigma=1.0, server_update=server_update, **options)
    found = []
    for adversary, neighbours in itertools.product(ADVERSARY_NAMES, NEIGHBOURS):
        theory = theory_of(
            method,
            config,
            Deployment(records=100, clients=3, data_dependent_side=True),
            adversary=adversary,
            neighbours=neighbours,
            delta=1e-5,
        )
        gaps = {bound.accountant: bound.gap for bound in theory.bounds}
        assert theory.tightest is None
        if gaps["gdp-exact"] == "no-accountant" != gaps["prv"]:
            assert theory.gap == gaps["prv"]
            found.append(adversary)
        else:
            assert theory.gap == gaps["gdp-exact"]
    assert found == (["eavesdropper", "release"] if "sample_rate" in options else [])
