"""Any bytes in a file that the tool wrote itself, or that a user hands it, give an answer or one line."""

import io
import json
from contextlib import redirect_stdout
from functools import partial

import numpy as np
import pytest
import torch

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.store import checksummed
from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.file import load_claims
from dpzv_audit.claims.ledger import Decision, Entry, Ledger, append_entry, open_ledger
from dpzv_audit.cli import main
from dpzv_audit.cli.matrix_cells import stored_cell
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.evidence.gathering import Success
from dpzv_audit.games.engine import ChunkStore, npz_bytes
from dpzv_audit.reproduce.table import TableParts
from dpzv_audit.results import Cell
from dpzv_audit.runs import load_measured
from dpzv_audit.statistics.scores import load_scores
from mechanisms import METHODS
from mechanisms.core.checkpoints import FileCheckpoints
from mechanisms.core.context import RunContext, TrainingData
from mechanisms.methods.dpzv_run import DPZVRun
from reports.render import write_report

CLAIMS = b"""\
[defaults]
delta = 1e-5
alpha = 1e-3

[[claim]]
name = "digits"
method = "dpzv"
epsilon = 1.0
adversary = "client"
neighbours = "replace-label"
[claim.config]
batch_size = 64

[[claim]]
name = 'own "scores"'
scores = { in = "in.csv", out = "out.csv" }
epsilon = 2.0

[[claim]]
name = "labels"
kind = "attack"
method = "vafl"
attack = "label_direct"
success_at_most = 0.15

[[claim]]
name = "own mechanism"
mechanism = "our_pkg.vfl:build"
epsilon = 2.0
"""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("scores.csv", b"score\n" + b"".join(b"%d.25\n" % n for n in range(20))),
        ("scores.jsonl", b'{"score": 1.5}\n2\n-3e4\n' * 3),
        ("scores.npy", None),
        ("scores.npz", npz_bytes({"scores": np.arange(6.0)})),
    ],
)
def test_score_files(withstands, name, content, tmp_path):
    if content is None:
        np.save(tmp_path / "one.npy", np.arange(6, dtype=np.float32))
        content = (tmp_path / "one.npy").read_bytes()
        (tmp_path / "one.npy").unlink()
    withstands(load_scores, content, name=name, share=2)


def test_claims_files(withstands):
    withstands(load_claims, CLAIMS, name="claims.toml", share=4)


def test_ledgers(withstands, tmp_path):
    decisions = {
        "a": Decision(scores="s", refuted=True),
        "b": Decision(scores="t", refuted=False, p_value=0.5, given=""),
    }
    append_entry(tmp_path / "ledger", Ledger(1e-3, name="n"), Entry(5e-4, decisions))
    withstands(partial(open_ledger, alpha=1e-3), (tmp_path / "ledger").read_bytes(), name="ledger", share=2)


def test_measured_files(withstands):
    withstands(lambda path: load_measured(path.parent), b'{"wall_seconds": 1.25, "peak_memory_mb": 300}',
               name="measured.json")  # fmt: skip


def test_stored_chunks_count_as_absent_where_they_are_damaged(withstands):
    arrays = {"in_scores": np.arange(4.0), "out_scores": np.arange(4.0), "in_features": np.ones((4, 3))}

    def read(path):
        for (first, last), chunk in ChunkStore(path.parent, resume=True).load().items():
            assert all(len(array) == last - first for array in chunk.values())

    withstands(read, npz_bytes(arrays), name="000000004-000000008.npz", share=3)


def test_stored_cells_count_as_absent_where_they_are_damaged(withstands):
    named = Cell(attack="a", adversary="client", method="dpzv", epsilon=None)
    cell = checksummed({"cell": {**named.to_json(), "state": "does not apply", "reason": "no"}, "check": None}).encode()

    def read(path):
        stored = stored_cell(path, named)
        assert stored is None or stored.cell.attack == "a"

    withstands(read, cell, name="cell.json")


def test_parts_of_a_table(withstands):
    content = checksummed({"accuracy": 0.5, "history": [1, 2]}).encode()

    def read(path):
        folder = path.parent / "parts"
        folder.mkdir(exist_ok=True)
        try:
            TableParts(folder).part({"a": 1}, lambda _: {"x": 1})
            (name,) = [file.name for file in folder.iterdir()]
            (folder / name).write_bytes(path.read_bytes())
            TableParts(folder, resume=True).part({"a": 1}, lambda _: {"x": 1})
        finally:
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()

    withstands(read, content, name="kept.json", share=0.5)


def test_cached_evidence_counts_as_absent_where_it_is_damaged(withstands, tmp_path):
    cache = Cache(tmp_path)
    block = Success(rates=(0.5,), baselines={"majority": 0.25}, controls={})
    cache.keep_block("aakey", "main", 3, block)
    (stored,) = (tmp_path / "aa" / "aakey").iterdir()
    content = stored.read_bytes()

    def read(path):
        kept = cache.block("aakey", "main", 3)
        assert kept is None or kept[0] == block

    withstands(read, content, name=stored.relative_to(tmp_path).as_posix(), share=2)


def test_checkpoints_leave_the_run_as_it_was_where_they_are_refused(withstands, tmp_path):
    config = METHODS["dpzv"].configure(batch_size=5, epochs=2, embedding=3, hidden=4)
    random = np.random.default_rng(0)
    parts = [
        Records(features=(random.random((n, 3), dtype=np.float32),) * 2, labels=random.integers(3, size=n))
        for n in (23, 9)
    ]
    data = TrainingData.of(VerticalDataset("random", *parts, 3, "blocks", {}), dtype=torch.float32, device="cpu")

    def fresh():
        return DPZVRun(data, config, RunContext(seed=1, replicas=(0, 2)))

    def state(run):
        fed = run.federation
        tensors = [fed.server_parameters.flat, fed.optimizers[0].buffer, *(c.parameters.flat for c in fed.clients)]
        ledger = fed.channel.ledger
        return [t.tolist() for t in tensors], run.round, [c.rounds for c in fed.clients], list(fed.traffic), ledger

    with torch.no_grad():
        run = fresh()
        for _ in range(4):
            run.step()
        FileCheckpoints(tmp_path, "k", resume=True).save(run, [(1, 0.5, 2.0)])
    content = (tmp_path / "k.safetensors").read_bytes()
    untouched = state(fresh())

    def read(path):
        run = fresh()
        try:
            with torch.no_grad():
                FileCheckpoints(path.parent, "k", resume=True).load(run)
        except InputError:
            assert state(run) == untouched
            raise

    withstands(read, content, name="k.safetensors", share=2)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A result of `verify` and one of `audit scores`, as bytes of JSON."""
    place = tmp_path_factory.mktemp("results")
    rng = np.random.default_rng(0)
    for side, mean in (("in", 1.0), ("out", 0.0)):
        np.savetxt(place / f"{side}.csv", rng.normal(mean, 1.0, 300))
    claim = '[[claim]]\nname = "c"\nscores = { in = "in.csv", out = "out.csv" }\nepsilon = 0.5\n'
    (place / "claims.toml").write_text(claim)
    assert main(["verify", str(place / "claims.toml"), "--quiet", "--out", str(place / "v"), "--no-cache"]) in (0, 1)
    scores = [str(place / "in.csv"), str(place / "out.csv")]
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert main(["audit", "scores", *scores, "--json"]) == 0
    return {"v": next((place / "v").glob("*/result.json")).read_bytes(), "a": printed.getvalue().encode()}


@pytest.mark.parametrize(("kind", "formats"), [("v", ("html", "md", "junit", "sarif")), ("a", ("html", "md"))])
def test_results_are_drawn_whole_or_not_at_all(withstands, results, kind, formats):
    def read(path):
        folder = path.parent
        try:
            write_report(folder, formats)
        finally:
            drawn = {file.name for file in folder.iterdir()} - {"result.json"}
            for name in drawn:
                (folder / name).unlink()
        assert {"report.html", "report.md"} <= drawn
        assert not any(name.startswith(".") for name in drawn)

    withstands(read, results[kind], name="run/result.json", share=0.4)


class Drawn(list):
    """Keeps one drawing and shows it for all: drawing hundreds that differ in a value would take most of the time."""

    def __call__(self, key, draw):
        if not self:
            self.append(draw())
        return self[0]


def places(value, at=()):
    """Every place in a JSON value."""
    yield at
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from places(inner, (*at, key))


def test_no_value_in_any_place_of_a_verification_breaks_its_report(results, tmp_path):
    """Exhaustive: every value is replaced by one of another kind, and left out."""
    whole = json.loads(results["v"])
    drawings = Drawn()
    strange = [None, "x\ny", -1, 1e300, [], {}, True, 10**30]
    for number, at in enumerate(place for place in places(whole) if place):
        value = json.loads(results["v"])
        parent = value
        for key in at[:-1]:
            parent = parent[key]
        if number % 9 == 8:
            del parent[at[-1]]
        else:
            parent[at[-1]] = strange[number % 9]
        (tmp_path / "result.json").write_text(json.dumps(value))
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        try:
            write_report(tmp_path, ("junit", "sarif", "md"), drawings=drawings)
        except InputError:
            assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
