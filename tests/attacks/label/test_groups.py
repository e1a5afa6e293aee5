"""label_groups: known answers on hand-made views, and on systems that tell who shares a node."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks import ATTACKS, AttackSetting
from attacks.core.knowledge import FewLabels
from attacks.core.run import few_labels, public_knowledge
from attacks.core.spec import DoesNotApply
from attacks.label.groups import OWN, Nodes
from dpzv_audit.systems import Recorder
from dpzv_audit.systems.recorded import labelled, method_of_transcript
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import Task
from dpzv_audit.systems.transcript import load
from mechanisms.core.channel import Adversary, Message, View

from ...helpers.refusals import refused
from ..conftest import CONFIDENCE, certified, random_dataset, small_setting

SPEC = ATTACKS["label_groups"]


def groups(nodes, ids=None, *, receiver=1, kind="groups"):
    """A message about one training."""
    nodes = torch.as_tensor(nodes)[None]
    ids = torch.arange(nodes.shape[1]) if ids is None else torch.tensor(ids)
    return Message(0, 0, receiver, kind, nodes if nodes.dim() == 3 else nodes.unsqueeze(2), ids[None])


def guessed(messages, known_labels, *, records, classes=2):
    """Guesses about one training by the labels of a few records, {id: label}."""
    data = random_dataset(classes=classes)
    known = replace(public_knowledge(SPEC, small_setting(SPEC, "split", data, trials=1), None), records=records)
    few = FewLabels(torch.tensor([list(known_labels)]), torch.tensor([list(known_labels.values())]))
    guesses = SPEC.infer(View(Adversary("client", (1,)), messages), replace(known, grants=(few,)))
    return dict(zip(guesses.ids[0, 0].tolist(), guesses.labels[0, 0].tolist(), strict=True)), guesses


def test_records_take_the_class_of_those_with_which_they_share_nodes():
    """Records 6 is in no node, and 7 is told by padding alone: nothing is guessed of either, nor of known ones."""
    tree = groups([0, 0, 0, 1, 1, 1, -1, 5], [0, 1, 2, 3, 4, 5, 6, -1])
    found, _ = guessed([tree], {0: 0, 3: 1}, records=8)
    assert found == {1: 0, 2: 0, 4: 1, 5: 1}
    several, _ = guessed([groups([2, 2, -7, -7, 1, 1])], {0: 0, 2: 2, 4: 1}, records=6, classes=3)
    assert several == {1: 0, 3: 2, 5: 1}


def test_a_small_node_outweighs_a_large_one_and_columns_are_trees():
    """Record 1 shares a node of 2 with a record of class 1, and a node of 6 with one of class 0."""
    both = groups([[0, 0], [0, 1], [0, 2], [0, 3], [0, 4], [0, 5], [1, 1], [1, 6]])
    found, _ = guessed([both], {0: 0, 6: 1}, records=8)
    assert found[1] == 1
    assert found[2] == 0


def test_votes_are_a_kernel_ridge_regression():
    """On the kernel of shared nodes, each by one over its size, with a centre of all known rows: solved directly."""
    rng = np.random.default_rng(0)
    told = [rng.integers(5, size=30) for _ in range(4)]
    nodes = Nodes.of([groups(numbers) for numbers in told], 0, 30)
    known, labels = np.arange(12), rng.integers(2, size=12)
    shared = [(a[:, None] == a) / np.bincount(a, minlength=5)[a] for a in told]
    kernel = np.sum(shared, axis=0)
    centred = np.eye(30) - np.r_[np.full(12, 1 / 12), np.zeros(18)]
    kernel = centred @ kernel @ centred.T
    penalty = np.mean([sum(s[i, i] for s in shared) for i in range(30)])
    weights = np.linalg.solve(kernel[:12, :12] + penalty * np.eye(12), labels - labels.mean())
    expected = labels.mean() + kernel[:, :12] @ weights
    assert np.allclose(nodes.votes(known, np.eye(2)[labels])[:, 1], expected, atol=1e-3)


def test_nothing_told_is_the_share_of_known_labels():
    nodes = Nodes.of([groups([-1, -1, -1, -1])], 0, 4)
    assert not nodes.seen.any()
    assert np.allclose(nodes.votes(np.array([0, 1, 2]), np.eye(2)[[0, 1, 1]]), [1 / 3, 2 / 3])


def setting_on(train, data, **rest):
    method, config = prepared(System("trees", train), data, 0)
    usual = {"trials": 8, "with_positive": False, "confidence": CONFIDENCE}
    return AttackSetting(method=method, config=config, dataset=data, **{**usual, **rest})


def leaves(task, record, seed, *, wrong=0.25, receivers=(1,)):
    """Ten trees of four leaves that hold mostly one class, which `wrong` of the records miss."""
    rng = np.random.default_rng(seed)
    for tree in range(10):
        label = np.where(rng.random(task.records) < wrong, 1 - task.labels, task.labels)
        numbers = 2 * label + rng.integers(2, size=task.records)
        record.sent(tree, 0, receivers[tree % len(receivers)], "groups", numbers, np.arange(task.records))


def test_leaves_give_labels_away_and_own_features_stand_beside():
    data = random_dataset(records=400, classes=2)
    outcome = SPEC.mount(setting_on(leaves, data))
    assert outcome.metric == "area under the ROC curve"
    assert outcome.success.value > 0.97
    assert set(outcome.baselines) == {"a constant score", *OWN}
    for name in OWN:
        assert abs(outcome.baselines[name].value - 0.5) < 0.1  # features that tell nothing
    assert outcome.controls["shuffled_labels"].p_value > 1e-4
    assert certified(outcome.game) > 2.0


def test_trees_on_features_alone_tell_no_label():
    def at_random(task, record, seed):
        numbers = np.random.default_rng(seed).integers(6, size=(task.records, 8))
        record.sent(0, 0, 1, "groups", numbers, np.arange(task.records))
        record.sent(0, 0, 1, "losses", task.labels[:4].astype(float))  # a system must learn from its labels

    outcome = SPEC.mount(setting_on(at_random, random_dataset(records=400, classes=2)))
    assert abs(outcome.success.value - 0.5) < 0.08  # five standard errors over 8 trainings of 360 guesses
    assert certified(outcome.game) == 0.0


def test_a_tenth_of_the_labels_of_each_class_is_known():
    data = random_dataset(records=400, classes=2)
    setting = setting_on(leaves, data, trials=2)
    for share in (0.1, 0.3):
        few = few_labels(SPEC, torch.from_numpy(data.train.labels), replace(setting, options={"known_share": share}))
        sizes = np.bincount(data.train.labels)
        for row in few.labels.numpy():
            assert np.bincount(row).tolist() == [round(share * size) for size in sizes]
    with refused("option known_share of label_groups is 1.5; use a number strictly between 0 and 1"):
        SPEC.mount(replace(setting, options={"known_share": 1.5}))


def test_colluding_clients_read_all_that_they_are_told():
    def both(task, record, seed):
        leaves(task, record, seed, wrong=0.3, receivers=(1, 2))

    data = random_dataset(records=400, classes=2)
    alone = SPEC.mount(setting_on(both, data))
    together = SPEC.mount(setting_on(both, data, adversary="colluding-clients"))
    assert together.success.value > alone.success.value + 0.03


def losses(task, record, seed):
    record.sent(0, 0, 1, "losses", task.labels)


@pytest.mark.parametrize(
    ("train", "adversary", "words"),
    [
        (None, "client", "a built-in method tells no client which records share nodes"),
        (
            losses,
            "client",
            r'record\.sent\(round, 0, 1, "groups", nodes, ids\)',
        ),
        (leaves, "colluding-clients", "one client alone exchanges messages"),
    ],
)
def test_where_it_does_not_apply_it_says_why(train, adversary, words):
    data = random_dataset(records=60, classes=2)
    setting = small_setting(SPEC, "vafl", data) if train is None else setting_on(train, data, adversary=adversary)
    with refused(words, DoesNotApply):
        SPEC.mount(setting)


def test_a_transcript_is_attacked_without_its_features(tmp_path):
    data = random_dataset(records=400, classes=2)
    record = Recorder(records=400, clients=2)
    leaves(Task.of(data), record, 0)
    record.save(tmp_path / "run", classes=2)
    recorded = load(tmp_path / "run")
    path = tmp_path / "labels.csv"
    path.write_text("".join(f"{label}\n" for label in data.train.labels))
    scored = labelled(recorded, data.train.labels, path)
    method = method_of_transcript(recorded)
    outcome = SPEC.mount(
        AttackSetting(method=method, config=method.configure(), dataset=scored, trials=1, with_positive=False)
    )
    assert outcome.success.value > 0.93
    assert set(outcome.baselines) == {"a constant score"}
    assert outcome.controls["permuted_labels"].p_value < 1e-3


def test_splits_are_told_one_by_one_and_in_other_numbers_from_training_to_training():
    """A message for each split, about its own records, and fewer trees in some trainings than in others."""

    def splits(task, record, seed):
        rng = np.random.default_rng(seed)
        for tree in range(8 + seed % 3):
            here = np.flatnonzero(rng.random(task.records) < 0.6)
            lie = rng.random(len(here)) < 0.2
            record.sent(tree, 0, 1, "groups", task.labels[here] ^ lie, here)

    outcome = SPEC.mount(setting_on(splits, random_dataset(records=400, classes=2)))
    assert outcome.success.value > 0.95
    assert certified(outcome.game) > 2.0


def test_a_target_that_is_a_number_is_regressed():
    """Eight trees of ten leaves, by a noisy target: success is a rank correlation, beside that of own features."""

    def trees(task, record, seed):
        rng = np.random.default_rng(seed)
        for tree in range(8):
            noisy = task.labels + 0.3 * rng.standard_normal(task.records)
            leaf = np.searchsorted(np.quantile(noisy, np.arange(1, 10) / 10), noisy)
            record.sent(tree, 0, 1, "groups", leaf, np.arange(task.records))

    data = replace(random_dataset(records=400, classes=40), values=np.linspace(0.0, 1.0, 40, dtype=np.float32))
    setting = setting_on(trees, data)
    assert few_labels(SPEC, torch.from_numpy(data.train.labels), setting).ids.shape == (8, 40)
    outcome = SPEC.mount(setting)
    assert outcome.metric == "rank correlation with the target"
    assert outcome.success.value > 0.85
    assert abs(outcome.baselines["regression on own features"].value) < 0.2
    assert certified(outcome.game) > 0.5
