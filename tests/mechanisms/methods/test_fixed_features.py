"""fixed-features against a slow reference, what it sends and to whom its bound speaks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpzv_audit.accounting import epsilon_from_mu, upper_bounds
from dpzv_audit.base.errors import InputError
from dpzv_audit.data import load
from dpzv_audit.evidence.training import train_result
from mechanisms import METHODS
from mechanisms.core.channel import SERVER
from mechanisms.core.context import Deployment, RunContext
from mechanisms.methods.fixed_features import rate_of, sigma_of

from ...helpers.built_in import train
from ...helpers.refusals import refused
from ..conftest import random_dataset, start_run, steps, training_data

SPEC = METHODS["fixed-features"]
SMALL = {"epochs": 6, "embedding": 4, "dtype": "float64", "sigma": 0.0}
DEPLOYED = Deployment(records=100, clients=3)
OTHERS = ("release", "client", "colluding-clients", "all-but-one", "malicious-client")


def bounds(adversary, neighbours="replace-record", deployment=DEPLOYED, **options):
    """The sound bounds, and the gaps of those that are not."""
    config = SPEC.configure(**options)
    (release,) = SPEC.releases(config, deployment)
    found = upper_bounds(release, delta=config.delta, adversaries=[adversary], neighbours=[neighbours])
    return [bound.upper for bound in found if bound.sound], {gap for bound in found for gap in bound.gaps}


def columns_by_hand(block, width=4):
    """Columns between -1 and 1, and zeros for what a client has not."""
    rows = 2 * block - 1
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]))


def test_the_head_is_the_mean_of_the_later_half_of_a_plain_descent():
    """Record by record, with momentum, without noise; rows have a last number 1 and a scale of public numbers."""
    config = SPEC.configure(**SMALL, server_rate=3.0)
    run, _ = start_run(config)
    data = run.federation.data
    steps(run, 6)
    count = sum(block.shape[1] for block in data.features)
    parts = [columns_by_hand(block) for block in data.features]
    rows = torch.cat([*parts, torch.ones(len(data.labels), 1, dtype=torch.float64)], 1) / math.sqrt(count + 1)
    weights = torch.zeros(rows.shape[1], data.classes, dtype=torch.float64)
    velocity, later = torch.zeros_like(weights), []
    for step in range(6):
        total = torch.zeros_like(weights)
        for row, label in zip(rows, data.labels, strict=True):
            residual = torch.softmax(row @ weights, 0)
            residual[label] -= 1.0
            gradient = torch.outer(row, residual)
            total += gradient * min(1.0, config.clip / float(gradient.norm()))
        velocity = config.server_momentum * velocity + total / len(rows)
        weights = weights - config.server_rate / config.clip * velocity
        later += [weights] * (step >= 3)
    head = torch.stack(later).mean(0) / math.sqrt(count + 1)
    weight, bias = run.federation.server_parameters.views.values()
    assert torch.allclose(weight[0], head[:-1].T, rtol=0, atol=1e-9)
    assert torch.allclose(bias[0], head[-1], rtol=0, atol=1e-9)


def test_each_client_uploads_once_and_nothing_comes_down():
    config = SPEC.configure(**{**SMALL, "sigma": 1.0})
    run, log = start_run(config)
    steps(run, 6)
    assert [(m.sender, m.receiver, m.kind) for m in log.messages] == [(m, SERVER, "table") for m in (1, 2, 3)]
    columns = sum(block.shape[1] for block in run.federation.data.features)
    # What a map does not fill takes no bytes.
    assert train(training_data(), config, seed=0).ledger.up == columns * 24 * 4


def test_what_is_uploaded_follows_from_no_label_and_no_other_record():
    def uploads(dataset):
        _, log = start_run(SPEC.configure(**SMALL, features="random"), dataset=dataset)
        return [m.payload[0] for m in log.messages]

    dataset = random_dataset()
    other = random_dataset(seed=1)
    pairs = zip(dataset.train.features, other.train.features, strict=True)
    features = tuple(np.concatenate((mine[:1], its[1:])) for mine, its in pairs)
    changed = replace(dataset, train=replace(other.train, features=features))
    for mine, its in zip(uploads(dataset), uploads(changed), strict=True):
        assert torch.equal(mine[0], its[0])
        assert not torch.isclose(mine[1:], its[1:]).any()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("adversary", OTHERS)
def test_the_bound_is_exact_and_meets_the_claim(epsilon, adversary):
    config = SPEC.configure(epsilon=epsilon)
    mu = 2 * config.clip * math.sqrt(config.epochs) / sigma_of(config)
    assert epsilon_from_mu(mu, 1e-5) == pytest.approx(epsilon, rel=1e-6)
    sound, _ = bounds(adversary, epsilon=epsilon)
    assert min(sound) == pytest.approx(epsilon, rel=1e-6)
    assert min(sound) <= epsilon


def test_who_reads_uploads_has_no_bound_on_records_and_one_on_labels():
    sound, gaps = bounds("eavesdropper")
    assert not sound
    assert "unprotected-channel" in gaps
    assert min(bounds("eavesdropper", uploads="encrypted")[0]) <= 1.0
    assert min(bounds("eavesdropper", "replace-label")[0]) <= 1.0
    assert bounds("server")[0] == []
    for setting, audience in (("clear", False), ("encrypted", True)):
        assert ("eavesdropper" in SPEC.protection(SPEC.configure(uploads=setting)).audience) == audience


@pytest.mark.parametrize(
    ("options", "gap"),
    [
        ({"features": "components"}, "data-dependent-side"),
        ({"features": "patches"}, "data-dependent-side"),
        ({"noise": "float"}, "floating-point"),
    ],
)
def test_what_would_break_the_bound_is_named(options, gap):
    sound, gaps = bounds("release", **options)
    assert not sound
    assert gap in gaps


def test_a_seed_that_is_shown_is_a_gap():
    sound, gaps = bounds("release", deployment=replace(DEPLOYED, seeded_noise=True))
    assert not sound
    assert "seeded-noise" in gaps


def test_features_that_are_fitted_follow_from_other_records():
    """So that the gap says what is true: the planted mistake moves what is uploaded of records that stay."""
    dataset = random_dataset(seed=0)
    changed = replace(dataset, train=replace(dataset.train, features=tuple(b.copy() for b in dataset.train.features)))
    changed.train.features[0][0] = 9.0
    moved = {}
    for features in ("columns", "components"):
        config = SPEC.configure(**SMALL, features=features)
        first, second = (start_run(config, dataset=some)[1].messages[0].payload[0] for some in (dataset, changed))
        moved[features] = not torch.equal(first[1:], second[1:])
    assert moved == {"columns": False, "components": True}


def test_a_rate_follows_from_public_numbers():
    """Of many records the whole rate; of few a shorter one, so that noise gives a logit a deviation of 2.5."""
    config = SPEC.configure()
    assert rate_of(config, 10**7) == config.server_rate
    few = rate_of(config, 1000)
    drift = few * sigma_of(config) * math.sqrt(config.epochs) / (1000 * config.clip * (1 - config.server_momentum))
    assert drift == pytest.approx(config.logit_noise)
    assert rate_of(SPEC.configure(sigma=0.0), 10) == config.server_rate


@pytest.mark.parametrize("options", [{}, {"epsilon": 0.1, "delta": 1e-6}, {"clip": 0.2}, {"features": "gabor"}])
def test_a_result_says_whose_settings_they_are(options):
    """Settings by the rule cost nothing; of others nobody here knows what was looked at."""
    words = SPEC.protects(SPEC.configure(**options))
    by_hand = bool({"clip", "features"} & options.keys())
    assert ("settings follow from public numbers" in words) == (not by_hand)
    assert ("which no bound here includes" in words) == by_hand


def test_digits_are_learnt_under_the_bound_and_no_frozen_control_is_trained():
    result, _ = train_result(SPEC, SPEC.configure(), load("digits"), seed=0)
    assert result.utility.test_accuracy.value > 0.6  # 0.8 in most trainings; guessing reaches 0.13
    assert set(result.utility.controls) == {"majority"}
    assert result.privacy.upper <= 1.0
    assert (result.privacy.neighbours, result.privacy.adversary, result.privacy.gap) == (
        "replace-record",
        "release",
        None,
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"features": "hog"}, "features is 'hog'; use one of auto, histograms, gabor, columns, random"),
        ({"batch_size": 32}, "batch_size does not apply: every step reads all records"),
        ({"client_rate": 0.1}, "client_rate does not apply: clients have fixed features, which do not move"),
        ({"top_model": False}, "top_model does not apply: the head is the server's model"),
        ({"calibration": "paper"}, "calibration is 'paper'; use 'sound' or 'none'"),
        ({"epsilon": None}, "epsilon is missing: calibration sound needs it"),
        ({"uploads": "open"}, "uploads is 'open'; use 'clear' or 'encrypted'"),
        ({"defences": ({"name": "marvell"},)}, "defence marvell stands at each gradient of a first-order round"),
        ({"defences": ({"name": "dcor"},)}, "defence dcor stands at each embedding of a first-order round"),
    ],
)
def test_a_wrong_setting_is_one_line(options, says):
    with refused(says):
        SPEC.configure(**options)


def test_a_claim_whose_noise_no_grid_holds_is_one_line():
    with refused("epsilon is 1e-30; use a larger epsilon or delta: noise is 'grid'"):
        start_run(SPEC.configure(epsilon=1e-30, delta=1e-15))


def test_token_ids_are_refused_in_one_line():
    def ids(part):
        return replace(part, features=tuple(np.zeros(block.shape, dtype=np.int64) for block in part.features))

    numbers = random_dataset()
    tokens = replace(numbers, train=ids(numbers.train), test=ids(numbers.test), vocabulary=7)
    with refused("features: use a data set of numbers: token ids have no data-free features here"):
        SPEC.start(training_data(tokens), SPEC.configure(**SMALL), RunContext(seed=0))


def test_private_labels_need_no_noise_of_its_own_unless_it_is_asked_for():
    private = SPEC.configure(defences=({"name": "label-rr"},))
    assert not private.noised
    both = SPEC.configure(defences=({"name": "label-rr"},), epsilon=1.0)
    assert both.noised
    with pytest.raises(InputError):
        SPEC.configure(defences=({"name": "label-rr"}, {"name": "marvell"}))
