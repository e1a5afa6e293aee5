"""Model completion from few labels, passive and active, with the baselines that give its number a meaning."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attacks.core.controls import labels_in_own_features
from attacks.core.knowledge import FewLabels
from attacks.core.run import attacked_run, permuted_labels
from attacks.core.spec import DoesNotApply
from attacks.label.completion import RAW, SPEC, UNTRAINED
from attacks.label.head import train_heads

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting

QUICK = {"steps": 300, "labels_per_class": 4}


def mounted(method, data, *, spec=SPEC, own=None, **rest):
    options = {"batch_size": 64, "epochs": 2}
    setting = small_setting(
        spec, method, data, options=options, options_of_attack={**QUICK, **(own or {})}, **{"trials": 3, **rest}
    )
    return spec.mount(setting)


@pytest.mark.ci
def test_labels_in_features_are_found_with_few_labels_and_the_baselines_say_so(digits):
    """Whoever reads planted labels needs no training: the baselines find them as well, which is their point."""
    planted = labels_in_own_features(digits)
    outcome = mounted("split", planted)
    assert outcome.success.value > 0.75
    assert outcome.baselines[RAW].value > 0.75
    assert outcome.baselines[UNTRAINED].value > 0.6
    assert outcome.measures["held-out records"].value > 0.75
    assert outcome.measures["label among the 3 likeliest"].value >= outcome.success.value
    # 40 of 1,408 records are given; none of them is guessed.
    assert outcome.success.n == 3 * (1408 - 40)
    assert outcome.controls["shuffled_labels"].holds


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpzv", "czofo"])
def test_it_applies_to_every_method_and_beats_a_guess(method, digits):
    outcome = mounted(method, digits, own={"labels_per_class": 10}, trials=10)
    assert outcome.success.low > outcome.chance
    assert outcome.success.value == pytest.approx(outcome.baselines[RAW].value, abs=0.2)
    assert outcome.controls["shuffled_labels"].holds
    recalls = [value.value for name, value in outcome.measures.items() if name.startswith("recall of class")]
    assert len(recalls) == 10
    assert np.mean(recalls) == pytest.approx(outcome.success.value, abs=0.05)


@pytest.mark.slow
def test_the_positive_control_is_the_same_path(digits):
    outcome = mounted("vafl", digits, trials=2, with_positive=True)
    assert outcome.controls["positive"].holds
    assert outcome.controls["positive"].value > 0.95


@pytest.mark.slow
def test_classes_of_few_records_have_a_positive_control_with_as_few_labels():
    """Four classes of about twelve records, two labels each; of the default ten there are not enough everywhere."""
    setting = small_setting(SPEC, "split", random_dataset(), options_of_attack={"labels_per_class": 2})
    with refused("option labels_per_class is 10; use at most", DoesNotApply):
        SPEC.mount(replace(setting, options={}))
    quicker = replace(SPEC, setup=replace(SPEC.setup, options={**SPEC.setup.options, "steps": 300}))
    control = quicker.positive_control(setting)
    assert control.holds
    assert control.n == 400 - 4 * 2, "known records are 400 at least"


def test_the_few_labels_are_what_was_trained_on():
    """Permuted before training, they are permuted for the attacker too: it is granted no true label."""
    setting = small_setting(SPEC, "split", random_dataset(records=48), options_of_attack={"labels_per_class": 2})
    permuted = permuted_labels(setting)
    for labels in (None, permuted):
        run = attacked_run(SPEC, setting, labels=labels)
        few = run.known.granted(FewLabels)
        source = np.tile(setting.dataset.train.labels, (4, 1)) if labels is None else labels
        assert np.array_equal(few.labels.numpy(), np.take_along_axis(source, few.ids.numpy(), 1))
        assert [np.bincount(row, minlength=4).tolist() for row in few.labels.numpy()] == [[2] * 4] * 4
        assert all(len(set(row.tolist())) == 8 for row in few.ids)
    assert not np.array_equal(few.labels.numpy(), setting.dataset.train.labels[few.ids.numpy()])


def known_of(replicas, *, classes, steps):
    return SimpleNamespace(replicas=replicas, classes=classes, seed=0, options={"steps": steps})


def test_a_replicas_head_depends_neither_on_the_stack_nor_on_other_labels():
    generator = np.random.default_rng(0)
    rows = torch.from_numpy(generator.standard_normal((3, 50, 4)))
    ids = torch.from_numpy(np.stack([generator.permutation(50)[:9] for _ in range(3)]))
    labels = torch.arange(9).remainder(3).expand(3, -1)
    fewer = FewLabels(ids[:, 3:], labels[:, 3:])
    _, both = train_heads(rows, [fewer, FewLabels(ids, labels)], known_of((0, 1, 2), classes=3, steps=20))
    (alone,) = train_heads(rows[1:2], [FewLabels(ids[1:2], labels[1:2])], known_of((1,), classes=3, steps=20))
    assert torch.allclose(both.probabilities(rows)[1], alone.probabilities(rows[1:2])[0], atol=1e-9)


def test_unlabelled_records_help_where_clusters_are_classes():
    """Two clusters far apart, one label each: the head must put the whole cluster where its one label is."""
    generator = np.random.default_rng(0)
    truth = np.arange(200) % 2
    rows = generator.standard_normal((200, 5)) * 0.3 + np.where(truth, 1.0, -1.0)[:, None]
    few = FewLabels(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    (head,) = train_heads(torch.from_numpy(rows)[None], [few], known_of((0,), classes=2, steps=500))
    names = head.probabilities(torch.from_numpy(rows)[None]).argmax(2)[0].numpy()
    assert (names == truth).mean() > 0.97


def test_too_many_labels_are_one_line():
    with refused("option labels_per_class is 40; use at most"):
        mount(SPEC, "split", options_of_attack={"labels_per_class": 40})
