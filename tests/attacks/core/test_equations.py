"""Sums over known sets of records, solved for what each record adds."""

import numpy as np
import pytest
import torch

from attacks.core.equations import COMPONENTS, solved_sums
from mechanisms.core.channel import Adversary, Message, View

RECORDS = 60


def view_of(*messages, clients=(1,)):
    return View(Adversary("colluding-clients", clients), list(messages))


def sums(values, ids, kind="sums", client=1, round_=0):
    return Message(
        round_, 0, client, kind, torch.as_tensor(values, dtype=torch.float64)[None], torch.as_tensor(ids)[None]
    )


def along(rows, others):
    """The correlation of each column of rows (N, c) with the same of others."""
    return [np.corrcoef(a, b)[0, 1] for a, b in zip(rows.T, others.T, strict=True)]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_as_many_sums_as_records_give_each_row(rng):
    rows = rng.standard_normal((RECORDS, 2))
    sets = [rng.permutation(RECORDS)[:20] for _ in range(200)]
    view = view_of(*(sums(rows[ids].sum(0), ids) for ids in sets))
    ((name, found),) = solved_sums(view, RECORDS, (1,), {})
    assert name == "sums to 1"
    assert min(along(found, rows)) > 0.999


def test_few_sums_give_rows_in_part_and_what_all_add_alike_says_nothing(rng):
    rows = 100.0 + rng.standard_normal((RECORDS, 1))
    sets = [rng.permutation(RECORDS)[: rng.integers(5, 20)] for _ in range(30)]
    ((_, found),) = solved_sums(view_of(*(sums(rows[ids].sum(0), ids) for ids in sets)), RECORDS, (1,), {})
    assert 0.4 < along(found, rows)[0] < 0.95


@pytest.mark.parametrize("biased", [False, True])
def test_gradients_of_linear_models_of_two_clients_are_about_the_same_residuals(biased, rng):
    """Two clients of 4 features in batches of 20: 8 equations for each batch of a pass, 64 or more of 60 unknowns."""
    features = {m: rng.standard_normal((RECORDS, 4)) for m in (1, 2)}
    residuals = rng.standard_normal((RECORDS, 3))
    messages = []
    for round_ in range(24):
        ids = rng.permutation(RECORDS)[:20]
        for m, block in features.items():
            gradient = residuals[ids].T @ block[ids] / 20
            parts = [gradient.ravel(), *([residuals[ids].mean(0)] if biased else [])]
            messages.append(sums(np.concatenate(parts), ids, "batch-gradient", m, round_))
    found = dict(solved_sums(view_of(*messages, clients=(1, 2)), RECORDS, (1, 3), features))
    both = found["batch-gradient of 3 outputs to all"]
    assert min(along(both, residuals)) > 0.999
    assert set(found) == {
        *(f"batch-gradient to {m}" for m in (1, 2)),
        *(f"batch-gradient of 3 outputs to {m}" for m in (1, 2)),
        "batch-gradient of 3 outputs to all",
    }


def test_wide_sums_are_read_by_their_main_components(rng):
    rows = rng.standard_normal((RECORDS, 1)) @ rng.standard_normal((1, 300))
    sets = [rng.permutation(RECORDS)[:20] for _ in range(200)]
    ((_, found),) = solved_sums(view_of(*(sums(rows[ids].sum(0), ids) for ids in sets)), RECORDS, (1,), {})
    assert found.shape == (RECORDS, COMPONENTS)
    assert abs(along(found[:, :1], rows[:, :1])[0]) > 0.999
    assert np.abs(found[:, 1:]).max() < 1e-6 * np.abs(found[:, 0]).max()


def test_sums_over_no_known_set_say_nothing(rng):
    empty = Message(0, 0, 1, "sums", torch.zeros(1, 1, 2), torch.full((1, 5), -1))
    unknown = Message(0, 0, 1, "sums", torch.zeros(1, 1, 2))
    assert list(solved_sums(view_of(empty, unknown), RECORDS, (1,), {})) == []
