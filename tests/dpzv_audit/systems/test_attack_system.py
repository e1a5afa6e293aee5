"""A training in this process is attacked from Python as the command attacks it by its name."""

import sys

import numpy as np
import pytest

from dpzv_audit import AuditError, InputError, attack_system, load_dataset

from ...helpers.places import ROOT
from ...helpers.refusals import refused

EXAMPLE = ROOT / "examples" / "system"


def leaky(task, record, seed):
    """Send, as a gradient, a number that is the label up to its noise."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(len(task.labels))
    record.sent(0, 1, 0, "embeddings", task.features[0][ids, :2], ids)
    signs = 2.0 * (task.labels[ids, None] == 1) - 1.0
    record.sent(0, 0, 1, "gradient", signs * (1.0 + rng.random((len(ids), 2))), ids)


@pytest.mark.ci
def test_it_gives_what_the_command_gives(monkeypatch, tmp_path, cli):
    """It stands for the Python block of docs/guide/own-system.md."""
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "noisy_vfl", raising=False)  # two examples have a module of this name
    import noisy_vfl

    line = "attack --system noisy_vfl:train --attack label_norm --trials 2 --seed 3 --out"
    by_command = cli.answer(line, tmp_path)
    found = attack_system(noisy_vfl.train, "label_norm", trials=2, seed=3)
    assert found.method == by_command["method"] == "system:noisy_vfl:train"
    assert found.dataset == by_command["dataset"] == "noisy_vfl:data"
    assert found.success.value == by_command["success"]["value"]
    assert found.certified.epsilon_lower == by_command["certified"]["epsilon_lower"]
    assert "server-state" in found.privacy.gap


def test_data_are_a_data_set_or_arrays(rng):
    arrays = {"features": [rng.random((60, 3)), rng.random((60, 2))], "labels": rng.integers(2, size=60)}
    for data, name in ((load_dataset("breast-cancer"), "breast-cancer"), (arrays, "data")):
        found = attack_system(leaky, data=data, trials=2)
        assert found.dataset == name
        assert found.success.value == 1.0
        assert found.attack == "label_direction"


BLOCK = np.eye(2, 3, dtype=np.float32)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"train": "leaky"}, InputError, "train: use a function train"),
        ({"attack": "label_dirction"}, InputError, "label_dirction"),
        ({"trials": 0}, InputError, "trials is 0"),
        ({"data": {"features": []}}, InputError, "data gives features; return a dictionary of features, labels"),
        (
            {"data": {"features": BLOCK, "labels": [0, 1]}},
            InputError,
            "use a list of arrays, one for each client",
        ),
        ({"data": {"features": {1: BLOCK}, "labels": [0, 1]}}, InputError, "features is a dict; use a list"),
        ({"data": {"features": [BLOCK], "labels": [1, 2]}}, InputError, "labels start at 1; count from 0"),
        (
            {"train": lambda task, record: None},
            InputError,
            r"takes \(task, record\); use \(task, record, seed\)",
        ),
        (
            {"train": lambda task, record, seed: 1 / 0},
            AuditError,
            r"raised ZeroDivisionError: division by zero \(test_attack_system\.py:\d+\)",
        ),
    ],
)
def test_what_is_wrong_is_one_line(given, error, words):
    with refused(words, error):
        attack_system(**({"train": leaky, "data": load_dataset("breast-cancer")} | given))
