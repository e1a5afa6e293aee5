"""Games as data: every combination is played or refused in one line with its reason."""

import itertools

import numpy as np
import pytest

from dpzv_audit.games.game import CANARIES, CANARY, GAME_ADVERSARIES, NEIGHBOURS, SCORES, Game, why_undefined
from dpzv_audit.games.real import RealTrials
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.refusals import refused

SMALL = {"batch_size": 4, "epochs": 3, "embedding": 8, "hidden": 32, "sigma": 0.5, "clip": 2.0}
PUBLIC = "poisson at a public rate"
SAMPLING = {
    **{name: {"sampler": name} for name in ("shuffled", "uniform", "poisson")},
    PUBLIC: {"sampler": "poisson", "sample_rate": 0.3},
}
COMBINATIONS = list(itertools.product(SAMPLING, NEIGHBOURS, CANARIES, GAME_ADVERSARIES))


def unplayable(sampler, neighbours, canary, adversary):
    """The rule, written down a second time."""
    knows = adversary in ("client", "colluding-clients")
    if neighbours == "add-remove":
        return knows or sampler != PUBLIC or canary in ("mislabelled", "state")
    if neighbours == "zero-out":
        return canary != "worst-case"
    return canary == "state" and not knows


def test_every_combination_is_played_or_refused(dataset):
    data, played = dataset(), 0
    for sampler, neighbours, canary, adversary in COMBINATIONS:
        sampling = SAMPLING[sampler]
        reason = why_undefined(neighbours, canary, adversary, DPZVConfig(**SMALL, **sampling))
        given = {"neighbours": neighbours, "canary": canary, "adversary": adversary}
        assert (reason is not None) == unplayable(sampler, neighbours, canary, adversary)
        if reason is not None:
            assert "\n" not in reason
            with refused("no game for"):
                Game(config=DPZVConfig(**SMALL, **sampling), **given)
            continue
        trials = RealTrials(Game(config=DPZVConfig(**SMALL, **sampling), **given), data)
        arrays = trials(0, 2)
        name = "features" if trials.kind == "fitted" else "scores"
        for side in ("in", "out"):
            assert len(arrays[f"{side}_{name}"]) == 2
            assert np.isfinite(arrays[f"{side}_{name}"]).all()
        assert trials.kind in SCORES
        played += 1
    assert played == 132


@pytest.mark.parametrize(
    ("adversary", "words"),
    [
        ("server", "owns the labels"),
        ("malicious-client", "planted:repeated-record"),
        ("all-but-one", "colluding-clients plays it"),
    ],
)
def test_an_adversary_without_a_game_says_why(adversary, words):
    with refused(words):
        Game(config=DPZVConfig(**SMALL), adversary=adversary)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"canary": "worst"}, "canary is 'worst': did you mean 'worst-case'"),
        ({"neighbours": "replace"}, "neighbours is 'replace': did you mean"),
        ({"adversary": "clients"}, "adversary is 'clients': did you mean 'client'"),
        ({"others": "one"}, "others is 'one'"),
        ({"canary": "random", "others": "saturated"}, "others saturated goes with canary worst-case"),
        ({"canary": "state", "norm": -1.0}, "norm is -1.0"),
    ],
)
def test_a_wrong_name_is_one_line(options, words):
    with refused(words):
        Game(config=DPZVConfig(**SMALL), **options)


def test_others_that_hide_the_canary_from_an_outsider_are_refused(dataset):
    config = DPZVConfig(**SMALL, sampler="poisson")
    with refused("others saturated hides the canary"):
        RealTrials(Game(config=config, adversary="eavesdropper", others="saturated"), dataset())


def test_worlds_differ_as_the_relation_says(dataset):
    data = dataset()

    def worlds(**options):
        return RealTrials(Game(config=DPZVConfig(**SMALL, **SAMPLING[PUBLIC]), **options), data).worlds.data

    out, inside = worlds(canary="mislabelled")
    assert out.train.labels[CANARY] == data.train.labels[CANARY] != inside.train.labels[CANARY]
    assert all((a == b).all() for a, b in zip(out.train.features, inside.train.features, strict=True))
    out, inside = worlds(neighbours="replace-record", canary="random")
    assert (out.train.features[0] == inside.train.features[0]).all(), "the client's own block is held fixed"
    assert (out.train.features[1] != inside.train.features[1]).any(1).nonzero()[0].tolist() == [CANARY]
    out, inside = worlds(neighbours="add-remove", canary="random", adversary="release")
    assert len(out.train) + 1 == len(inside.train) == 12
    out, inside = worlds(canary="state", norm=50.0)
    assert np.allclose(inside.train.features[0][CANARY], 50 * data.train.features[0][CANARY])
    assert (out.train.labels[CANARY], inside.train.labels[CANARY]) == (0, 1)


@pytest.mark.parametrize("adversary", ["colluding-clients", "client"])
def test_a_record_set_to_zero_adds_nothing_in_one_world(adversary, dataset):
    """Without noise the score is C/B a round with the record in "in", half of a replaced label's distance, else 0."""
    config = DPZVConfig(**{**SMALL, "sigma": 0.0, "dtype": "float64"})
    trials = RealTrials(Game(config=config, adversary=adversary, neighbours="zero-out"), dataset())
    arrays = trials(0, 10)
    assert (trials.worlds.data[0].train.labels == trials.worlds.data[1].train.labels).all()
    assert np.allclose(arrays["in_scores"], arrays["in_counts"] * config.clip / config.batch_size)
    assert arrays["in_counts"].max() > 0
    assert np.allclose(arrays["out_scores"], 0.0)
    with refused("only of a worst-case canary"):
        Game(config=config, neighbours="zero-out", canary="random")
    with refused("others saturated does not go with neighbours zero-out"):
        Game(config=config, neighbours="zero-out", others="saturated")


@pytest.mark.parametrize("adversary", ["colluding-clients", "client"])
def test_rounds_past_the_cap_are_not_scored(adversary, dataset):
    """Without noise, under a cap of two the score of who sees all is two participations exactly, never more."""
    config = DPZVConfig(**{**SMALL, "epochs": 6, "sigma": 0.0, "dtype": "float64"}, participation_cap=2)
    arrays = RealTrials(Game(config=config, adversary=adversary), dataset())(0, 20)
    unit = config.clip / config.batch_size
    if adversary == "colluding-clients":
        assert np.allclose(arrays["in_scores"], 2 * unit)
        assert (arrays["in_counts"] == 2).all()
    else:
        assert (arrays["in_scores"] <= 2 * unit + 1e-9).all()
        assert arrays["in_counts"].max() <= 2
