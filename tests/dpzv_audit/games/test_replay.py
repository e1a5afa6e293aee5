"""Playing a transcript again is the exact likelihood ratio, and joint-zo leaves canary-free rounds silent."""

import numpy as np
import pytest
import torch

from dpzv_audit.games import real
from dpzv_audit.games.game import Game
from dpzv_audit.games.real import RealTrials
from mechanisms.core.channel import Adversary, ViewRecorder
from mechanisms.core.context import RunContext, TrainingData, dtype_of
from mechanisms.methods.dpzv_run import DPZVRun

from .small import small


def transcript_of(trials, world, replica):
    """Scalars (T,) of one plain training in `world`, with the noise of `replica`."""
    config, data = trials.game.config, trials.worlds.data[world]
    recorder = ViewRecorder(Adversary("colluding-clients", (1, 2)), kinds=("scalar",))
    stack = TrainingData.of(data, dtype=dtype_of(config), device="cpu", labels=data.train.labels[None])
    context = RunContext(seed=trials.seed, replicas=(replica,), observers=(recorder,))
    with torch.no_grad():
        run = DPZVRun(stack, config, context)
        for _ in run.plan.active:
            run.step()
    return recorder.view.scalars()[:, 0].numpy()


@pytest.mark.parametrize("update", ["sgd", "zo", "joint-zo", "frozen"])
def test_what_is_sent_is_what_a_plain_training_sends(update, dataset, monkeypatch):
    """Twins change nothing: the real world's transcript is that of the same training without them."""
    sent = []
    original = real.Twins.__call__

    def spy(self, sums):
        out = original(self, sums)
        sent.append(out.clone())
        return out

    monkeypatch.setattr(real.Twins, "__call__", spy)
    config = small(server_update=update)
    trials = RealTrials(Game(config=config, canary="mislabelled", adversary="colluding-clients"), dataset())
    trials(1, 2)  # replicas 2 ("out") and 3 ("in"), each as a pair of hypotheses
    rows = torch.stack(sent).numpy() * config.clip / 2**20 / config.batch_size  # sums are whole steps of the grid
    assert (rows[:, 0] == rows[:, 1]).all()
    assert (rows[:, 2] == rows[:, 3]).all()
    assert np.allclose(rows[:, 0], transcript_of(trials, 0, 2), atol=1e-9)
    assert np.allclose(rows[:, 2], transcript_of(trials, 1, 3), atol=1e-9)


@pytest.mark.parametrize(("canary", "update"), [("worst-case", "joint-zo"), ("state", "sgd")])
def test_the_score_is_a_likelihood_ratio(canary, update, dataset):
    """E[e^-score] in "in" and E[e^score] in "out" are 1 for one: 5 standard errors of 150 runs, 6e-7 a side.

    A score of another scale fails: at twice its size the mean is near e^I, with I the information.
    """
    config = small(sigma=1.5, server_update=update, server_rate=0.05)
    game = Game(config=config, canary=canary, adversary="colluding-clients", norm=300.0)
    arrays = RealTrials(game, dataset())(0, 150)
    assert arrays["in_information"].mean() > 0.3
    for weights in (np.exp(-arrays["in_scores"]), np.exp(arrays["out_scores"])):
        assert abs(weights.mean() - 1.0) < 5 * weights.std() / np.sqrt(len(weights))
        assert (weights**2).mean() > 1.2


def test_joint_zo_keeps_its_full_power_where_every_scalar_is_seen(dataset, play, exactly_gaussian):
    """Others' contributions are known to who plays it again: information (2C/(B s))^2 a participation, exactly."""
    config = small(server_update="joint-zo", server_rate=1e-4)
    arrays = RealTrials(Game(config=config, adversary="colluding-clients"), dataset())(0, 6)
    each = (2 * config.clip / (config.batch_size * config.sigma)) ** 2
    for side in ("in", "out"):
        assert np.allclose(arrays[f"{side}_information"], each * arrays[f"{side}_counts"])
    scores = play(Game(config=config, adversary="colluding-clients"), runs=6)
    assert scores.kind == "replay"
    assert exactly_gaussian(scores)


def test_rounds_without_the_canary_say_nothing_under_joint_zo_and_something_under_sgd(play):
    """The server's state is a function of released values there: the score is 0 exactly, not nearly."""
    game = {"canary": "state", "adversary": "colluding-clients", "norm": 100.0}
    rates = {"server_rate": 0.05, "client_rate": 0.01}
    quiet = play(Game(config=small(**rates, server_update="joint-zo"), **game), runs=3)
    assert (quiet.in_scores == 0.0).all()
    assert (quiet.out_scores == 0.0).all()
    assert (play(Game(config=small(**rates), **game), runs=3).in_scores != 0.0).all()


def test_dp_sgd_draws_noise_that_nobody_sees_and_is_scored_by_a_fit(dataset):
    config = small(server_update="dp-sgd", server_noise_multiplier=1.0)
    trials = RealTrials(Game(config=config, canary="random", adversary="colluding-clients"), dataset())
    assert trials.kind == "fitted"
    assert trials(0, 2)["in_features"].shape == (2, 24)


@pytest.mark.parametrize("canary", ["worst-case", "mislabelled", "random", "state"])
def test_a_client_that_holds_every_block_sees_a_replaced_record_by_its_label(canary, dataset):
    """All of the record is held fixed but its label: both relations are one game, whose scores are not 0."""
    config = small(server_update="joint-zo")
    by_label, by_record = (
        RealTrials(Game(config=config, neighbours=neighbours, canary=canary, norm=100.0), dataset(clients=1))
        for neighbours in ("replace-label", "replace-record")
    )
    assert by_record.kind == "replay"
    label, record = by_label(0, 2), by_record(0, 2)
    assert label.keys() == record.keys()
    assert all(np.array_equal(label[name], record[name]) for name in label)
    # Under joint-zo a state canary's rounds without it are silent by design: there is nothing to score.
    assert canary == "state" or (record["in_scores"] != 0.0).all()
