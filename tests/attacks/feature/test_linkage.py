"""Linkage of embeddings to the records that they are of."""

import os
from dataclasses import replace

import numpy as np
import pytest

from attacks.core.controls import by_pairing
from attacks.core.knowledge import Knowledge
from attacks.core.spec import DoesNotApply
from attacks.feature.linkage import (
    BOTH,
    OF_TWO,
    RANDOM,
    RANK,
    SPEC,
    TWINS,
    Candidates,
    Truth,
    drawn,
    score,
    true_places,
)
from dpzv_audit.data import load
from dpzv_audit.data.vertical import Records

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting

UNTRAINED = "of an untrained client, in the clear"
OWN = {"known_records": 100, "candidates": 60, "permutations": 3}


def mounted(method, data, adversary="server", **rest):
    options = {"batch_size": 32, "epochs": 3, **rest.pop("options", {})}
    rest = {"trials": 1, "adversary": adversary, **rest}
    return mount(SPEC, method, data, options=options, options_of_attack={**OWN, **rest.pop("own", {})}, **rest)


def test_embeddings_of_three_numbers_name_their_record():
    outcome = mounted("split", random_dataset(records=200))
    assert outcome.success.n == 60
    assert outcome.success.value > 0.7
    assert outcome.baselines[RANDOM] == pytest.approx(1 / 60)
    assert outcome.baselines[BOTH].value < 0.15
    assert outcome.measures[RANK].value < 3
    assert outcome.measures[OF_TWO].value > 0.95
    assert outcome.measures[TWINS].value == 1.0
    assert outcome.measures[UNTRAINED].value > 0.5
    assert outcome.measures["with known features in another order"].high < 0.2
    control = outcome.controls["other_records"]
    assert control.value < 0.15
    assert control.holds


def test_twins_cannot_be_told_apart():
    """Client 1 holds one of two values, half of the records each: of 60 candidates about 30 are alike."""
    data = random_dataset(records=200)
    data.train.features[0][:] = np.where(np.arange(200) % 2, 1.0, -1.0)[:, None]
    outcome = mounted("split", data, pilot=True)
    _, twins = np.unique(data.train.features[0][drawn(setting_of(data))[1], 0], return_counts=True)
    assert outcome.success.value == pytest.approx(2 / 60)  # one of each kind, whatever their numbers
    assert twins.sum() == 60


def setting_of(data, **rest):
    options = {"batch_size": 32, "epochs": 3}
    return small_setting(SPEC, "split", data, options=options, options_of_attack=OWN, trials=1, **rest)


def test_candidates_stand_in_an_order_that_tells_nothing():
    data = random_dataset(records=200)
    setting = setting_of(data)
    known, ids, order = drawn(setting)
    candidates = next(g for g in SPEC.setup.grants(setting.data(), setting) if isinstance(g, Candidates))
    truth = true_places(setting)
    assert np.array_equal(candidates.candidates[truth.places], data.train.features[0][ids].astype(float))
    assert np.array_equal(candidates.ids, np.sort(ids))
    assert not set(known) & set(ids)
    assert (order != np.arange(60)).mean() > 0.8


def test_success_ranks_and_pairs_of_distances_by_hand():
    """Four embeddings: of the nearest, of the second, of one of two twins, and one as near to another."""
    distances = np.array([[[0, 3, 5, 5], [1, 2, 3, 3], [4, 5, 1, 1], [2, 1, 1, 1]]], float)
    truth = Truth(np.arange(4), np.array([1, 1, 2, 2]))
    found = score(distances, truth, 0.95)
    assert found.success.value == pytest.approx((1 + 0 + 1 / 2 + 1 / 3) / 4)
    assert found.measures[RANK].value == pytest.approx((1 + 2 + 1.5 + 2) / 4)
    assert found.measures[OF_TWO].value == pytest.approx((1 + 2 / 3 + 1 + (1 + 0.5) / 2) / 4)
    assert found.linked == pytest.approx(
        np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1 / 2, 1 / 2], [0, 1 / 3, 1 / 3, 1 / 3]])
    )


def test_a_control_without_a_leak_is_seldom_found_off_and_one_with_a_leak_is():
    """Of 200 linkages at random at most 13 have a p-value of 0.01 or less: a false alarm of 1e-6 at most, binomial."""
    truth = Truth(np.arange(40), np.ones(40, int))
    off = 0
    for seed in range(200):
        generator = np.random.default_rng([3, seed])
        linked = score(generator.random((1, 40, 40)), truth, 0.95).linked
        off += by_pairing(linked, np.eye(40), generator).p <= 0.01
    assert off <= 13
    leak = generator.random((1, 40, 40)) + 10.0 * (np.arange(40) >= 20)[:, None] - 0.9 * np.eye(40)
    assert by_pairing(score(leak, truth, 0.95).linked, np.eye(40), generator).p < 1e-3


def test_an_attack_that_peeks_at_the_truth_fails_its_negative_control():
    setting = setting_of(random_dataset(records=200), with_positive=False)
    truth = true_places(setting)

    def peeking(view, known: Knowledge):
        honest = SPEC.infer(view, known)
        distances = np.ones_like(honest.distances)
        distances[:, np.arange(60), truth.places] = 0.0
        return replace(honest, distances=distances)

    outcome = replace(SPEC, infer=peeking).mount(setting)
    assert outcome.success.value == 1.0
    assert outcome.controls["other_records"].p_value < 1e-5


def test_noise_on_embeddings_protects_records():
    noise = {"dp": "embedding", "dp_sigma": 5.0}
    assert mounted("vafl", random_dataset(records=200), options=noise, pilot=True).success.value < 0.2


def test_clients_that_collude_link_what_the_server_passes_on():
    recomputed = {"options": {"local_gradient": "recomputed"}, "adversary": "colluding-clients", "pilot": True}
    data = random_dataset(records=200)
    assert mounted("compressed", data, **recomputed, clients=(2, 3)).success.value > 0.7
    with refused("client 1, who is attacked, colludes; name other clients", DoesNotApply):
        mounted("compressed", data, **recomputed, clients=(1, 2))
    with refused("its server shows clients nothing of other clients' embeddings", DoesNotApply):
        mounted("split", data, adversary="colluding-clients", clients=(2, 3))


@pytest.mark.parametrize(
    ("records", "own", "words"),
    [
        (30, {}, "of 30 training records 15 are known and 15 are candidates; use 20 and 2 at least"),
        (200, {"target": 4}, "target is 4; use one of 1 to 3"),
    ],
)
def test_what_cannot_be_linked_is_told_in_one_line(records, own, words):
    with refused(words):
        mounted("split", random_dataset(records=records), own=own, options={"batch_size": 8})


def test_tokens_are_no_features_to_compare():
    data = random_dataset(records=60)
    tokens = Records((np.ones((60, 3), np.int64), *data.train.features[1:]), data.train.labels)
    test = Records((np.ones((4, 3), np.int64), *data.test.features[1:]), data.test.labels)
    data = replace(data, train=tokens, test=test, vocabulary=9)
    assert SPEC.needs.unmet(setting_of(data)) == "client 1 holds token ids, no features to compare"


@pytest.mark.ci
@pytest.mark.data
@pytest.mark.skipif("DPZV_AUDIT_DATA" not in os.environ, reason="needs DPZV_AUDIT_DATA")
def test_more_than_one_record_of_adult_in_seven_is_linked():
    """Of twins alone 0.29 could be; 8 trainings read 0.2."""
    options = {"batch_size": 256, "epochs": 10, "momentum": 0.9}
    outcome = SPEC.mount(
        small_setting(
            SPEC, "split", load("adult", clients=4), options=options, trials=2, pilot=True, with_positive=False
        )
    )
    assert outcome.success.value >= 0.15
    assert outcome.baselines[BOTH].value < 0.02
