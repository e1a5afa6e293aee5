import json

import pytest
import typer
from typer.testing import CliRunner

from dpzv_audit.base.errors import InputError
from dpzv_audit.cli.flags import said
from dpzv_audit.cli.report import report

RUNNER = CliRunner()


@pytest.fixture
def app():
    made = typer.Typer(rich_markup_mode=None)
    made.command("report")(report)
    return made


def test_report_writes_html_and_markdown(app, run_folder):
    outcome = RUNNER.invoke(app, [str(run_folder)])
    assert outcome.exit_code == 0, outcome.output
    assert str(run_folder / "report.html") in outcome.stdout
    assert (run_folder / "report.md").is_file()
    assert (run_folder / "figure-success.svg").is_file()


def test_json_is_one_object_and_nothing_else(app, run_folder):
    outcome = RUNNER.invoke(app, [str(run_folder), "--json", "--format", "json", "--format", "html"])
    files = [str(run_folder / "report.html"), str(run_folder / "result.json")]
    assert json.loads(outcome.stdout) == {
        "schema": "dpzv-audit/report/1",
        "runs": [{"run": str(run_folder), "files": files}],
    }
    assert not (run_folder / "report.md").exists()


def test_a_summary_is_the_head_with_room_to_sign_and_no_fold(app, run_folder):
    outcome = RUNNER.invoke(app, [str(run_folder), "--summary", "--json"])
    files = [str(run_folder / "summary.html")]
    assert json.loads(outcome.stdout)["runs"] == [{"run": str(run_folder), "files": files}]
    assert not (run_folder / "report.html").exists()
    page = (run_folder / "summary.html").read_text("utf-8")
    for words in (
        "<h1>dpzv on digits: refuted</h1>",
        "What to do next",
        "<dt>Signature</dt>",
        "It approves no use.",
        "report.html in",
    ):
        assert words in page
    for left_out in ("<details", "<main", "<a ", "<section"):
        assert left_out not in page
    both = RUNNER.invoke(app, [str(run_folder), "--summary", "--format", "html", "--format", "summary"])
    assert [line.rpartition("/")[2] for line in both.stdout.split()] == ["report.html", "summary.html"]


def test_quiet_prints_one_path_a_run(app, run_folder):
    outcome = RUNNER.invoke(app, [str(run_folder), "--quiet"])
    assert outcome.stdout.splitlines() == [str(run_folder / "report.html")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "result.json"),
        ("{", "not JSON"),
        ("[1]", "object"),
        ('{"schema": "other/1"}', "schema"),
        ('{"schema": "dpzv-audit/other/1"}', "use one of dpzv-audit/attack/1"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_line_and_nothing_is_written(app, run_folder, tmp_path, content, words):
    broken = tmp_path / "broken"
    broken.mkdir()
    if content is not None:
        (broken / "result.json").write_text(content, encoding="utf-8")
    outcome = RUNNER.invoke(app, [str(run_folder), str(broken)])
    assert isinstance(outcome.exception, InputError)
    message = str(outcome.exception)
    assert words in message
    assert str(broken) in message
    assert "\n" not in message
    assert not (run_folder / "report.html").exists()


def test_a_missing_folder_and_a_wrong_format_are_one_line(app, run_folder):
    missing = RUNNER.invoke(app, [str(run_folder / "none")])
    assert isinstance(missing.exception, InputError)
    wrong = RUNNER.invoke(app, [str(run_folder), "--format", "pdf"])
    assert isinstance(wrong.exception, InputError)
    assert said(wrong.exception) == "--format is 'pdf'; use one of html, summary, md, json, junit, sarif"
