"""What a round has of its own: rates that fall, where labels are privatised or a user asks, and pictures that move."""

import numpy as np
import pytest
import torch

from mechanisms import METHODS
from mechanisms.controls import frozen_clients
from mechanisms.core.context import RunContext
from mechanisms.core.federation import Federation, moved

from ...helpers.built_in import new_run, train
from ...helpers.refusals import refused
from ..conftest import steps, training_data

RESPONSE = {"name": "label-rr", "epsilon": 4.0}


def configured(**options):
    return METHODS["split"].configure(**{"batch_size": 10, "epochs": 2, "client_rate": 0.4, **options})


def pictures():
    """Random pictures of two clients, and random labels."""
    return training_data(records=40, clients=2, width=(1, 4, 6), dtype=torch.float32)


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, [1.0, 1.0, 1.0]),
        ({"rate_schedule": "linear"}, [1.0, 0.5, 0.125]),
        ({"defences": RESPONSE}, [1.0, 0.5, 0.125]),
        ({"defences": RESPONSE, "rate_schedule": "constant"}, [1.0, 1.0, 1.0]),
    ],
)
def test_rates_fall_to_nothing_where_labels_are_privatised_or_it_is_asked_for(options, shares):
    config = configured(**options)
    federation = Federation(pictures(), config, RunContext(seed=0))
    for round_, share in zip((0, 4, 7, 8), [*shares, shares[-1]], strict=True):
        federation.begin(round_)
        rates = [optimizer.rate for optimizer in federation.optimizers]
        assert rates == [share * config.server_rate] + [share * config.client_rate] * 2


@pytest.mark.parametrize("method", [name for name, spec in METHODS.items() if spec.used({"rate_schedule": ""})])
def test_every_method_steps_at_the_rates_of_its_rounds(method):
    """The last of 1,000 rounds moves hardly anything: a thousandth of what it moves at a constant rate."""
    data = training_data()
    moves = {}
    for schedule in ("constant", "linear"):
        options = {"batch_size": 24, "epochs": 1000, "rate_schedule": schedule, "dtype": "float64"}
        config = METHODS[method].configure(**options, momentum=0.0, client_rate=0.01, server_rate=0.01)
        run = METHODS[method].start(data, config, RunContext(seed=0))
        run.skip_to(999)
        parameters = [optimizer.parameters.flat for optimizer in run.federation.optimizers]
        before = [flat.clone() for flat in parameters]
        steps(run, 1)
        moves[schedule] = sum(float((new - old).norm()) for new, old in zip(parameters, before, strict=True))
    assert moves["constant"] > 0
    assert moves["linear"] == pytest.approx(moves["constant"] / 1000, rel=1e-3)


def test_a_round_beyond_the_last_has_the_rates_of_the_last():
    fed = new_run(pictures(), configured(rate_schedule="linear"), seed=0).federation
    fed.begin(10_000)
    assert fed.optimizers[1].rate == pytest.approx(0.4 / 8)


def test_pictures_move_without_coming_in_on_the_other_side():
    rows = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert moved(rows, 1).tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert moved(rows, -3).tolist() == [[4.0, 0.0, 0.0, 0.0]]
    assert moved(rows, 9).tolist() == [[0.0] * 4]
    assert moved(rows, 0) is rows


def test_clients_move_the_pictures_of_a_batch_alike_and_test_records_never():
    data = pictures()
    run = new_run(data, configured(shift=2), seed=3)
    fed = run.federation
    offsets = set()
    for round_ in range(20):
        fed.begin(round_)
        offsets.add(fed.offset)
        batch = fed.clients[0].next_batch(1, fed.steps_per_pass)
        for client, block in zip(fed.clients, data.features, strict=True):
            assert torch.equal(fed.inputs(client, batch)[0], moved(block[batch.ids[0]], fed.offset))
    assert offsets == {-2, -1, 0, 1, 2}


def test_a_run_with_moved_pictures_repeats():
    data = pictures()
    first, again, still = (train(data, configured(shift=shift), seed=1) for shift in (2, 2, 0))
    assert torch.equal(first.server.flat, again.server.flat)
    assert not torch.equal(first.server.flat, still.server.flat)


def test_pictures_of_frozen_clients_do_not_move():
    """So that rows of a table share this control whether theirs move or not."""
    moving, still = (
        frozen_clients(pictures(), configured(shift=shift), RunContext(seed=1, replicas=(0, 1)), rate=0.2)
        for shift in (2, 0)
    )
    assert np.array_equal(moving.correct, still.correct)
    assert moving.train_accuracy == still.train_accuracy


@pytest.mark.parametrize("data", ["rows of a table", "pictures of two widths"])
def test_only_pictures_of_one_width_move(data):
    tensors = training_data(dtype=torch.float32)
    if data == "pictures of two widths":
        tensors = pictures()
        tensors.features[1].data = tensors.features[1][..., :3]
    with refused("shift is 2; use 0 where clients hold other than pictures of one width"):
        new_run(tensors, configured(shift=2), seed=0)
