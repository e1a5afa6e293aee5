"""Every attack on a built-in method: those done before an interrupt are kept, and an epsilon is of one relation."""

from dataclasses import replace

import pytest

from attacks import attack_named
from dpzv_audit.base.errors import InputError
from dpzv_audit.base.rounding import down
from dpzv_audit.evidence import attacks

COMMAND = "attack --method vafl --attack all --adversary client --dataset breast-cancer"
NAMES = ("label_norm", "label_direction", "membership_loss")


@pytest.mark.usefixtures("planted_positive")
def test_attacks_that_are_done_outlive_an_interrupt(tmp_path, monkeypatch, cli):
    """Three attacks are mounted for good; in the place of each other stands the result of another."""
    real = attacks.attack_result
    kept = {}
    mounted = []

    def result(spec, setting, plan):
        if len(mounted) == stop:
            raise KeyboardInterrupt
        mounted.append(spec.name)
        name = spec.name if spec.name in NAMES else NAMES[0]
        if name not in kept:
            kept[name] = real(attack_named(name), replace(setting, options={}), plan)
        return kept[name].model_copy(update={"attack": spec.name})

    monkeypatch.setattr(attacks, "attack_result", result)
    command = f"{COMMAND} --epochs 2 --trials 2 --out {tmp_path}"
    stop = None
    whole = cli.answer(command)
    assert whole["mounted"] == len(mounted)
    by_relation = {one["neighbours"] for one in whole["attacks"] if one["state"] == "measured"}
    assert by_relation == {"replace-label", "replace-record"}
    for neighbours in by_relation:
        largest = max(one["certified"] for one in whole["attacks"] if one.get("neighbours") == neighbours)
        assert f"certifies for {neighbours} is {down(largest)}." in whole["sentence"]
    every = mounted[:]
    mounted.clear()
    stop = 2
    done = cli(command)
    assert done.code == 130
    assert "interrupted; 2 attacks are kept in" in done.err
    assert "the same command with --resume goes on from there" in done.err
    mounted.clear()
    stop = None
    resumed = cli.answer(f"{command} --resume")
    assert mounted == every[2:]
    assert resumed["attacks"] == whole["attacks"]
    assert not (tmp_path / "attacks").exists()


def test_a_client_that_is_named_looks_alone(tmp_path, monkeypatch, cli):
    """Those that collude are all clients, but where an adversary is named too."""

    def looking(adversary=""):
        seen = {}

        def result(mounted, *others):
            seen.update({setting.adversary: setting.parties for _, setting in mounted})
            raise InputError("enough")

        monkeypatch.setattr(attacks, "attacks_result", result)
        cli.refusal(f"attack --method dpzv --attack all --client 2 {adversary} --out {tmp_path}")
        return seen

    seen = looking()
    assert seen["client"] == seen["malicious-client"] == (2,)
    assert seen["colluding-clients"] == (1, 2, 3, 4)
    assert looking("--adversary colluding-clients") == {"colluding-clients": (2,)}


RAW = """
import numpy as np
import torch


def data():
    first, second = np.random.default_rng(3).standard_normal((2, 300, 3))
    return {"features": [first, second], "labels": (first[:, 0] + second[:, 0] > 0).astype(int)}


def train(task, record, seed):
    blocks, y = task.torch()
    generator = torch.Generator().manual_seed(seed)
    for number, ids in enumerate(torch.randperm(len(y), generator=generator).split(50)):
        for client, block in enumerate(blocks, 1):
            record.sent(number, client, 0, "embeddings", block[ids], ids)
        record.sent(number, 2, 0, "masks", (blocks[1][ids] > 0).float(), ids)
"""


def test_a_server_that_is_sent_raw_rows_leads_the_answer(tmp_path, monkeypatch, cli):
    """Nothing is sent down. What the attack did not look at is said."""
    (tmp_path / "rawrows.py").write_text(RAW)
    monkeypatch.chdir(tmp_path)
    answer = cli.answer(f"attack --system rawrows:train --attack all --trials 2 --out {tmp_path}")
    first = answer["attacks"][0]
    assert (first["attack"], first["adversary"]) == ("feature_inversion", "server")
    assert first["success"] > 0.98
    assert answer["sentence"].startswith(
        "The strongest of 1 attack on system:rawrows:train is feature_inversion by the"
    )
    looked = [words for words in answer["not_tested"] if "features" in words]
    assert looked == [
        "attacks on features looked at client 1 alone, not at client 2",
        "no attack looked for features in messages of kind masks",
    ]
