"""What follows from records is its owner's alone, from the moment it is there, whatever the umask."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.base.store import private_folder, write_atomically
from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.ledger import Entry, Ledger, append_entry
from dpzv_audit.games.engine import ChunkStore
from dpzv_audit.games.scores import GameScores
from dpzv_audit.reproduce.table import TableParts
from dpzv_audit.runs import write_run
from mechanisms.core import checkpoint
from mechanisms.core.checkpoints import FileCheckpoints

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")


@pytest.fixture
def open_umask():
    """The widest umask: a file has just the permissions that it was made with."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def never_changed(monkeypatch):
    """Permissions may not be changed later: between making and changing, others could open the file."""

    def refuse(*_, **__):
        raise AssertionError("permissions are changed after the file was made")

    for module, name in ((os, "chmod"), (os, "fchmod"), (Path, "chmod")):
        monkeypatch.setattr(module, name, refuse)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def run_folder(folder):
    with write_run(folder / "runs", "run") as run:
        run.write("in.npz", b"scores")
        run.write("figures/record.svg", b"")
        assert mode(run.path) == 0o700  # while it is written, too
        assert mode(run.path / "in.npz") == 0o600


WRITERS = {
    "a file": lambda folder: write_atomically(folder / "a", "text"),
    "a run folder": run_folder,
    "a checkpoint": lambda folder: FileCheckpoints(folder / "checkpoints", "k", resume=False).save(None, []),
    "scores of an audit": lambda folder: ChunkStore(folder / "audits", resume=True).save(0, 1, {"in": np.zeros(1)}),
    "cached blocks": lambda folder: Cache(folder / "cache").keep_block(
        "aakey", "main", 0, GameScores(np.ones(1), np.zeros(1))
    ),
    "parts of a table": lambda folder: TableParts(folder / "unfinished").part({"a": 1}, lambda _: {"accuracy": 0.5}),
}


@pytest.mark.parametrize("what", WRITERS)
def test_files_and_their_folders_are_private_from_the_start(what, tmp_path, open_umask, never_changed, monkeypatch):
    monkeypatch.setattr("mechanisms.core.checkpoints.save_checkpoint", lambda *_: b"embeddings")
    replace, seen = os.replace, []

    def watched(source, target):
        seen.append(mode(Path(source)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    WRITERS[what](tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert {mode(path) for path in files} | set(seen) == {0o600}
    holding = {path.parent for path in files} - {tmp_path}
    assert {mode(folder) for folder in holding} <= {0o700}


def test_what_is_meant_for_others_has_the_permissions_of_any_file(tmp_path):
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "junit.xml", "", shared=True)
    append_entry(tmp_path / "ledger", Ledger(1e-3, name="n"), Entry(5e-4, {}))
    assert mode(tmp_path / "junit.xml") == mode(tmp_path / "ledger") == mode(tmp_path / "plain")


def test_a_folder_that_exists_keeps_its_permissions(tmp_path):
    (tmp_path / "shared").mkdir(mode=0o755)
    before = mode(tmp_path / "shared")
    private_folder(tmp_path / "shared")
    private_folder(tmp_path / "new" / "inner")
    assert mode(tmp_path / "shared") == before
    assert mode(tmp_path / "new" / "inner") == 0o700


COMMANDS = {
    "train": "train --method split --epochs 2 --no-controls",
    "attack": "attack --method split --attack label_direct --epochs 1 --trials 2",
    "matrix": "matrix --methods vafl --attacks label_direct --trials 2 --epochs 1",
    "audit": "audit method dpzv --epochs 1 --runs 4 --set top_model=false",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_leaves_nothing_that_others_can_read(command, tmp_path, open_umask, never_changed, monkeypatch, cli):
    kept = {}
    save = checkpoint.save_checkpoint

    def watched(*arguments):
        kept.update({path.suffix: mode(path) for path in (tmp_path / "runs").rglob("*")})
        return save(*arguments)

    monkeypatch.setattr("mechanisms.core.checkpoints.save_checkpoint", watched)
    assert cli(f"{COMMANDS[command]} --out {tmp_path}/runs --quiet").code == 0
    assert kept == ({"": 0o700, ".safetensors": 0o600, ".lock": 0o600} if command == "train" else {})
    assert mode(tmp_path / "runs") == 0o777  # the umask's: what is in it is private
    for path in (tmp_path / "runs").rglob("*"):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
