"""dp-zo against a slow reference: one model, one direction, the mean of clipped two-sided differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpzv_audit.accounting import sigma_sound, upper_bounds
from dpzv_audit.base.seeds import Purpose
from dpzv_audit.games.game import Game
from dpzv_audit.games.real import RealTrials
from mechanisms import METHODS
from mechanisms.core.channel import SERVER
from mechanisms.core.context import Deployment
from mechanisms.core.streams import Directions

from ...helpers.refusals import refused
from ..conftest import random_dataset, start_run, steps, training_data

SPEC = METHODS["dp-zo"]
SMALL = {
    "batch_size": 5,
    "epochs": 3,
    "embedding": 2,
    "hidden": 4,
    "dtype": "float64",
    "sigma": 0.0,
    "clip": 0.1,
}
DEPLOYED = Deployment(records=24, clients=3)


def models_of(run):
    return [client.parameters.flat.clone() for client in run.federation.clients], run.federation.server_parameters.flat


def logits_at(run, parts, server, ids):
    """Logits (B, classes) of records under given parameters, by the layers of the modules themselves."""
    fed = run.federation
    outputs = []
    for client, flat, block in zip(fed.clients, parts, fed.data.features, strict=True):
        own = replace(client.parameters, flat=flat)
        outputs.append(client.evaluator.forward(own, block[ids].unsqueeze(0)))
    if not fed.config.top_model:
        return sum(outputs)[0]
    own = replace(fed.server_parameters, flat=server)
    return fed.server.forward(own, torch.cat(outputs, 2))[0]


@pytest.mark.parametrize("options", [{}, {"top_model": False}, {"perturbation": "in-place"}], ids=str)
@pytest.mark.parametrize("clients", [1, 3])
def test_a_round_moves_the_whole_model_along_one_direction_by_the_released_scalar(clients, options):
    config = SPEC.configure(**SMALL, **options)
    run, log = start_run(config, clients=clients)
    streams = run.federation.streams
    labels = run.federation.data.labels
    for round_ in range(3):
        parts, server = models_of(run)
        server = server.clone()
        steps(run, 1)
        message, *same = [m for m in log.messages if m.sender == SERVER and m.round == round_]
        assert all(torch.equal(other.payload, message.payload) for other in same)
        ids = message.ids[0]
        directions = [
            Directions("sphere", flat.shape[1], streams, party=m, purpose=Purpose.DIRECTIONS).at(round_)
            for m, flat in enumerate(parts, 1)
        ]
        top = torch.zeros_like(server)
        if config.top_model:
            kind = {"party": SERVER, "purpose": Purpose.SERVER_DIRECTIONS}
            top = Directions("sphere", server.shape[1], streams, **kind).at(round_)
        losses = []
        for sign in (1.0, -1.0):
            step = sign * config.smoothing
            moved = [flat + step * u for flat, u in zip(parts, directions, strict=True)]
            logits = logits_at(run, moved, server + step * top, ids)
            losses.append(functional.cross_entropy(logits, labels[ids], reduction="none"))
        wanted = ((losses[0] - losses[1]) / (2 * config.smoothing)).clamp(-config.clip, config.clip).sum() / 5
        assert float(message.payload) == pytest.approx(float(wanted), rel=1e-9, abs=1e-9)
        after, top_after = models_of(run)
        for flat, before, u in zip((*after, top_after), (*parts, server), (*directions, top), strict=True):
            torch.testing.assert_close(flat, before - config.client_rate * float(message.payload) * u)


def test_one_number_a_round_is_released_and_nothing_is_sent_about_all_records():
    run, log = start_run(SPEC.configure(**SMALL))
    steps(run)
    released = {(m.round, float(m.payload)) for m in log.messages if m.sender == SERVER}
    assert sorted(round_ for round_, _ in released) == list(range(12))
    assert {m.kind for m in log.messages} == {"embeddings", "scalar"}


def bounds(config, adversary, neighbours="replace-record"):
    (release,) = SPEC.releases(config, DEPLOYED)
    found = upper_bounds(release, delta=config.delta, adversaries=[adversary], neighbours=[neighbours])
    return min(bound.upper for bound in found if bound.sound)


def test_calibration_meets_the_claim_against_who_knows_no_batches_and_no_other():
    config = SPEC.configure(**{**SMALL, "sigma": None, "epsilon": 2.0})
    # Within the 0.2 % of noise to which composed bounds are inverted.
    assert 1.98 < bounds(config, "release") <= 2.0
    assert bounds(config, "client") > 2.5
    assert bounds(config, "all-but-one") == bounds(config, "client")
    assert bounds(config, "client", "zero-out") < bounds(config, "client")


def test_shuffled_batches_hide_nothing():
    config = SPEC.configure(**{**SMALL, "sigma": None, "epsilon": 2.0, "sampler": "shuffled"})
    known = sigma_sound(2.0, config.delta, clip=config.clip, batch_size=5, participations=3)
    assert SPEC.scalar_plan(config, DEPLOYED).sigma == pytest.approx(known, rel=1e-9)
    assert bounds(config, "release") == bounds(config, "client") == pytest.approx(2.0)


def test_a_poisson_rate_that_is_public_gives_add_remove_a_meaning():
    config = SPEC.configure(**{**SMALL, "sigma": 0.5, "sampler": "poisson", "sample_rate": 0.2})
    (release,) = SPEC.releases(config, DEPLOYED)
    (bound,) = upper_bounds(
        release, delta=1e-5, adversaries=["release"], neighbours=["add-remove"], accountants=("prv",)
    )
    assert bound.epsilon is not None
    # Rows of a batch round by their places, which a record more moves.
    assert bound.gaps == ["secret-batches"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"calibration": "paper"}, "calibration is 'paper'"),
        ({"server_update": "sgd"}, "server_update is 'sgd'"),
        ({"activation": "random"}, "activation does not apply: all parts of the model take part in every round"),
        ({"clip_rule": "paper-one-sided"}, "calibration sound needs clip_rule symmetric"),
    ],
)
def test_a_wrong_setting_is_one_line(options, says):
    with refused(says):
        SPEC.configure(**options)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("adversary", ["release", "colluding-clients"])
def test_a_canary_moves_a_scalar_by_what_the_clip_lets_through(clients, adversary):
    """Without noise a round with the canary is +-C/B, whichever part of the model holds it, and another is 0."""
    config = SPEC.configure(**{**SMALL, "top_model": False, "client_rate": 0.0, "server_rate": 0.0})
    dataset = random_dataset(clients=clients)
    trials = RealTrials(Game(method=SPEC, config=config, adversary=adversary), dataset)
    recorder = trials.recorder()
    data = trials.worlds.data[1]
    held = training_data(data)
    with torch.no_grad():
        _, saturated = trials.trained(held, trials.canaries((0,)), recorder)
    scalars = recorder.view.scalars()[:, 0].numpy()
    assert saturated
    assert len(scalars) == 12
    assert set(np.round(scalars / (config.clip / 5), 9)) == {0.0, 1.0}


@pytest.mark.parametrize("adversary", ["client", "colluding-clients"])
def test_who_knows_the_batches_replays_a_model_in_parts_exactly(adversary):
    """The information of a training is n (2C / (B sigma))^2, n its rounds with the canary: one in each of 3 passes."""
    still = {"sigma": 0.05, "client_rate": 0.0, "server_rate": 1e-9, "sampler": "shuffled"}
    config = SPEC.configure(**{**SMALL, **still, "batch_size": 6})
    trials = RealTrials(Game(method=SPEC, config=config, adversary=adversary), random_dataset(clients=3))
    assert trials.kind == "replay"
    sides = trials(0, 4)
    for side in ("in", "out"):
        np.testing.assert_array_equal(sides[f"{side}_counts"], 3)
        np.testing.assert_allclose(sides[f"{side}_information"], 3 * (2 * 0.1 / (6 * 0.05)) ** 2, rtol=1e-4)
