"""The user's code is what its folder holds, whatever it is called; every other import gives what it always did."""

import importlib
import sys

import pytest

from dpzv_audit.base.loading import function_at, importable, module_at
from dpzv_audit.games.mechanism import code_of, mechanism_from
from dpzv_audit.systems.stated import data_of, system_at

from ...helpers.refusals import refused

FACTORY = """
from dataclasses import dataclass

@dataclass
class Mine:
    shift: float = {shift}
    def run(self, world, rng):
        return self.shift

def fine():
    return Mine()
"""
TAKEN = ("code", "sched", "json", "numpy", "torch", "dpzv_audit", "this", "wave", "builtins", "sys", "__main__")
"""Names of Python's own modules, of those built in, of packages; imported before, or never, or not to be imported."""


@pytest.fixture(autouse=True)
def as_before():
    """What a test imports is forgotten."""
    before = dict(sys.modules)
    path = list(sys.path)
    yield
    assert sys.path == path
    assert all(sys.modules.get(name) is module for name, module in before.items()), (
        "a module was put in another's place"
    )
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


def origin(name):
    return importlib.util.find_spec(name).origin


@pytest.mark.parametrize("name", TAKEN)
def test_a_module_is_that_of_the_folder_and_other_imports_are_what_they_were(tmp_path, name):
    (tmp_path / f"{name}.py").write_text(FACTORY.format(shift=7.0))
    before = None if name in ("__main__", "builtins", "sys") else origin(name)
    made = mechanism_from(f"{name}:fine", tmp_path)
    assert made.run(0, None) == 7.0
    assert mechanism_from(f"{name}:fine", tmp_path).__class__ is made.__class__, "it is imported once"
    assert sys.modules[made.__class__.__module__].__file__ == str(tmp_path / f"{name}.py")
    with importable(tmp_path):
        if before is not None:
            assert origin(name) == before
        taken = importlib.import_module(name)
    assert not hasattr(taken, "fine")


def test_a_name_that_nothing_takes_is_its_own(tmp_path):
    (tmp_path / "mine_alone.py").write_text(FACTORY.format(shift=1.0))
    module, _ = module_at("mine_alone:fine", "mechanism", "pkg.mod:factory", tmp_path)
    assert module.__name__ == "mine_alone"
    assert sys.modules["mine_alone"] is module


def test_packages_import_their_own_by_dots(tmp_path):
    package = tmp_path / "code"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text("SHIFT = 3.0\n")
    (package / "inner.py").write_text("from .parts import SHIFT\n" + FACTORY.format(shift="SHIFT"))
    assert mechanism_from("code.inner:fine", tmp_path).run(0, None) == 3.0
    import code

    assert hasattr(code, "InteractiveConsole")


def test_a_folder_without_init_is_a_package_too(tmp_path):
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "inner.py").write_text(FACTORY.format(shift=4.0))
    assert mechanism_from("json.inner:fine", tmp_path).run(0, None) == 4.0
    with refused(r"importing json\.absent failed"):
        mechanism_from("json.absent:fine", tmp_path)


def test_two_folders_have_a_module_of_one_name_each(tmp_path):
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mech.py").write_text(FACTORY.format(shift=float(place == "two")))
    for _ in range(2):
        assert mechanism_from("mech:fine", tmp_path / "one").run(0, None) == 0.0
        assert mechanism_from("mech:fine", tmp_path / "two").run(0, None) == 1.0


def test_its_helpers_are_found_and_the_librarys_are_not_its_neighbours(tmp_path):
    """`import json` in the user's code is Python's, as in every other module."""
    (tmp_path / "json.py").write_text("raise AssertionError('imported')\n")
    (tmp_path / "helper_of_sched.py").write_text("import json\nSHIFT = json.loads('5.0')\n")
    (tmp_path / "sched.py").write_text("from helper_of_sched import SHIFT\n" + FACTORY.format(shift="SHIFT"))
    assert mechanism_from("sched:fine", tmp_path).run(0, None) == 5.0


def test_a_failed_import_says_whose_name_it_has(tmp_path):
    (tmp_path / "sched.py").write_text("from sched import missing\n")
    with refused(r"importing sched failed: ImportError: .*; sched is also the name of another"):
        function_at("sched:fine", "mechanism", "pkg.mod:factory", tmp_path)
    (tmp_path / "sched.py").write_text(FACTORY.format(shift=2.0))
    assert mechanism_from("sched:fine", tmp_path).run(0, None) == 2.0, "what failed is not kept"
    with refused("sched has no callable fin; did you mean 'fine'"):
        function_at("sched:fin", "mechanism", "pkg.mod:factory", tmp_path)


def test_the_code_that_is_digested_is_the_code_that_runs(tmp_path):
    (tmp_path / "sched.py").write_text(FACTORY.format(shift=2.0))
    with importable(tmp_path):
        before = code_of("sched:fine")
        (tmp_path / "sched.py").write_text(FACTORY.format(shift=3.0))
        assert code_of("sched:fine") != before


def test_what_the_module_of_a_system_states_is_read_from_it(tmp_path):
    (tmp_path / "code.py").write_text(
        "top_model = False\nrelease = {'sigma': 1.0}\ndef train(task, record, seed):\n    pass\n"
        "def data():\n    raise RuntimeError('mine')\n"
    )
    system = system_at("code:train", 60.0, tmp_path)
    assert system.top_model is False
    assert system.stated is not None
    with pytest.raises(Exception, match="mine"):
        data_of(system)
