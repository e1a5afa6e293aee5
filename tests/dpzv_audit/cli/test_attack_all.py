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
