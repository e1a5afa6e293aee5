import importlib
import sys
import sysconfig
import types

import pytest

from dpzv_audit.games.mechanism import code_of

from ...helpers.refusals import refused


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A mechanism that imports a module and a package, which import a third, one of them only when it runs."""
    files = {
        "own_mechanism.py": "import own_noise\n\ndef factory():\n    from own_parts.scale import SCALE\n",
        "own_noise.py": "import numpy as np\nimport scipy.stats, json\nimport own_seed, no_such_module\n",
        "own_seed.py": "import own_mechanism\nSEED = 1\n",
        "own_parts/__init__.py": "",
        "own_parts/scale.py": "from . import other\nSCALE = 1.0\n",
        "own_parts/other.py": "",
        "own_stranger.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "edited",
    ["own_mechanism.py", "own_noise.py", "own_seed.py", "own_parts/scale.py", "own_parts/other.py"],
)
def test_an_edit_anywhere_in_what_a_mechanism_imports_is_another_digest(project, edited):
    before = code_of("own_mechanism:factory")
    assert code_of("own_mechanism:factory") == before
    (project / edited).write_text((project / edited).read_text() + "\nMORE = 2\n")
    assert code_of("own_mechanism:factory") != before


def test_where_the_project_lies_changes_nothing(project, tmp_path_factory, monkeypatch):
    before = code_of("own_mechanism:factory")
    monkeypatch.syspath_prepend(str(project.rename(tmp_path_factory.mktemp("elsewhere") / "project")))
    assert code_of("own_mechanism:factory") == before


@pytest.mark.parametrize("data", ["noise.json", "data/noise.bin", "own_parts/noise.json"])
def test_data_beside_a_module_are_part_of_what_it_answers(project, data):
    (project / data).parent.mkdir(exist_ok=True)
    (project / data).write_text('{"sigma": 6}')
    before = code_of("own_mechanism:factory")
    assert code_of("own_mechanism:factory") == before
    (project / data).write_text('{"sigma": 0.2}')
    assert code_of("own_mechanism:factory") != before
    of_the_package = code_of("own_parts:factory")
    (project / data).write_text('{"sigma": 0.1}')
    assert (code_of("own_parts:factory") != of_the_package) == data.startswith("own_parts/")


def test_installed_packages_and_the_tool_itself_are_no_part_of_a_mechanism(project, monkeypatch):
    installed = project / "site-packages"
    installed.mkdir()
    (installed / "own_library.py").write_text("")
    (installed / "own_other.py").write_text("")
    monkeypatch.syspath_prepend(str(installed))
    own = project / "own_stranger.py"
    own.write_text("import own_library, dpzv_audit.base.errors\n")
    before = code_of("own_stranger:factory")
    (installed / "own_library.py").write_text("MORE = 2\n")
    assert code_of("own_stranger:factory") == before
    with_library = code_of("own_library:factory")  # named itself, it is the mechanism
    (installed / "own_other.py").write_text("MORE = 2\n")
    assert code_of("own_library:factory") == with_library, "what else is installed is no part of it"
    (installed / "own_library.py").write_text("MORE = 3\n")
    assert code_of("own_library:factory") != with_library


def test_a_package_beside_the_standard_library_is_none_of_it(project, tmp_path_factory, monkeypatch):
    """Planted: a standard library in lib/own_f, and a package of the user's own in lib/own_far."""
    library = tmp_path_factory.mktemp("lib")
    (library / "own_far").mkdir()
    (library / "own_far" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(library))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(library / "own_f"))
    (project / "own_noise.py").write_text("import own_far\n")
    before = code_of("own_mechanism:factory")
    (library / "own_far" / "__init__.py").write_text("MORE = 2\n")
    assert code_of("own_mechanism:factory") != before


def test_an_environment_inside_a_package_is_no_part_of_it_and_leaves_the_rest_in(project):
    installed = project / "own_parts" / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "own_library.py").write_text("")
    for name in ("own_mechanism:factory", "own_parts:factory"):
        before = code_of(name)
        (installed / "own_library.py").write_text(f"MORE = {name!r}\n")
        assert code_of(name) == before
        with (project / "own_parts" / "scale.py").open("a") as file:
            file.write("MORE = 2\n")
        assert code_of(name) != before


def test_a_folder_without_an_init_file_is_a_package_too(project):
    (project / "own_parts" / "__init__.py").unlink()
    importlib.invalidate_caches()
    before = code_of("own_mechanism:factory")
    with (project / "own_parts" / "scale.py").open("a") as file:
        file.write("MORE = 2\n")
    assert code_of("own_mechanism:factory") != before


def test_moving_a_line_from_one_file_to_another_is_another_digest(project):
    before = code_of("own_parts:factory")
    scale, other = project / "own_parts/scale.py", project / "own_parts/other.py"
    first, second = scale.read_text(), other.read_text()
    scale.write_text(second)
    other.write_text(first)
    assert code_of("own_parts:factory") != before


def test_a_file_that_is_no_python_counts_by_its_bytes(project):
    (project / "own_noise.py").write_bytes(b"def (\n")
    before = code_of("own_mechanism:factory")
    (project / "own_noise.py").write_bytes(b"\0def (\n")
    assert code_of("own_mechanism:factory") != before


@pytest.mark.parametrize("name", ["no_such_module:factory", "own_bare:factory"])
def test_no_such_module_is_told_in_one_line(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_bare", types.ModuleType("own_bare"))  # made by hand: of no file
    with refused("there is no module"):
        code_of(name)
