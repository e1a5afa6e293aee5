"""The command from its arguments to the run folder, on digits in the place of MNIST."""

from pathlib import Path

import pytest

from dpzv_audit.cli import reproduce
from mechanisms.core.federation import Federation

from ...helpers.places import read_json

ROWS = "--row 'q = 10' --row 'q = 1'"
SMALL = f"reproduce czofo-table4 {ROWS} --epochs 1 --trials 1"


@pytest.fixture(autouse=True)
def _digits(monkeypatch):
    real = reproduce.load
    monkeypatch.setattr(reproduce, "load", lambda name, *, clients, **_: real("digits", clients=clients))


def test_the_run_folder_holds_the_result_the_table_and_the_figure(tmp_path, cli):
    printed = cli.answer(f"{SMALL} --out {tmp_path}")
    folder = Path(printed.pop("run"))
    assert folder.parent == tmp_path
    assert {file.name for file in folder.iterdir()} == {"result.json", "environment.json", "table.md", "figure.svg"}
    assert read_json(folder / "result.json") == printed
    assert printed["schema"] == "dpzv-audit/reproduce/1"
    assert [row["label"] for row in printed["rows"]] == ["q = 10", "q = 1"]
    text = (folder / "table.md").read_text()
    for row in printed["rows"]:
        value, paper = 100 * row["accuracy"]["value"], 100 * row["paper_accuracy"]
        assert f"| {row['label']} | {value:.2f} | {paper:.2f} |" in text
    assert list(tmp_path.iterdir()) == [folder]  # nothing unfinished is left


def test_ctrl_c_keeps_what_is_done_and_resume_goes_on_with_it(tmp_path, cli, monkeypatch):
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
    assert cli.refusal(f"{SMALL} --json --out {out}", code=130) == "dpzv-audit: interrupted"
    assert [path.name for path in out.iterdir()] == ["unfinished"]
    again = cli.answer(f"{SMALL} --resume --out {out}")
    assert epochs == [1, 2, 1, 2, 2]  # only the last epoch of the second row was left
    assert again["rows"] == whole["rows"]
    assert not (out / "unfinished").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("reproduce czofo-table", "NAME is 'czofo-table': did you mean 'czofo-table"),
        ("reproduce czofo-table4 --row 'q = 7'", "--row is 'q = 7'; use part of a row's label"),
        ("reproduce czofo-table4 --epochs 0", "--epochs is 0"),
        ("reproduce czofo-table4 --trials 0", "--trials is 0"),
        ("reproduce czofo-table4 --records 0", "--records is 0"),
        ("reproduce czofo-table4 --records 1", "batch_size is 64; use at most the 1 training records"),
        ("reproduce czofo-table4 --records 9999", "--records is 9999; use at most 1408: digits has"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(arguments, line, tmp_path, cli):
    assert cli.refusal(f"{arguments} --out {tmp_path}/runs").startswith(f"dpzv-audit: error: {line}")
    assert not (tmp_path / "runs").exists()
