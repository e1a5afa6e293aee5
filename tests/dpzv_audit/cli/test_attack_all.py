"""Every attack on a built-in method: those done before an interrupt are kept, and an epsilon is of one relation."""

import json
from dataclasses import replace
from pathlib import Path

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
    first[:, 2] = first[:, 2] > 0
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
    """Nothing is sent down. Client 2 sends more of its features. What the attacks did not look at is said."""
    (tmp_path / "rawrows.py").write_text(RAW)
    monkeypatch.chdir(tmp_path)
    answer = cli.answer(f"attack --system rawrows:train --attack all --trials 2 --out {tmp_path}")
    measured = {entry["attack"]: entry for entry in answer["attacks"] if entry["state"] == "measured"}
    assert set(measured) == {"feature_inversion", "attribute_inference", "record_linkage"}
    assert all(entry["adversary"] == "server" for entry in measured.values())
    assert all(entry["success"] > 0.98 for entry in measured.values())
    assert measured["attribute_inference"]["metric"] == "AUC of column 3"
    assert measured["attribute_inference"]["certified"] > 1.0
    assert answer["not_tested"] == ["no attack looked for features in messages of kind masks"]
    assert answer["negative_controls"]["hold"]
    own = json.loads((Path(answer["run"]) / "feature_inversion-server" / "result.json").read_text())
    assert [pilot["target"] for pilot in own["tried"]] == [1, 2]
    assert "the server (on client 1 of 2, chosen in a trial run)" in own["sentence"]


def test_a_client_is_named_whose_features_the_server_attacks(tmp_path, monkeypatch, cli):
    (tmp_path / "rawrows.py").write_text(RAW)
    monkeypatch.chdir(tmp_path)
    command = f"attack --system rawrows:train --attack record_linkage --trials 2 --out {tmp_path}"
    answer = cli.answer(f"{command} --client 2")
    assert answer["attack_setting"]["target"] == 2
    assert not answer["tried"]
    assert answer["clients"] == []
    assert "contradicts" in cli.refusal(f"{command} --client 2 --attack-set target=1")


def test_an_attack_that_does_not_apply_says_what_does(cli):
    refusal = cli.refusal("attack --method dpzv --attack label_direct --set top_model=true")
    assert refusal.endswith("; use --set top_model=false, or --attack all for every attack that applies")
