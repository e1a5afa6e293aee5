"""CONTRIBUTING.md done to the letter in a copy of the packages: its method and its attack, a file and a line each.

The data set and the zeroth-order method are files of `examples/extension`, which tests/e2e/test_extension.py installs.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .loaded import blocks

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n+```python\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE))
EXAMPLES = {
    "signed": ("mechanisms/methods/signed.py", "mechanisms/methods/__init__.py", "METHODS"),
    "label_largest": ("attacks/label/largest.py", "attacks/__init__.py", "ATTACKS"),
}
OUTSIDE = {f"examples/extension/dpzv_audit_orchard/{name}.py" for name in ("orchard", "sign_feedback")}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The packages and their tests with both files in place, and both lines; the environment that runs them."""
    folder = tmp_path_factory.mktemp("contributing")
    environment = blocks.prepare(folder, checkout=True)
    assert {file for file, _, _ in EXAMPLES.values()} == set(FILES)
    for name, (file, registry, table) in EXAMPLES.items():
        # Both are imported when they are looked up, by the place that stands in the table.
        line = f'"{name}": "{file.removesuffix(".py").replace("/", ".")}:SPEC",'
        assert f"`{registry}`: put `{line}` into `{table}`" in TEXT.replace("\n", " ")
        (folder / file).write_text(FILES[file])
        entry = re.compile(rf"^({table}\b.*?)^(    [)}}],\n\))$", flags=re.DOTALL | re.MULTILINE)
        where = folder / registry
        where.write_text(entry.sub(rf"\1        {line}\n\2", where.read_text()))
    return folder, environment


def run(copy, command):
    folder, environment = copy
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def commands_about(name):
    """Commands of the page that have to do with an example, as it prints them."""
    found = [line for block in blocks.blocks(ROOT / "CONTRIBUTING.md") for line in block.text.splitlines()]
    return [line for line in found if re.match(r"(dpzv-audit|pytest) ", line) and name in line]


@pytest.mark.ci
def test_the_method_of_the_page_trains(copy):
    command = commands_about("signed")[0]
    assert command.startswith("dpzv-audit train --method signed")
    shown = run(copy, f"{command} --epochs 2 --no-controls --verbose")
    assert "signed on digits" in shown
    # 44 rounds of a float and one bit for each of 64 x 16 numbers.
    assert re.search(r"bytes down +│ +5,808 ", shown), shown


@pytest.mark.ci
def test_the_attack_of_the_page_passes_its_self_check(copy):
    command = commands_about("label_largest")[0]
    assert command.endswith("--self-check")
    assert run(copy, command).count("holds: ") == 2


@pytest.mark.parametrize("file", sorted(OUTSIDE))
def test_what_stands_outside_is_named_on_the_page_and_there(file):
    assert f"`{file}`" in TEXT
    assert (ROOT / file).exists()


def test_the_page_has_2000_words_with_its_code_at_most():
    assert len(TEXT.split()) <= 2000


def test_the_entry_points_of_the_page_are_those_of_the_example():
    (shown,) = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)
    assert shown in (ROOT / "examples" / "extension" / "pyproject.toml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_command_of_the_page_about_it_runs(copy, name):
    commands = commands_about(name)
    assert {command.split()[0] for command in commands} == {"dpzv-audit", "pytest"}
    for command in commands:
        run(copy, command)
    assert os.listdir(copy[0] / "dpzv-runs")


@pytest.mark.slow
def test_coverage_is_measured_as_the_page_says(copy):
    pytest.importorskip("coverage")
    (block,) = (block for block in blocks.blocks(ROOT / "CONTRIBUTING.md") if "coverage run" in block.text)
    few = block.text.replace("-n 2", "-n 2 tests/attacks/core/test_proportions.py").rstrip()
    assert "is less than fail-under=90" in run(copy, f"{few}; test $? -eq 2")


@pytest.mark.slow
def test_a_page_is_made_anew_as_the_page_says(copy):
    (block,) = (block for block in blocks.blocks(ROOT / "CONTRIBUTING.md") if "docs/tour.py" in block.text)
    folder, _ = copy
    shutil.copytree(ROOT / "docs", folder / "docs", dirs_exist_ok=True)
    page = block.text.split()[-1]
    stale = re.sub(r"\d\.\d\d\d", "9.999", (ROOT / page).read_text())
    assert stale != (ROOT / page).read_text()
    (folder / page).write_text(stale)
    run(copy, block.text)
    assert (folder / page).read_text() == (ROOT / page).read_text()
