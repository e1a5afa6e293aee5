"""The game of labels reads scalars that answer pairs of embeddings together with how these differ."""

import numpy as np
import pytest
import torch

from dpzv_audit.data import load
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.games.messages import ESTIMATES, blank, heard_in
from dpzv_audit.games.scalars import gradient_estimates
from dpzv_audit.games.system import SystemGame, public_labels
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System
from mechanisms import Training
from mechanisms.core.channel import Adversary, Message, View

from ...helpers.scores import bound_of, system_game
from ...helpers.zeroth import ZerothOrder


@pytest.fixture(scope="module")
def cancer():
    return load("breast-cancer", clients=2)


def certified(train, data, *, adversary="client", **rest):
    method, config = prepared(System("own", train, top_model=False), data, 0)
    training = Training(method=method, config=config, dataset=data, seed=0)
    played = system_game(SystemGame(training, adversary=adversary), trainings=1, fit_trainings=2)
    return bound_of(*played.sides, "one-run", delta=1e-5, coin_flips=True, seed=3, **rest)


def drowned(first, second):
    return first - second + 1000.0 * torch.randn(())


@pytest.mark.parametrize("adversary", ["client", "colluding-clients"])
def test_signs_certify_much(cancer, adversary):
    """About 0.9 by one client and 1.2 by both, of at most 4.7."""
    assert certified(ZerothOrder(batch=16, epochs=3), cancer, adversary=adversary).epsilon_lower > 0.4


def test_scalars_under_noise_certify_nothing(cancer):
    """They certify more than 0 in one of 10,000 games at most."""
    noisy = ZerothOrder(drowned, batch=16, epochs=3, rate=1e-6)
    assert certified(noisy, cancer, confidence=1.0 - 1e-4).epsilon_lower == 0.0


def measured(rng, records=60, classes=3, rounds=200, *, width=3):
    """A view of scalars that measure hidden gradients, and these (N, width)."""
    hidden = rng.standard_normal((records, width))
    hidden -= hidden.mean(1, keepdims=True)
    messages = []
    for number in range(rounds):
        ids = rng.permutation(records)[: 8 - number % 2]
        move = rng.standard_normal((len(ids), width))
        scalar = 5.0 * (move * hidden[ids]).sum() / len(ids)
        for rows in (move, 0.0 * move):
            messages.append(
                Message(number, 1, 0, "embeddings", torch.as_tensor(rows)[None], torch.as_tensor(ids)[None])
            )
        messages.append(Message(number, 0, 1, "scalar", torch.tensor([[[scalar]]])))
    return View(Adversary("client", (1,)), messages), hidden


@pytest.mark.parametrize("classes", [3, 2])
def test_more_scalars_than_unknowns_name_every_gradient(classes):
    """Also where rows are no logits: 200 scalars of 60 records, with 120 or 180 unknowns."""
    rng = np.random.default_rng(0)
    view, hidden = measured(rng)
    ((name, rows),) = gradient_estimates(view, lambda: np.full((60, classes), 1.0 / classes))
    assert name == "to 1"
    assert rows.shape == hidden.shape
    assert np.corrcoef(rows.ravel(), hidden.ravel())[0, 1] > 0.95


def test_estimates_stand_beside_the_messages():
    rng = np.random.default_rng(0)
    table = VerticalDataset("none", *2 * [Records((np.zeros((3, 1), np.float32),), np.arange(3))], 3, "one block", {})
    view, _ = measured(rng, rounds=20)
    heard = heard_in(view, public_labels(60, table, rng), 3)
    assert heard["gradients estimated by scalars to 1"].numbers.shape == blank(f"{ESTIMATES} to 1", 60).shape
    unanswered = View(view.adversary, [m for m in view.messages if m.kind == "embeddings"])
    assert set(heard_in(unanswered, public_labels(60, table, rng), 3)) == {"embeddings from 1 to 0"}
