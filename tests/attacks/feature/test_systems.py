"""Reconstruction of features by the server of a system of the user's own: by what was recorded, and a few records."""

import numpy as np
import pytest
import torch

from attacks.core.setting import AttackSetting
from attacks.core.spec import DoesNotApply
from attacks.feature.inversion import SPEC
from attacks.feature.mount import RAW, UNTRAINED
from dpzv_audit.base.errors import InputError
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System

from ...helpers.refusals import refused

OTHERS = "from the other clients' embeddings and the label"


def numbers(records=240):
    """Two clients' independent numbers and labels that the first of each tells."""
    generator = np.random.default_rng(3)

    def part(count):
        first, second = generator.standard_normal((2, count, 3)).astype(np.float32)
        return Records((first, second), (first[:, 0] + second[:, 0] > 0).astype(np.int64))

    return VerticalDataset("numbers", part(records), part(40), 2, "random blocks", {})


def system(upload, *, down=True, epochs=1, widths=(3,), least=40):
    """Return a system whose clients send `upload(block, ids)`; gradients, if any, drown in noise."""

    def training(task, record, seed):
        torch.manual_seed(seed)
        blocks, y = task.torch()
        batches = [ids for _ in range(epochs) for ids in torch.randperm(len(y)).split(least)]
        for number, ids in enumerate(batches):
            signs = 2.0 * y[ids, None] - 1.0
            for client, block in enumerate(blocks, 1):
                rows = upload(block, ids)[:, : widths[number % len(widths)]]
                record.sent(number, client, 0, "embeddings", rows, ids)
                if down:
                    record.sent(number, 0, client, "gradient", signs + 9.0 * torch.randn(len(ids), 3), ids)

    return System("own", training)


def raw(block, ids):
    return block[ids]


def constant(block, ids):
    return torch.ones(len(ids), 3)


def noise(block, ids):
    return torch.randn(len(ids), 3)


def setting(of, own=None, pilot=False):
    data = numbers()
    method, config = prepared(of, data, 0)
    return AttackSetting(
        method=method,
        config=config,
        dataset=data,
        adversary="server",
        trials=2,
        options={"permutations": 3, "known_records": 80, **(own or {})},
        with_positive=False,
        pilot=pilot,
    )


@pytest.mark.parametrize("down", [True, False])
def test_raw_rows_are_found_whether_or_not_anything_is_sent_down(down):
    outcome = SPEC.mount(setting(system(raw, down=down)))
    assert outcome.success.value > 0.98
    assert outcome.baselines[OTHERS].value < 0.75
    assert outcome.controls["other_records"].holds
    assert outcome.measures[RAW].value > 0.98
    assert UNTRAINED not in outcome.measures


@pytest.mark.parametrize("upload", [constant, noise])
def test_embeddings_that_owe_nothing_to_features_tell_nothing(upload):
    """Of 480 unknown numbers a correlation has a deviation of 0.05: four of them, and a p-value of 1e-4 at least."""
    outcome = SPEC.mount(setting(system(upload)))
    assert outcome.success.value < 0.2
    assert outcome.controls["other_records"].p_value > 1e-4


def test_batches_that_differ_in_size_are_read():
    """Of 240 records batches of 100 leave one of 40; ids of padding are no records."""
    assert SPEC.mount(setting(system(raw, epochs=2, least=100), pilot=True)).success.value > 0.98


@pytest.mark.parametrize(
    ("of", "own", "words"),
    [
        (system(raw, widths=(3, 2)), {}, "client 1 sends embeddings of 2 and 3 numbers"),
        (system(raw), {"knows_model": True}, "knows_model needs the client's model at each upload"),
    ],
)
def test_what_cannot_be_read_is_one_line(of, own, words):
    with refused(words, DoesNotApply):
        SPEC.mount(setting(of, own=own))


def test_uploads_that_nothing_moves_are_refused():
    """Nothing is sent down, and neither labels nor features move what is sent up."""
    with refused("it ignores task.labels", InputError):
        prepared(system(constant, down=False), numbers(), 0)
