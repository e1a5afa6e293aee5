"""The game of numbers of messages: a stopping time that depends on a label certifies an epsilon, chance does not."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import binom

from dpzv_audit import verify_claim
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.evidence.auditing import system_outcome
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.evidence.games import LENGTHS
from dpzv_audit.games.lengths import NumberRule
from dpzv_audit.systems.rehearsal import rehearse
from dpzv_audit.systems.run import SystemConfig, method_of
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import Task
from mechanisms import Training
from mechanisms.core.channel import Adversary, Message, View

from ...helpers.scores import bound_of
from ...helpers.trainings import send

RECORDS = 160


def table(classes=2):
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=RECORDS)
    parts = [Records((rng.standard_normal((RECORDS, 3)).astype(np.float32),), labels) for _ in range(2)]
    return VerticalDataset("noise", *parts, classes, "one block", {})


def stopping(task, record, seed, *, rounds):
    """Send rows of noise, which labels move by next to nothing, for so many `rounds` of the labels and a generator."""
    rng = np.random.default_rng(seed)
    for number in range(rounds(task.labels, rng)):
        send(task, record, rng.standard_normal((task.records, 2)) + 1e-9 * task.labels[:, None], number=number)


def audited(rounds, classes=2, **options):
    system = System("stopping", partial(stopping, rounds=rounds))
    data = table(classes)
    task = Task.of(data)
    method = method_of(system, rehearse(system, task, 0), task)
    training = Training(method=method, config=SystemConfig(), dataset=data, seed=0)
    return system_outcome(training, "client", AuditPlan(runs=0), **options).result


TELLING = {
    "one record": lambda labels, rng: 9 if labels[0] else 3,
    "a count": lambda labels, rng: 9 if labels.sum() > 0.5 * len(labels) else 3,
    "parity": lambda labels, rng: 3 + labels.sum() % 2,
    "one record beside chance": lambda labels, rng: 4 + 4 * labels[7] + rng.integers(3),
}


@pytest.mark.parametrize("told", TELLING)
def test_a_stopping_time_that_depends_on_a_label_certifies_an_epsilon(told):
    result = audited(TELLING[told], epsilon=1.0)
    assert result.privacy.empirical_lower > 1.5
    assert result.privacy.verdict == "refuted"
    assert "by the label of record" in result.game["numbers_of_messages"]


def test_a_claim_falls_by_a_stopping_time():
    data = table()
    arrays = {"features": list(data.train.features), "labels": data.train.labels}
    system = partial(stopping, rounds=TELLING["one record"])
    assert verify_claim(system=system, data=arrays, epsilon=1.0, delta=1e-5).verdict == "refuted"


def test_a_claim_on_attacks_says_that_none_reads_the_stopping_time():
    data = table()
    arrays = {"features": list(data.train.features), "labels": data.train.labels}
    system = partial(stopping, rounds=TELLING["a count"])
    found = verify_claim(system=system, data=arrays, attack="label_norm", success_at_most=0.6)
    assert LENGTHS in found.entry.judged.not_tested


HARMLESS = {
    "as many rounds each time": lambda labels, rng: 3,
    "by chance": lambda labels, rng: rng.integers(3, 9),
    "by many labels and chance": lambda labels, rng: 3 + round(4 * labels[: RECORDS // 2].mean() + rng.normal() ** 2),
}


@pytest.mark.parametrize("told", HARMLESS)
def test_a_stopping_time_that_tells_no_label_certifies_nothing(told):
    """No rule is found for most seeds; where one is, it is right by chance."""
    trained = []

    def counted(labels, rng):
        trained.append(1)
        return HARMLESS[told](labels, rng)

    result = audited(counted)
    assert result.privacy.empirical_lower == 0.0
    assert "numbers_of_messages" not in result.game
    # Few trainings are spent on it: a rehearsal of three or four, six of the game, and one or some that look.
    assert len(trained) < (12 if told == "as many rounds each time" else 40)


def test_a_rule_is_rarely_above_the_truth():
    """Of 200 games of a rule whose numbers are 1 more with probability 0.73 on one label and 0.27 on the other.

    Their epsilon is 1, and each bound holds at 95%: a correct build fails with probability at most 1e-4.
    """
    rng = np.random.default_rng(4)
    rule = NumberRule(np.array([[0, 0], [0, 1]]), "rounds", 1.5, 1)
    share = 1.0 / (1.0 + np.exp(-1.0))

    def train(number, labels):
        extra = rng.random() < (share if labels[1] else 1.0 - share)
        messages = [Message(n, 0, 1, "gradient", torch.zeros(1, 1, 1)) for n in range(1 + extra)]
        return View(Adversary("client", (1,)), messages)

    above = 0
    for _ in range(200):
        scores = rule.play(train, rng.integers(2, size=64))
        above += bound_of(*scores.sides, "one-run", coin_flips=True, pilot=scores.pilot).epsilon_lower > 1.0
    assert above <= binom.isf(1e-4, 200, 0.05)
    assert above > 0


def test_of_several_classes_one_is_told():
    assert audited(lambda labels, rng: 3 + 2 * (labels[5] % 2), classes=4).privacy.empirical_lower > 1.5
