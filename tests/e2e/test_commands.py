import json
import re
import shlex

import numpy as np
import pytest
import typer

from dpzv_audit.cli import app
from dpzv_audit.cli.commands import Audits, Commands, summary

COMMANDS = (
    *("attack", "audit", "hunt", "matrix", "account", "calibrate", "verify", "train", "reproduce"),
    *("list", "report", "view"),
)
"""Every command, in the order in which help lists them."""
WHAT = {
    "methods": "dpzv",
    "attacks": "label_direct",
    "datasets": "digits",
    "accountants": "gdp-exact",
    "estimators": "clopper-pearson",
    "adversaries": "client",
}
RELEASE = ("--batch-size", "64", "--dataset-size", "1408", "--rounds", "176", "--clip", "10", "--clients", "4")


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    """Scores of a Gaussian mechanism with mu = 1, in two files under either of the names that examples use."""
    folder = tmp_path_factory.mktemp("scores")
    rng = np.random.default_rng(0)
    for inside, outside in (("in.csv", "out.csv"), ("ones.csv", "zeros.csv")):
        np.savetxt(folder / inside, rng.normal(1.0, 1.0, 2000))
        np.savetxt(folder / outside, rng.normal(0.0, 1.0, 2000))
    return folder


def examples(text):
    """Arguments of every example in a help text; lines are joined as a reader would join them."""
    found = re.findall(r"Example:\s+dpzv-audit (.+?)(?=\n\s*\n|\Z)", text, flags=re.DOTALL)
    return [shlex.split(re.sub(r"(?<=\w)-\n\s+", "-", example)) for example in found]


def test_help_lists_the_commands_in_order(tool):
    done = tool("--help")
    assert done.returncode == 0
    shown = re.findall(r"^  ([a-z]+)  ", done.stdout, flags=re.MULTILINE)
    assert tuple(shown) == tuple(Commands.TABLE) == COMMANDS


@pytest.mark.parametrize("group", [Commands, Audits])
def test_the_list_says_of_each_command_what_its_own_help_does(group):
    commands = group(name="commands")
    for name, place in group.TABLE.items():
        assert commands.get_command(None, name).help.partition("\n")[0] == summary(place)


def test_no_arguments_show_the_help(tool):
    assert tool().stdout == tool("--help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_parses(tool, name):
    command = typer.main.get_command(app)
    shown = examples(tool(name, "--help").stdout)
    assert shown, f"the help of {name} has no example"
    for arguments in shown:
        assert arguments[0] == name
        context = command.make_context("dpzv-audit", arguments.copy())
        context.command.get_command(context, name).make_context(name, arguments[1:], parent=context)


@pytest.mark.ci
def test_cheap_examples_run_as_printed(tool, scores, main_run):
    ran = []
    for name in ("account", "audit", "list", "report"):
        for arguments in examples(tool(name, "--help").stdout):
            if {"--method", "method", "system", "mechanism", "coverage"} & set(arguments):
                continue  # trains, or audits many mechanisms, for a minute
            where = main_run[1].parent.parent if name == "report" else scores
            words = [str(p) for word in arguments for p in (sorted(where.glob(word)) if "*" in word else [word])]
            done = tool(*words, cwd=where)
            assert done.returncode in ((0, 1) if "--fail-on" in words else (0,)), done.stderr
            ran.append(name)
    assert set(ran) == {"account", "audit", "list", "report"}


def test_train_contract(tool, tmp_path):
    result = tool.json("train", "--epochs", "2", "--trials", "2", "--out", tmp_path / "runs")
    assert result["schema"] == "dpzv-audit/train/1"
    assert {"majority", "frozen-clients", "frozen-clients-tuned"} == set(result["utility"]["controls"])
    assert result["bytes"]["up"] > result["bytes"]["down"] > 0
    assert result["rounds"] == 2 * (1408 // 64)
    assert result["peak_memory_mb"] > 0
    assert result["wall_seconds"] > 0
    assert [row["epoch"] for row in result["utility"]["history"]] == [1, 2]
    last = result["utility"]["history"][-1]
    assert (last["bytes_up"], last["bytes_down"]) == (result["bytes"]["up"], result["bytes"]["down"])
    assert sum(row["share"] for row in result["staleness"]["distribution"]) == pytest.approx(1.0)
    (folder,) = (tmp_path / "runs").iterdir()
    names = {"result.json", "measured.json", "report.html", "models.safetensors"}
    names |= {"figure-accuracy.svg", "figure-bytes.svg", "figure-staleness.svg"}
    assert names <= {path.name for path in folder.iterdir()}
    stored = json.loads((folder / "result.json").read_text())
    assert not {"wall_seconds", "peak_memory_mb"} & set(stored), "a result is a function of settings and seed"
    assert "wall time" in (folder / "report.html").read_text()


@pytest.mark.parametrize("noise", [("--sigma", "0.7"), ("--epsilon", "1")])
def test_account_contract(tool, noise):
    result = tool.json("account", *RELEASE, *noise)
    assert {"release", "bounds"} <= set(result)
    assert result["release"]["batch_size"] == 64
    assert result["bounds"]
    for bound in result["bounds"]:
        assert {"accountant", "adversary", "neighbours", "epsilon", "sound", "gap"} <= set(bound)
        assert isinstance(bound["sound"], bool)
        if bound["epsilon"] is None:
            assert bound["gap"]
        else:
            assert {"lower", "estimate", "upper"} == set(bound["epsilon"])
            assert bound["epsilon"]["lower"] <= bound["epsilon"]["upper"]
        assert (bound["gap"] is None) == bound["sound"]


@pytest.mark.ci
def test_account_agrees_with_the_main_command(tool, main_run):
    """One release, described to `account` by hand, has the upper bound that the main command prints."""
    privacy = main_run[0]["privacy"]
    result = tool.json(
        "account",
        *RELEASE,
        *("--epsilon", "1", "--delta", "1e-5", "--adversary", "client", "--neighbours", "replace-label"),
        *("--participations", str(privacy["release"]["participations"])),
    )
    exact = [bound for bound in result["bounds"] if bound["accountant"] == "gdp-exact"]
    assert [bound["epsilon"]["upper"] for bound in exact] == [pytest.approx(privacy["upper"], rel=1e-12)]


def test_audit_of_scores_contract(tool, scores):
    result = tool.json("audit", "scores", "in.csv", "out.csv", "--delta", "1e-5", cwd=scores)
    assert result["estimators"]
    for bound in result["estimators"]:
        assert {"name", "epsilon_lower", "confidence", "assumes"} <= set(bound)
    # mu = 1 means epsilon = 4.378 at delta 1e-5: no bound may be above it (it is one fixed pair of files).
    assert 0.0 < max(bound["epsilon_lower"] for bound in result["estimators"]) < 4.378


@pytest.mark.parametrize(("epsilon", "code"), [("0.1", 1), ("4.4", 0)])
def test_audit_fails_a_build_when_a_claim_is_refuted(tool, scores, epsilon, code):
    given = ("scores", "in.csv", "out.csv", "--epsilon", epsilon, "--fail-on", "refuted")
    done = tool("audit", *given, cwd=scores)
    assert (done.returncode, done.stderr) == (code, "")
    assert "refute" in done.stdout


@pytest.mark.parametrize("what", WHAT)
def test_list(tool, what):
    result = tool.json("list", what)
    items = {item["name"]: item["summary"] for item in result["items"]}
    assert WHAT[what] in items
    assert all(items.values())


def test_report_draws_again_from_the_result_alone(tool, main_run, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("result.json", "environment.json"):  # the second has the date and the version of a page
        (folder / name).write_bytes((main_run[1] / name).read_bytes())
    result = tool.json("report", folder)
    assert result["runs"][0]["run"] == str(folder)
    assert (folder / "report.html").read_bytes() == (main_run[1] / "report.html").read_bytes()
    assert (folder / "report.md").read_bytes() == (main_run[1] / "report.md").read_bytes()
    assert (folder / "result.json").read_bytes() == (main_run[1] / "result.json").read_bytes()


def test_what_is_printed_is_what_is_stored(tool, main_run):
    """Readable output and JSON of one command agree."""
    done = tool("list", "methods")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        item["name"] for item in json.loads(tool("list", "methods", "--json").stdout)["items"]
    ]
    assert done.stderr == ""
