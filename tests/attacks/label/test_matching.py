"""`label_matching`: surrogates with the gradients received have the labels: known answers, controls, a planted bug."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch

from attacks import ATTACKS
from attacks.core.spec import DoesNotApply
from attacks.label.matching import own_embeddings, seeds, surrogate_labels
from attacks.label.mount import ORACLE

from ...helpers.refusals import refused
from ..conftest import mount, random_dataset, small_setting

SPEC = ATTACKS["label_matching"]


class Known:
    """What is public of 200 records in three classes."""

    classes, records, batches, seed = 3, 200, 5, 0
    shares = (0.5, 0.3, 0.2)
    options = MappingProxyType({"starts": 4, "steps": 150})


def test_labels_behind_a_linear_server_are_found():
    """Gradients (softmax(h U) - y) W of a known U and W: the surrogate is of the same kind."""
    generator = np.random.default_rng(0)
    truth = generator.choice(3, size=200, p=Known.shares)
    h = generator.standard_normal((200, 4))
    u, w = generator.standard_normal((4, 3)), generator.standard_normal((3, 4))
    shares = np.exp(h @ u)
    g = (shares / shares.sum(1, keepdims=True) - np.eye(3)[truth]) @ w
    ids = torch.from_numpy(generator.permutation(200)).view(5, 40)
    inputs, gradients = (torch.from_numpy(rows)[ids] for rows in (h, g))
    logs = surrogate_labels(inputs, 1e-3 * gradients, ids, Known(), 0)
    named = logs.argmax(1).numpy()
    table = np.bincount(named * 3 + truth, minlength=9).reshape(3, 3)
    assert (table > 0).sum() == 3
    assert logs.exp().sum(1).numpy() == pytest.approx(1.0)


def test_padding_changes_nothing():
    ids = torch.arange(200).view(5, 40)
    rows = torch.from_numpy(np.random.default_rng(1).standard_normal((5, 40, 4)))
    padded = torch.cat((ids, torch.full((5, 7), -1)), 1)
    more = torch.cat((rows, 1e6 * torch.ones(5, 7, 4)), 1)
    plain, filled = (surrogate_labels(r, r, i, Known(), 0) for r, i in ((rows, ids), (more, padded)))
    assert torch.allclose(plain, filled, atol=1e-3)


def test_seeds_lie_apart():
    """Two far groups of a hundred records and one record: all three are drawn in nearly every start."""
    rows = torch.cat((torch.zeros(100, 2), torch.full((100, 2), 10.0), torch.tensor([[-100.0, 100.0]])))
    drawn = seeds(rows, 20, 3, np.random.default_rng(0))
    assert drawn.shape == (20, 3, 2)
    assert all(len({tuple(row.tolist()) for row in start}) == 3 for start in drawn)


@pytest.mark.ci
def test_without_a_known_label_every_digit_is_told_from_the_others(digits):
    options = {"batch_size": 64, "epochs": 3, "top_model": False}
    cheap = {"starts": 3, "steps": 120}
    outcome = mount(SPEC, "split", digits, options=options, trials=1, options_of_attack=cheap)
    assert outcome.measures[ORACLE].value > 0.97
    assert outcome.success.value > 0.5
    assert outcome.measures[f"{ORACLE}, clusters of raw features, named by shares"].value < 0.6
    assert outcome.controls["shuffled_labels"].holds


def test_four_classes_under_a_top_model_and_gradients_of_others_that_fail(digits):
    """The positive control holds, and not where the view's ids are off by one batch: a planted bug."""

    def off_by_one(view, known):
        ids = [message.ids for message in view.received("gradient")]
        moved = iter(ids[1:] + ids[:1])
        messages = [m._replace(ids=next(moved)) if m.kind == "gradient" else m for m in view.messages]
        return SPEC.infer(replace(view, messages=messages), known)

    for spec, holds in ((SPEC, True), (replace(SPEC, infer=off_by_one), False)):
        planted = spec.goal.positive.setting(small_setting(spec, "split", digits))
        outcome = spec.mount(replace(planted, with_positive=False, pilot=True))
        assert (outcome.success.value >= spec.goal.positive.least) is holds


def test_without_its_own_embeddings_a_client_predicts_alike_for_all():
    class View:
        """Gradients of two rounds, and embeddings of the first alone."""

        @staticmethod
        def received(kind):
            return [type("Message", (), {"round": number}) for number in (0, 1)]

        @staticmethod
        def sent(kind):
            return [type("Message", (), {"round": 0, "payload": torch.ones(1, 3, 2)})]

    gradients = torch.ones(2, 1, 3, 2)
    assert (own_embeddings(View(), gradients) == 0).all()
    assert (own_embeddings(View(), gradients[:1]) == 1).all()
    # Gradients of the largest batch have more places.
    wider = own_embeddings(View(), torch.ones(1, 1, 5, 2))
    assert wider[0, 0, :, 0].tolist() == [1, 1, 1, 0, 0]


def test_a_method_without_gradients_says_why():
    with refused("its server sends no gradient of a record", DoesNotApply):
        mount(SPEC, "dpzv", random_dataset())
