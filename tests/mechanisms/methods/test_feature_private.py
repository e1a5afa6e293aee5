"""feature-private: what it uploads, the exactness of its bound by a game, and a head that allows for the noise."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from dpzv_audit.accounting import mu_from_epsilon, upper_bounds
from dpzv_audit.data import load
from dpzv_audit.evidence.training import train_result
from mechanisms import METHODS
from mechanisms.core.channel import SERVER
from mechanisms.core.context import Deployment
from mechanisms.core.noise import Grid
from mechanisms.methods.feature_private_run import discriminant, outer_sum

from ...helpers.built_in import train
from ...helpers.refusals import refused
from ..conftest import random_dataset, start_run, steps, training_data

SPEC = METHODS["feature-private"]
DEPLOYED = Deployment(records=100, clients=3)


def bounds(adversary="server", neighbours="replace-record", deployment=DEPLOYED, **options):
    """The sound bounds, and the gaps of those that are not."""
    config = SPEC.configure(**options)
    (release,) = SPEC.releases(config, deployment)
    found = upper_bounds(release, delta=config.delta, adversaries=[adversary], neighbours=[neighbours])
    return [bound.upper for bound in found if bound.sound], {gap for bound in found for gap in bound.gaps}


def test_without_noise_a_client_sends_principal_components_at_one_scale():
    dataset = random_dataset()
    between = tuple((block + 1) / 2 for block in dataset.train.features)
    dataset = replace(dataset, train=replace(dataset.train, features=between))
    run, log = start_run(SPEC.configure(sigma=0.0, embedding=2, dtype="float64"), dataset=dataset)
    steps(run, 1)
    block = run.federation.data.features[0].double().numpy()
    centred = block - block.mean(0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    expected = centred @ vectors[:, ::-1][:, :2]
    expected /= np.sqrt((expected**2).sum(1).mean())
    sent = log.messages[0].payload[0].numpy()
    assert np.allclose(np.abs(sent), np.abs(expected), atol=1e-9)


def test_each_client_uploads_once_and_nothing_comes_down():
    config = SPEC.configure(dtype="float64")
    run, log = start_run(config)
    steps(run, 1)
    assert [(m.sender, m.receiver, m.kind) for m in log.messages] == [(m, SERVER, "table") for m in (1, 2, 3)]
    assert train(training_data(), config, seed=0).ledger.down == 0


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize("clients", [1, 4])
def test_rows_and_sums_together_meet_the_claim(epsilon, clients):
    config = SPEC.configure(epsilon=epsilon, clip=0.7, statistics=0.3)
    rows = 2 * config.clip / config.row_sigma(clients)
    sums = 2 / config.statistics_sigma(clients)
    mu = math.sqrt(clients * (rows**2 + sums**2))
    assert mu == pytest.approx(mu_from_epsilon(epsilon, 1e-5), rel=1e-6)
    assert sums**2 / (rows**2 + sums**2) == pytest.approx(0.3)
    sound, _ = bounds(deployment=replace(DEPLOYED, clients=clients), epsilon=epsilon, clip=0.7, statistics=0.3)
    assert epsilon * (1 - 1e-6) <= min(sound) <= epsilon


def test_nobody_else_has_a_bound_since_labels_stay_open():
    for adversary in ("client", "release", "eavesdropper"):
        assert bounds(adversary) == ([], {"unprotected-channel"})
    assert bounds(neighbours="replace-label")[0] == []


@pytest.mark.parametrize(
    ("options", "deployment", "gap"),
    [
        ({"noise": "float"}, DEPLOYED, "floating-point"),
        ({}, replace(DEPLOYED, seeded_noise=True), "seeded-noise"),
        ({}, replace(DEPLOYED, data_dependent_side=True), "data-dependent-side"),
    ],
)
def test_what_would_break_the_bound_is_named(options, deployment, gap):
    sound, gaps = bounds(deployment=deployment, **options)
    assert not sound
    assert gap in gaps


def line(first):
    """A client with 2,000 records on a line, of which the first is at one end or the other: as far from the mean."""
    places = np.concatenate(([first], np.linspace(0.0, 1.0, 2000)))
    part = replace(
        random_dataset().train,
        features=(np.stack((places, places), 1).astype(np.float32),),
        labels=np.arange(2001) % 2,
    )
    return replace(random_dataset(clients=1, width=2, classes=2), train=part)


def separation(share):
    """How far apart the two worlds of a record are for a server that knows all else, in standard deviations.

    The server sees the row of the record in 1,000 trainings of either world and forms the likelihood ratio. `share` of
    the noise that is stated is really drawn.
    """
    stated = SPEC.configure(embedding=1, dtype="float64")
    sigma = stated.row_sigma(1)
    drawn = stated.model_copy(update={"sigma": sigma * share})
    ratios = []
    for seed, first in enumerate((0.0, 1.0)):
        run, log = start_run(drawn, dataset=line(first), replicas=range(1000), seed=seed)
        steps(run, 1)
        weight, bias = (view.squeeze().numpy() for view in run.federation.clients[0].parameters.views.values())
        zero, one = (np.clip(bias + place * weight.sum(1), -1.0, 1.0) for place in (0.0, 1.0))
        sent = log.messages[0].payload[:, 0, 0].numpy()
        ratios.append(((sent - zero) ** 2 - (sent - one) ** 2) / (2 * sigma**2))
    deviation = np.sqrt((ratios[0].var() + ratios[1].var()) / 2)
    return (ratios[1].mean() - ratios[0].mean()) / deviation, 2 * stated.clip / sigma


def test_a_game_of_a_record_reaches_what_its_row_may_tell_and_no_more():
    """Normal means of 1,000 each: 0.27 is five deviations of their distance (a false alarm in 3 of a million runs)."""
    found, stated = separation(1.0)
    assert found == pytest.approx(stated, abs=0.27)


def test_half_of_the_noise_is_found_out():
    found, stated = separation(0.5)
    assert found > stated + 0.27


@given(st.integers(0, 10_000), st.floats(0.1, 30.0))
def test_a_record_moves_a_sum_of_outer_products_by_its_clip_at_most(seed, size):
    grid = Grid.fit(1.0, 5.0, bits=28, records=4)
    rows = torch.from_numpy(np.random.default_rng(seed).standard_normal((4, 3)) * size)
    without = torch.cat((torch.zeros(1, 3, dtype=torch.float64), rows[1:]))
    moved = outer_sum(rows, grid) - outer_sum(without, grid)
    assert float((moved**2).sum()) <= grid.radius**2
    assert torch.equal(moved, moved.round())
    plain = outer_sum(rows, None) - outer_sum(without, None)
    assert torch.allclose(moved * grid.step, plain, atol=1e-3)


def test_a_row_that_is_not_finite_counts_as_nothing():
    rows = torch.tensor([[0.5, math.nan], [0.3, 0.4]], dtype=torch.float64)
    for grid in (None, Grid.fit(1.0, 5.0, bits=28, records=2)):
        assert torch.equal(outer_sum(rows, grid), outer_sum(rows[1:], grid))


def test_without_noise_the_head_is_discriminant_analysis():
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=600)
    rows = generator.standard_normal((600, 4)) + np.eye(3, 4)[labels] * 1.5
    weights, constants = discriminant(torch.from_numpy(rows), torch.from_numpy(np.eye(3)[labels]), 0.0)
    ours = (rows @ weights.numpy().T + constants.numpy()).argmax(1)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(rows, labels).predict(rows)
    assert (ours == theirs).mean() > 0.99


def test_under_noise_the_head_is_that_of_clear_rows():
    """Of so many records the noise averages out; a head that takes noisy rows for clear ones is 20 times too flat."""
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=400_000)
    rows = generator.standard_normal((400_000, 2)) * 0.5 + np.array([[-0.5, 0.0], [0.5, 0.0]])[labels]
    noised = torch.from_numpy(rows + 2.0 * generator.standard_normal(rows.shape))
    shares = torch.from_numpy(np.eye(2)[labels])
    clear, corrected, blind = (
        float(weights[1, 0] - weights[0, 0])
        for weights, _ in (
            discriminant(torch.from_numpy(rows), shares, 0.0),
            discriminant(noised, shares, 2.0),
            discriminant(noised, shares, 0.0),
        )
    )
    assert corrected == pytest.approx(clear, rel=0.1)
    assert blind < 0.1 * clear


def test_digits_are_learnt_at_epsilon_8_and_no_frozen_control_is_trained():
    result, _ = train_result(SPEC, SPEC.configure(epsilon=8.0), load("digits"), seed=0)
    assert result.utility.test_accuracy.value > 0.4  # 0.59 to 0.72 in trainings of three seeds; guessing reaches 0.13
    assert set(result.utility.controls) == {"majority"}
    assert result.privacy.upper <= 8.0
    assert (result.privacy.neighbours, result.privacy.adversary, result.privacy.gap) == (
        "replace-record",
        "server",
        None,
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epochs": 2}, "epochs does not apply: everything is uploaded once"),
        ({"batch_size": 32}, "batch_size does not apply: everything is uploaded once"),
        ({"client_rate": 0.1}, "client_rate does not apply: clients have noised components, which do not move"),
        ({"statistics": 1.0}, "statistics is 1.0; use less than 1"),
        ({"epsilon": None}, "epsilon is missing: calibration sound needs it"),
        ({"defences": ({"name": "dcor"},)}, "defence dcor stands at each embedding of a first-order round"),
    ],
)
def test_a_wrong_setting_is_one_line(options, says):
    with refused(says):
        SPEC.configure(**options)


def test_a_claim_whose_noise_no_grid_holds_is_one_line():
    with refused("noise is 'grid' with a standard deviation"):
        start_run(SPEC.configure(epsilon=1e-30, delta=1e-15))


def test_private_labels_train_the_head_too():
    config = SPEC.configure(defences=({"name": "label-rr", "epsilon": 3.0},), epsilon=8.0)
    assert train_result(SPEC, config, load("digits"), seed=0)[0].utility.test_accuracy.value > 0.2
