"""One attack on a built-in method goes on where it was interrupted, to the bytes of a run that never was."""

import pytest

from dpzv_audit.base.store import Store

SMALL = "attack --dataset breast-cancer --epochs 1 --trials 2 --quiet"
MEMBERSHIP = "--attack-set pool=128 --attack-set shadows=2"
ATTACKS = {
    "scalars of any client, with an audit": "--method dpzv --alone --runs 24 --chunk 16",
    "pictures": "--method vafl --attack feature_inversion --dataset digits --clients 2",
    "half of the records": f"--method split --attack membership_loss {MEMBERSHIP}",
}


def bytes_in(out):
    (result,) = out.glob("*/result.json")
    return result.read_bytes()


@pytest.mark.usefixtures("planted_positive")
@pytest.mark.parametrize("what", ATTACKS)
def test_an_attack_that_is_interrupted_after_every_step_does_each_once(what, tmp_path, monkeypatch, cli):
    command = f"{SMALL} {ATTACKS[what]}"
    assert cli(f"{command} --out {tmp_path}/whole").code == 0
    steps = []
    write = Store.write

    def interrupted(self, name, part, **how):
        write(self, name, part, **how)
        steps.append(name)
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "write", interrupted)
    out = tmp_path / "resumed"
    while (done := cli(f"{command} --out {out} --resume")).code == 130:
        counted = "1 step is kept in" if len(steps) == 1 else f"{len(steps)} steps are kept in"
        assert done.err.startswith(f"dpzv-audit: interrupted; {counted} {out}")
        assert done.err.endswith("; the same command with --resume goes on from there\n")
        assert len(steps) < 20
    assert done.code == 0
    assert len(steps) == len(set(steps)) >= 3
    assert bytes_in(out) == bytes_in(tmp_path / "whole")
    assert [path.parent for path in out.rglob("result.json")] == [*out.iterdir()]  # all that was kept is forgotten


@pytest.mark.usefixtures("planted_positive")
def test_without_resume_nothing_of_an_earlier_run_is_taken_up(tmp_path, monkeypatch, cli):
    command = f"{SMALL} --method split --out {tmp_path}"
    write = Store.write
    steps = []

    def interrupted(self, name, part, **how):
        write(self, name, part, **how)
        steps.append(name)
        if len(steps) <= 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Store, "write", interrupted)
    assert cli(command).code == 130
    assert cli(f"{command} --seed 1 --resume").code == 130
    assert cli(command).code == 0
    assert steps[0] == steps[1] == steps[2]


def test_a_self_check_keeps_nothing(cli):
    assert "--resume does not go with --self-check" in cli.refusal("attack --self-check --resume")
