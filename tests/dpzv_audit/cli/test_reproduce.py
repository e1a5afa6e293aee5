"""The command from its arguments to the run folder, on digits in the place of MNIST."""

import dataclasses
import re
from pathlib import Path

import pytest

from dpzv_audit.base.errors import InputError
from dpzv_audit.cli import reproduce
from dpzv_audit.cli.heartbeat import under_way
from dpzv_audit.reproduce import TABLES, attacks, planning, training
from dpzv_audit.results import read
from mechanisms.core.federation import Federation

from ...helpers.places import read_json

ROWS = "--row 'q = 10' --row 'q = 1'"
SMALL = f"reproduce czofo-table4 {ROWS} --epochs 1 --trials 1"
MOST_LINES, MOST_COLUMNS = 30, 80
REAL = reproduce.load


@pytest.fixture(autouse=True)
def _digits(monkeypatch):
    monkeypatch.setattr(reproduce, "load", lambda name, *, clients=4, **_: REAL("digits", clients=clients))


@pytest.fixture
def untrained(monkeypatch):
    """No training may run to its end."""

    def trains(*_, **__):
        pytest.fail("a row was trained before all were checked")

    monkeypatch.setattr(training, "train_in_stacks", trains)
    monkeypatch.setattr(training, "frozen_clients", trains)
    monkeypatch.setattr(attacks, "attack_named", trains)


def test_the_run_folder_holds_the_result_the_table_the_figure_and_the_report(tmp_path, cli):
    printed = cli.answer(f"{SMALL} --out {tmp_path}")
    folder = Path(printed.pop("run"))
    assert folder.parent == tmp_path
    files = {"result.json", "environment.json", "table.md", "figure.svg", "bytes.svg", "report.html", "report.md"}
    assert {file.name for file in folder.iterdir()} == files
    assert read_json(folder / "result.json") == printed
    result, rest = read(printed)
    assert rest == {}
    assert {**result.to_json(), "schema": printed["schema"]} == printed
    assert printed["schema"] == "dpzv-audit/reproduce/1"
    assert [row["label"] for row in printed["rows"]] == ["q = 10", "q = 1"]
    text, report = ((folder / name).read_text() for name in ("table.md", "report.md"))
    for row in printed["rows"]:
        value, paper = 100 * row["accuracy"]["value"], 100 * row["paper_accuracy"]
        for page in (text, report):
            assert f"| {row['label']} | {value:.2f} | {paper:.2f} |" in page
    head = report.partition("\n## ")[0]
    assert "**Shortened run: 2 of 4 rows of czofo-table4, paper 003, table 4.**" in head
    assert "Not tested: czofo-table4 at full length. This run has 2 of 4 rows and 1 of 100 epochs." in head
    assert "```sh\ndpzv-audit reproduce czofo-table4\n```" in head
    for link in ("[table.md](table.md)", "[result.json](result.json)"):
        assert link in report
    assert list(tmp_path.iterdir()) == [folder]  # nothing unfinished is left
    before = {name: (folder / name).read_bytes() for name in ("report.html", "figure.svg")}
    for name in before:
        (folder / name).unlink()
    assert cli(f"report {folder}").code == 0
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_a_table_runs_for_its_own_length_and_says_how_to_run_the_papers(tmp_path, cli, monkeypatch):
    monkeypatch.setitem(TABLES, "czofo-table4", dataclasses.replace(TABLES["czofo-table4"], length=1))
    folder = Path(cli.answer(f"reproduce czofo-table4 {ROWS} --trials 1 --out {tmp_path}")["run"])
    assert read_json(folder / "result.json")["epochs"] == 1
    report = (folder / "report.md").read_text()
    assert "This run has 2 of 4 rows and 1 of 100 epochs." in report
    assert "```sh\ndpzv-audit reproduce czofo-table4 --epochs 100\n```" in report


def test_the_terminal_has_the_time_first_then_a_table_that_fits(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(MOST_COLUMNS))
    done = cli(f"{SMALL} --out {tmp_path}")
    assert done.code == 0
    assert done.err.startswith("dpzv-audit: czofo-table4: 2 rows, about ")
    lines = done.out.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(len(line) for line in lines if not line.startswith(("Report: ", "  dpzv-audit"))) <= MOST_COLUMNS
    assert not [line for line in lines if line.startswith("|")]  # no Markdown
    result = read_json(next(tmp_path.iterdir()) / "result.json")
    for row in result["rows"]:
        (shown,) = [line.split() for line in lines if line.startswith(f"  {row['label']} ")]
        assert f"{100 * row['accuracy']['value']:.2f}" in shown
    quiet = cli(f"{SMALL} --quiet --out {tmp_path}")
    assert (quiet.err, len(quiet.out.splitlines())) == ("", 1)
    whole = cli(f"{SMALL} --verbose --out {tmp_path}").out
    assert all(" ".join(heading.split()[:1]) in whole for heading in result["columns"])
    assert "Accuracy on the test records in percent" in whole


def test_progress_names_the_row_and_the_time_that_all_rows_take(tmp_path, cli, monkeypatch):
    monkeypatch.setattr(planning, "expected", lambda plan, setting, **_: [4000.0 for _ in plan.rows])
    saved = Federation.epoch_record
    lines = []

    def watched(self, epoch):
        lines.append(under_way())
        return saved(self, epoch)

    monkeypatch.setattr(Federation, "epoch_record", watched)
    assert cli(f"{SMALL} --out {tmp_path}").code == 0
    assert lines[0] == "row 1 of 2: q = 10: 0 of 44, about 2 h left"
    assert lines[1] == "row 1 of 2: q = 10: 22 of 44, about 2 h left"
    # The first row took a second of 4,000: so does the rest.
    assert re.fullmatch(r"row 2 of 2: q = 1: 0 of 44, about \d s left", lines[2])


@pytest.mark.ci
def test_a_long_table_is_at_most_thirty_lines(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(MOST_COLUMNS))
    done = cli(f"reproduce labels-digits --row split --row label-free --epochs 1 --trials 1 --out {tmp_path}")
    lines = done.out.splitlines()
    assert len(lines) <= MOST_LINES
    assert "table.md has " in " ".join(lines)
    table = (next(tmp_path.iterdir()) / "table.md").read_text()
    assert table.count("\n| ") > MOST_LINES  # nothing is lost


def test_finished_rows_are_kept_in_a_folder_and_taken_from_there(tmp_path, cli, monkeypatch):
    command = f"{SMALL} --rows {tmp_path / 'rows'} --out {tmp_path}"
    first = cli.answer(command)
    assert len(list((tmp_path / "rows" / "czofo-table4").iterdir())) == 2
    for name in ("train_in_stacks", "frozen_clients"):
        monkeypatch.setattr(training, name, lambda *_, **__: pytest.fail("a row was computed again"))
    again = cli.answer(command)
    assert again["cells"] == first["cells"]


def test_ctrl_c_keeps_what_is_done_and_resume_goes_on_with_it(tmp_path, cli, monkeypatch):
    monkeypatch.setattr(planning, "expected", lambda plan, setting, **_: [1.0 for _ in plan.rows])
    whole = cli.answer(f"{SMALL} --out {tmp_path}/whole")
    saved = Federation.epoch_record
    epochs = []

    def interrupted(self, epoch):
        epochs.append(epoch)
        if len(epochs) == 4:
            raise KeyboardInterrupt
        return saved(self, epoch)

    monkeypatch.setattr(Federation, "epoch_record", interrupted)
    out = tmp_path / "cut"
    done = cli(f"{SMALL} --json --out {out}")
    assert (done.code, done.out) == (130, "")
    kept = f"what was done is kept in {out / 'unfinished'}; the same command with --resume goes on from there"
    assert done.err.splitlines() == [
        "dpzv-audit: czofo-table4: 2 rows, about 2 s",
        f"dpzv-audit: interrupted; {kept}",
    ]
    assert [path.name for path in out.iterdir()] == ["unfinished"]
    again = cli.answer(f"{SMALL} --resume --out {out}")
    assert epochs == [1, 2, 1, 2, 2]  # only the last epoch of the second row was left
    assert again["rows"] == whole["rows"]
    assert again["command_line"] == whole["command_line"]
    assert not (out / "unfinished").exists()


@pytest.fixture
def cut(tmp_path, cli, monkeypatch):
    """A table that was interrupted after its first row."""
    real = training.train_in_stacks
    calls = []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(training, "train_in_stacks", interrupted)
        assert cli(f"{SMALL} --out {tmp_path}").code == 130
    return tmp_path


def test_rows_that_are_kept_take_no_time(cut, cli):
    done = cli(f"{SMALL} --resume --out {cut}")
    assert done.code == 0
    assert done.err.startswith("dpzv-audit: czofo-table4: 2 rows, 1 of them kept from before, about ")


def test_a_damaged_part_is_one_line_before_anything_is_trained(cut, cli, untrained):
    for part in (cut / "unfinished").glob("*.json"):
        part.write_text("{")
    assert "is damaged" in cli.refusal(f"{SMALL} --resume --out {cut}")


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("reproduce czofo-table", "NAME is 'czofo-table': did you mean 'czofo-table"),
        ("reproduce czofo-table4 --row 'q = 7'", "--row is 'q = 7'; use part of a row's label"),
        ("reproduce czofo-table4 --epochs 0", "--epochs is 0"),
        ("reproduce czofo-table4 --epochs 1000000000", "--epochs is 2000000000; use at most"),
        ("reproduce czofo-table4 --trials 0", "--trials is 0"),
        ("reproduce czofo-table4 --records 0", "--records is 0"),
        ("reproduce czofo-table4 --records 1", "batch_size is 64; use at most the 1 training records"),
        ("reproduce czofo-table4 --records 9999", "--records is 9999; use at most 1408: digits has"),
        ("reproduce labels-digits --records 20", "batch_size is 64; use at most the 20 training records"),
        ("reproduce fu-completion --records 64 --row MNIST", "labels_per_class is 10; use at most"),
    ],
)
def test_a_mistake_is_one_line_leaves_nothing_and_trains_nothing(arguments, line, tmp_path, cli, monkeypatch):
    monkeypatch.setattr(attacks, "attack_named", REAL_ATTACK)
    refusal = cli.refusal(f"{arguments} --out {tmp_path}/runs")
    assert refusal.startswith("dpzv-audit: error: ")
    assert line in refusal
    assert not (tmp_path / "runs").exists()


REAL_ATTACK = attacks.attack_named


@pytest.mark.usefixtures("untrained")
def test_absent_data_of_the_last_row_are_one_line_before_the_first_is_trained(tmp_path, cli, monkeypatch):
    def load(name, *, clients, **_):
        if name == "cifar10":
            raise InputError("data/cifar-10-batches-bin: no such file")
        return REAL("digits", clients=clients)

    monkeypatch.setattr(reproduce, "load", load)
    monkeypatch.setattr(attacks, "attack_named", REAL_ATTACK)
    line = cli.refusal(f"reproduce fu-completion --epochs 1 --trials 1 --out {tmp_path}/runs")
    assert line == "dpzv-audit: error: data/cifar-10-batches-bin: no such file"
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("untrained")
def test_a_folder_without_the_data_is_one_line(tmp_path, cli, monkeypatch):
    monkeypatch.setattr(reproduce, "load", REAL)
    line = cli.refusal(f"reproduce czofo-table4 --data-dir {tmp_path} --out {tmp_path}/runs")
    assert "mnist" in line
    assert not (tmp_path / "runs").exists()
