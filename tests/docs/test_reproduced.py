"""Pages of reproduced tables say what the finished rows in docs/results/data give."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

_PATH = Path(__file__).resolve().parents[2] / "docs" / "reproduced.py"


@pytest.fixture
def reproduced():
    """`docs/reproduced.py`, whose folder is no package."""
    spec = importlib.util.spec_from_file_location("reproduced", _PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_what_their_rows_give(reproduced, capsys):
    assert reproduced.main(["--check"]) == 0, capsys.readouterr().out


def test_every_table_with_rows_is_on_a_page(reproduced):
    shown = [table for opening in reproduced.OPENINGS.values() for table in opening["tables"]]
    assert sorted(shown) == sorted(folder.name for folder in reproduced.ROWS.iterdir() if folder.is_dir())


def test_a_page_that_is_not_is_named(reproduced, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reproduced, "RESULTS", tmp_path / "docs" / "results")
    reproduced.RESULTS.mkdir(parents=True)
    assert reproduced.main(["--check"]) > 0
    assert "docs/results/dpzv-figure3-mnist.md" in capsys.readouterr().out.splitlines()
    assert reproduced.main([]) == 0
    assert reproduced.main(["--check"]) == 0
    page = reproduced.RESULTS / "dpzv-figure3-mnist.md"
    page.write_text(page.read_text().replace("DPZV", "VAFL", 1))
    assert reproduced.main(["--check"]) == 1
