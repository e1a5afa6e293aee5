"""Labels without a known one: clusters of gradients, and how they get their names."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from attacks.core.run import attacked_run
from attacks.core.spec import DoesNotApply, LabelGuesses
from attacks.label import enumeration
from attacks.label.enumeration import SPEC, by_shares, clusters, simulated
from attacks.label.mount import ORACLE, under_best_names
from dpzv_audit.data.vertical import Records

from ...helpers.refusals import refused
from ..conftest import mount, small_setting


class Known:
    """What is public of 400 records in four classes."""

    classes, records, batches, seed = 4, 400, 8, 0
    shares = (0.3, 0.1, 0.4, 0.2)


def test_names_by_shares_are_the_likeliest_of_all_permutations():
    places = torch.tensor([[2] * 10 + [0] * 20 + [3] * 31 + [1] * 39])
    sizes = np.bincount(places[0].numpy())
    best = max(permutations(range(4)), key=lambda names: (sizes * np.log(np.array(Known.shares)[list(names)])).sum())
    assert by_shares(places, Known()).tolist() == [list(best)] == [[3, 2, 1, 0]]


def test_centres_that_turn_are_followed():
    """Directions turn by half a circle over the rounds: centres that stay would mix opposite classes up."""
    generator = np.random.default_rng(0)
    truth = generator.integers(4, size=400)
    ids = np.stack([generator.permutation(400)[:50] for _ in range(48)])
    angles = truth[ids] * np.pi / 2 + np.linspace(0.0, np.pi, 48)[:, None]
    units = np.stack((np.cos(angles), np.sin(angles)), 2) + 0.05 * generator.standard_normal((48, 50, 2))
    names = clusters(units, ids, Known(), 0).argmax(1)
    table = np.bincount(names * 4 + truth, minlength=16).reshape(4, 4)
    assert (np.sort(table, 1)[:, :3] == 0).all()


def test_clusters_of_the_same_messages_are_found_once(monkeypatch):
    """Other directions or another replica are clustered anew, and what a caller changes is its own."""
    calls = []
    monkeypatch.setattr(enumeration, "_FOUND", {})
    monkeypatch.setattr(enumeration, "clusters_anew", lambda *about: calls.append(about) or np.ones((4, 2)))
    units, ids = np.zeros((2, 2, 3)), np.arange(4).reshape(2, 2)
    clusters(units, ids, Known(), 0)[:] = 0.0
    assert (clusters(units, ids, Known(), 0) == 1.0).all()
    assert len(calls) == 1
    clusters(units, ids, Known(), 1)
    clusters(units + 1.0, ids, Known(), 0)
    assert len(calls) == 3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["split", "vafl"])
def test_a_top_model_hides_names_alone(method, digits):
    """Every digit is told from the others; of names, classes 1 and 8 share 140 records, which shares cannot tell."""
    setting = small_setting(
        SPEC, method, digits, options={"batch_size": 64, "epochs": 8}, trials=2, with_positive=False
    )
    outcome = SPEC.mount(setting)
    assert outcome.measures[ORACLE].value > 0.99
    assert outcome.measures[f"{ORACLE}, clusters of raw features, named by shares"].value < 0.4
    assert outcome.success.value > 0.55
    assert outcome.controls["shuffled_labels"].holds


def test_the_servers_start_names_classes_of_one_size(digits):
    one = small_setting(
        SPEC, "split", digits, options={"batch_size": 64, "epochs": 2}, options_of_attack={"names": "start"}, trials=2
    )
    assert SPEC.mount(one).success.value > 0.75


def test_simulated_gradients_are_those_of_the_servers_start(digits):
    """Of a lone client's records in the first round, where all embeddings are its own: exactly what was received."""
    whole = [np.concatenate([b.reshape(len(b), -1) for b in p.features], 1) for p in (digits.train, digits.test)]
    parts = [
        Records((block,), records.labels) for block, records in zip(whole, (digits.train, digits.test), strict=True)
    ]
    alone = replace(digits, train=parts[0], test=parts[1], columns=None)
    setting = small_setting(SPEC, "split", alone, options_of_attack={"names": "start"}, trials=2)
    run = attacked_run(SPEC, setting)
    first = run.view.received("gradient")[0]
    labels = torch.from_numpy(digits.train.labels)[first.ids]
    expected = torch.nn.functional.normalize(first.payload.double(), dim=2)
    gradients = simulated(first.ids, run.known)
    assert torch.allclose(gradients[torch.arange(2)[:, None], torch.arange(8), labels], expected, atol=1e-5)


def test_the_best_names_are_an_oracles():
    guesses = LabelGuesses(torch.tensor([[[1, 1, 2, 2, 0, 0]]]), torch.arange(6)[None, None])
    assert under_best_names(guesses, np.array([0, 0, 1, 1, 2, 1]), 3).tolist() == [[True] * 5 + [False]]


def test_a_method_without_gradients_says_why(digits):
    with refused("its server sends no gradient of a record", DoesNotApply):
        mount(SPEC, "dpzv", digits)
