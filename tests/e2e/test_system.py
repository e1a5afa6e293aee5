"""A system of the user's own by the installed command: the example is attacked, and what is wrong is one line."""

import difflib
import re
import shutil
from pathlib import Path

import pytest

from dpzv_audit.base.rounding import down

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


@pytest.mark.ci
@pytest.mark.parametrize(
    ("attack", "least"), [("label_direction", 0.99), pytest.param("label_norm", 0.9, marks=pytest.mark.slow)]
)
def test_labels_leak_without_noise_and_hide_with_it(tool, folder, attack, least):
    options = ("--attack", attack, "--trials", "8", "--out", folder / "runs")
    clear = tool.json("attack", "--system", "our_vfl:train", *options, cwd=folder)
    noisy = tool.json("attack", "--system", "noisy_vfl:train", *options, cwd=folder)
    assert clear["method"] == "system:our_vfl:train"
    assert clear["success"]["value"] >= least
    assert noisy["success"]["value"] < 0.7
    for result in (clear, noisy):
        assert result["controls"]["shuffled_labels"]["p_value"] > 1e-3
        assert result["controls"]["positive"]["value"] >= result["controls"]["positive"]["expected"]
        assert set(result["baselines"]) == {"a constant score"}
        assert result["utility"]["test_accuracy"]["value"] > 0.9
    assert clear["privacy"]["upper"] is None
    assert clear["privacy"]["gap"] == "no-release"
    assert noisy["privacy"]["upper"] is None
    assert "server-state" in noisy["privacy"]["gap"]
    assert clear["certified"]["epsilon_lower"] >= 4.0


def test_a_release_is_drafted_ready_to_paste(tool, folder):
    attacked = (
        "attack",
        "--system",
        "our_vfl:train",
        "--attack",
        "label_norm",
        "--trials",
        "2",
        "--out",
        folder / "runs",
    )
    printed = tool(*attacked, "--verbose", cwd=folder).stdout
    assert "def releases" not in tool(*attacked, cwd=folder).stdout
    draft = re.search(r"\ndef releases\(task\):\n    return \{\n.*?\n    \}\n", printed, re.DOTALL).group()
    (folder / "half.py").write_text(f"from our_vfl import *\n\n\n{draft}")
    assert "clip: use a finite number above 0" in refusal(
        tool("attack", "--system", "half:train", "--attack", "label_norm", "--out", folder / "runs", cwd=folder), 2
    )
    filled = draft.replace('"clip": ...', '"clip": 0.1').replace('"sigma": ...', '"sigma": 1e-9')
    (folder / "filled.py").write_text(f"from our_vfl import *\n\n\n{filled}")
    arguments = ("--system", "filled:train", "--attack", "label_norm", "--trials", "2", "--out", folder / "runs")
    found = tool.json("attack", *arguments, cwd=folder)
    assert "server-state" in found["privacy"]["gap"]
    assert "def releases" not in tool("attack", *arguments, "--verbose", cwd=folder).stdout


def test_data_of_the_tool_go_into_a_system(tool, folder):
    result = tool.json(
        *("attack", "--system", "our_vfl:train", "--attack", "label_direction", "--trials", "4"),
        *("--dataset", "breast-cancer", "--clients", "2", "--out", folder / "runs"),
        cwd=folder,
    )
    assert result["dataset"] == "breast-cancer"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--system", "our_vfl"), "--system is 'our_vfl'; use module:function, such as our_vfl:train"),
        (("--system", "our_vfl.py:train"), "--system is 'our_vfl.py:train'; use our_vfl:train, in the folder"),
        (("--system", "nowhere:train"), "system nowhere:train: importing nowhere failed: ModuleNotFoundError"),
        (("--system", "our_vfl:tarin"), "system our_vfl:tarin: our_vfl has no callable tarin"),
        (("--system", "our_vfl:train", "--epsilon", "1"), "--epsilon does not apply to --system"),
        (("--system", "our_vfl:train", "--set", "sampler=poisson"), "--set does not apply to --system"),
        (("--system", "our_vfl:train", "--method", "split"), "--method does not go with --system"),
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


SMALL = """
import torch
from torch import nn
from sklearn.datasets import load_breast_cancer


def data():
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    return {"features": [x[:, :15], x[:, 15:]], "labels": y}


def train(task, record, seed):
    x, y = task.torch()
    bottoms = [nn.Linear(15, 4), nn.Linear(15, 4)]
    top = nn.Linear(8, 2)
    optimizer = torch.optim.Adam([p for model in (*bottoms, top) for p in model.parameters()], lr=0.01)
    for r, ids in enumerate(torch.randperm(len(y)).split(50)):
        h = [record.cut(m + 1, r, ids)(bottom(x[m][ids])) for m, bottom in enumerate(bottoms)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(top(torch.cat(h, 1)), y[ids]).backward()
        optimizer.step()
    return {"predict": lambda blocks: top(torch.cat([b(x) for b, x in zip(bottoms, blocks)], 1))}
"""


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.py").write_text(SMALL)
    return tmp_path


@pytest.mark.slow
def test_all_attacks_share_one_error_rate_and_the_largest_comes_first(tool, small):
    options = ("--system", "small:train", "--trials", "2", "--adversary", "client", "--out", small / "runs")
    every = tool.json("attack", "--attack", "all", *options, cwd=small)
    assert every["schema"] == "dpzv-audit/attacks/1"
    assert every["method"] == "system:small:train"
    measured = [entry for entry in every["attacks"] if entry["state"] == "measured"]
    damages = [entry["damage"] for entry in measured if entry["clear"]]
    assert measured[0]["attack"] == "label_enumeration"
    assert damages == sorted(damages, reverse=True)
    assert every["mounted"] == len(measured)
    # The coin game is one of those that share it.
    assert every["confidence_each"] == pytest.approx(1 - 0.05 / (len(measured) + 1))
    game = every["coin_game"]
    assert 0.0 < game["epsilon_lower"] <= game["ceiling"]
    assert game["command"] == "dpzv-audit audit system small:train"
    assert f"certifies an epsilon of {down(game['epsilon_lower'])} for replace-label" in every["sentence"]
    # Each number is that of the attack alone, at that confidence.
    alone = tool.json("attack", "--attack", "label_norm", "--confidence", every["confidence_each"], *options, cwd=small)
    (norm,) = [entry for entry in measured if entry["attack"] == "label_norm"]
    assert [norm[key] for key in ("success", "low", "high")] == [
        alone["success"][key] for key in ("value", "low", "high")
    ]
    assert norm["certified"] == alone["certified"]["epsilon_lower"]
    assert (Path(every["run"]) / norm["run"]).is_file()
    reasons = {entry["attack"]: entry["reason"] for entry in every["attacks"] if entry["state"] == "does not apply"}
    assert 'let it return {"clients": {1: bottom}}' in reasons["label_spectral"]
    assert "a module whose server does so states top_model = False" in reasons["label_direct"]
    page = (Path(every["run"]) / "report.md").read_text()
    assert "Attacks that do not apply" in page
    assert "Everything else" not in page


def test_what_belongs_to_one_attack_does_not_go_with_all(tool, small):
    done = tool("attack", "--system", "small:train", "--attack", "all", "--runs", "9", cwd=small)
    assert "--runs goes with one attack, not with --attack all" in refusal(done, 2)


@pytest.mark.slow
def test_the_game_certifies_an_epsilon_of_a_system(tool, folder):
    """Without noise near its ceiling, and little with it; a claim of 4 is refuted in one line of a gate."""
    options = ("--out", folder / "runs")
    clear = tool.json("audit", "system", "our_vfl:train", *options, cwd=folder)
    noisy = tool.json("audit", "system", "noisy_vfl:train", *options, cwd=folder)
    (bound,) = clear["privacy"]["estimators"]
    assert clear["method"] == "system:our_vfl:train"
    assert 4.0 <= clear["privacy"]["empirical_lower"] == bound["epsilon_lower"] <= bound["ceiling"] < 7.0
    assert bound["name"] == "one-run"
    assert clear["privacy"]["neighbours"] == "replace-label"
    assert clear["privacy"]["upper"] is None
    assert clear["game"]["adversary"] == "client"
    assert "blind to raw coordinates" in clear["warnings"][0]
    assert noisy["privacy"]["empirical_lower"] < 3.0
    assert noisy["privacy"]["gap"] == "server-state, floating-point"
    refuted = tool("audit", "system", "our_vfl:train", "--epsilon", "4", "--fail-on", "refuted", *options, cwd=folder)
    assert refuted.returncode == 1
    assert "refutes the claimed epsilon of 4" in " ".join(refuted.stdout.split())


@pytest.mark.ci
def test_a_claimed_epsilon_is_put_to_the_game(tool, folder):
    """One line of a build: no noise, so refuted, although no release is stated; and too bold to be tested, so told."""
    plain = '[[claim]]\nname = "plain"\nsystem = "our_vfl:train"\nepsilon = 2.0\n'
    bold = '[[claim]]\nname = "bold"\nsystem = "our_vfl:train"\nepsilon = 9.0\n'
    (folder / "claims.toml").write_text(plain + bold)
    done = tool(
        "verify", "claims.toml", "--trust-code", "--max-trials", "5", "--verbose", "--out", folder / "runs", cwd=folder
    )
    assert done.returncode == 1
    message = " ".join(done.stdout.split())
    assert re.search(
        r"plain: .*The audit measures epsilon of at least \d\.\d+ \(p [=<] .*\), which refutes the claimed 2\.", message
    )
    assert "claims.toml:5: claim 'bold' can never be refuted: 6,340 coins can certify at most " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("audit", "system", "nowhere:train"), "system nowhere:train: importing nowhere failed: ModuleNotFoundError"),
        (("audit", "system", "our_vfl:train", "--adversary", "server"), "--adversary is 'server'"),
        (("audit", "system", "our_vfl:train", "--trial-seconds", "0.01"), "took longer than --trial-seconds 0.01"),
    ],
)
def test_what_is_wrong_with_a_game_is_one_line(tool, folder, arguments, words):
    done = tool(*arguments, "--out", folder / "runs", cwd=folder)
    assert words in refusal(done, 3 if "seconds" in words else 2)


@pytest.mark.slow
def test_a_system_is_trained_alone_beside_the_majority(tool, small):
    options = ("--system", "small:train", "--out", small / "runs")
    trained = tool.json("train", *options, "--trials", "2", cwd=small)
    assert trained["method"] == "system:small:train"
    assert trained["utility"]["test_accuracy"]["value"] > 0.8
    assert set(trained["utility"]["controls"]) == {"majority"}
    assert trained["staleness"] is None
    assert trained["privacy"]["gap"] == "no-release"
    assert (Path(trained["run"]) / "models.safetensors").is_file()
    assert not (small / "runs" / "trials").exists()
    # Its accuracy is that of the trainings that are attacked.
    attacked = tool.json("attack", *options, "--attack", "label_norm", "--trials", "2", cwd=small)
    assert attacked["utility"]["test_accuracy"] == trained["utility"]["test_accuracy"]
    silent = SMALL.replace('return {"predict"', 'return {} and {"predict"')
    (small / "silent.py").write_text(silent)
    done = tool("train", "--system", "silent:train", cwd=small)
    assert "system:silent:train returns nothing that predicts" in refusal(done, 2)


@pytest.mark.slow
def test_systems_stand_in_a_matrix_with_numbers_of_their_own(tool, small):
    noisy = SMALL.replace("(bottom(x[m][ids]))", "(bottom(x[m][ids]) + 9 * torch.randn(len(ids), 4))")
    (small / "noisy.py").write_text(noisy)
    arguments = ("--attacks", "label_norm,label_direct", "--trials", "2", "--no-self-check", "--out", small / "runs")
    methods = "vafl,system:small:train,system:noisy:train"
    result = tool.json("matrix", "--methods", methods, *arguments, "--jobs", "2", "--epochs", "1", cwd=small)
    cells = {(cell["attack"], cell["adversary"], cell["method"]): cell for cell in result["cells"]}
    assert cells["label_direct", "client", "vafl"]["state"] == "measured"
    assert "has 10 classes" in cells["label_norm", "client", "vafl"]["reason"]
    assert "top_model True, needs False" in cells["label_direct", "client", "system:small:train"]["reason"]
    norms = [cells["label_norm", "client", f"system:{name}:train"] for name in ("small", "noisy")]
    assert [cell["state"] for cell in norms] == ["measured", "measured"]
    alone = ("attack", "--system", "noisy:train", "--attack", "label_norm", "--trials", "2", "--out", small / "alone")
    assert tool.json(*alone, cwd=small)["success"]["value"] == norms[1]["success"]
    assert norms[0]["success"] != norms[1]["success"]
    (folder,) = (small / "runs").iterdir()
    assert not (folder / "trials").exists()


SERVING = """
import numpy as np
import torch
from torch import nn


def data():
    rng = np.random.default_rng(0)
    blocks = [rng.standard_normal((192, 12)) for _ in range(2)]
    return {"features": blocks, "labels": rng.integers(2, size=192)}


def train(task, record, seed):
    x, y = task.torch()
    ids = torch.arange(len(y))
    bottoms = [nn.Sequential(nn.Linear(12, 48), nn.ReLU()) for _ in x]
    top = nn.Linear(96, 1)
    optimizer = torch.optim.Adam([p for model in (*bottoms, top) for p in model.parameters()], lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        logits = top(torch.cat([bottom(block) for bottom, block in zip(bottoms, x)], 1)).squeeze(1)
        nn.functional.binary_cross_entropy_with_logits(logits, y.float()).backward()
        optimizer.step()
    with torch.no_grad(), record.evaluation():
        h = [record.cut(m + 1, 0, ids)(bottom(x[m])) for m, bottom in enumerate(bottoms)]
        SERVE
"""


@pytest.mark.slow
def test_predictions_of_an_evaluation_reach_the_attacks_that_read_them(tool, tmp_path):
    """Labels that features do not tell, learnt by heart: one logit of two classes is served for each record."""
    answer = 'record.sent(0, 0, 1, "prediction", top(torch.cat(h, 1)), ids)'
    (tmp_path / "serving.py").write_text(SERVING.replace("SERVE", answer))
    (tmp_path / "mute.py").write_text(SERVING.replace("SERVE", "pass"))
    options = ("--adversary", "client", "--trials", "4", "--out", tmp_path / "runs")
    every = tool.json("attack", "--system", "serving:train", "--attack", "all", *options, cwd=tmp_path)
    measured = {entry["attack"]: entry for entry in every["attacks"] if entry["state"] == "measured"}
    least = {"label_served": 0.99, "membership_lira": 0.65, "membership_loss": 0.6}
    assert set(measured) == set(least)
    for attack, entry in measured.items():
        assert entry["success"] >= least[attack]
        assert entry["certified"] > 0.5
    assert every["negative_controls"]["together_p"] > 1e-4
    mute = tool("attack", "--system", "mute:train", "--attack", "label_served", *options, cwd=tmp_path)
    assert 'record.sent(round, 0, 1, "prediction", logits, ids) where the server answers' in refusal(mute, 2)
