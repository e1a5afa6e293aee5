"""Saturating probes by a malicious client, through the real training paths."""

import pytest
import torch

from attacks.label.probe import SPEC, probing_client
from mechanisms.core.context import ClientTurn
from mechanisms.core.streams import BatchStream, Streams

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting

PUBLISHED = {(0.03, 1): 1.00, (0.10, 1): 0.92, (0.18, 1): 0.58, (0.18, 10): 1.00}
"""Success by noise and repeats at B = 64, C = 10, one probe a class of 10."""


@pytest.mark.parametrize(
    ("sigma", "repeats"),
    [case if case == (0.18, 10) else pytest.param(*case, marks=pytest.mark.slow) for case in PUBLISHED],
)
def test_success_is_the_published_one(sigma, repeats, digits):
    """Within 0.03 through the real path; 600 trials give a standard error of 0.01 at most, so 0.03 holds its place."""
    outcome = mount(
        SPEC,
        data=digits,
        options={"batch_size": 64, "sigma": sigma, "epochs": 8 if repeats == 1 else 20},
        trials=600 if repeats == 1 else 20,
        options_of_attack={"repeats": repeats, "records": 4 if repeats == 1 else 1},
    )
    assert outcome.success.n == (600 * 4 if repeats == 1 else 20)
    assert outcome.success.value == pytest.approx(PUBLISHED[sigma, repeats], abs=0.03)
    control = outcome.controls["shuffled_labels"]
    assert control.holds


@pytest.mark.parametrize("method", ["zoo-vfl", "syn-zoo-vfl", "cascaded"])
def test_two_losses_tell_every_label_at_one_probe_a_class(method):
    outcome = mount(SPEC, method, random_dataset(), options={"epochs": 12}, with_positive=True)
    assert outcome.success.value == 1.0
    assert outcome.controls["shuffled_labels"].value < 0.6
    assert outcome.controls["positive"].value == 1.0


@pytest.mark.parametrize(
    ("batch_size", "own"),
    [(512, {}), (256, {"repeats": 3}), (2, {"records": 1})],
    ids=["few rounds an epoch", "repeats", "fewer records than by default"],
)
def test_the_positive_control_lasts_as_long_as_the_settings_own_probes(batch_size, own, digits):
    """Its batches and options are the setting's: at 512 records an epoch is two rounds, and a record needs ten."""
    setting = small_setting(SPEC, data=digits, options={"batch_size": batch_size}, options_of_attack=own)
    control = SPEC.positive_control(setting)
    assert control.holds
    assert control.value == 1.0


@pytest.mark.parametrize("method", ["dpzv", "dpzv-sound"])
def test_a_cap_on_participations_ends_the_probes(method):
    """A record counts in at most one round: of its probes only the first does, so the label stays unknown."""
    options = {"epochs": 12, "participation_cap": 1}
    capped = mount(SPEC, method, options=options, trials=16)
    free = mount(SPEC, method, options={"epochs": 12}, trials=16)
    assert free.success.value == 1.0
    assert capped.success.value < 0.6


def test_a_probe_moves_one_record_along_one_class():
    options = {"options": {"batch_size": 5}, "options_of_attack": {"repeats": 2, "records": 2}}
    (client,) = probing_client(small_setting(SPEC, "dpzv", random_dataset(records=10, classes=3), **options)).values()
    assert client.first_pass_repeats == 12
    batch = BatchStream("shuffled", Streams(seed=0, replicas=(0, 1)), records=20, batch_size=5, client=1).next()
    seen = []
    for own_round in range(24):
        sent = client.uploads(ClientTurn(0, 1, own_round, batch, (2, 2, 5, 3), torch.float32, "cpu"))
        assert torch.equal(sent[:, 0], -sent[:, 1])
        (places,) = {tuple(p) for p in sent[:, 0].nonzero()[:, 1:].tolist()}
        seen.append(places)
        assert sent[0, 0][places] >= 50.0
    assert seen[:12] == [(r, c) for r in (0, 1) for _ in range(2) for c in range(3)]
    assert seen[12:] == seen[:12]
    assert client.uploads(ClientTurn(0, 1, 24, batch, (2, 2, 5, 3), torch.float32, "cpu")) is None


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("vafl", {}, "its server sends the gradient of every record"),
        ("czofo", {}, "its server perturbs the embedding itself"),
        ("dpzv", {"options": {"sampler": "poisson"}}, "sampler is 'poisson'; use shuffled"),
        ("dpzv", {"options": {"epochs": 1}}, "fewer than the 4 probes of one record"),
        ("dpzv", {"options_of_attack": {"records": 9}}, "records is 9; use at most the batch size of 8"),
        (
            "dpzv",
            {"options_of_attack": {"repeats": 0}},
            "repeats of label_probe is 0; use a whole number",
        ),
        ("dpzv", {"options_of_attack": {"repeat": 1}}, "did you mean 'repeats'"),
        (
            "dpzv",
            {"options_of_attack": {"repeats": "two"}},
            "option repeats of label_probe is 'two'; use a value of the kind of 1",
        ),
        ("dpzv", {"adversary": "client"}, "label_probe is mounted by malicious-client"),
    ],
)
def test_what_does_not_apply_is_one_line(method, change, message):
    with refused(message):
        mount(SPEC, method, **change)
