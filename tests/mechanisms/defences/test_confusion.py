"""The confusional autoencoder: what it makes of labels, that predictions are decoded, and what it does not do."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpzv_audit.data import load
from mechanisms import METHODS, train
from mechanisms.core.capabilities import Capabilities
from mechanisms.core.context import LabelDecoder, RunContext
from mechanisms.core.defence import defended
from mechanisms.defences import confusion, defence_of
from mechanisms.defences.confusion import autoencoder

from ...helpers.refusals import refused
from ..conftest import training_data

SMALL = {"batch_size": 8, "epochs": 2, "embedding": 4, "hidden": 6}
NAME = "confusional-autoencoder"


@pytest.fixture
def data():
    return training_data(records=64, clients=2, dtype=torch.float32)


def generators(count, seed=0):
    return [np.random.default_rng((seed, k)) for k in range(count)]


def entropies(soft):
    return -(soft * soft.clamp(min=1e-12).log()).sum(2).mean()


@pytest.fixture(scope="module")
def of_ten():
    """Two autoencoders of ten classes with the entropy that counts by default."""
    return autoencoder(10, 0.5, generators(2))


@pytest.mark.ci
@pytest.mark.parametrize("classes", [2, 10])
def test_soft_labels_hide_the_class_and_are_decoded_to_it(classes, of_ten):
    codes = of_ten if classes == 10 else autoencoder(classes, 0.5, generators(2))
    own = torch.arange(classes).expand(2, -1)
    assert codes.soft.sum(2).numpy() == pytest.approx(1.0)
    assert (codes.soft.argmax(2) != own).all()
    assert torch.equal(LabelDecoder(codes.decoder).probabilities(codes.soft).argmax(2), own)


@pytest.mark.slow
def test_without_entropy_classes_swap_names_and_with_more_they_spread(of_ten):
    swapped, more = (autoencoder(10, weight, generators(2)).soft for weight in (0.0, 1.0))
    assert swapped.max(2).values.median() > 0.9
    assert entropies(swapped) < 0.5 < entropies(of_ten.soft) < entropies(more) < np.log(10)


@pytest.mark.slow
def test_each_replica_has_an_autoencoder_of_its_own_whatever_the_stack(data):
    defence = defence_of(NAME)
    stack = defended(data, [defence], RunContext(seed=0, replicas=(0, 1, 2)))
    alone = defended(data, [defence], RunContext(seed=0, replicas=(1,)))
    assert stack.soft.rows.shape == (3, 64, data.classes)
    assert not torch.allclose(stack.soft.rows[0], stack.soft.rows[1])
    assert torch.allclose(stack.soft.rows[1], alone.soft.rows[0], atol=1e-6)
    second = stack.of_replicas(1, 2)
    logits = torch.randn(1, 5, data.classes, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(second.decoded(logits), alone.decoded(logits), atol=1e-4)
    assert data.decoded(logits) is logits
    assert (stack.labels != data.labels).all()


def test_accuracy_is_counted_after_decoding():
    data = training_data(load("digits"), dtype=torch.float32)
    config = METHODS["split"].configure(epochs=12, defences={"name": NAME, "entropy": 0.1})
    trained = train(METHODS["split"], data, config, RunContext(seed=0))
    assert trained.accuracy.mean() > 0.6
    # The same labels without their decoder: what models say is never the class.
    bare = replace(defended(data, config.defences, RunContext(seed=0)), decoder=None)
    plain = train(METHODS["split"], bare, METHODS["split"].configure(epochs=12), RunContext(seed=0))
    assert torch.equal(trained.server.flat, plain.server.flat)
    assert plain.accuracy.mean() < 0.15


def test_it_promises_nothing_and_leaves_a_method_its_noise():
    config = METHODS["dpzv"].configure(defences={"name": NAME})
    assert config.calibration == METHODS["dpzv"].configure().calibration
    assert not METHODS["split"].draws(METHODS["split"].configure(defences={"name": NAME}))


def test_what_cannot_be_is_one_line(data, monkeypatch):
    monkeypatch.setattr(confusion, "STEPS", 100)
    with refused(f"entropy of defence {NAME} is 10000.0, which leaves soft labels that cannot"):
        autoencoder(10, 1e4, generators(1))
    with refused(f"{NAME} and label-rr both privatise labels"):
        METHODS["split"].configure(defences=[{"name": NAME}, {"name": "label-rr"}])
    system = replace(METHODS["split"], capabilities=Capabilities(simulated=False))
    config = system.configure(**SMALL, defences={"name": NAME})
    with refused(f"defence is '{NAME}'; leave it out.*a system gets classes alone"):
        system.start(data, config, RunContext(seed=0))
