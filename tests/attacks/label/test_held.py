"""Coded and signature probes by a client that holds its batch, through the real training paths."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks import ATTACKS
from attacks.core.run import few_labels
from attacks.label.coded import codes
from attacks.label.held import HoldingClient, held_batch, least_squares
from attacks.label.signature import explained, mixture
from dpzv_audit.data import load
from mechanisms.core.context import ClientTurn
from mechanisms.core.streams import BatchStream, Streams

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting

CODED, SIGNATURE = ATTACKS["label_coded"], ATTACKS["label_signature"]
REORDERED = "the same scalars in another order"


def on_digits(spec, digits, trials=32, **options):
    options = {"epochs": 120, "batch_size": 64, **options}
    return small_setting(spec, data=digits, options=options, trials=trials, with_positive=False)


@pytest.mark.parametrize(
    ("epsilon", "least", "trials"),
    [
        (1.0, 0.38, 8),
        pytest.param(10.0, 0.95, 32, marks=pytest.mark.slow),
        pytest.param(1.0, 0.45, 32, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_codes_find_a_whole_batch_under_noise(epsilon, least, trials, digits):
    """640 own rounds about 64 records: 0.999 and 0.469; a standard error over 32 trainings of 0.01 at most.

    It is 0.02 over 8: what is asked for lies more than four below.
    """
    outcome = CODED.mount(on_digits(CODED, digits, trials, epsilon=epsilon, calibration="paper"))
    assert outcome.success.n == trials * 64
    assert outcome.success.value >= least
    assert outcome.baselines[REORDERED].value < 0.15
    assert outcome.controls["shuffled_labels"].holds


@pytest.mark.ci
@pytest.mark.parametrize("trials", [4, pytest.param(32, marks=pytest.mark.slow)])
def test_signatures_find_a_batch_under_a_top_model(trials, digits):
    """640 own rounds, one known label of each class: 0.98 in the mean of 32 trainings."""
    setting = on_digits(SIGNATURE, digits, trials, calibration="none", server_rate=0.05, top_model=True)
    outcome = SIGNATURE.mount(setting)
    assert outcome.success.n == trials * 54
    assert outcome.success.value >= 0.95
    assert outcome.baselines[REORDERED].value < 0.15
    assert outcome.controls["shuffled_labels"].holds


@pytest.mark.ci
@pytest.mark.parametrize(
    ("spec", "method"),
    [
        (CODED, "zoo-vfl"),
        pytest.param(CODED, "syn-zoo-vfl", marks=pytest.mark.slow),
        (CODED, "cascaded"),
        pytest.param(SIGNATURE, "zoo-vfl", marks=pytest.mark.slow),
    ],
)
def test_two_losses_without_a_clip_tell_as_much(spec, method, digits):
    setting = small_setting(spec, method, digits, options={"epochs": 120, "batch_size": 64}, with_positive=False)
    outcome = spec.mount(setting)
    assert outcome.success.value >= 0.9


@pytest.mark.slow
def test_where_all_work_on_one_batch_any_client_holds_that():
    """Of its 64 records 54 are guessed in every training: known labels are of the batch that client 1 draws."""
    setting = small_setting(SIGNATURE, "syn-zoo-vfl", load("digits"), options={"epochs": 120, "batch_size": 64})
    outcome = SIGNATURE.mount(replace(setting, clients=(3,), trials=2, with_positive=False))
    assert outcome.success.n == 2 * 54
    assert outcome.success.value >= 0.85


def test_a_code_has_as_many_of_either_sign_and_differs_by_record_and_round():
    signs = codes(0, 3, 50, 10)
    assert signs.shape == (50, 10)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert (signs.sum(1) == 0).all()
    assert (codes(0, 3, 50, 5).sum(1) == 1).all()
    assert len(np.unique(signs, axis=0)) > 40
    assert not np.array_equal(signs, codes(0, 4, 50, 10))


def test_least_squares_is_the_posterior_mean():
    generator = np.random.default_rng(0)
    design, scalars = generator.standard_normal((12, 5)), generator.standard_normal((3, 12))
    precision = design.T @ design / 0.25 + np.eye(5) / 2.0
    wanted = np.linalg.solve(precision, design.T @ scalars.T / 0.25).T
    assert least_squares(design, scalars, noise=0.5, prior=2.0) == pytest.approx(wanted, rel=1e-6)


def test_a_mixture_keeps_known_labels_and_finds_the_rest():
    generator = np.random.default_rng(0)
    truth = np.arange(60) % 3
    rows = np.eye(3)[truth] * 4.0 + generator.standard_normal((60, 3)) * 0.3
    logs = mixture(rows, np.array([0, 1, 2]), np.eye(4)[truth[:3]])
    assert (logs.argmax(1) == truth).all()
    assert np.isneginf(logs[:, 3]).all()  # nobody is known of the fourth class
    assert np.exp(logs).sum(1) == pytest.approx(1.0)


def test_scalars_say_more_where_what_others_add_is_taken_off():
    """Forty blocks of 14 rounds about 64 records: least squares is far off, what explains all scalars is right."""
    generator = np.random.default_rng(0)
    truth = np.arange(64) % 4
    worth = generator.choice([-1.0, 1.0], (40, 4))
    designs = generator.choice([-1.0, 1.0], (40, 14, 64))
    scalars = (designs @ worth[:, truth, None])[..., 0] + generator.normal(0, 2, (40, 14))
    blocks = list(zip(designs, scalars, strict=True))
    rows = np.stack([least_squares(design, s[None], noise=2.0, prior=1.0)[0] for design, s in blocks], 1)
    places, known = np.arange(4), np.eye(4)[truth[:4]]
    assert (mixture(rows, places, known).argmax(1) == truth).mean() < 0.98
    assert (explained(rows, blocks, places, known, 2.0).argmax(1) == truth).all()


def test_a_batch_is_held_and_then_the_protocol_is_followed():
    client = HoldingClient(
        rounds=3, steps_per_pass=2, question=lambda t, size, width: torch.full((size, width), float(t))
    )
    assert client.first_pass_repeats == 3
    batch = BatchStream("shuffled", Streams(seed=0, replicas=(0, 1)), records=20, batch_size=5, client=1).next()
    for own_round in range(6):
        sent = client.uploads(ClientTurn(0, 1, own_round, batch, (2, 2, 5, 3), torch.float32, "cpu"))
        assert sent.shape == (2, 2, 5, 3)
        assert torch.equal(sent[:, 0], -sent[:, 1])
        assert sent[1, 0, 4, 2] == own_round
    assert client.uploads(ClientTurn(0, 1, 6, batch, (2, 2, 5, 3), torch.float32, "cpu")) is None


def test_known_labels_are_of_the_batch_that_is_held():
    """A class that the batch lacks is made up for by others of it, and a batch too small for them is refused."""
    setting = small_setting(SIGNATURE, data=random_dataset(classes=4), trials=6)
    batch = held_batch(setting)
    labels = torch.from_numpy(setting.labels)
    few = few_labels(SIGNATURE, labels, setting)
    assert few.ids.shape == (6, 4)
    for ids, of, known in zip(few.ids, batch, few.labels, strict=True):
        assert set(ids.tolist()) <= set(of.tolist())
        assert len(set(ids.tolist())) == 4
        assert set(known.tolist()) == set(labels[of].tolist())
    with refused("labels_per_class is 2; use at most 1: a batch of 8 has to hold others"):
        few_labels(SIGNATURE, labels, small_setting(SIGNATURE, options_of_attack={"labels_per_class": 2}))


@pytest.mark.parametrize(
    ("spec", "method", "options", "message"),
    [
        (CODED, "vafl", {}, "its server sends the gradient of every record"),
        (SIGNATURE, "czofo", {}, "its server perturbs the embedding itself"),
        (CODED, "dpzv", {"sampler": "poisson"}, "sampler is 'poisson'; use shuffled"),
    ],
)
def test_what_does_not_apply_is_one_line(spec, method, options, message):
    with refused(message):
        mount(spec, method, options=options)
