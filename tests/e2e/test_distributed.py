"""Two processes over torch.distributed record what the same training records in one, and merge to one transcript."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dpzv_audit.systems import Recorder, Task
from dpzv_audit.systems.task import dataset_of
from dpzv_audit.systems.transcript import load

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "distributed"
GLOO = torch.distributed.is_available() and torch.distributed.is_gloo_available()


@pytest.fixture(scope="module")
def parties(tmp_path_factory):
    """What the two processes of the example leave, and join.py, as docs/guide/own-system.md runs them."""
    folder = tmp_path_factory.mktemp("parties")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    together = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "party.py")
    for command in (together, ("join.py",)):
        whole = [sys.executable, *command, str(folder)]
        done = subprocess.run(
            whole, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr
    return folder


def in_one_process():
    """What the training of two_party.py records."""
    spec = importlib.util.spec_from_file_location("two_party", EXAMPLE / "two_party.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    task = Task.of(dataset_of(module.data(), "two_party:data"))
    record = Recorder(task.records, task.clients)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        module.train(task, record, seed=0)
    torch.set_num_threads(threads)
    return record


def content(held):
    """Messages with their numbers and ids, whatever the tensors are called."""
    return [(m.round, m.sender, m.receiver, m.kind, held.tensors[m.tensor], held.tensors[m.ids]) for m in held.messages]


@pytest.mark.ci
@pytest.mark.skipif(not GLOO, reason="torch.distributed is without gloo here")
@pytest.mark.slow
def test_two_processes_record_what_one_does(parties):
    whole, single = content(load(parties / "whole")), content(in_one_process())
    assert len(whole) == len(single) == 2 * 2 * 22
    for message, expected in zip(whole, single, strict=True):
        assert message[:4] == expected[:4]
        assert np.array_equal(message[4], expected[4])
        assert np.array_equal(message[5], expected[5])
    heads = [message[:4] for message in whole]
    assert heads[::2] == [(number, 1, 0, "embeddings") for number in range(44)]
    assert heads[1::2] == [(number, 0, 1, "gradient") for number in range(44)]


@pytest.mark.ci
@pytest.mark.skipif(not GLOO, reason="torch.distributed is without gloo here")
def test_each_party_saves_what_it_sends_alone(parties):
    for party, kind in ((0, "gradient"), (1, "embeddings")):
        sent = load(parties / f"party-{party}").messages
        assert {(one.sender, one.kind) for one in sent} == {(party, kind)}


def test_the_same_training_is_attacked_in_one_process(tool, tmp_path):
    options = ("--attack", "label_direction", "--trials", "8", "--out", tmp_path / "runs")
    found = tool.json("attack", "--system", "two_party:train", *options, cwd=EXAMPLE)
    assert found["success"]["value"] > 0.99
    assert found["controls"]["shuffled_labels"]["p_value"] > 1e-3
