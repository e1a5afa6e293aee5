"""A file is replaced as a whole, or stays what it was, with nothing left beside it; a part that changed is found."""

import errno
import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.base.errors import AuditError
from dpzv_audit.base.store import checksummed, verified, write_atomically
from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.ledger import Decision, Entry, Ledger, append_entry
from dpzv_audit.games.engine import ChunkStore
from dpzv_audit.games.scores import GameScores
from mechanisms.core.checkpoints import FileCheckpoints


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "a.txt"
    assert write_atomically(path, "é\n") == path
    assert path.read_bytes() == b"\xc3\xa9\n"
    write_atomically(path, b"\x00")
    assert path.read_bytes() == b"\x00"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def full(monkeypatch):
    """A disk that is full just when the new file takes the old one's place."""

    def replace(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(os, "replace", replace)


def saves(monkeypatch):
    import mechanisms.core.checkpoints as checkpoints

    monkeypatch.setattr(checkpoints, "save_checkpoint", lambda *_: b"state")
    return lambda folder: FileCheckpoints(folder, "k", resume=True).save(None, [])


ENTRY = Entry(5e-4, {"c": Decision(scores="s", refuted=True)})


@pytest.mark.parametrize("kind", ["plain", "checkpoint", "chunk", "ledger", "cache"])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(kind, tmp_path, full, monkeypatch):
    writes = {
        "plain": lambda: write_atomically(tmp_path / "a", "new"),
        "checkpoint": lambda: saves(monkeypatch)(tmp_path),
        "chunk": lambda: ChunkStore(tmp_path, resume=True).save(0, 2, {"in_scores": np.zeros(2)}),
        "ledger": lambda: append_entry(tmp_path / "a", Ledger(1e-3), ENTRY),
        "cache": lambda: Cache(tmp_path).keep_block("aakey", "main", 0, GameScores(np.zeros(0), np.zeros(0))),
    }
    (tmp_path / "a").write_text("old")
    if kind == "cache":
        writes[kind]()  # a cache never fails a run
    else:
        with pytest.raises(OSError if kind == "plain" else AuditError, match="No space left on device"):
            writes[kind]()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 20), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_kept_comes_back_as_json_would_give_it(value):
    text = checksummed(value)
    assert verified(text.encode()) == json.loads(json.dumps(value)) == json.loads(text)["value"]


@given(VALUES, st.data())
def test_any_change_of_a_byte_is_found(value, data):
    content = bytearray(checksummed(value).encode())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match=r"are no digest|has digest"):
        verified(bytes(content))


def test_nan_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        checksummed(float("nan"))
