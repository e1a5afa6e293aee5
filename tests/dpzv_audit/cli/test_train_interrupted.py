"""An interrupted `train` says what lies on the disk and how to go on, whenever it is interrupted."""

from pathlib import Path

import pytest

from dpzv_audit.base.errors import AuditError, Interrupted
from dpzv_audit.cli.trials import kept_parts
from mechanisms.core.checkpoints import FileCheckpoints

from ...helpers.refusals import refused

GO_ON = "the same command with --resume goes on from there"


@pytest.fixture
def train(tmp_path, monkeypatch, cli):
    """Train in `tmp_path`, with something in the place of one function; return exit code and what was said."""
    monkeypatch.chdir(tmp_path)

    def run(more="", at="", instead=None, method="vafl"):
        with monkeypatch.context() as patched:
            if at:
                patched.setattr(at, instead)
            done = cli(f"train --method {method} --epochs 3 --no-controls --out runs --json {more}")
        return done.code, done.json if done.code == 0 else done.err

    return run


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


def kept_files():
    return sorted(Path("runs/checkpoints").glob("*")) if Path("runs/checkpoints").exists() else []


def after(saves):
    """Interrupt in the place of the checkpoint after so many."""
    save, calls = FileCheckpoints.save, []

    def saved(self, run, history):
        calls.append(history)
        if len(calls) > saves:
            raise KeyboardInterrupt
        save(self, run, history)

    return {"at": "mechanisms.core.checkpoints.FileCheckpoints.save", "instead": saved}


def test_it_says_so_at_every_moment_and_goes_on_to_the_same_numbers(train):
    choose = "dpzv_audit.cli.train.choose"
    assert train(at=choose, instead=interrupt) == (130, "dpzv-audit: interrupted; the training had not begun\n")
    nothing = "dpzv-audit: interrupted; no epoch was finished, so nothing is kept\n"
    assert train(**after(0)) == (130, nothing)
    assert kept_files() == []
    code, said = train(**after(2))
    (file,) = kept_files()
    assert (code, said) == (130, f"dpzv-audit: interrupted; 2 of 3 epochs are kept in {file}; {GO_ON}\n")
    # Taken up again, or begun anew, it may be interrupted before it has read or written anything.
    load = "mechanisms.core.checkpoints.FileCheckpoints.load"
    for more in ("--resume", ""):
        assert train(more, at=load, instead=interrupt) == (code, said)
    whole = f"3 of 3 epochs are kept in {file}"
    write = "dpzv_audit.cli.train.save"
    assert train("--resume", at=write, instead=interrupt) == (130, f"dpzv-audit: interrupted; {whole}; {GO_ON}\n")

    def full(*arguments, **options):
        raise AuditError("the disk is full, and no run folder was left")

    failed = f"dpzv-audit: error: the disk is full, and no run folder was left; {whole}: {GO_ON}\n"
    assert train("--resume", at=write, instead=full) == (3, failed)
    (_, resumed), (_, anew) = train("--resume"), train()
    assert resumed["resumed_at_epoch"] == 3
    assert (resumed["utility"], resumed["bytes"]) == (anew["utility"], anew["bytes"])
    assert kept_files() == []


def test_the_key_of_secret_noise_is_said_to_be_kept(train):
    """Rounds of the first epoch were perhaps released: taken up again, they have the same noise."""
    code, said = train(**after(0), method="dpzv-sound")
    (key,) = kept_files()
    words = f"no epoch was finished, but the key of the noise drawn so far is kept in {key}"
    assert (code, said) == (130, f"dpzv-audit: interrupted; {words}; {GO_ON}\n")
    content = key.read_bytes()
    assert train("--resume", **after(0), method="dpzv-sound") == (code, said)
    assert key.read_bytes() == content
    assert train("--resume", method="dpzv-sound")[0] == 0
    assert kept_files() == []


def test_a_training_of_a_system_that_kept_nothing_says_so(tmp_path):
    def interrupted():
        with kept_parts(tmp_path / "parts", "training", lambda: 0, resume=False):
            raise KeyboardInterrupt

    with refused(r"^no training is kept$", Interrupted):
        interrupted()
    assert not tmp_path.exists(), "a folder that was left empty goes too"
