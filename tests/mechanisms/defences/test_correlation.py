"""Distance correlation against its definition, and the defence that lowers it, where clients step by gradients."""

import numpy as np
import pytest
import torch

from attacks import AttackSetting, attack_named
from dpzv_audit.data import load
from mechanisms import METHODS, train
from mechanisms.core.context import RunContext
from mechanisms.core.defence import penalised
from mechanisms.defences import defence_of
from mechanisms.defences.correlation import distance_correlation

from ...helpers.refusals import refused
from ..conftest import training_data

SMALL = {"batch_size": 8, "epochs": 2, "embedding": 4, "hidden": 6}


@pytest.fixture
def data():
    return training_data(records=64, clients=2, dtype=torch.float32)


def by_definition(first, second):
    """Distance correlation of the sample, number by number."""
    centred = []
    for rows in (first, second):
        distances = np.array([[np.linalg.norm(a - b) for b in rows] for a in rows])
        centred.append(distances - distances.mean(0) - distances.mean(1)[:, None] + distances.mean())
    mine, its = centred
    return np.sqrt((mine * its).mean() / np.sqrt((mine**2).mean() * (its**2).mean()))


def test_it_is_that_of_the_definition():
    generator = np.random.default_rng(0)
    first = generator.normal(size=(2, 9, 3))
    second = np.stack((first[0] @ generator.normal(size=(3, 2)), generator.normal(size=(9, 2))))
    correlations = distance_correlation(torch.from_numpy(first), torch.from_numpy(second))
    expected = [by_definition(*pair) for pair in zip(first, second, strict=True)]
    assert correlations.numpy() == pytest.approx(expected, rel=1e-9)


def test_it_is_1_of_rows_turned_and_scaled_and_0_of_a_constant():
    rows = torch.randn(1, 12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    assert distance_correlation(rows, 5.0 * rows @ turned + 1.0).item() == pytest.approx(1.0)
    assert distance_correlation(rows, torch.ones_like(rows)).item() == 0.0


def test_the_gradient_is_that_of_differences():
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(1, 6, 3, dtype=torch.float64, generator=generator)
    embeddings = torch.randn(1, 6, 2, dtype=torch.float64, generator=generator)
    gradient = defence_of("dcor", weight=2.0).on_embeddings(features, embeddings)
    for row, column in ((0, 0), (3, 1)):
        shift = torch.zeros_like(embeddings)
        shift[0, row, column] = 1e-5
        pair = [distance_correlation(features, embeddings + sign * shift) for sign in (1, -1)]
        assert gradient[0, row, column].item() == pytest.approx(2.0 * (pair[0] - pair[1]).item() / 2e-5, rel=1e-5)


def test_replicas_are_kept_apart_and_other_defences_add_nothing():
    generator = torch.Generator().manual_seed(3)
    features, embeddings = (torch.randn(2, 6, width, generator=generator) for width in (3, 2))
    defences = [defence_of("label-rr"), defence_of("dcor")]
    both = penalised(torch.zeros_like(embeddings), defences, features, embeddings)
    alone = penalised(torch.zeros_like(embeddings[1:]), defences, features[1:], embeddings[1:])
    assert torch.allclose(both[1:], alone)
    assert not both.abs().sum((1, 2)).eq(0).any()
    assert penalised(embeddings, defences[:1], features, embeddings) is embeddings


def test_embeddings_correlate_less_and_the_first_that_were_sent_still_give_features_away():
    """The last embeddings tell less than without the penalty; those of the first epoch were sent before it told."""
    spec = attack_named("feature_inversion")
    success = {}
    for sent, defences in (("last", ()), ("last", {"name": "dcor"}), ("auto", {"name": "dcor"})):
        config = METHODS["split"].configure(epochs=8, defences=defences)
        setting = AttackSetting(
            method=METHODS["split"],
            config=config,
            dataset=load("digits"),
            adversary="server",
            trials=1,
            options={"embeddings": sent},
            pilot=True,
            with_positive=False,
        )
        success[sent, bool(defences)] = spec.mount(setting).success.value
    assert success["last", False] > 0.9
    assert success["last", True] < success["last", False] - 0.05
    assert success["auto", True] > success["last", True] + 0.1


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("dpzv", {}, "dcor stands at each embedding of a first-order round.*use method split, vafl or compressed"),
        ("czofo", {}, "dcor stands at each embedding"),
        ("compressed", {"local_gradient": "recomputed"}, "dcor stands at each embedding"),
        ("split", {"sampler": "poisson"}, "use sampler shuffled or uniform with defence dcor"),
    ],
)
def test_where_it_cannot_stand_is_one_line(method, options, message):
    with refused(message):
        METHODS[method].configure(**options, defences={"name": "dcor"})


def test_token_ids_and_a_weight_of_nothing_are_refused():
    with refused("dcor needs numbers to correlate"):
        defence_of("dcor").on_embeddings(torch.zeros(1, 4, 3, dtype=torch.int64), torch.zeros(1, 4, 2))
    with refused("option weight of defence dcor is 0; use more than 0"):
        defence_of("dcor", weight=0)


def test_it_promises_nothing_so_that_a_method_keeps_its_own_noise(data):
    config = METHODS["split"].configure(**SMALL, defences={"name": "dcor"})
    assert not METHODS["split"].draws(config)
    assert METHODS["split"].protects(config).startswith("nothing")
    both = METHODS["split"].configure(**SMALL, defences=[{"name": "dcor"}, {"name": "label-rr"}])
    assert METHODS["split"].protects(both) == "labels, privatised once before training by label-rr"
    assert np.isfinite(train(METHODS["split"], data, both, RunContext(seed=0)).loss).all()
