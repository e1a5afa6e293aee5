"""Defences at labels through the real training paths: what is trained on, what is kept, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks import AttackSetting, attack_named
from dpzv_audit.accounting import mu_from_epsilon
from dpzv_audit.accounting.labels import LabelRelease
from dpzv_audit.base.findings import SERVERS, AdversaryName, NeighbourRelation
from dpzv_audit.data import load
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.evidence.privacy import privacy_sections
from mechanisms import METHODS, Training, train
from mechanisms.core.channel import Adversary, Channel, ViewRecorder
from mechanisms.core.context import RunContext
from mechanisms.core.defence import defended, label_release
from mechanisms.core.noise import SecretBits
from mechanisms.defences import DEFENCES, defence_of

from ...helpers.refusals import refused
from ..conftest import same_models, training_data

AT_LABELS = [name for name in DEFENCES if name.startswith("label-")]
SMALL = {"batch_size": 8, "epochs": 3, "embedding": 4, "hidden": 6}


@pytest.fixture
def data():
    """Four clients' data of 64 records, of which a client's first feature tells the class."""
    made = training_data(records=64, clients=4, dtype=torch.float32)
    first = made.features[0].clone()
    first[:, 0] = 10.0 * made.labels
    return replace(made, features=(first, *made.features[1:]))


def context(replicas=(0,), **more):
    return RunContext(seed=0, replicas=replicas, **more)


@pytest.mark.parametrize("name", AT_LABELS)
def test_labels_are_private_for_each_replica_by_its_own_draws(name, data):
    defence = defence_of(name, epsilon=0.02)
    private = defended(data, [defence], context((0, 1, 2)))
    assert private.labels.shape == (3, 64)
    assert (private.labels != data.labels).any(1).all()
    assert not torch.equal(private.labels[0], private.labels[1])
    assert private.features is data.features
    assert torch.equal(private.test_labels, data.test_labels)
    alone = defended(data, [defence], context((1,)))
    assert torch.equal(alone.labels[0], private.labels[1])
    if private.soft is not None:
        assert torch.allclose(alone.soft.rows[0], private.soft.rows[1])
        assert private.soft.rows.shape == (3, 64, data.classes)


@pytest.mark.parametrize("name", AT_LABELS)
@pytest.mark.parametrize("method", ["split", "dpzv", "czofo", "zoo-vfl", "compressed"])
def test_every_method_trains_on_private_labels_alone(name, method, data):
    """With the same private labels two data sets that differ in true labels alone give the same models."""
    config = METHODS[method].configure(**SMALL, defences={"name": name, "epsilon": 2.0})
    private = defended(data, config.defences, context())
    same = {**SMALL, "rate_schedule": "linear"}  # as it is by default where labels are privatised
    bare = METHODS[method].configure(**same, **({"calibration": "none", "epsilon": None} if method == "dpzv" else {}))
    first = train(METHODS[method], data, config, RunContext(seed=0))
    second = train(METHODS[method], private, bare, RunContext(seed=0))
    assert same_models(first, second)


def test_votes_of_groups_that_features_tell_are_the_labels(data):
    defence = defence_of("label-cluster", epsilon=5.0, grouping="k-means", groups=data.classes, components=1)
    found = defended(data, [defence], context())
    assert (found.labels[0] == data.labels).float().mean() > 0.9


def test_groups_follow_the_records_that_are_selected(data):
    """Replicas that train on other records group those, and a label goes with its record."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(64))
    selection = torch.stack((torch.arange(64), order))
    labels = torch.stack((data.labels, data.labels[order]))
    defence = defence_of("label-cluster", epsilon=5.0, grouping="k-means", groups=data.classes, components=1)
    private = defended(replace(data, selection=selection, labels=labels), [defence], context((0, 1)))
    assert (private.labels == labels).float().mean() > 0.9


def test_draws_come_from_secret_bits_where_the_noise_does(data):
    defence = defence_of("label-rr")
    secret = SecretBits()
    private = defended(data, [defence], context(origin=secret))
    assert secret.drawn
    assert torch.equal(private.labels, defended(data, [defence], context(origin=SecretBits(secret.key))).labels)
    assert not torch.equal(private.labels, defended(data, [defence], context()).labels)


def test_a_method_adds_no_noise_of_its_own_unless_it_is_asked_to():
    defence = {"name": "label-rr"}
    assert METHODS["dpzv"].configure(defences=defence).calibration == "none"
    assert METHODS["dpzv"].configure(defences=defence, epsilon=1.0).calibration == "paper"
    assert METHODS["dpzv"].configure(defences=defence, sigma=0.5).sigma == 0.5
    assert METHODS["split"].configure(defences=defence).defences == (defence_of("label-rr"),)


def test_settings_are_kept_as_they_were_given():
    config = METHODS["split"].configure(defences={"name": "label-cluster", "epsilon": 0.25, "release": "shares"})
    dumped = config.model_dump(mode="json")
    assert dumped["defences"][0] == {
        "name": "label-cluster",
        "epsilon": 0.25,
        "groups": None,
        "grouping": "auto",
        "components": None,
        "release": "shares",
    }
    assert type(config)(**dumped) == config


@pytest.mark.parametrize(
    ("defences", "message"),
    [
        ({"name": "label-r"}, "defence is 'label-r': did you mean 'label-rr'"),
        ({"name": "label-rr", "epsilon": -1}, r"option epsilon of defence label-rr is -1; use more than 0"),
        ({"name": "label-rr", "groups": 3}, "option of defence label-rr is 'groups'"),
        ({"epsilon": 1}, "name"),
        ("label-rr", "use defences, each by its name and settings"),
        ([{"name": "label-rr"}, {"name": "label-cluster"}], "label-rr and label-cluster both privatise labels"),
    ],
)
def test_what_cannot_be_is_one_line(defences, message):
    with refused(message):
        METHODS["split"].configure(defences=defences)


def test_more_groups_than_records_and_token_ids_are_refused(data):
    with refused("groups of label-cluster is 65; use at most the 64 records"):
        defended(data, [defence_of("label-cluster", groups=65)], context())
    tokens = replace(data, features=tuple(torch.ones_like(block, dtype=torch.int64) for block in data.features))
    with refused("label-cluster needs numbers to group records by"):
        defended(tokens, [defence_of("label-cluster")], context())
    assert defended(tokens, [defence_of("label-rr", correction=True)], context()).soft.rows.dtype == torch.float32


@pytest.mark.parametrize("adversary", AdversaryName.__args__)
@pytest.mark.parametrize("relation", NeighbourRelation.__args__)
def test_the_bound_is_of_labels_against_all_but_the_server(adversary, relation):
    bound = LabelRelease(0.5).bound(adversary, relation, 1e-5)
    if adversary in SERVERS:
        assert (bound.sound, bound.gap) == (False, "unprotected-channel")
    elif relation != "replace-label":
        assert (bound.sound, bound.gap) == (False, "undefined")
        assert "protected" in bound.note
    else:
        assert bound.sound
        assert bound.upper == 0.5
    seeded = LabelRelease(0.5).bound(adversary, relation, 1e-5, seeded=True)
    assert not seeded.sound


def test_what_is_released_is_the_first_that_promises_anything():
    assert label_release([]) is None
    assert label_release([defence_of("label-cluster", epsilon=0.1)]) == LabelRelease(0.1)
    assert label_release([defence_of("label-rr", epsilon=3)]) == LabelRelease(3.0, by_record=True)
    assert label_release([defence_of("label-one-shot", epsilon=3, delta=1e-6)]) == LabelRelease(3.0, 1e-6)


def test_who_plays_a_training_again_does_not_know_its_draws():
    """Played again from the seed, labels would come out as they were drawn: no adversary knows that much."""
    config = METHODS["dpzv"].configure(epsilon=1.0, defences={"name": "label-rr"})
    setting = AttackSetting(
        method=METHODS["dpzv"], config=config, dataset=load("digits"), adversary="all-but-one", trials=1
    )
    assert "privatised by secret draws" in attack_named("label_precision").needs.unmet(setting)


def test_what_is_drawn_and_what_it_protects_is_said():
    split, dpzv = METHODS["split"], METHODS["dpzv"]
    private = split.configure(defences={"name": "label-rr"})
    assert split.draws(private)
    assert not split.draws(split.configure())
    assert split.protects(private) == "labels, privatised once before training by label-rr"
    both = dpzv.configure(epsilon=1.0, defences={"name": "label-rr"})
    assert dpzv.protects(both).startswith("labels, privatised once before training by label-rr; and the scalar")


@pytest.mark.parametrize("name", [name for name in DEFENCES if defence_of(name).releases() is not None])
def test_a_replaced_label_moves_no_other_private_label_where_that_is_said(name, data):
    """At an epsilon at which draws decide nothing, so that private labels are a function of the true ones."""
    defence = defence_of(name, epsilon=100.0, **({"groups": 20} if "groups" in defence_of(name).model_dump() else {}))
    before = defended(data, [defence], context()).labels
    moved = []
    for record in range(data.records):
        labels = data.labels.clone()
        labels[record] = (labels[record] + 1) % data.classes
        moved.append(int((defended(replace(data, labels=labels), [defence], context()).labels != before).sum()))
    if defence.releases().by_record:
        assert moved == [1] * data.records
    elif name != "label-rr-prior":  # whose priors move others by how draws come out
        assert max(moved) > 1


def test_epsilon_of_gaussian_noise_follows_at_every_delta():
    release = LabelRelease(1.0, 1e-5)
    at = [release.bound("client", "replace-label", delta) for delta in (1e-7, 1e-5, 1e-3)]
    assert at[0].upper > 1.0 > at[2].upper
    assert at[1].upper == 1.0
    for bound in at:
        assert mu_from_epsilon(bound.upper, bound.delta) == pytest.approx(release.mu, rel=1e-9)


@pytest.mark.parametrize(
    ("defence", "epsilon", "counted"),
    [("label-rr", 1.0, True), ("label-cluster", 1.0, False), ("label-one-shot", 1.0, False), ("label-rr", None, False)],
)
def test_a_training_says_the_bound_of_labels_and_that_of_its_own_noise_where_both_hold(defence, epsilon, counted):
    method = METHODS["dpzv-sound"]
    own = {} if epsilon is None else {"epsilon": epsilon, "delta": 1e-5}
    config = method.configure(epochs=2, defences={"name": defence, "epsilon": 2.0}, **own)
    data = load("digits")
    privacy, _ = privacy_sections(
        Training(method=method, config=config, dataset=data), "client", None, AuditPlan(runs=0)
    )
    assert privacy.claimed == 2.0
    accountants = {bound.accountant for bound in privacy.bounds}
    assert (accountants > {"label-dp"}) == counted
    assert privacy.upper == pytest.approx(1.0 if counted else 2.0)


@pytest.mark.parametrize(("name", "kinds"), [("label-rr", set()), ("label-cluster", {"features"})])
def test_what_clients_send_for_a_defence_is_a_message_and_counts(name, kinds, data):
    config = METHODS["split"].configure(**SMALL, defences={"name": name})
    seen = ViewRecorder(Adversary("server"))
    trained = train(METHODS["split"], data, config, RunContext(seed=0, replicas=(0, 1), observers=(seen,)))
    assert set(trained.ledger.bytes_up) == kinds | {"embeddings"}
    sent = [message for message in seen.view.messages if message.kind == "features"]
    assert [message.sender for message in sent] == ([1, 2, 3, 4] if kinds else [])
    each = min(10, data.features[0].shape[1])
    assert trained.ledger.bytes_up.get("features", 0) == len(sent) * 64 * each * 4


def test_groups_are_of_what_arrived(data):
    """Whatever clients hold: where the same is delivered, groups are the same."""
    config = METHODS["label-private"].configure(**SMALL)
    with pytest.MonkeyPatch.context() as patch:
        send = Channel.send
        patch.setattr(Channel, "send", lambda channel, message: torch.ones_like(send(channel, message)).cumsum(1))
        other = replace(data, features=tuple(block.flip(0) for block in data.features))
        first, second = (train(METHODS["label-private"], some, config, RunContext(seed=0)) for some in (data, other))
    assert torch.equal(first.server.flat, second.server.flat)
