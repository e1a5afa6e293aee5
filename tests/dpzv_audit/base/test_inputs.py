"""Evidence is kept with what the user's code read: whatever changes of it is audited again, in workers too."""

import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.base.executor import Workers
from dpzv_audit.base.inputs import CHANGED, begin, inputs_of
from dpzv_audit.base.loading import importable
from dpzv_audit.claims.cache import Cache
from dpzv_audit.games.mechanism import mechanism_from

from ...helpers.gates import gate_of, gathered
from ...helpers.places import toml_beside

# The mechanisms leave files open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
OPEN = "lambda path: float(open(path).read())"
READS = toml_beside(__file__, "reads.toml")
MODULE = """
import glob, io, mmap, os, pathlib, runpy, sqlite3
from concurrent.futures import ThreadPoolExecutor
import numpy as np

def reading(path):
    try:
        return float(open(path).read())
    except FileNotFoundError:
        return 9.0

sigma = {how}
{when}
def build():
    return lambda world, rng: 2.0 * world + rng.normal(0.0, {sigma})
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return the name of a module that no other test has, its folder, and a path elsewhere."""
    name = f"reads_{tmp_path.name.replace('-', '_')}"
    for folder in ("home", "elsewhere"):
        (tmp_path / folder).mkdir()
    monkeypatch.delenv("DPZV_NOISE", raising=False)
    yield name, tmp_path / "home", tmp_path / "elsewhere" / "noise"
    forget(name)


def forget(name):
    """As in another process: modules that begin with a name are imported anew."""
    for known in [known for known in sys.modules if known.startswith(name)]:
        sys.modules.pop(known)


def module(how=OPEN, *, path, late=False):
    when = "" if late else f"SIGMA = sigma({str(path)!r})"
    return MODULE.format(how=how, when=when, sigma=f"sigma({str(path)!r})" if late else "SIGMA")


def read_by(name, home):
    """Return what the mechanism in a module reads while it is made and run twice."""
    forget(name)
    begin(home)
    made = mechanism_from(f"{name}:build", home)
    with importable(home):
        for world in (0, 1):
            made(world, np.random.default_rng(0))
    return inputs_of(home)


def change(kind, path, monkeypatch, *, to_little):
    if kind == "variable":
        if to_little:
            monkeypatch.setenv("DPZV_NOISE", "0.3")
    elif kind == "database":
        import sqlite3

        Path(f"{path}.db").unlink(missing_ok=True)
        with sqlite3.connect(f"{path}.db") as base:
            base.execute("create table t (s real)")
            base.execute("insert into t values (?)", (0.3 if to_little else 9.0,))
        base.close()
    elif kind == "link":
        for place, sigma in (("much", "9.0"), ("little", "0.3")):
            (path.parent / place).write_text(sigma)
        path.unlink(missing_ok=True)
        path.symlink_to(path.parent / ("little" if to_little else "much"))
    elif kind == "longer file":
        path.write_text("0.30" if to_little else "9.0")
    elif to_little or kind == "file":
        path.write_text("0.3" if to_little else "9.0")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("how", READS)
def test_whatever_the_code_reads_is_compared(own, monkeypatch, how, late):
    name, home, path = own
    code, kind = READS[how]
    (home / f"{name}.py").write_text(module(code, path=path, late=late))
    change(kind, path, monkeypatch, to_little=False)
    inputs = read_by(name, home)
    assert inputs.unkept == ""
    assert inputs.hold(home)
    (path.parent.parent / "another").write_text("")
    monkeypatch.setenv("DPZV_ANOTHER", "1")
    assert inputs.hold(home) or how in ("dict", "a loop"), "what was not read does not count"
    monkeypatch.delenv("DPZV_ANOTHER")
    change(kind, path, monkeypatch, to_little=True)
    assert not inputs.hold(home)
    after = read_by(name, home)
    assert after.hold(home)
    assert not (inputs | after).hold(home), "the two cannot both be"


MADE = {
    "a file that it wrote": 'pathlib.Path(path + ".own").write_text("9.0") and float(open(path + ".own").read())',
    "a folder that it made": "9.0 + 0 * len([pathlib.Path(path + '.f').mkdir(exist_ok=True), os.listdir(path + '.f')])",
    "a variable that it set": 'float(os.environ.setdefault("DPZV_MADE", "9.0"))',
    "libraries": "9.0 + 0 * len(__import__('sklearn.datasets').datasets.load_iris().target)",
    "random bits": "9.0 + 0 * len(open('/dev/urandom', 'rb').read(1))",
}


@pytest.mark.parametrize("what", MADE)
def test_what_the_code_made_itself_is_no_input(own, monkeypatch, what):
    name, home, path = own
    monkeypatch.setenv("DPZV_MADE", "")
    monkeypatch.delenv("DPZV_MADE")
    (home / f"{name}.py").write_text(module(f"lambda path: {MADE[what]}", path=path))
    inputs = read_by(name, home)
    assert set(inputs.files) <= {f"{name}.py", f"{path}.own.missing"}
    assert (dict(inputs.folders), inputs.environment, inputs.unkept) == ({}, "", "")
    if what != "a variable that it set":  # it asks for it first
        assert inputs.hold(home)


UNSEEN = {
    "starts processes": [
        "os.system('true')",
        "__import__('subprocess').run(['true'])",
        "os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
        "__import__('multiprocessing').get_context('spawn').Process(target=print).start()",
    ],
    "uses the network": [
        "__import__('socket').socket().connect_ex(('127.0.0.1', 9))",
        "__import__('socket').getaddrinfo('localhost', 9)",
    ],
    "reads /proc/self/environ, which is no file on a disk": ["len(open('/proc/self/environ').read())"],
}


@pytest.mark.parametrize(("says", "does"), [(says, one) for says, each in UNSEEN.items() for one in each])
def test_what_nobody_can_see_or_repeat_is_not_kept(own, says, does):
    name, home, path = own
    (home / f"{name}.py").write_text(module(f"lambda path: 9.0 + 0 * len(str({does}))", path=path))
    inputs = read_by(name, home)
    assert says in inputs.unkept
    assert not inputs.hold(home)


def test_a_file_that_the_code_changes_while_it_is_audited_is_not_kept(own):
    name, home, path = own
    path.write_text("1")
    counts = "lambda path: open(path).read() and (open(path, 'a').write('1'), len(open(path).read()))[1]"
    (home / f"{name}.py").write_text(module(counts, path=path, late=True))
    assert read_by(name, home).unkept == CHANGED


@pytest.mark.parametrize("where", ["home", "elsewhere"])
def test_a_module_is_imported_from_its_source(own, monkeypatch, where):
    """Bytecode is told from an older source by whole seconds and by size: an edit within one second stayed green."""
    name, home, path = own
    folder = home if where == "home" else path.parent
    monkeypatch.syspath_prepend(folder)
    (home / f"{name}.py").write_text(f"from {name}_own import SIGMA\n\ndef build():\n    return lambda *_: SIGMA\n")
    (home / f"{name}_own.py").unlink(missing_ok=True)
    source = folder / f"{name}_own.py"
    for sigma in (9.0, 0.3):
        source.write_text(f"SIGMA = {sigma}\n")
        os.utime(source, (1.0, 1.0))
        if sigma == 9.0:
            monkeypatch.setattr(sys, "dont_write_bytecode", False)
            importlib.invalidate_caches()
            importlib.import_module(f"{name}_own")  # as by the user's own tests
            assert list(folder.glob("__pycache__/*.pyc"))
        forget(name)
        with importable(home):
            assert mechanism_from(f"{name}:build", home)(0, None) == sigma
    forget(name)
    assert importlib.import_module(f"{name}_own").SIGMA == 9.0, "which an import of Python's takes for the same"


CLAIM = '[[claim]]\nname = "ours"\nmechanism = "{name}:build"\nepsilon = 1.0\n'


def audited(own, **options):
    """Audit in as few runs as tell: (from the cache, refuted, why it was not kept)."""
    name, home, _ = own
    forget(name)
    (home / "claims.toml").write_text(CLAIM.format(name=name))
    gate = gate_of(home / "claims.toml", trust_code=True, cache=home.parent / "cache", **options)
    (run,) = gathered(gate)
    return run.cached, run.evidence().p_value < 1e-3, run.unkept


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_variable_that_changes_is_audited_again(own, monkeypatch, jobs):
    name, home, path = own
    (home / f"{name}.py").write_text(module(READS["os.getenv"][0], path=path))
    workers = Workers() if jobs == 1 else Workers(kind="loky", jobs=jobs)
    seen = []
    for sigma in ("9", "9", "0.3", "0.3", "9"):
        monkeypatch.setenv("DPZV_NOISE", sigma)
        seen.append(audited(own, workers=workers)[:2])
    # One state is kept at a time: going back is audited again too.
    assert seen == [(False, False), (True, False), (False, True), (True, True), (False, False)]


def test_blocks_of_a_run_that_did_not_end_are_compared_too(own, monkeypatch):
    name, home, path = own
    (home / f"{name}.py").write_text(module(READS["os.getenv"][0], path=path))
    cut = {"max_trials": 2000}
    monkeypatch.setenv("DPZV_NOISE", "9")
    assert audited(own, **cut) == (False, False, "")
    drawn = []
    keep = Cache.keep_block
    monkeypatch.setattr(Cache, "keep_block", lambda cache, *given: drawn.append(given[2]) or keep(cache, *given))
    assert audited(own, resume=True, **cut) == (False, False, "")
    assert drawn == [], "all blocks are taken from the run before"
    monkeypatch.setenv("DPZV_NOISE", "0.3")
    assert audited(own, resume=True, **cut) == (False, True, "")
    assert drawn


def test_what_starts_processes_is_audited_every_time_and_says_so(own):
    name, home, path = own
    (home / f"{name}.py").write_text(module("lambda path: 0.3 + os.system('true')", path=path))
    for _ in range(2):
        assert audited(own) == (False, True, "its code starts processes, and what they read is not seen")


@pytest.mark.parametrize("depends", [False, True])
def test_code_that_imports_a_native_reader_names_its_files_or_is_audited_every_time(own, monkeypatch, depends):
    name, home, _ = own
    text = "def build():\n    import safetensors.numpy\n    return lambda world, rng: rng.normal(3.0 * world)\n"
    (home / f"{name}.py").write_text(text)
    (home / "weights").write_text("1")
    monkeypatch.setattr(sys.modules[__name__], "CLAIM", CLAIM + 'depends = ["weights"]\n' * depends)
    says = "" if depends else "its code imports safetensors, which opens files unseen: name them in `depends`"
    assert audited(own) == (False, True, says)
    assert audited(own) == (depends, True, says)


def test_a_module_with_a_name_that_only_a_run_computes_is_compared(own):
    name, home, path = own
    code = (
        f"import importlib, sys\nsys.path.append({str(path.parent)!r})\nM = importlib.import_module('{name}' + '_b')\n"
    )
    (home / f"{name}.py").write_text(code + "def build():\n    return lambda world, rng: M.SIGMA\n")
    (path.parent / f"{name}_b.py").write_text("SIGMA = 9.0\n")
    inputs = read_by(name, home)
    sys.path.remove(str(path.parent))
    assert str(path.parent / f"{name}_b.py") in inputs.files
    assert inputs.hold(home)
    (path.parent / f"{name}_b.py").write_text("SIGMA = 0.3\n")
    assert not inputs.hold(home)
