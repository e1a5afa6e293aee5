"""Defences of gradients and embeddings on a training of the user's own: they stand where gradients pass its cuts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from attacks import ATTACKS, AttackSetting
from dpzv_audit.base.errors import InputError
from dpzv_audit.data import load
from dpzv_audit.systems import Recorder
from dpzv_audit.systems.defences import CutDefences
from dpzv_audit.systems.rehearsal import rehearse
from dpzv_audit.systems.run import SystemConfig, SystemRun, TrialJob, method_of
from dpzv_audit.systems.system import System, SystemFailed
from dpzv_audit.systems.task import Task
from mechanisms.core.context import RunContext, TrainingData
from mechanisms.core.noise import SecretBits
from mechanisms.defences import DEFENCES, defence_of

from ...helpers.refusals import refused

DATA = load("breast-cancer")
TASK = Task.of(DATA)
AT_CUTS = [name for name, spec in DEFENCES.items() if spec.settings.place != "labels"]
IDS = torch.arange(12)


def of(*names, origin=3):
    return CutDefences(tuple(defence_of(name) for name in names), origin)


def passed(defended, *, scale=1.0, dtype=torch.float32, key=7):
    """One backward pass of the cut of client 1: what was recorded, and what the bottom's output got."""

    class Scaler:
        def get_scale(self):
            return scale

    record = Recorder(TASK.records, TASK.clients, defend=None if defended is None else defended.at(TASK, key))
    output = torch.randn(12, 4, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    embeddings = record.cut(1, 0, IDS, scaler=Scaler())(output)
    logits = embeddings @ torch.tensor([[1.0, -1.0], [0.5, 2.0], [-1.0, 0.3], [0.2, 0.1]], dtype=dtype)
    (scale * nn.functional.cross_entropy(logits, torch.from_numpy(TASK.labels[:12]))).backward()
    return {one.kind: record.tensors[one.tensor] for one in record.messages}["gradient"], output.grad / scale


@pytest.mark.parametrize("name", [n for n in AT_CUTS if DEFENCES[n].settings.place == "gradient"])
@pytest.mark.parametrize("scale", [1.0, 64.0])
def test_what_travels_is_changed_and_is_what_the_client_pulls_back(name, scale):
    bare, _ = passed(None)
    sent, pulled = passed(of(name), scale=scale)
    assert not np.allclose(sent, bare)
    assert torch.allclose(torch.from_numpy(sent), pulled, rtol=1e-5)
    again, _ = passed(of(name), scale=scale)
    assert np.array_equal(sent, again)


def test_a_penalty_on_embeddings_is_the_clients_own_and_does_not_travel():
    bare, _ = passed(None)
    sent, pulled = passed(of("dcor"))
    assert np.array_equal(sent, bare)
    features = torch.from_numpy(TASK.features[0][:12])[None]
    output = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))[None]
    added = defence_of("dcor").on_embeddings(features, output)[0]
    assert torch.allclose(pulled - torch.from_numpy(bare), added, atol=1e-6)


@pytest.mark.parametrize("name", ["max-norm", "marvell"])
def test_draws_are_of_the_training_and_secret_where_bits_are(name):
    one, _ = passed(of(name))
    assert not np.array_equal(one, passed(of(name), key=8)[0])
    assert not np.array_equal(one, passed(of(name, origin=4))[0])
    bits = SecretBits()
    secret = passed(of(name, origin=bits))[0]
    assert np.array_equal(secret, passed(of(name, origin=SecretBits(bits.key)))[0])
    assert not np.array_equal(secret, passed(of(name, origin=SecretBits()))[0])


def test_defences_stand_in_turn():
    """What is compressed last is sparse, and what is compressed first is noised all over."""
    assert (passed(of("marvell", "sparsify"))[0] != 0).sum() == 12
    assert (passed(of("sparsify", "marvell"))[0] != 0).sum() > 24


def training(task, record, seed):
    """One client's linear bottom under a linear top."""
    torch.manual_seed(seed)
    x, y = task.torch()
    bottom, top = nn.Linear(x[0].shape[1], 4), nn.Linear(4, task.classes)
    optimizer = torch.optim.Adam([*bottom.parameters(), *top.parameters()], lr=0.05)
    for number, ids in enumerate(torch.arange(len(y)).repeat(6).split(64)):
        h = record.cut(1, number, ids)(bottom(x[0][ids]))
        optimizer.zero_grad()
        nn.functional.cross_entropy(top(h), y[ids]).backward()
        optimizer.step()


def by_hand(task, record, seed):
    """Send one batch, whose gradients pass no cut."""
    torch.manual_seed(seed)
    x, y = task.torch()
    h = nn.Linear(x[0].shape[1], 2)(x[0][:64]).detach().requires_grad_()
    ids = torch.arange(64)
    record.sent(0, 1, 0, "embeddings", h, ids)
    nn.functional.cross_entropy(h, y[:64]).backward()
    record.sent(0, 0, 1, "gradient", h.grad, ids)


def scalars(task, record, seed):
    """Send what has no gradient."""
    record.sent(0, 0, 1, "scalar", np.array([task.labels[:9].mean()]))


def started(train, *names, **stated):
    system = System("own", train, **stated)
    config = SystemConfig(defences=tuple(defence_of(name) for name in names))
    method = method_of(System("own", train), rehearse(System("own", train), TASK, 0), TASK)
    data = TrainingData.of(DATA, dtype=torch.float32, device="cpu")
    run = SystemRun(system, method.capabilities.architectures, data, config, RunContext(seed=0, replicas=(0, 1)))
    run.step()
    return run


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (by_hand, "use record.cut, where a defence of gradients can change it"),
        (scalars, "sent no gradient through record.cut, where the defence would stand"),
    ],
)
def test_gradients_that_pass_no_cut_cannot_be_defended(train, words):
    with pytest.raises((InputError, SystemFailed), match=words):
        started(train, "sparsify")


def test_a_stated_release_and_a_defence_that_reads_labels_do_not_go_together():
    with refused("defence is 'marvell'; leave it out: it reads labels"):
        started(training, "marvell", stated=lambda task: {})
    started(training, "sparsify", stated=lambda task: {})


def test_marvell_hides_labels_of_a_system_from_who_looks_once_and_not_from_who_looks_often():
    """Two trainings from a fixed seed: a direction alone is near chance, all visits together name most labels."""
    found = {}
    marvell = (defence_of("marvell"),)
    for attack, defences in (("label_direction", ()), ("label_direction", marvell), ("label_denoised", marvell)):
        method = method_of(System("own", training), rehearse(System("own", training), TASK, 0), TASK)
        config = SystemConfig(batch_size=64, defences=defences)
        setting = AttackSetting(method=method, config=config, dataset=DATA, trials=2, seed=5, with_positive=False)
        found[attack, len(defences)] = ATTACKS[attack].mount(setting).success.value
    assert found["label_direction", 0] > 0.99
    assert found["label_direction", 1] < 0.75
    assert found["label_denoised", 1] > found["label_direction", 1] + 0.15


def test_trainings_with_other_defences_are_kept_apart():
    blocks = {"features": TASK.features, "test_features": TASK.test_features, "test_labels": TASK.test_labels}
    job = TrialJob(load=lambda: None, classes=2, **blocks)
    assert len({job.digest} | {replace(job, defended=of(name)).digest for name in AT_CUTS}) == 1 + len(AT_CUTS)
