"""label_served: known answers on hand-made views, and on systems that learnt by heart, generalise, or are mute."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks import ATTACKS, AttackSetting
from attacks.core.predictions import log_odds, log_probabilities
from attacks.core.run import public_knowledge
from attacks.core.spec import DoesNotApply
from attacks.label.served import HELD_OUT
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System
from mechanisms.core.channel import Adversary, Message, View

from ...helpers.refusals import refused
from ..conftest import CONFIDENCE, mount, random_dataset, small_setting

SPEC = ATTACKS["label_served"]
ALL = torch.ones(2, dtype=torch.bool)


def setting_on(train, data, **rest):
    method, config = prepared(System("mine", train), data, 0)
    return AttackSetting(
        method=method,
        config=config,
        dataset=data,
        confidence=CONFIDENCE,
        **{"trials": 16, "with_positive": False, **rest},
    )


def infer(served, *, classes, adversary="client", **options):
    """What client 1 reads off what was served of 4 records, each time ids and numbers, in one training."""
    data = random_dataset(records=8, classes=classes)
    setting = small_setting(SPEC, "split", data, trials=1, options_of_attack=options)
    known = replace(public_knowledge(SPEC, setting, None), records=4, batches=len(served))
    view = View(Adversary(adversary, (1,)))
    for round_, (ids, numbers) in enumerate(served):
        named = torch.tensor([ids]) if adversary == "client" else None
        view.messages.append(Message(round_, 0, 1, "prediction", torch.tensor(numbers)[None], named))
        # What others are served, and what the client sends to be served, is no answer to it.
        view.messages.append(Message(round_, 0, 2, "prediction", torch.zeros(1, 1, 7), torch.tensor([[3]])))
        view.messages.append(Message(round_, 1, 0, "prediction", torch.zeros(1, 1, 5), torch.tensor([[3]])))
    return SPEC.infer(view, known)


def test_the_mean_probability_or_the_last_serving_names_a_record():
    """Record 0: probabilities of class 1 are 0.9, 0.4 and 0.45, 0.583 on average; record 2 was never served."""

    def logits(*ones):
        return [[0.0, float(np.log(p / (1 - p)))] for p in ones]

    servings = [([0, 1], logits(0.9, 0.2)), ([3, 0], logits(0.7, 0.4)), ([0, -1], [*logits(0.45), [0.0, 0.0]])]
    guesses = infer(servings, classes=2)
    assert guesses.ids.tolist() == [[[0, 1, 3]]]
    assert guesses.labels.tolist() == [[[1, 0, 1]]]
    p = torch.tensor([1.75 / 3, 0.2, 0.7], dtype=torch.float64)
    assert torch.allclose(guesses.scores[0, 0, :, 1], (p / (1 - p)).log(), atol=1e-6)
    last = infer(servings, classes=2, servings="last")
    assert last.ids.tolist() == guesses.ids.tolist()
    assert last.labels.tolist() == [[[0, 0, 1]]]


def test_one_who_knows_no_ids_reads_each_row_by_itself():
    found = infer([([0, 1], [[1.0, 3.0, 2.0], [5.0, 3.0, 2.0]])], classes=3, adversary="eavesdropper")
    assert found.ids is None
    assert found.labels.tolist() == [[[1, 0]]]


@pytest.mark.parametrize(
    ("served", "classes"),
    [
        ([[0.2, 0.8], [0.5, 0.5]], 2),
        ([[3.0 + np.log(0.2), 3.0 + np.log(0.8)], [-7.0, -7.0]], 2),
        ([[0.8], [0.5]], 2),
        ([[np.log(0.8 / 0.2)], [0.0]], 2),
    ],
)
def test_probabilities_and_logits_are_taken_for_what_they_are(served, classes):
    numbers = torch.tensor(served, dtype=torch.float64)
    odds = log_odds(log_probabilities(numbers, ALL, classes))
    right = torch.tensor([[0.25, 4.0], [1.0, 1.0]], dtype=torch.float64).log()
    assert torch.allclose(odds, right)
    # Rows that fill up a batch say nothing of what the others are.
    filled = torch.cat((numbers, torch.zeros(1, numbers.shape[1])))
    padded = log_probabilities(filled, torch.tensor([True, True, False]), classes)
    assert torch.allclose(log_odds(padded)[:2], right)


def test_classes_are_whole_numbers_and_other_widths_predict_nothing():
    named = log_probabilities(torch.tensor([[2], [0]]), ALL, 3)
    assert named.argmax(1).tolist() == [2, 0]
    assert log_probabilities(torch.tensor([[3], [0]]), ALL, 3) is None
    assert log_probabilities(torch.ones(2, 1), ALL, 3) is None
    with refused("are 5 numbers a record; use 3 scores, a class, or of two classes one", DoesNotApply):
        infer([([0, 1], np.ones((2, 5)).tolist())], classes=3)


def part(count, seed, signal):
    """Features that tell four classes (`told` 1) or nothing at all (0), 24 of them."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(4, size=count)
    noise = generator.standard_normal((count, 24)).astype(np.float32)
    means = 6.0 * np.eye(4, 24, dtype=np.float32)[labels]
    return Records((noise + signal * means,), labels)


def nearest(task, record, seed, *, own=0.0, serve=slice(None), answer=lambda scores: scores):
    """Serve, in two halves, minus the distance to each class's mean, and `own` more for a record's own label."""
    x, y = task.features[0], task.labels
    means = np.stack([x[y == c].mean(0) for c in range(task.classes)])

    def scores(rows):
        return -((rows[:, None] - means) ** 2).sum(2)

    ids = np.arange(len(y))[serve]
    for round_, half in enumerate(np.array_split(ids, 2)):
        predictions = scores(x[half]) + own * np.eye(task.classes)[y[half]]
        record.sent(round_, 0, 1, "prediction", answer(predictions), half)
    return {"predict": lambda blocks: torch.from_numpy(scores(blocks[0].numpy()))}


@pytest.mark.parametrize("adversary", ["client", "eavesdropper"])
def test_what_is_known_by_heart_is_told_apart_from_what_generalises(adversary):
    """By heart: all training labels, a quarter of the others, and coins. Generalising: as many of both, and few coins.

    A control's p-value is below 1e-4 for one correct build in ten thousand at most: it bounds that by its law.
    """
    data = [
        VerticalDataset("blobs", part(400, 0, signal), part(400, 1, signal), 4, "one block", {}) for signal in (0, 1)
    ]
    heart = SPEC.mount(setting_on(lambda *arguments: nearest(*arguments, own=200.0), data[0], adversary=adversary))
    assert heart.success.value == 1.0
    assert heart.baselines[HELD_OUT].value < 0.4
    assert heart.controls["shuffled_labels"].p_value > 1e-4
    general = SPEC.mount(setting_on(nearest, data[1], adversary=adversary))
    assert min(general.success.value, general.baselines[HELD_OUT].value) > 0.98
    assert general.controls["shuffled_labels"].p_value > 1e-4
    if adversary == "client":
        gaps = [outcome.game.on_one.mean() - outcome.game.on_zero.mean() for outcome in (heart, general)]
        assert gaps[0] > 50 * gaps[1] > 0
    else:
        assert heart.game is None


def test_records_that_were_not_served_are_not_guessed():
    data = VerticalDataset("noise", part(60, 0, 0), part(20, 1, 0), 4, "one block", {})
    outcome = SPEC.mount(setting_on(lambda *arguments: nearest(*arguments, own=200.0, serve=slice(10, 31)), data))
    assert outcome.success.value == 1.0
    assert outcome.success.n == 16 * 21
    classes = SPEC.mount(
        setting_on(lambda *arguments: nearest(*arguments, own=200.0, answer=lambda s: s.argmax(1)), data, trials=2)
    )
    assert classes.success.value == 1.0


def test_who_serves_no_prediction_is_told_the_line_that_does():
    def mute(task, record, seed):
        record.sent(0, 1, 0, "prediction", np.float32(task.labels)[:, None], range(task.records))

    line = r'serves client 1 no prediction of a record; record\.sent\(round, 0, 1, "prediction", logits, ids\) where'
    with refused(line, DoesNotApply):
        SPEC.mount(setting_on(mute, random_dataset()))
    with refused("does not apply to split: a built-in method serves no prediction", DoesNotApply):
        mount(SPEC, "split")
