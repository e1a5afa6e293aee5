"""answer-check: gradients that embeddings predict are not followed, those of labels are."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict

from dpzv_audit.data import load
from mechanisms import METHODS, train
from mechanisms.core.context import RunContext, TrainingData
from mechanisms.defences.answers import AnswerCheck, predicted_share

GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(2, 64, 5, generator=GENERATOR, dtype=torch.float64)
NOISE = torch.randn(2, 64, 3, generator=GENERATOR, dtype=torch.float64)


def test_the_share_is_that_of_a_regression_on_the_other_records():
    target = ROWS[:, :, :3] * 0.5 + NOISE
    found = predicted_share(ROWS, target)
    for k in range(2):
        rows = ROWS[k].numpy()
        rows = np.c_[np.ones(64), (rows - rows.mean(0)) / rows.std(0, ddof=1)]
        left = cross_val_predict(Ridge(1e-3 * 64, fit_intercept=False), rows, target[k].numpy(), cv=LeaveOneOut())
        share = 1 - ((left - target[k].numpy()) ** 2).sum() / (target[k].numpy() ** 2).sum()
        assert found[k] == pytest.approx(share, abs=1e-9)


def test_a_function_of_the_embeddings_is_found_and_noise_is_not():
    linear = ROWS @ torch.randn(5, 3, generator=GENERATOR, dtype=torch.float64)
    assert (predicted_share(ROWS, linear) > 0.99).all()
    assert (predicted_share(ROWS, NOISE) < 0.2).all()


def test_what_cannot_be_told_counts_as_nothing():
    assert (predicted_share(ROWS[:, :12], ROWS[:, :12]) == 0).all()  # no more records than twice six numbers
    assert (predicted_share(ROWS, torch.zeros_like(NOISE)) == 0).all()


def test_each_training_follows_its_own_answers():
    mixed = torch.stack((ROWS[0, :, :3], NOISE[1]))
    followed = AnswerCheck().on_answers(ROWS, mixed)
    assert (followed[0] == 0).all()
    assert torch.equal(followed[1], mixed[1])


@pytest.mark.parametrize("method", ["split", "vafl"])
def test_an_honest_training_goes_on_as_it_is(method):
    """Of a batch of 64 with embeddings of 16 numbers no gradient of digits is predicted by half."""
    data = TrainingData.of(load("digits"), dtype=torch.float32, device="cpu")
    spec = METHODS[method]
    plain, checked = (
        train(spec, data, spec.configure(epochs=3, **options), RunContext(seed=0))
        for options in ({}, {"defences": ({"name": "answer-check"},)})
    )
    assert torch.equal(plain.clients[0].flat, checked.clients[0].flat)


class Spreading:
    """A server that answers with a linear function of the embeddings."""

    first_pass_repeats = 1

    def answer(self, client, batch, embeddings, gradient):
        return -embeddings / embeddings.shape[1]


def test_a_hijacked_client_stands_still():
    data = TrainingData.of(load("digits"), dtype=torch.float32, device="cpu")
    spec = METHODS["split"]
    moved = {}
    for name, options in (("plain", {}), ("checked", {"defences": ({"name": "answer-check"},)})):
        once, longer = (
            train(spec, data, spec.configure(epochs=epochs, **options), RunContext(seed=0, behaviours={0: Spreading()}))
            for epochs in (1, 2)
        )
        moved[name] = not torch.equal(once.clients[0].flat, longer.clients[0].flat)
    assert moved == {"plain": True, "checked": False}
