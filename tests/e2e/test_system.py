"""A system of the user's own by the installed command: the example is attacked, and what is wrong is one line."""

import difflib
import shutil
from pathlib import Path

import pytest

from .conftest import refusal

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "system"
MOST_LINES = 10


@pytest.fixture
def folder(tmp_path):
    for file in EXAMPLES.glob("*.py"):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_the_loop_needs_at_most_ten_lines():
    """Lines of code that are added or changed, as diff counts them."""
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("loop.py", "our_vfl.py"))
    changed = [line for line in difflib.ndiff(before, after) if line.startswith("+ ") and line[2:].strip()]
    code = [line for line in changed if not line[2:].startswith('"""')]
    assert 0 < len(code) <= MOST_LINES


@pytest.mark.parametrize(("attack", "least"), [("label_direction", 0.99), ("label_norm", 0.9)])
def test_labels_leak_without_noise_and_hide_with_it(tool, folder, attack, least):
    options = ("--attack", attack, "--trials", "8", "--out", folder / "runs")
    clear = tool.json("attack", "--system", "our_vfl:train", *options, cwd=folder)
    noisy = tool.json("attack", "--system", "noisy_vfl:train", *options, cwd=folder)
    assert clear["method"] == "system:our_vfl:train"
    assert clear["success"]["value"] >= least
    assert noisy["success"]["value"] < 0.7
    for found in (clear, noisy):
        assert found["controls"]["shuffled_labels"]["p_value"] > 1e-3
        assert found["controls"]["positive"]["value"] >= found["controls"]["positive"]["expected"]
        assert set(found["baselines"]) == {"a constant score"}
        assert found["utility"]["test_accuracy"]["value"] > 0.9
    assert clear["privacy"]["upper"] is None
    assert clear["privacy"]["gap"] == "no-release"
    assert noisy["privacy"]["upper"] is None
    assert "server-state" in noisy["privacy"]["gap"]
    assert clear["certified"]["epsilon_lower"] >= 4.0


def test_data_of_the_tool_go_into_a_system(tool, folder):
    found = tool.json(
        *("attack", "--system", "our_vfl:train", "--attack", "label_direction", "--trials", "4"),
        *("--dataset", "breast-cancer", "--clients", "2", "--out", folder / "runs"),
        cwd=folder,
    )
    assert found["dataset"] == "breast-cancer"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--system", "our_vfl"), "--system is 'our_vfl', must be module:function, such as our_vfl:train"),
        (("--system", "nowhere:train"), "system nowhere:train: importing nowhere failed: ModuleNotFoundError"),
        (("--system", "our_vfl:tarin"), "system our_vfl:tarin: our_vfl has no callable tarin, must have one"),
        (("--system", "our_vfl:train", "--epsilon", "1"), "--epsilon does not apply to --system"),
        (("--system", "our_vfl:train", "--set", "sampler=poisson"), "--set does not apply to --system"),
        (("--system", "our_vfl:train", "--attack", "label_probe"), "label_probe does not apply"),
    ],
)
def test_what_is_wrong_is_one_line(tool, folder, arguments, words):
    done = tool("attack", *arguments, "--out", folder / "runs", cwd=folder)
    assert words in refusal(done, 2)
    assert not (folder / "runs").exists()


def test_a_training_that_fails_is_one_line(tool, folder):
    (folder / "mine.py").write_text("def train(task, record, seed):\n    raise RuntimeError('no such layer')\n")
    done = tool("attack", "--system", "mine:train", "--attack", "label_norm", cwd=folder)
    line = refusal(done, 3)
    assert "system mine:train: the rehearsal raised RuntimeError: no such layer" in line
