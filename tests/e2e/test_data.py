"""One's own table through every command that trains, and the flags that say which data through each of them."""

import json

import pytest

CUT = ("--columns", "age,region", "--columns", "balance", "--categories", "region", "--scales", "age=100,balance=1000")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """400 rows whose label follows from two columns at two clients."""
    rows = [(20 + i % 50, ("north", "south")[i % 2], (37 * i) % 1000) for i in range(400)]
    lines = [f"{a},{r},{b},{'yes' if (r == 'north') == (b > 500) else 'no'}" for a, r, b in rows]
    path = tmp_path_factory.mktemp("table") / "own.csv"
    path.write_text("\n".join(["age,region,balance,churned", *lines]) + "\n")
    return path


def test_a_table_trains_and_its_report_says_what_it_is(tool, table, tmp_path):
    flags = ("--csv", table, "--label", "churned", *CUT)
    result = tool.json("train", "--method", "split", *flags, "--epochs", "30", "--out", tmp_path / "runs")
    assert result["dataset"] == "csv:own.csv"
    assert result["data"]["partition"] == "2 clients, columns: age, region; balance"
    assert result["data"]["notes"] == ["the set of classes was read off the label column 'churned'"]
    utility = result["utility"]
    # the exclusive or of two clients' columns: no rule of one client, and no constant, knows more than half
    assert utility["test_accuracy"]["low"] > utility["controls"]["majority"]
    (folder,) = (tmp_path / "runs").iterdir()
    assert "csv-own-csv" in folder.name
    page = (folder / "report.html").read_text()
    assert "was read off the label column" in page
    stored = json.loads((folder / "result.json").read_text())
    assert str(table) in stored["command_line"]


@pytest.mark.parametrize("command", ["attack", "audit"])
def test_a_table_is_attacked_and_audited(tool, table, tmp_path, command):
    sizes = ("--epochs", "2", "--batch-size", "16", "--out", tmp_path / "runs")
    sizes += ("--runs", "0", "--trials", "1", "--alone") if command == "attack" else ("--runs", "30")
    method = ("attack", "--method", "dpzv") if command == "attack" else ("audit", "method", "dpzv")
    result = tool.json(*method, "--csv", table, "--label", "churned", *CUT, *sizes)
    assert result["dataset"] == "csv:own.csv"
    assert len(result["privacy"]["bounds"]) > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("attack", "--label", "y"), "--label goes with --csv"),
        (("train", "--csv", "own.csv"), "--label COLUMN is missing"),
        (("train", "--csv", "own.csv", "--label", "churn"), "--label is 'churn': did you mean 'churned'"),
        (("audit", "method", "dpzv", "--subset"), "--subset does not apply to digits"),
    ],
    ids=str,
)
def test_a_wrong_flag_is_one_line_in_every_command(tool, refused, table, arguments, words):
    assert words in refused(tool(*arguments, cwd=table.parent), 2)


def test_slow_clients_make_the_reported_rows_older(tool, tmp_path):
    means = {}
    for name, times in (("even", "[1, 1, 1, 1]"), ("slow", "[1, 1, 1, 9]")):
        flags = ("--method", "vafl", "--epochs", "12", "--no-controls", "--set", f"compute_times={times}")
        result = tool.json("train", *flags, "--out", tmp_path / name)
        means[name] = result["staleness"]["mean_by_client"]
        (folder,) = (tmp_path / name).iterdir()
        assert "Age of the rows that the server read" in (folder / "report.html").read_text()
    assert means["slow"]["client 4"] > 1.5 * means["even"]["client 4"]
