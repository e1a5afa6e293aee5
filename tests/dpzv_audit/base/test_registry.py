"""Registries: built-in objects, those of installed packages, two of one name, and packages that are broken."""

import subprocess
import sys
from dataclasses import dataclass

import pytest

from dpzv_audit.base import registry
from dpzv_audit.base.registry import OWN, Registry, package_digest

from ...helpers.refusals import refusal, refused

GROUP = "dpzv_audit.things"


@dataclass(frozen=True)
class Thing:
    name: str
    summary: str = "a thing"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package of one module and the entry points that are given, as an installer would leave it."""
    monkeypatch.syspath_prepend(tmp_path)

    def installed(package, code, points, *, group=GROUP, version="1.0"):
        folder = tmp_path / f"{package}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (folder / "entry_points.txt").write_text(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        )
        (tmp_path / f"{package}.py").write_text(code)
        registry._installed.cache_clear()

    yield installed
    registry._installed.cache_clear()


THING = "from tests.dpzv_audit.base.test_registry import Thing\nSPEC = Thing({!r})\n"


def things(*names):
    return Registry(GROUP, Thing, [Thing(name) for name in names])


@pytest.fixture(autouse=True)
def _importable_tests(monkeypatch):
    # Tests are imported under another name: the class that a package builds must be this one.
    monkeypatch.setitem(sys.modules, "tests.dpzv_audit.base.test_registry", sys.modules[__name__])


def test_built_in_things_are_found_by_name_and_package():
    found = things("a", "b")
    assert list(found) == ["a", "b"]
    assert found["b"].name == "b"
    assert found.package("a") == OWN
    with refused(r"^thing is 'bb': did you mean 'b'\? use one of a, b$"):
        found.named("bb", "thing")
    with refused(r"^thing is 'B': did you mean 'b'\?$"):
        found.named("B", "thing")
    with refused("^thing is 'zz'; use one of a, b$"):
        found.named("zz", "thing")


def test_a_thing_of_ones_own_is_imported_when_it_is_looked_up(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_lazy.py").write_text(THING.format("b"))
    found = Registry(GROUP, Thing, {"b": "own_lazy:SPEC", "gone": "own_gone:SPEC"})
    assert (list(found), found.package("b")) == (["b", "gone"], OWN)
    assert "own_lazy" not in sys.modules
    assert found["b"] is found["b"]
    assert found.named("b", "thing") == Thing("b")
    with pytest.raises(ModuleNotFoundError, match="own_gone"):
        found["gone"]


@pytest.mark.parametrize(
    ("code", "imported"),
    [(THING.format("b") + "OTHER = 1\n", True), ("SPEC = dict(name='b', summary='read, ' 'not run')\n", False)],
)
def test_a_summary_that_its_source_states_is_read_without_an_import(tmp_path, monkeypatch, code, imported):
    monkeypatch.syspath_prepend(tmp_path)
    module = f"own_summary_{imported}"
    (tmp_path / f"{module}.py").write_text(code)
    found = Registry(GROUP, Thing, {"b": f"{module}:SPEC"})
    assert found.summary("b") == ("a thing" if imported else "read, not run")
    assert (module in sys.modules) == imported


def test_many_names_are_not_listed_but_where_they_are_listed_is_told():
    nine = things(*"abcdefghi")
    with refused(f"^thing is 'zz'; see dpzv-audit list {GROUP.removeprefix('dpzv_audit.')}$"):
        nine.named("zz", "thing")
    with refused(r"^thing is 'B': did you mean 'b'\?$"):
        nine.named("B", "thing")


def test_an_installed_thing_is_found_named_and_told_from_the_built_in_ones(install):
    install("pkg_one", THING.format("c"), {"c": "pkg_one:SPEC"})
    found = things("a")
    assert "pkg_one" not in sys.modules
    assert found["c"].summary == "a thing"
    assert dict(found.items()) == {"a": Thing("a"), "c": Thing("c")}
    assert found.package("c") == "pkg_one 1.0"


def test_an_installed_thing_is_imported_only_where_it_is_asked_for(install):
    install("pkg_lazy", "raise AssertionError('imported')", {"lazy": "pkg_lazy:SPEC"})
    assert things("a")["a"].name == "a"
    assert package_digest(GROUP, "lazy")
    assert "pkg_lazy" not in sys.modules


def test_a_name_that_two_packages_bring_is_an_error_that_names_both(install):
    install("pkg_left", THING.format("c"), {"c": "pkg_left:SPEC"})
    install("pkg_right", THING.format("c"), {"c": "pkg_right:SPEC"}, version="2.0")
    found = things("a")
    assert found["a"].name == "a"
    with refused(r"'c' is brought to dpzv_audit\.things by pkg_(left|right) .* and pkg_"):
        found["c"]
    with refused("uninstall all but one"):
        list(found.items())


def test_no_package_replaces_a_built_in_thing(install):
    install("pkg_again", THING.format("a"), {"a": "pkg_again:SPEC"})
    with refused(r"'a' is brought to dpzv_audit\.things by dpzv-audit and pkg_again 1\.0"):
        things("a")["a"]


@pytest.mark.parametrize(
    ("code", "value", "said"),
    [
        ("import nowhere_at_all", "pkg_bad:SPEC", "cannot be imported: ModuleNotFoundError: No module named 'nowhere"),
        ("raise SystemExit(3)", "pkg_bad:SPEC", "cannot be imported: SystemExit: 3"),
        ("def broken(:\n", "pkg_bad:SPEC", "cannot be imported: SyntaxError: "),
        ("", "pkg_bad:SPEC", "cannot be imported: AttributeError: "),
        ("SPEC = 3", "pkg_bad:SPEC", "is of type int; use a Thing"),
        (THING.format("other"), "pkg_bad:SPEC", "calls itself 'other'; use the name of its entry point"),
    ],
)
def test_a_broken_package_is_one_line_and_breaks_nothing_else(install, caplog, monkeypatch, code, value, said):
    monkeypatch.delitem(sys.modules, "pkg_bad", raising=False)
    install("pkg_bad", code, {"bad": value})
    found = things("a")
    line = refusal(found.__getitem__, "bad")
    assert line.startswith(f"'bad' of pkg_bad 1.0 (entry point bad = {value} in {GROUP}) {said}")
    assert list(found) == ["a"]
    assert caplog.messages == [line]


def test_the_digest_of_a_package_follows_its_files(install, tmp_path):
    install("pkg_code", THING.format("c"), {"c": "pkg_code:SPEC"})
    before = package_digest(GROUP, "c")
    assert package_digest(GROUP, "c") == before
    (tmp_path / "pkg_code.py").write_text(THING.format("c") + "# changed\n")
    assert package_digest(GROUP, "c") != before
    assert package_digest(GROUP, "built in") == ""


def test_the_registry_and_the_help_load_no_torch():
    for code in ("import dpzv_audit.base.registry", "from dpzv_audit.cli import main\nmain(['--help'])"):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                f"import sys\ntry:\n    exec({code!r})\nfinally:\n    print('torch' in sys.modules)",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.splitlines()[-1] == "False", done.stderr
