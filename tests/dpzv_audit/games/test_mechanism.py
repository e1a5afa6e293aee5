"""A mechanism of the user's own: the protocol, and every way to misbehave as one line with the evidence kept."""

import importlib
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.claims.api import verify_claim
from dpzv_audit.evidence.auditing import mechanism_outcome
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.games.engine import ChunkStore, Effort, MechanismFailed, collect
from dpzv_audit.games.mechanism import MechanismTrials, mechanism_from, play

from ...helpers.refusals import refused

SOURCE = """
import os
import time
import numpy as np

class Base:
    def __init__(self): self.count = 0
    def run(self, world, rng):
        self.count += 1
        return self.wrong() if self.count > 20 else world + rng.normal()
    def wrong(self): return 0.0

def good():
    made = Base(); made.wrong = lambda: 1.0
    return made

def making(wrong):
    def factory():
        made = Base(); made.wrong = wrong
        return made
    return factory

def _raise(): raise ValueError("boom" + chr(10) + "second line")
raises = making(_raise)
hangs = making(lambda: time.sleep(100))
nan = making(lambda: float("nan"))
infinite = making(lambda: np.inf)
large = making(lambda: 2**53 + 1)
none = making(lambda: None)
text = making(lambda: "0.5")
matrix = making(lambda: np.zeros((2, 2)))
vector = making(lambda: np.zeros(3))
ragged = making(lambda: [[1.0], [1.0, 2.0]])
empty = making(lambda: [])

def swallows():
    def wrong():
        try: time.sleep(100)
        except Exception: return 0.0
    return making(wrong)()

class Views:
    def run(self, world, rng): return np.array([rng.normal(), world + rng.normal()])
def views(): return Views()

class Scored(Views):
    def score(self, view): return float(view[1])
def scored(): return Scored()

class Batch:
    def run_batch(self, world, rng, n): return world + rng.normal(size=n)
def batch(): return Batch()

class ShortBatch:
    def run_batch(self, world, rng, n): return rng.normal(size=n - 1)
def short_batch(): return ShortBatch()

class Ends:
    def run(self, world, rng): os._exit(7)
def ends(): return Ends()

def nothing(): return object()
def broken(): raise RuntimeError("no such file")
not_callable = 3
"""


@pytest.fixture(scope="module", autouse=True)
def module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    (folder / "user_mechanisms.py").write_text(textwrap.dedent(SOURCE))
    (folder / "user_broken.py").write_text("import nowhere_to_be_found\n")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("user_mechanisms", None)


def trials(name, seconds=30.0, seed=0):
    return MechanismTrials(f"user_mechanisms:{name}", seed, seconds)


def test_a_run_answers_with_its_score():
    arrays = trials("good")(0, 10)
    assert arrays["in_scores"].shape == arrays["out_scores"].shape == (10,)
    assert arrays["in_scores"].mean() > arrays["out_scores"].mean()


def test_runs_follow_from_the_seed_and_not_from_the_chunk():
    whole = trials("scored")(0, 10)
    parts = [trials("scored")(0, 3), trials("scored")(3, 10)]
    assert (whole["in_scores"] == np.concatenate([p["in_scores"] for p in parts])).all()
    assert not np.isclose(trials("scored", seed=1)(0, 10)["in_scores"], whole["in_scores"]).any()


def test_views_are_features_unless_the_mechanism_scores_them():
    assert trials("views")(0, 5)["in_features"].shape == (5, 2)
    assert trials("scored")(0, 5)["in_scores"].shape == (5,)


def test_batches_are_runs_at_once():
    arrays = trials("batch")(0, 5)
    assert arrays["in_scores"].shape == (5,)
    assert not np.isclose(trials("batch")(5, 10)["in_scores"], arrays["in_scores"]).any()


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("raises", MechanismFailed, "run 11 of the world 'in' raised ValueError: boom second line"),
        ("hangs", MechanismFailed, "run 11 of the world 'in' took longer than trial_seconds 0.2"),
        ("swallows", MechanismFailed, "took longer than trial_seconds 0.2"),
        ("nan", InputError, "answered nan; use finite"),
        ("infinite", InputError, "answered inf; use finite"),
        ("large", InputError, "answered 9007199254740993, which no double holds"),
        ("none", InputError, "answered None; use a number or a vector of numbers"),
        ("text", InputError, "answered '0.5'; use a number"),
        ("matrix", InputError, r"answered an array of shape \(2, 2\); use a number or a vector"),
        ("vector", InputError, r"answered shape \(3,\) after shape \(\); always answer one shape"),
        ("ragged", InputError, "answered a ragged list"),
        ("empty", InputError, "use a number or a vector"),
        ("short_batch", InputError, r"runs 1 to 8 of the world 'out' answered an array of shape \(7,\)"),
    ],
)
def test_a_mechanism_that_misbehaves_is_one_line_and_its_evidence_is_kept(name, error, words, tmp_path):
    store = ChunkStore(tmp_path / "key", resume=False)
    with pytest.raises(error, match=words) as caught:
        collect(trials(name, seconds=0.2 if name in ("hangs", "swallows") else 30.0), 40, Effort(chunk=8, store=store))
    assert caught.value.exit_code == (3 if error is MechanismFailed else 2)
    kept = sum(last - first for first, last in store.load())
    assert kept == (0 if name == "short_batch" else 10)
    assert f"the {kept} pairs" in str(caught.value) or "no run was done" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("user_mechanisms", "use pkg.mod:factory or planted:NAME"),
        (":factory", "use pkg.mod:factory"),
        ("nowhere.at_all:factory", "importing nowhere.at_all failed: ModuleNotFoundError"),
        ("user_broken:factory", "importing user_broken failed: ModuleNotFoundError: No module named 'nowhere_to"),
        ("user_mechanisms:missing", "has no callable missing"),
        ("user_mechanisms:not_callable", "has no callable not_callable"),
        ("user_mechanisms:broken", r"broken\(\) failed: RuntimeError: no such file"),
        ("user_mechanisms:nothing", "object has no method run"),
    ],
)
def test_what_is_no_mechanism_is_one_line(path, words):
    with refused(words):
        mechanism_from(path)


def in_a_thread(made, first, last):
    """What the trials answer where no signal reaches, as in the threads of a Dask worker."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(made, first, last).result()


def test_a_thread_gives_the_numbers_of_a_process():
    got, alone = in_a_thread(trials("views", seed=3), 5, 9), trials("views", seed=3)(5, 9)
    assert got.keys() == alone.keys()
    assert all(np.array_equal(got[name], alone[name]) for name in alone)


@pytest.mark.parametrize(
    ("path", "kind", "words", "kept"),
    [
        ("user_mechanisms:hangs", "failed", "run 11 of the world 'in' took longer than ‹trial_seconds› 0.2", 10),
        ("user_mechanisms:swallows", "failed", "took longer than ‹trial_seconds› 0.2", 10),
        ("user_mechanisms:ends", "failed", "runs 1 to 12 took their process down, or one of them", 0),
        ("user_mechanisms:missing", "input", "has no callable missing", 0),
    ],
)
def test_a_limit_holds_in_a_thread_too(path, kind, words, kept):
    found = in_a_thread(MechanismTrials(path, 0, 0.2), 0, 12)
    assert found["failure"][0] == kind
    assert words in found.pop("failure")[1]
    assert {len(rows) for rows in found.values()} == ({kept} if kept else set())


LEAKS = """
import edited_noise
class Made:
    def run(self, world, rng):
        Made.runs = getattr(Made, "runs", 0) + 1
        if Made.runs > 44: raise RuntimeError("out of entropy")
        return 9.0 * world + edited_noise.drawn(rng)
def made(): return Made()
"""
QUIET = LEAKS.replace("9.0 * world", "0.0 * world").replace("runs > 44", "runs > 10 ** 6")
NOISE = "def drawn(rng): return rng.normal()\n"


def test_what_is_kept_is_not_taken_for_that_of_edited_code(tmp_path, monkeypatch):
    """Scores of two mechanisms, put together, would be a verdict on neither; a helper's code counts as their own."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def audited(text, noise=NOISE):
        (tmp_path / "edited_mechanism.py").write_text(text)
        (tmp_path / "edited_noise.py").write_text(noise)
        for name in ("edited_mechanism", "edited_noise"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        plan = AuditPlan(runs=40, chunk=16, folder=tmp_path / "audits", resume=True)
        return mechanism_outcome("edited_mechanism:made", plan, epsilon=1.0, delta=1e-5, trial_seconds=30.0).result

    with refused("kept for resume", MechanismFailed):
        audited(LEAKS)
    assert audited(QUIET).privacy.empirical_lower == 0.0
    audited(QUIET, NOISE.replace("rng.normal()", "100.0 + rng.normal()"))
    assert len([path for path in (tmp_path / "audits").iterdir() if path.is_dir()]) == 3


SCALED = """
import json, pathlib
SIGMA = json.loads((pathlib.Path(__file__).parent / "noise.json").read_text())
class Made:
    def run_batch(self, world, rng, n): return rng.normal(world, SIGMA, n)
def made(): return Made()
"""


def test_what_is_kept_is_not_taken_for_that_of_other_data(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "scaled_mechanism.py").write_text(SCALED)

    def audited(sigma, **changes):
        (tmp_path / "noise.json").write_text(str(sigma))
        sys.modules.pop("scaled_mechanism", None)
        importlib.invalidate_caches()
        plan = AuditPlan(**{"runs": 60, "chunk": 64, "folder": tmp_path / "audits", "resume": True, **changes})
        result = mechanism_outcome("scaled_mechanism:made", plan, epsilon=1.0, delta=1e-5, trial_seconds=30.0).result
        return result.privacy.verdict, result.compute.get("not_kept")

    assert audited(6) == ("inconclusive", None)
    assert audited(0.01) == ("refuted", None)
    monkeypatch.setattr("dpzv_audit.base.files.MOST_FILES", 1)
    (tmp_path / "more.json").write_text("")
    kept = sorted((tmp_path / "audits").rglob("*"))
    assert audited(6, resume=False) == ("inconclusive", f"{tmp_path} holds more than 1 files")
    assert sorted((tmp_path / "audits").rglob("*")) == kept
    with refused(r"resume: the dependencies of the mechanism are not known: .* more than 1 files"):
        audited(6)


COUNTERS = """
import os
from pathlib import Path

CALLS = 0

def hot(period): return 3.0 * (CALLS % period == 0)

class Counts:
    def __init__(self, period): self.period = period
    def run(self, world, rng):
        global CALLS
        CALLS += 1
        return rng.normal() + hot(self.period)

def counts_2(): return Counts(2)
def counts_3(): return Counts(3)
def counts_4(): return Counts(4)

class CountsInFile:
    def run(self, world, rng):
        path = Path(__file__).with_name("calls")
        with path.open("a") as calls:
            calls.write(".")
        return rng.normal() + 3.0 * (path.stat().st_size % 2)
def counts_in_file(): return CountsInFile()

class CountsBatches(Counts):
    def run_batch(self, world, rng, n):
        global CALLS
        CALLS += 1
        return rng.normal(size=n) + hot(self.period)
def batches_2(): return CountsBatches(2)
def batches_3(): return CountsBatches(3)

class Views(Counts):
    def run(self, world, rng): return [rng.normal(), super().run(world, rng)]
def views(): return Views(2)

class Leaks(Counts):
    def run(self, world, rng): return super().run(world, rng) + 3.0 * world
def leaks(): return Leaks(2)
"""


@pytest.fixture(scope="module")
def counters(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counters")
    (folder / "counters.py").write_text(COUNTERS)
    return folder


@pytest.mark.parametrize(
    "name", ["counts_2", "counts_3", "counts_4", "counts_in_file", "batches_2", "batches_3", "views"]
)
def test_a_private_mechanism_that_counts_its_calls_is_not_refuted(name, counters):
    # Refuting epsilon 1 takes a share of e / (1 + e) = 0.73 of the hot runs on one side, at least. Of 500 pairs, or of
    # the 64 batches of the first look, that has a chance below 1e-4; the seed is fixed.
    verdict = verify_claim(mechanism=f"counters:{name}", epsilon=1.0, alpha=1e-3, folder=counters, max_trials=2000)
    assert verdict.verdict == "inconclusive"
    assert verdict.epsilon_lower <= 1.0


def test_a_mechanism_that_leaks_and_counts_its_calls_is_refuted(counters):
    assert verify_claim(mechanism="counters:leaks", epsilon=1.0, alpha=1e-3, folder=counters).verdict == "refuted"


def _calls(made, pairs=400, seed=0):
    calls = []

    def run(world, rng):
        calls.append(world)
        return float(rng.normal())

    def run_batch(world, rng, n):
        calls.append(world)
        return rng.normal(size=n)

    mechanism = run if made == "run" else SimpleNamespace(run_batch=run_batch)
    streams = lambda world, number: stream(seed, Purpose.SIMULATION, world, number or 0)  # noqa: E731
    play(mechanism, "counted", 0, pairs, streams=streams, seconds=10.0)
    return np.array(calls)


def test_the_world_that_runs_first_is_drawn_for_each_pair():
    first, second = _calls("run").reshape(-1, 2).T
    assert (first + second == 1).all()
    # 400 fair coins: outside 160 to 240 with probability 5e-5. Neighbouring pairs agree in half of 399 likewise.
    assert 160 <= first.sum() <= 240
    assert 160 <= (first[1:] == first[:-1]).sum() <= 240
    assert (_calls("run") == _calls("run")).all()
    assert (_calls("run", seed=1) != _calls("run")).any()


def test_batches_of_both_worlds_come_in_a_random_order():
    calls = _calls("run_batch")
    assert len(calls) == 2 * 25
    assert calls.sum() == 25
    assert (calls != np.tile([0, 1], 25)).sum() >= 8  # a random order: fewer with probability below 1e-5
    assert (_calls("run_batch") == calls).all()


def test_the_order_of_worlds_leaves_scores_where_they_were():
    arrays = trials("good")(0, 8)
    for world, side in enumerate(("out", "in")):
        expected = [world + stream(0, Purpose.SIMULATION, world, run).normal() for run in range(8)]
        assert arrays[f"{side}_scores"].tolist() == expected
