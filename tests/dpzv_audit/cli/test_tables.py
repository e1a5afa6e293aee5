import io
import re

import pytest
from rich.console import Console
from rich.table import Table

from dpzv_audit.cli.output import FOLDED_WIDTH, Answered, Output, print_table
from dpzv_audit.cli.summary import planted_table
from dpzv_audit.games.planted import PLANTED
from dpzv_audit.results import PlantedResult, PlantedRow

from ...helpers.scores import score_files


def printed(width, *rows, no_wrap=("number",)):
    table = Table(title="title")
    for name in ("words", "number", "more words"):
        table.add_column(name, no_wrap=name in no_wrap)
    for row in rows:
        table.add_row(*row)
    file = io.StringIO()
    print_table(Console(file=file, width=width), table)
    return file.getvalue()


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 200])
def test_numbers_are_whole_at_every_width(width):
    text = printed(width, ("a word", "1 234 567.8901", "some words of a reason"), ("b", "≥ 0.25", "averylongname" * 4))
    assert "1 234 567.8901" in text
    assert "≥ 0.25" in text
    assert "…" not in text


def test_no_letter_is_lost_where_words_fold():
    text = printed(20, ("x" * 31, "1", "y" * 23))
    assert text.count("x") == 31
    assert text.count("y") == 23
    assert max(len(run) for run in re.findall("x+", text)) == FOLDED_WIDTH


def test_a_system_is_no_emoji(capsys):
    print_table(Output().console, Table("system:key:train", title="system:three:train"))
    assert {"system:key:train", "system:three:train"} <= set(capsys.readouterr().out.replace("┃", " ").split())


def test_a_table_that_fits_is_as_wide_as_its_content():
    assert printed(80, ("a", "1", "b")) == printed(200, ("a", "1", "b")).replace(" " * 120, "")


@pytest.fixture
def scores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    score_files(tmp_path, 2000)
    claims = '[[claim]]\nname = "a claim of our own system"\nscores = { in = "in.csv", out = "out.csv" }\n'
    (tmp_path / "claims.toml").write_text(claims + "epsilon = 0.5\n")


ACCOUNT = "account --batch-size 64 --dataset-size 1408 --rounds 176 --clip 10 --sigma 1"


@pytest.mark.parametrize(
    ("arguments", "code", "numbers"),
    [
        ("audit scores in.csv out.csv --epsilon 1 --verbose", 0, ("1.37", "3.63", "0.851", "6.42", "40.5")),
        ("verify claims.toml --no-cache --verbose", 1, ("≤ 0.5", "≥ 1.", "refuted", "claim")),
        (f"{ACCOUNT} --neighbours replace-label --verbose", 0, ("advanced-composition", "sound *", "(0.")),
    ],
)
@pytest.mark.parametrize("width", ["20", "40", "60"])
def test_tables_keep_their_numbers_on_a_narrow_terminal(arguments, code, numbers, width, scores, monkeypatch, cli):
    monkeypatch.setenv("COLUMNS", width)
    done = cli(arguments)
    assert done.code == code
    assert [number for number in numbers if number not in done.out] == []
    assert "…" not in done.out


def planted(name, **changes):
    """Return a row of a planted mechanism that got the verdict it must get."""
    row = PlantedRow(
        name=name,
        bug="",
        adversary="client",
        neighbours="add-remove",
        score="sum",
        runs=1,
        claimed=1.0,
        delta=1e-5,
        empirical_lower=21.0434,
        upper=None,
        gap="unbounded-participation",
        expected=["refuted"],
        verdict="refuted",
        as_expected=True,
        games={},
    )
    return row.model_copy(update=changes)


def planted_result(rows):
    return PlantedResult(method="planted", rows=rows, sentence="", confidence=0.95, seed=0, versions={}, run="runs/x")


def test_planted_mechanisms_keep_names_numbers_and_verdicts():
    wrong = planted("sensitivity-halved", expected=["overclaimed", "a"], verdict="supported", as_expected=False)
    file = io.StringIO()
    print_table(Console(file=file, width=40), planted_table(planted_result([wrong])))
    text = file.getvalue()
    for whole in ("sensitivity-halved", " 1 ", " 21 ", "supported (!)", "must be", "overclaimed or a"):
        assert whole in text
    assert "…" not in text


def test_all_planted_mechanisms_are_an_answer_of_thirty_lines_and_the_wrong_one_comes_first(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    wrong = planted("theorem-5-1", verdict="supported", as_expected=False)
    rows = [planted(name) for name in PLANTED if name != wrong.name] + [wrong]
    table = planted_table(planted_result(rows))
    Answered().finish(planted_result(rows), table)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"NOT AS EXPECTED: {len(rows) - 1} of {len(rows)} planted mechanisms got the verdict")
    (first,) = [number for number, line in enumerate(lines) if line.startswith("Verdict")]
    assert lines[first + 1].split() == ["supported", "(right:", "refuted)", "theorem-5-1", "21"]
    printed_names = " ".join(" ".join(lines[first:]).split())
    assert all(f"{row.name} 21" in printed_names for row in rows)
    assert lines[-1] == "Report: runs/x/report.html"
    Answered(verbose=True).finish(planted_result(rows[:-1]), planted_table(planted_result(rows[:-1])))
    full = capsys.readouterr().out
    assert max(map(len, full.splitlines())) <= 80
    assert full.count("unbounded-participation") == len(rows) - 1
    assert "must be" not in full  # all are as expected


def test_a_confidence_below_one_is_never_printed_as_certainty(scores, cli):
    done = cli("audit scores in.csv out.csv --confidence 0.999999999")
    assert done.code == 0
    assert "99.9999999%" in done.out
    assert "100%" not in done.out


def test_a_name_of_several_lines_adds_no_row(tmp_path, cli):
    table = tmp_path / "a\nepsilon at least | 9.\ncsv"
    table.write_text("x,y,label\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(120)))
    data = f"--csv '{table}' --label label --clients 2 --scales x=7,y=5"
    short = f"--epochs 1 --trials 1 --batch-size 16 --no-controls --out {tmp_path}/runs"
    done = cli(f"train --method dpzv {data} {short}")
    assert done.code == 0
    assert "csv:a\\nepsilon at least" in done.out
    assert "\nepsilon at least" not in done.out
