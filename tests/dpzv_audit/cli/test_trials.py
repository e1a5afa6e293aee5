"""Trainings of a system in processes, and those that were done before one failed: kept, and taken up again."""

import itertools
import json
import re
import time

import pytest

from dpzv_audit.cli import main

SYSTEM = """
import os
import subprocess
import time
import zlib

import numpy as np
import torch


def data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4)).astype(np.float32)
    return {"features": [x[:, :2], x[:, 2:]], "labels": (x.sum(1) > 0.5).astype(int)}


def train(task, record, seed):
    if os.environ.get("WHAT") == "leaves its mark":
        print("printed")
        subprocess.run(["echo", "echoed"])
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
    time.sleep(float(os.environ.get("SLEEP", "0")))
    with open(os.environ["LOG"], "a") as log:
        print(seed, file=log)
    with open(os.environ["LOG"] + "-inputs", "a") as log:
        print(seed, zlib.crc32(b"".join(map(np.ndarray.tobytes, (*task.features, task.labels)))), file=log)
    with open(os.environ["LOG"]) as log:
        count = sum(1 for _ in log)
    x, y = task.torch()
    w = torch.randn(4, 2, requires_grad=True, dtype=torch.float32)
    for r, ids in enumerate(torch.randperm(len(y)).split(20)):
        h = [record.cut(m + 1, r, ids)(x[m][ids] @ w[2 * m : 2 * m + 2]) for m in range(2)]
        loss = torch.nn.functional.cross_entropy(sum(h), y[ids])
        (g,) = torch.autograd.grad(loss, w)
        w = (w - g).detach().requires_grad_()
    if count == int(os.environ.get("AT", "0")):
        what = os.environ["WHAT"]
        if what == "raises":
            raise RuntimeError("no such layer")
        if what == "hangs":
            time.sleep(60)
        if what == "nan":
            record.sent(9, 0, 1, "scalar", float("nan"))
        if what == "one more":
            record.sent(9, 0, 1, "scalar", 1.0)
        if what == "interrupted":
            raise KeyboardInterrupt
        if what == "ends its process":
            os._exit(1)
"""
numbers = itertools.count()


@pytest.fixture
def attack(tmp_path, monkeypatch, capfd):
    """Attack a system in a module of its own; return exit code, answer and the seeds of all trainings."""
    name = f"system_of_test_{next(numbers)}"
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / f"{name}.py").write_text(SYSTEM)
    monkeypatch.chdir(folder)

    def mounted(flags="", log="log", **environment):
        monkeypatch.setenv("LOG", str(tmp_path / log))
        for key in ("AT", "WHAT", "SLEEP"):
            monkeypatch.delenv(key, raising=False)
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        # On a machine that does much else a training takes many times its own time.
        limit = "" if "--trial-seconds" in flags else "--trial-seconds 600"
        size = f"--attack label_norm --trials 4 --out {tmp_path}/runs"
        code = main(f"attack --system {name}:train {size} {limit} --json {flags}".split())
        printed = capfd.readouterr()
        mounted.said = printed.err
        seeds = (tmp_path / log).read_text().split()
        return code, (json.loads(printed.out) if code == 0 else printed.err.strip()), seeds

    return mounted


REHEARSED = 3
"""Trainings before those that are attacked, and the pilots of both clients, which share them."""
PILOTS = 4
ATTACKED = 7
"""Four trainings and four of the negative control; the first of them was the rehearsal."""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("raises", 3, "training 3 raised RuntimeError: no such layer"),
        ("hangs", 3, "training 3 took longer than --trial-seconds 4"),
        ("nan", 2, "training 3: a 'scalar' of round 9 from party 0 to party 1 holds nan; use finite"),
        ("interrupted", 130, "3 trainings are kept in"),
    ],
)
def test_a_training_that_fails_loses_none_before_it(attack, what, code, words, tmp_path):
    whole = attack(log="whole")
    assert whole[0] == 0
    failed = attack("--trial-seconds 4", AT=str(REHEARSED + 3), WHAT=what)
    assert failed[0] == code
    plan, line = failed[1].splitlines()
    assert "plan: about 11 trainings" in plan
    assert words in line
    assert "3 trainings are kept in" in failed[1]
    assert "the same command with --resume goes on from there" in failed[1]
    resumed = attack("--trial-seconds 4 --resume", log="resumed")
    assert resumed[0] == 0
    assert len(resumed[2]) == len(whole[2]) - 2
    assert set(failed[2][REHEARSED : REHEARSED + 2]).isdisjoint(resumed[2][REHEARSED:])
    same = ("success", "controls", "certified", "utility", "bytes")
    assert [resumed[1][key] for key in same] == [whole[1][key] for key in same]
    assert not (tmp_path / "runs" / "trials").exists()


def test_what_a_training_prints_and_sets_stays_its_own(attack):
    """Its words go to stderr: stdout is the object alone. Paths and numbers are those of a quiet one."""
    quiet = attack(log="quiet")[1]
    code, found, _ = attack(WHAT="leaves its mark", log="loud")
    assert code == 0
    assert [found[key] for key in ("success", "controls", "certified")] == [
        quiet[key] for key in ("success", "controls", "certified")
    ]


def test_without_resume_everything_is_trained_again(attack):
    assert attack(AT=str(REHEARSED + 3), WHAT="raises")[0] == 3
    code, _, seeds = attack(log="again")
    assert code == 0
    assert len(seeds) == REHEARSED + PILOTS + ATTACKED


def test_trainings_that_send_one_more_message_are_attacked(attack):
    assert attack(AT=str(REHEARSED + 3), WHAT="one more")[0] == 0


@pytest.mark.ci
def test_no_training_is_made_twice(attack, tmp_path):
    """But that of the rehearsal, to see whether it gives the same again."""
    code, found, seeds = attack("--attack all --trials 2 --adversary client")
    assert code == 0, attack.said
    inputs = (tmp_path / "log-inputs").read_text().splitlines()
    assert len(inputs) == len(seeds)
    assert len(set(inputs)) == len(inputs) - 1
    (most,) = re.findall(r"plan: about (\d+) trainings, about", attack.said)
    assert 0 <= int(most) - (len(inputs) - REHEARSED) <= 2  # coins of attacks may happen to fall alike
    game = found["coin_game"]
    assert 0.0 <= game["epsilon_lower"] <= game["ceiling"]
    assert game["command"].startswith("dpzv-audit audit system system_of_test_")


@pytest.mark.ci
def test_a_time_limit_is_kept_with_fewer_trainings(attack):
    """Before the first of them a line says how many, and what they could show; controls and the epsilon hold."""
    began = time.monotonic()
    code, found, seeds = attack("--max-minutes 0.2 --trials 64", SLEEP="0.3")
    assert code == 0
    assert time.monotonic() - began < 60 * 0.2 * 1.2
    trials = found["attack_setting"]["trials"]
    assert 1 < trials < 64
    assert len(seeds) == REHEARSED + PILOTS + 2 * trials - 1
    assert f"plan: the budget of 0.2 minutes: {trials} trainings of each attack, not 64" in attack.said
    assert "their scores can certify at most epsilon" in attack.said
    assert found["controls"]["shuffled_labels"]["n"] > 0
    assert found["certified"]["epsilon_lower"] >= 0.0
    for flags, words in {
        "--max-minutes 0.025": "--max-minutes is 0.025; use",
        "--max-minutes 0.001": "--max-minutes is 0.001: over before the rehearsal was done; use more",
        "--max-minutes 1 --self-check": "--max-minutes does not go with --self-check",
    }.items():
        assert words in attack(flags, log="short", SLEEP="0.3")[1]


@pytest.mark.slow
def test_processes_give_the_numbers_of_one(attack, monkeypatch):
    import torch

    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    here = attack(log="here")[1]
    there = attack("--jobs 2", log="there")
    assert there[0] == 0
    for key in ("success", "controls", "certified", "utility", "bytes"):
        assert there[1][key] == here[key]
    assert len(there[2]) == REHEARSED + PILOTS + ATTACKED


@pytest.mark.ci
def test_threads_of_a_cluster_give_the_numbers_of_one_process(attack):
    """Each training has a process of its own there: generators are seeded for a whole process."""
    distributed = pytest.importorskip("distributed")
    here = attack("--trials 2", log="here")[1]
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    ) as cluster:
        there = attack(f"--trials 2 --executor dask --scheduler {cluster.scheduler_address}", log="there")
    assert there[0] == 0
    for key in ("success", "controls", "certified", "utility", "bytes"):
        assert there[1][key] == here[key]


@pytest.mark.slow
def test_a_training_that_took_its_process_down_is_done_by_another(attack):
    """The count has gone past the place by then: only who dies again and again has failed."""
    code, _, seeds = attack("--executor loky", AT=str(REHEARSED + PILOTS + ATTACKED), WHAT="ends its process")
    assert code == 0
    assert len(seeds) == REHEARSED + PILOTS + ATTACKED + 1


@pytest.mark.parametrize("flags", ["--jobs 2", "--trial-seconds 5", "--max-minutes 5"])
def test_what_is_of_a_system_needs_one(cli, flags, tmp_path):
    assert f"{flags.split()[0]} goes with --system, whose trainings are carried out one by one" in cli.refusal(
        f"attack --method vafl --out {tmp_path} {flags}"
    )
