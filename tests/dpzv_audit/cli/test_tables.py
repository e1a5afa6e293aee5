import io
import re

import pytest
from rich.console import Console
from rich.table import Table

from dpzv_audit.cli.output import FOLDED_WIDTH, Output, print_table

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
        ("audit scores in.csv out.csv --epsilon 1 --verbose", 0, ("1.377", "3.637", "0.851", "6.42", "40.56")),
        ("verify claims.toml --no-cache --verbose", 1, ("≤ 0.5", "≥ 1.", "refuted", "claim")),
        (f"{ACCOUNT} --neighbours replace-label", 0, ("advanced-composition", "sound *", "(0.")),
    ],
)
@pytest.mark.parametrize("width", ["20", "40", "60"])
def test_tables_keep_their_numbers_on_a_narrow_terminal(arguments, code, numbers, width, scores, monkeypatch, cli):
    monkeypatch.setenv("COLUMNS", width)
    done = cli(arguments)
    assert done.code == code
    assert [number for number in numbers if number not in done.out] == []
    assert "…" not in done.out


def test_planted_mechanisms_keep_names_numbers_and_verdicts(scores, monkeypatch):
    from dpzv_audit.cli.summary import planted_table
    from dpzv_audit.results import PlantedResult, PlantedRow

    row = PlantedRow(
        name="sensitivity-halved",
        bug="",
        adversary="client",
        neighbours="add-remove",
        score="one",
        runs=1,
        claimed=1.0,
        delta=1e-5,
        empirical_lower=21.0434,
        upper=None,
        gap="unbounded-participation",
        expected=["overclaimed", "a"],
        verdict="supported",
        as_expected=False,
        games={},
    )
    result = PlantedResult(method="planted:all", rows=[row], sentence="", confidence=0.95, seed=0, versions={})
    file = io.StringIO()
    print_table(Console(file=file, width=40), planted_table(result))
    text = file.getvalue()
    for whole in ("sensitivity-halved", " 1 ", "21.04", "supported (!)"):
        assert whole in text
    assert "…" not in text


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
