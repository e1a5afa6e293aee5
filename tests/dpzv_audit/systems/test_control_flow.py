"""Trainings that do not all send the same messages are attacked: they stop early, miss rounds and draw batches."""

from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from attacks import ATTACKS, AttackSetting
from dpzv_audit.data import load
from dpzv_audit.systems.messages import Sent, with_ids
from dpzv_audit.systems.record import Recorder
from dpzv_audit.systems.rehearsal import rehearse
from dpzv_audit.systems.replay import lined_up, replay
from dpzv_audit.systems.run import SystemConfig, method_of
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import Task
from mechanisms.core.channel import Channel

from ...helpers.refusals import refused
from ...helpers.trainings import send

DATA = load("breast-cancer", clients=2)
TASK = Task.of(DATA)
BATCH = 64
EPOCHS = 4
TRIALS = 6


def training(task, record, seed, *, stops=False, misses=0.0, sampler="shuffled", held_out=0, drops_last=False):
    """Two linear clients under a linear top, trained by Adam, with one way of control flow or none."""
    torch.manual_seed(seed)
    lots = torch.Generator().manual_seed(seed + 1)
    x, y = task.torch()
    bottoms = [nn.Linear(block.shape[1], 4) for block in x]
    top = nn.Linear(8, task.classes)
    optimizer = torch.optim.Adam([p for model in (*bottoms, top) for p in model.parameters()], lr=0.02)

    def logits(ids, border):
        return top(torch.cat([border(m, bottoms[m - 1](x[m - 1][ids])) for m in (1, 2)], 1))

    held = torch.arange(held_out)
    round_, least = 0, float("inf")
    for _ in range(12 if stops else EPOCHS):
        batches = (held_out + torch.randperm(len(y) - held_out)).split(BATCH)
        if sampler == "poisson":
            batches = [(torch.rand(len(y)) < BATCH / len(y)).nonzero()[:, 0] for _ in batches]
        for ids in batches[:-1] if drops_last else batches:
            absent = torch.rand(2, generator=lots) < misses

            def border(m, values, ids=ids, absent=absent, round_=round_):
                return values.detach() if absent[m - 1] else record.cut(m, round_, ids)(values)

            optimizer.zero_grad()
            nn.functional.cross_entropy(logits(ids, border), y[ids]).backward()
            optimizer.step()
            round_ += 1
        if stops:
            with torch.no_grad():
                loss = float(nn.functional.cross_entropy(logits(held, lambda m, values: values), y[held]))
            if loss > 0.8 * least:
                break
            least = loss


def mounted(system, attack, trials=TRIALS, **more):
    method = method_of(system, rehearse(system, TASK, 3), TASK)
    setting = AttackSetting(
        method=method,
        config=SystemConfig(top_model=system.top_model),
        dataset=DATA,
        adversary="server" if attack == "feature_inversion" else "client",
        trials=trials,
        seed=3,
        with_positive=False,
        **more,
    )
    outcome = ATTACKS[attack].mount(setting)
    assert all(control.holds for control in outcome.controls.values())
    return outcome


@cache
def success(attack, trials=TRIALS, **flow):
    return mounted(System("flowing", partial(training, **flow)), attack, trials)


FLOWS = {
    "early stopping": {"stops": True, "held_out": 44},
    "missed rounds": {"misses": 0.1},
    "Poisson batches": {"sampler": "poisson"},
    "dropped last batches": {"drops_last": True},
}
ATTACKED = ("label_direction", "label_norm", "label_denoised", "label_enumeration", "label_similarity")


@pytest.mark.parametrize("attack", ATTACKED)
@pytest.mark.parametrize("flow", FLOWS)
def test_control_flow_costs_an_attack_little(flow, attack):
    """Success stays within 5% of that on the same system whose trainings all send the same messages."""
    plain = success(attack).success.value
    assert success(attack, **FLOWS[flow]).success.value == pytest.approx(plain, rel=0.05)


@pytest.mark.parametrize("attack", ["feature_inversion", "membership_loss", "label_matching"])
def test_attacks_on_embeddings_and_on_mail_read_what_was_sent(attack):
    """Early stopping costs no more than the held-out records that it needs, of which no message is."""
    held_out = success(attack, held_out=44, trials=2).success.value
    assert held_out > 0.6
    assert success(attack, **FLOWS["early stopping"], trials=2).success.value == pytest.approx(held_out, rel=0.05)
    assert success(attack, **FLOWS["missed rounds"], trials=2).success.value > 0.9 * held_out


@pytest.mark.parametrize("misses", [0.0, 0.4])
def test_logits_that_are_summed_name_labels_of_those_who_were_there(misses):
    """No guess is about padding: each gradient that was sent names its record's label."""

    def summing(task, record, seed):
        lots = np.random.default_rng(seed)
        batches = np.array_split(lots.permutation(task.records), 5)
        for number, ids in enumerate(batches * 2):
            ids = ids[: lots.integers(20, 40)]
            if lots.random() >= misses:
                send(task, record, 0.5 - np.eye(2)[task.labels[ids]], ids=ids, number=number)

    outcome = mounted(System("summing", summing, top_model=False), "label_direct")
    assert outcome.success.value == 1.0
    assert outcome.success.n >= TRIALS * 20
    assert outcome.game.on_one.min() > outcome.game.on_zero.max()


def test_messages_are_lined_up_by_what_they_are():
    def sent(*messages):
        return [Sent(round_, sender, 0, "embeddings", f"m{n}") for n, (round_, sender) in enumerate(messages)]

    first = sent((0, 1), (0, 2), (1, 1), (1, 1), (3, 1))
    second = sent((0, 2), (1, 2), (1, 1), (2, 2))
    groups = lined_up([first, second])
    assert [[one and (one.round, one.sender) for one in group] for group in groups] == [
        [(0, 1), None],
        [(0, 2), (0, 2)],
        [None, (1, 2)],
        [(1, 1), (1, 1)],
        [(1, 1), None],
        [None, (2, 2)],
        [(3, 1), None],
    ]
    # Rounds that do not count up are in the order of the longest training.
    back = sent((1, 1), (0, 1))
    assert [group[0] for group in lined_up([back, back[:1]])] == back


def test_what_a_training_did_not_send_is_padding_that_costs_no_bytes():
    def varied(task, record, seed):
        for number in range(1 + seed % 2):
            record.sent(number, 1, 0, "embeddings", task.features[0][:3, :2], [0, 1, 2])
            record.sent(number, 0, 1, "scalar", [1.0], [0, 1, 2])
            record.sent(number, 0, 2, "loss-of-all", [[1.0, 2.0]])

    channel = Channel()
    messages = []
    channel.observe([SimpleNamespace(on_message=messages.append)])
    played = [System("varied", varied).play(TASK, seed, "a training").trial for seed in (0, 1)]
    replay(played, channel, "varied")
    late = {message.kind: message for message in messages if message.round == 1}
    assert {kind: message.nbytes for kind, message in late.items()} == {
        "embeddings": [0, 24],
        "scalar": [0, 4 if TASK.features[0].dtype == np.float32 else 8],
        "loss-of-all": [0, 8],
    }
    assert late["embeddings"].ids.tolist() == late["scalar"].ids.tolist() == [[-1] * 3, [0, 1, 2]]
    assert not late["embeddings"].payload[0].any()
    assert late["loss-of-all"].ids is None


def test_a_batch_that_drew_no_record_is_no_message():
    def some_empty(task, record, seed):
        x, y = task.torch()
        bottom, top = nn.Linear(x[0].shape[1], 4), nn.Linear(4, task.classes)
        for number in range(12):
            ids = torch.arange(len(y))[: number % 3]
            h = record.cut(1, number, ids)(bottom(x[0][ids]))
            nn.functional.cross_entropy(top(h), y[ids], reduction="sum").backward()
            record.sent(number, 0, 2, "losses", np.zeros(len(ids)), ids)

    played = System("some empty", some_empty).play(TASK, 0, "a training").trial
    assert {message.round % 3 for message in played.messages} == {1, 2}


def rehearsed(train):
    return rehearse(System("flowing", train), TASK, 3)


def test_a_rehearsal_sees_control_flow():
    assert rehearsed(training).control_flow == ()
    assert not rehearsed(training).lengths_tell
    missed, *_ = rehearsed(partial(training, misses=0.1)).control_flow
    assert "messages between two parties in" in missed
    assert rehearsed(partial(training, sampler="poisson")).control_flow == ("batches of several sizes",)
    stops = rehearsed(partial(training, stops=True, held_out=44))
    assert stops.lengths_tell
    assert "on some labels and" in stops.control_flow[0]
    assert stops.not_made == ()


def test_a_kind_of_message_tells_no_label_by_the_end_of_a_training():
    """One that is the same in each round is told apart from one that is sent by a label."""

    def stopping(task, record, seed, *, hints=False):
        for number in range(3 + int(task.labels[:20].sum())):
            send(task, record, 2.0 * task.labels[:, None] - 1.0, number=number)
            if not hints or task.labels[number]:
                record.sent(number, 0, 1, "heartbeat", [1.0])

    assert rehearsed(stopping).telling[1] == {"gradient"}
    assert rehearsed(partial(stopping, hints=True)).telling[1] == {"gradient", "heartbeat"}


def test_other_kinds_of_messages_are_read_where_trainings_send_them():
    """Batch gradients of Poisson batches, of which a tenth is missed, in trainings that stop at different rounds."""

    def linear(task, record, seed, *, misses=0.0, varied=False):
        lots = np.random.default_rng(seed)
        x, y = task.torch()
        torch.manual_seed(seed)
        bottom = nn.Linear(x[0].shape[1], 2)
        for number in range(24 + (lots.integers(12) if varied else 0)):
            ids = lots.permutation(task.records)[: 12 if not varied else lots.integers(8, 17)]
            bottom.zero_grad()
            nn.functional.cross_entropy(bottom(x[0][ids]), y[ids]).backward()
            if lots.random() >= misses:
                record.sent(number, 1, 0, "embeddings", bottom(x[0][ids]).detach(), ids)
                flat = torch.cat([parameter.grad.flatten() for parameter in bottom.parameters()])
                record.sent(number, 0, 1, "batch-gradient", flat, ids)
        return {"clients": {1: bottom}}

    plain = mounted(System("linear", linear, top_model=False), "label_inversion").success.value
    varied = System("linear", partial(linear, misses=0.1, varied=True), top_model=False)
    flowing = mounted(varied, "label_inversion").success.value
    assert plain > 0.9
    assert flowing == pytest.approx(plain, rel=0.05)


def uneven(task, record, seed):
    """As many rounds as the seed says, which no rehearsal with one seed sees."""
    for round_ in range(2 + seed % 3):
        rows = (0.5 - task.labels + 0.01 * np.random.default_rng(seed).random())[:, None] * np.ones(2)
        send(task, record, rows, number=round_)


def test_trainings_that_memory_does_not_hold_at_once_and_that_differ_are_refused_in_one_line():
    """Planted: memory is known to hold two at a time."""
    system = System("uneven", uneven)
    assert mounted(system, "label_direction").success.value > 0.9
    with refused("memory ran out: .* differ in the number or size of their messages; use fewer trials"):
        mounted(system, "label_direction", at_once=2)


def test_an_upload_without_ids_leaves_open_which_batch_a_round_is_about():
    record = Recorder(TASK.records, TASK.clients)
    record.sent(0, 1, 0, "masked", np.ones((2, 3)), [0, 1])
    record.sent(0, 1, 0, "masked", np.ones((2, 3)))
    record.sent(0, 0, 1, "batch-gradient", np.ones(3))
    assert [message.ids for message in with_ids(record.messages, record.tensors)][1:] == ["", ""]
