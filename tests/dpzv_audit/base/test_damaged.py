"""Files that the tool kept for itself and that were damaged since: which file, what is wrong in it, what happens."""

import numpy as np
import pytest

from dpzv_audit.base.store import Store, checksummed
from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.ledger import Decision, State
from dpzv_audit.cli.matrix_cells import stored_cell
from dpzv_audit.evidence.gathering import Success
from dpzv_audit.games.engine import ChunkStore
from dpzv_audit.reproduce.table import TableParts
from dpzv_audit.results import Cell
from dpzv_audit.runs import load_run
from mechanisms.core.checkpoints import run_key

from ...helpers.refusals import refusal, refused

SEALED = checksummed({"p": 0.25}).encode()
DAMAGE = {
    "cut short": (SEALED[:-3], f"its {len(SEALED) - 3} bytes are no digest with a value, or were cut short"),
    "empty": (b"", "its 0 bytes are no digest"),
    "changed": (SEALED.replace(b"0.25", b"0.75"), "the value from byte 89 on has digest "),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_evidence_is_named_and_made_again(tmp_path, caplog, what):
    content, says = DAMAGE[what]
    cache = Cache(tmp_path)
    cache.keep_block("ab12", "runs", 3, Success(rates=(1.0,), baselines={}, controls={}))
    (path,) = tmp_path.rglob("*.json")
    path.write_bytes(content)
    assert cache.block("ab12", "runs", 3) is None
    (line,) = caplog.messages
    assert line.startswith(f"{path}: is damaged: {says}")
    assert line.endswith("; what it kept is made again")
    caplog.clear()
    assert cache.block("ab12", "runs", 4) is None
    assert caplog.messages == [], "what is absent is not damaged"


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_cells_and_parts_are_named(tmp_path, caplog, what):
    content, says = DAMAGE[what]
    cell, part = tmp_path / "cell.json", tmp_path / "parts" / f"{run_key({})}.json"
    part.parent.mkdir()
    for path in (cell, part):
        path.write_bytes(content)
    assert stored_cell(cell, Cell()) is None
    assert caplog.messages[0].startswith(f"{cell}: is damaged: {says}")
    assert caplog.messages[0].endswith("; the cell is run again")
    line = refusal(TableParts(part.parent, resume=True).part, {}, lambda _: pytest.fail("computed again"))
    assert line.startswith(f"{part}: is damaged: {says}")
    assert line.endswith("; remove it, or start without resume, which replaces it")


def test_a_name_in_a_damaged_file_never_breaks_the_line(tmp_path, caplog):
    path = tmp_path / "a\n::error.json"
    path.write_bytes(b"")
    assert Store(tmp_path).read(path.name, dict, again="gone on without") is None
    assert "\n" not in caplog.messages[0]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda content: content[:-40], "File is not a zip file"),
        (
            lambda content: content.replace(np.arange(4.0).tobytes(), np.ones(4).tobytes()),
            "entry in_scores.npy at byte 0",
        ),
        (lambda content: content.replace(b"(4,)", b"(3,)"), "Bad CRC-32 for file 'in_scores.npy'"),
    ],
)
def test_damaged_chunks_of_an_audit_are_named_with_their_entry(tmp_path, caplog, damage, says):
    store = ChunkStore(tmp_path / "audit", resume=True)
    store.save(0, 4, {"in_scores": np.arange(4.0)})
    store.save(4, 8, {"in_scores": np.arange(4.0)})
    path = tmp_path / "audit" / "000000004-000000008.npz"
    path.write_bytes(damage(path.read_bytes()))
    assert list(store.load()) == [(0, 4)]
    (line,) = caplog.messages
    assert line.startswith(f"{path}: is damaged: ")
    assert says in line
    assert line.endswith("; its 4 pairs are drawn again")


def test_a_damaged_result_is_named_with_its_place(tmp_path):
    (tmp_path / "result.json").write_text('{\n  "schema": "dpzv-audit/attack/1",\n  "success": 0.\n}')
    with refused(r"result.json: is not JSON \(.*line 3 column 15 .*use a result"):
        load_run(tmp_path)


def test_a_part_of_another_kind_is_damaged(tmp_path, caplog):
    store = Store(tmp_path)
    store.write("a.json", State(entries=3, head="h"), cure="")
    assert store.read("a.json", State) == State(entries=3, head="h")
    assert store.read("a.json", Decision, again="gone on without") is None
    store.write("a.json", [1, 2], cure="")
    assert store.read("a.json", dict, again="gone on without") is None
    said = ("Decision", "dict")
    assert caplog.messages == [f"{tmp_path}/a.json: is damaged: it holds no {kind}; gone on without" for kind in said]
