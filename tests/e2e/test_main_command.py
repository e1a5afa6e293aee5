import io
import json
import re

import pytest
from rich.console import Console

from dpzv_audit.base.rounding import up
from dpzv_audit.cli.output import _show
from dpzv_audit.results import read
from reports.answer import answer_of

SMALL = ("--runs", "200", "--trials", "4", "--epochs", "8", "--seed")


def test_the_json_contract(main_run):
    printed, _ = main_run
    assert printed["schema"] == "dpzv-audit/attack/1"
    named = {key: printed[key] for key in ("method", "dataset", "attack", "adversary")}
    assert named == {"method": "dpzv", "dataset": "digits", "attack": "label_direct", "adversary": "client"}
    assert {"value", "low", "high", "n"} <= set(printed["success"])
    assert set(printed["baselines"]) == {"majority", "prior"}
    assert {"value", "low", "high", "n"} <= set(printed["controls"]["shuffled_labels"])
    assert {"claimed", "upper", "gap", "empirical_lower"} <= set(printed["privacy"])


def test_the_numbers_are_of_the_right_kind(main_run):
    printed, _ = main_run
    for rate in (printed["success"], *printed["controls"].values()):
        assert 0.0 <= rate["low"] <= rate["value"] <= rate["high"] <= 1.0
        assert rate["n"] > 0
    privacy = printed["privacy"]
    assert privacy["claimed"] == 1.0
    assert privacy["gap"] is None
    # The paper's calibration takes mu down by the sampling rate, which does not hold against a client: the sound
    # bound is far above the claim, and 200 runs in each world cannot certify more than it.
    assert privacy["upper"] > privacy["claimed"]
    assert 0.0 <= privacy["empirical_lower"] <= privacy["upper"]
    certified = printed["certified"]
    assert certified["name"] == "one-run"
    assert certified["assumes"] == ""
    assert certified["neighbours"] == "replace-label"
    assert 0.0 <= certified["epsilon_lower"] <= privacy["upper"]


def test_the_controls_behave(main_run):
    printed, _ = main_run
    assert printed["controls"]["positive"]["value"] == 1.0
    shuffled = printed["controls"]["shuffled_labels"]
    assert shuffled["low"] <= printed["baselines"]["majority"]


def test_a_stronger_attack_and_a_method_without_noise_stand_beside_it(main_run):
    printed, folder = main_run
    other, plain = printed["beside"]
    assert (other["method"], plain["method"]) == ("dpzv", "split")
    assert other["attack"] not in ("label_direct", None)
    assert other["upper"] == printed["privacy"]["upper"]
    assert plain["upper"] is None
    assert plain["attack"] == "label_direct"
    assert plain["success"] > 0.99
    for cell in (other, plain):
        assert cell["control"] < 0.2
        assert cell["control_p"] is not None
        own = json.loads((folder / cell["run"]).with_name("result.json").read_text())
        assert own["success"]["value"] == cell["success"]
        assert (folder / cell["run"]).read_text().startswith("<!doctype html>")
    assert f"On the same system {other['attack']}" in printed["sentence"]


def test_the_run_folder_is_whole(main_run):
    printed, folder = main_run
    assert re.fullmatch(r"\d{8}-\d{6}-attack-dpzv-digits-label_direct-seed0", folder.name)
    names = {path.name for path in folder.iterdir()}
    assert {"result.json", "report.html", "report.md", "environment.json"} <= names
    assert {"figure-success.svg", "figure-tradeoff.svg"} <= names
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    stored = json.loads((folder / "result.json").read_text())
    assert stored.pop("command_line") == ["dpzv-audit", "attack", *SMALL, "0"]
    assert {**stored, "run": str(folder)} == {k: v for k, v in printed.items() if k != "command_line"}


def test_the_report_tells_the_result_and_needs_no_network(main_run):
    printed, folder = main_run
    page = (folder / "report.html").read_text()
    privacy = printed["privacy"]
    assert f"ε ≤ {up(privacy['upper'], beside=privacy['claimed'])}" in page
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    assert "<script" not in page
    assert (folder / "report.md").read_text().startswith("# ")


def test_it_prints_fifteen_lines_or_a_few_more(main_run):
    """At 80 columns: system, verdict, numbers, attacks, checks, the next step, and the report's path.

    A training that is too short to learn adds the two lines and 18 words of its warning. A control that fails may fold,
    and adds four words to the checks and two to the attack.
    """
    printed, folder = main_run
    stream = io.StringIO()
    console = Console(file=stream, width=80, highlight=False)
    _show(console, answer_of(read(json.loads((folder / "result.json").read_text()))[0]))
    warned = stream.getvalue().count("the model has not learnt")
    folded = stream.getvalue().count("controls of ")
    shown = f"{stream.getvalue()}Report: {folder.name}/report.html\n"
    assert len(shown.splitlines()) <= 18 + 2 * warned + folded
    assert len(shown.split()) <= 130 + 18 * warned + 6 * folded
    assert all(len(line) <= 80 for line in shown.splitlines() if "dpzv-audit" not in line and "report.html" not in line)
    for words in ("dpzv on digits", f"proven    epsilon <= {up(printed['privacy']['upper'])}", "Checks: ", "Next: "):
        assert words in shown


def test_environment_says_how_to_repeat_it(main_run):
    _, folder = main_run
    facts = json.loads((folder / "environment.json").read_text())
    assert facts["command_line"][:2] == ["dpzv-audit", "attack"]
    assert facts["packages"]["torch"]


def measured(result):
    return result["privacy"]["estimators"][0]["epsilon_lower"]


@pytest.mark.ci
def test_the_same_seed_gives_the_same_bytes(tool, main_run, tmp_path):
    """From another folder, without --json, as a module."""
    done = tool("attack", *SMALL, "0", "--quiet", "--out", "runs", cwd=tmp_path, module=True)
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = (tmp_path / "runs").iterdir()
    assert done.stdout == f"runs/{folder.name}\n"
    first, second = ((run / "result.json").read_bytes() for run in (main_run[1], folder))
    assert first == second


@pytest.mark.slow
def test_another_seed_gives_other_numbers(tool, main_run, tmp_path):
    first, second = (tool.json("attack", *SMALL, seed, "--alone", "--out", tmp_path / seed) for seed in ("0", "1"))
    assert "beside" not in first
    assert [path.name for path in tmp_path.glob("0/*/*/")] == []
    assert measured(first) == measured(main_run[0]) != measured(second)
    assert first["success"]["value"] == main_run[0]["success"]["value"] != second["success"]["value"]
