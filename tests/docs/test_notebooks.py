"""The notebooks run from top to bottom, and what they show is what they print."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="needs nbclient and ipykernel, of the extra [test]")
pytest.importorskip("ipykernel", reason="needs nbclient and ipykernel, of the extra [test]")
ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "notebooks"


def printed(path):
    """The text of every code cell's output, and how many code cells there are."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    texts = ["".join(line for output in cell["outputs"] for line in output.get("text", ())) for cell in cells]
    return len(cells), "\n".join(texts)


def like(text, shown):
    """Whether words are the same and numbers close: trained models differ a little between processors."""
    words = [re.findall(r"[^\W\d]+", one) for one in (text, shown)]
    numbers = [[float(n) for n in re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", one)] for one in (text, shown)]
    return words[0] == words[1] and numbers[0] == pytest.approx(numbers[1], rel=0.1, abs=0.03)


def test_a_number_that_moved_is_not_alike():
    assert like("epsilon >= 2.06, accuracy 0.906", "epsilon >= 2.06, accuracy 0.911")
    assert not like("epsilon >= 2.06", "epsilon >= 3.06")
    assert not like("epsilon >= 2.06", "epsilon <= 2.06 or so")


def test_the_first_cell_installs_the_package_where_it_is_missing():
    name = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["name"]
    for path in FOLDER.glob("*.ipynb"):
        first, *others = ("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
        assert first.splitlines()[-2:] == [
            'if importlib.util.find_spec("dpzv_audit") is None:',
            f"    %pip install --quiet {name}",
        ]
        assert not re.search(r"\bdocs/|[\"']/\w+/", "".join(others)), path  # what lies in a checkout alone


NOTEBOOKS = {
    "how-private-is-dpzv": pytest.mark.slow,
    "own-federation": pytest.mark.slow,
    "own-mechanism": pytest.mark.slow,
    "python": pytest.mark.ci,
}


def test_every_notebook_is_run():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize("name", [pytest.param(name, marks=mark) for name, mark in NOTEBOOKS.items()])
def test_a_notebook_runs_and_shows_what_it_prints(name, tmp_path):
    environment = {"PYTHONPATH": str(ROOT), **os.environ, "OMP_NUM_THREADS": "1", "JUPYTER_PLATFORM_DIRS": "1"}
    command = [sys.executable, FOLDER / "run.py", name, "--out", tmp_path]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (count, text), (kept, shown) = printed(tmp_path / f"{name}.ipynb"), printed(FOLDER / f"{name}.ipynb")
    assert count == kept
    assert like(text, shown), f"{name} is stale, python examples/notebooks/run.py {name} writes it anew:\n{text}"
    assert count >= 5
    assert not re.search(r"\bnan\b|Traceback", text)
