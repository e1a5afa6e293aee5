"""Membership in a training of the user's own: by its `predict`, and by predictions that a client is served."""

import numpy as np
import pytest
import torch
from torch import nn

from attacks import ATTACKS, AttackSetting
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.systems.rehearsal import rehearse
from dpzv_audit.systems.run import SystemConfig, method_of
from dpzv_audit.systems.system import System, logits
from dpzv_audit.systems.task import Task

from ...helpers.refusals import refused

TRIALS, SHADOWS = 4, 16


def noise(count, seed):
    """Features that say nothing of labels in four classes: only learning by heart fits them."""
    generator = np.random.default_rng(seed)
    blocks = tuple(generator.standard_normal((count, 12)).astype(np.float32) for _ in range(2))
    return Records(blocks, generator.integers(4, size=count))


DATA = VerticalDataset("noise", noise(160, 0), noise(80, 1), 4, "two blocks", {})


def overfitting(task, record, seed, *, steps=60, answer=lambda scores: scores, serves=None):
    """Learn all labels by heart, all records in each batch."""
    torch.manual_seed(seed)
    x, y = task.torch()
    bottoms = [nn.Sequential(nn.Linear(12, 48), nn.ReLU()) for _ in x]
    top = nn.Linear(96, task.classes)
    optimizer = torch.optim.Adam([p for model in (*bottoms, top) for p in model.parameters()], lr=0.02)

    def scores(blocks):
        return top(torch.cat([bottom(block) for bottom, block in zip(bottoms, blocks, strict=True)], 1))

    for step in range(steps):
        ids = torch.arange(len(y))
        # One round is recorded: what a release says does not depend on it.
        h = [bottom(block) for bottom, block in zip(bottoms, x, strict=True)]
        if step == 0:
            h = [record.cut(m, 0, ids)(embedding) for m, embedding in enumerate(h, start=1)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(top(torch.cat(h, 1)), y).backward()
        optimizer.step()
    if serves:
        with torch.no_grad():
            record.sent(1, 0, 1, "prediction", serves(scores(x)), ids)
    return {"predict": lambda blocks: answer(scores(blocks))}


def mounted(attack, system, adversary="release", **options):
    task = Task.of(DATA)
    setting = AttackSetting(
        method=method_of(system, rehearse(system, task, 0), task),
        config=SystemConfig(batch_size=64),
        dataset=DATA,
        adversary=adversary,
        trials=TRIALS,
        options=options,
        with_positive=False,
    )
    return ATTACKS[attack].mount(setting)


@pytest.mark.parametrize(
    ("attack", "least"), [("membership_lira", 0.65), ("membership_rmia", 0.65), ("membership_loss", 0.65)]
)
def test_an_overfitted_system_gives_its_members_away_by_what_it_predicts(attack, least):
    """The control's p-value is below 1e-4 for one correct build in ten thousand at most: it bounds that by its law."""
    outcome = mounted(attack, System("overfitting", overfitting), shadows=SHADOWS)
    assert outcome.success.value >= least
    assert outcome.success.n == TRIALS * 160
    assert outcome.controls["other_members"].p_value > 1e-4
    assert outcome.game.on_one.mean() > outcome.game.on_zero.mean()
    assert outcome.trained.correct.shape == (TRIALS, 80)


def test_probabilities_are_taken_for_what_they_are():
    logits_outcome = mounted("membership_loss", System("overfitting", overfitting))
    shares = mounted(
        "membership_loss",
        System("shares", lambda *arguments: overfitting(*arguments, answer=lambda s: s.double().softmax(1))),
    )
    assert shares.success.value == pytest.approx(logits_outcome.success.value, abs=1e-3)
    scores = np.array([[0.2, 0.8], [0.5, 0.5]])
    assert np.allclose(np.exp(logits(scores, "shares")), scores)
    assert np.array_equal(logits(2.0 * scores, "logits"), 2.0 * scores)


@pytest.mark.parametrize(
    ("attack", "least", "serves"),
    [("membership_lira", 0.65, lambda scores: scores), ("membership_loss", 0.6, lambda scores: scores.argmax(1))],
    ids=["lira-scores", "loss-classes"],
)
def test_a_client_that_is_served_predictions_learns_who_stands_behind_an_id(attack, least, serves):
    """Of two candidates with one label the loss knows nothing: a quarter of the pairs are guessed by it."""
    serving = System("serving", lambda *arguments: overfitting(*arguments, serves=serves))
    outcome = mounted(attack, serving, "client", shadows=SHADOWS)
    assert outcome.success.value >= least
    assert outcome.controls["other_members"].p_value > 1e-4


def test_what_a_system_lacks_is_said_with_the_line_that_unlocks_it():
    def silent(task, record, seed):
        overfitting(task, record, seed, steps=1)

    with refused(r'returns no model to ask: let it return {"predict": predict}'):
        mounted("membership_lira", System("silent", silent))

    def one_way(task, record, seed):
        record.sent(0, 1, 0, "embeddings", task.features[0][:, :3] * task.labels[:, None], range(task.records))

    with refused(r"sends a client no answer about records; record\.cut where embeddings leave"):
        mounted("membership_lira", System("one_way", one_way), "client")
    with refused(r"predict answers int64 of shape .*; return scores"):
        mounted(
            "membership_loss",
            System(
                "classes", lambda *arguments: overfitting(*arguments, steps=1, answer=lambda scores: scores.argmax(1))
            ),
        )


def test_predictions_that_differ_in_width_between_trainings_are_refused_in_one_line():
    def wider(task, record, seed):
        answer = lambda scores: torch.cat([scores, scores[:, : seed % 2]], 1)  # noqa: E731
        return overfitting(task, record, seed, answer=answer, steps=1)

    words = r"system wider: predict answers scores of shapes \(80, 4\) and \(80, 5\) in different trainings; use one"
    with refused(words):
        mounted("membership_loss", System("wider", wider))
