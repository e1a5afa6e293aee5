"""The engine of chunks: the same numbers whatever interrupts, kills or divides it."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch

from dpzv_audit.base import executor
from dpzv_audit.base.errors import AuditError, InputError
from dpzv_audit.base.executor import Workers, workers_from
from dpzv_audit.games.engine import ChunkStore, Effort, MechanismFailed, collect, npz_bytes, run_chunk

from ...helpers.places import ROOT
from ...helpers.refusals import refused

# Workers cannot import tests by name: what they run of this file travels with its code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Trials:
    def facts(self):
        return {}


@dataclass(frozen=True)
class Numbers(Trials):
    """Pair k scores k and -k; `calls` counts chunks in this process."""

    calls: list = field(default_factory=list)

    def __call__(self, first, last):
        self.calls.append((first, last))
        rows = np.arange(first, last, dtype=np.float64)
        return {"in_scores": rows, "out_scores": -rows}


@dataclass(frozen=True)
class Dies(Trials):
    """Takes its process down once, the first time that a chunk starts at `at`."""

    mark: str
    at: int
    always: bool = False

    def __call__(self, first, last):
        if first == self.at and (self.always or not os.path.exists(self.mark)):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Numbers()(first, last)


def failed(first, last, kind="failed"):
    """The pairs from `first` to `last`, and that the next one failed."""
    return {**Numbers()(first, last), "failure": np.array([kind, "it broke"])}


def check_all(arrays, number):
    assert (arrays["in_scores"] == np.arange(number)).all()


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_join_in_order(chunk):
    got = collect(Numbers(), 20, Effort(chunk=chunk))
    check_all(got.arrays, 20)
    assert (got.pairs, got.stopped, got.fitted) == (20, None, None)


def test_progress_shows_what_is_done():
    seen = []
    collect(Numbers(), 7, Effort(chunk=3, progress=lambda done, arrays: seen.append((done, len(arrays["in_scores"])))))
    assert seen == [(3, 3), (6, 6), (7, 7)]


def test_stored_chunks_are_not_run_again_and_damaged_ones_are(tmp_path):
    store = ChunkStore(tmp_path / "audits" / "key", resume=False)
    collect(Numbers(), 10, Effort(chunk=4, store=store))
    files = sorted(path.name for path in store.folder.iterdir())
    assert files == ["000000000-000000004.npz", "000000004-000000008.npz", "000000008-000000010.npz"]
    (store.folder / files[1]).write_bytes((store.folder / files[1]).read_bytes()[:50])
    (store.folder / files[2]).unlink()
    again = Numbers()
    got = collect(again, 10, Effort(chunk=4, store=ChunkStore(store.folder, resume=True)))
    assert again.calls == [(4, 8), (8, 10)]
    check_all(got.arrays, 10)
    fresh = Numbers()
    collect(fresh, 10, Effort(chunk=4, store=ChunkStore(store.folder, resume=False)))
    assert len(fresh.calls) == 3
    store.remove()
    assert not (tmp_path / "audits").exists()


def test_nothing_stored_is_unpickled(tmp_path):
    data = npz_bytes({"scores": np.arange(3.0)})
    (tmp_path / "x.npz").write_bytes(data)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as archive:
        assert archive["scores"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="allow_pickle"):
        npz_bytes({"scores": np.array([object()])})


def test_a_time_limit_ends_it_with_the_evidence_so_far():
    def slow(first, last):
        time.sleep(0.05)
        return Numbers()(first, last)

    got = collect(slow, 1000, Effort(chunk=10, max_seconds=0.5))
    assert got.stopped == "max-minutes"
    assert 0 < got.pairs < 1000
    check_all(got.arrays, got.pairs)
    with refused("over before one chunk", AuditError):
        collect(slow, 10, Effort(chunk=10, max_seconds=1e-9))


OUT_OF_MEMORY = [
    MemoryError(),
    np._core._exceptions._ArrayMemoryError((10**9, 10**9), np.dtype(float)),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried"),
    RuntimeError("CUDA error: out of memory"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_where_memory_runs_out_the_rest_is_done_in_half_as_many_at_a_time(error):
    got = collect(Greedy(error), 40, Effort(chunk=10))
    assert got.fitted == 2
    check_all(got.arrays, 40)


def test_memory_that_runs_out_in_a_worker_process_is_no_death():
    got = collect(Greedy(OUT_OF_MEMORY[-1]), 20, Effort(chunk=10, workers=Workers(kind="loky", jobs=1)))
    assert got.fitted == 2
    check_all(got.arrays, 20)


@dataclass(frozen=True)
class Greedy(Trials):
    """Memory suffices for three pairs; `asked` counts the pairs asked for at a time."""

    error: Exception
    asked: list = field(default_factory=list)

    def __call__(self, first, last):
        self.asked.append(last - first)
        if last - first > 3:
            raise self.error
        return Numbers()(first, last)


def test_memory_runs_out_once():
    """What did not fit is not tried again chunk after chunk."""
    trials = Greedy(MemoryError())
    collect(trials, 40, Effort(chunk=10))
    assert trials.asked == [10, 5] + [2] * 20


def test_memory_that_does_not_suffice_for_one_pair_is_not_hidden():
    def hungry(first, last):
        raise MemoryError

    with pytest.raises(MemoryError):
        collect(hungry, 4, Effort(chunk=4))


def test_a_failure_within_a_halved_chunk_keeps_the_pairs_before_it():
    def fails(first, last):
        if last - first > 5:
            raise MemoryError
        return Numbers()(first, last) if last <= 3 else failed(first, 3)

    arrays, fitted = run_chunk(fails, 0, 10)
    assert fitted == 5
    check_all(arrays, 3)
    assert list(arrays.pop("failure")) == ["failed", "it broke"]


def test_other_errors_go_on():
    def wrong(first, last):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        collect(wrong, 4, Effort(chunk=2))


@pytest.mark.parametrize(("kind", "error"), [("failed", MechanismFailed), ("input", InputError)])
def test_a_failure_keeps_the_pairs_before_it(tmp_path, kind, error):
    def fails(first, last):
        return Numbers()(first, last) if last <= 13 else failed(first, 13, kind)

    store = ChunkStore(tmp_path / "key", resume=False)
    with pytest.raises(error, match="it broke; the 13 pairs of runs before it are kept"):
        collect(fails, 20, Effort(chunk=5, store=store))
    assert sum(last - first for first, last in store.load()) == 13
    again = Numbers()
    got = collect(again, 20, Effort(chunk=5, store=ChunkStore(store.folder, resume=True)))
    assert again.calls == [(13, 15), (15, 20)]
    check_all(got.arrays, 20)


def test_a_chunk_that_fails_again_and_again_is_taken_up_where_it_ended_last(tmp_path):
    for at in (3, 7, 8):
        with refused(f"the {at} pairs of runs before it are kept", MechanismFailed):
            collect(
                lambda first, last, at=at: failed(first, at),
                20,
                Effort(chunk=10, store=ChunkStore(tmp_path / "key", resume=True)),
            )
    again = Numbers()
    got = collect(again, 20, Effort(chunk=10, store=ChunkStore(tmp_path / "key", resume=True)))
    assert again.calls == [(8, 10), (10, 20)]
    check_all(got.arrays, 20)


def test_a_worker_that_dies_costs_its_chunk_alone(tmp_path):
    got = collect(Dies(f"{tmp_path}/died", 6), 20, Effort(chunk=3, workers=Workers(kind="loky", jobs=2)))
    assert (tmp_path / "died").exists()
    check_all(got.arrays, 20)


class Cluster:
    """A lane in this process whose first `gone` chunks end cancelled, as Dask's do where their scheduler goes away."""

    def __init__(self, gone):
        self.gone = gone

    def opened(self, known):
        return [self][known:]

    def submit(self, first, last, fitted):
        future = Future()
        if self.gone:
            self.gone -= 1
            future.cancel()
            future.set_running_or_notify_cancel()
        else:
            future.set_result(run_chunk(Numbers(), first, last, fitted))
        return future

    def renew(self):
        pass

    def close(self):
        pass


def test_a_chunk_that_is_cancelled_is_done_again(monkeypatch):
    monkeypatch.setattr(executor, "lanes_of", lambda workers, job: Cluster(gone=2))
    effort = Effort(chunk=4, workers=Workers(kind="dask", scheduler="tcp://here"))
    got = collect(Numbers(), 10, effort)
    check_all(got.arrays, 10)
    monkeypatch.setattr(executor, "lanes_of", lambda workers, job: Cluster(gone=1000))
    with refused("a worker died 3 times on runs 1 to 4", AuditError):
        collect(Numbers(), 10, effort)


def test_a_chunk_on_which_workers_always_die_is_one_line(tmp_path):
    trials = Dies(f"{tmp_path}/died", 6, always=True)
    with refused("a worker died 3 times on runs 7 to 9", AuditError):
        collect(trials, 20, Effort(chunk=3, workers=Workers(kind="loky", jobs=1)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, "dask", None), "executor dask needs scheduler"),
        ((2, "dask", "tcp://x:1"), "jobs is 2; leave it out with executor dask"),
        ((None, None, "tcp://x:1"), "use it with executor dask"),
        ((None, "slurm", None), "executor is 'slurm'"),
        ((0, None, None), "jobs is 0"),
    ],
)
def test_workers_that_do_not_go_together_are_one_line(given, words):
    with refused(words):
        workers_from(*given)


def test_one_job_stays_here():
    assert workers_from(None, None, None) == workers_from(1, None, None) == Workers()
    assert workers_from(3, None, None) == Workers(kind="loky", jobs=3)


CHILD = """
import sys, time
from pathlib import Path
import cloudpickle
import numpy as np
from dpzv_audit.games.engine import Effort, collect
from dpzv_audit.games.engine import ChunkStore, npz_bytes

def trials(first, last):
    time.sleep(0.01)
    rows = [np.random.default_rng(k).normal(size=2) for k in range(first, last)]
    return {"in_scores": np.array([r[0] for r in rows]), "out_scores": np.array([r[1] for r in rows])}

store = ChunkStore(Path(sys.argv[1]) / "chunks", resume=True)
print("ready", flush=True)
got = collect(trials, 600, Effort(chunk=4, store=store))
(Path(sys.argv[1]) / "done.npz").write_bytes(npz_bytes(got.arrays))
"""


def killed_and_resumed(folder, kills, seed):
    """Start the child, kill it at a random moment, `kills` times over; then let it finish. Returns its arrays."""
    generator = np.random.default_rng(seed)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for number in range(kills + 1):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder)], env=environment, stdout=subprocess.PIPE, text=True
        )
        with child:
            child.stdout.readline()
            if number < kills:
                time.sleep(generator.uniform(0.0, 0.12))
                child.send_signal(signal.SIGKILL)
        assert child.wait() == (-signal.SIGKILL if number < kills else 0)
    with np.load(folder / "done.npz", allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_and_resumed_ends_with_the_same_numbers(tmp_path, kills):
    (tmp_path / "killed").mkdir()
    got = killed_and_resumed(tmp_path / "killed", kills, seed=kills)
    rows = np.array([np.random.default_rng(k).normal(size=2) for k in range(600)])
    assert (got["in_scores"] == rows[:, 0]).all()
    assert (got["out_scores"] == rows[:, 1]).all()
