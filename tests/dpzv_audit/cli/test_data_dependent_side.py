"""The gap `data-dependent-side`: there where something was fitted on the records, and nowhere else."""

import pytest

from dpzv_audit.data import DATASETS, load, load_csv
from dpzv_audit.reproduce.search import Guarantee, after_search

SHORT = "--epochs 2 --batch-size 16"
SOUND = f"--method dpzv-sound {SHORT}"
GRADIENT = "--method vafl --epochs 1 --batch-size 16 --set dp=gradient --set epsilon=8"
COMMANDS = {
    "train": f"train {SOUND} --no-controls",
    "train, a channel's noise": f"train {GRADIENT} --set top_model=false --no-controls",
    "attack": f"attack {SOUND} --trials 2 --runs 0 --alone",
    "audit": f"audit method dpzv-sound {SHORT} --runs 4",
    "audit, one run": f"audit method dpzv-sound {SHORT} --canaries 30",
}
"""Sound but for what is fitted on the records."""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """100 rows of two classes; the scales are constants of the command."""
    path = tmp_path_factory.mktemp("table") / "own.csv"
    rows = (f"{i % 7},{i * 37 % 11},{'yes' if i % 3 else 'no'}" for i in range(100))
    path.write_text("\n".join(["a,b,y", *rows]) + "\n")
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_classes_read_off_the_file_leave_no_sound_bound_and_named_ones_do(command, table, tmp_path, cli):
    data = f"--csv {table} --label y --scales a=7,b=11 --out {tmp_path}/runs"
    read = cli.answer(f"{COMMANDS[command]} {data}")["privacy"]
    named = cli.answer(f"{COMMANDS[command]} {data} --classes no,yes")["privacy"]
    assert read["upper"] is None
    assert read["gap"] == "data-dependent-side"
    assert "data-dependent-side" in read["gap_explanations"]
    exact, without = ([b for b in p["bounds"] if b["accountant"] == "gdp-exact"] for p in (read, named))
    assert [b["epsilon"] for b in exact] == [b["epsilon"] for b in without]  # the number without the gap stands beside
    assert not any(b["sound"] for b in read["bounds"])
    assert named["gap"] is None
    assert named["upper"] is not None


def test_the_result_names_what_was_fitted(table, tmp_path, cli):
    command = f"train --method split --epochs 1 --no-controls --csv {table} --label y"
    result = cli.answer(f"{command} --out {tmp_path}")
    assert "the set of classes was read off the label column 'y'" in result["data"]["notes"]


def test_public_constants_are_no_fit(table):
    given = {"label": "y", "classes": ["no", "yes"]}
    assert load_csv(table, **given, scales={"a": 7.0, "b": 11.0}).fitted == ()
    assert load_csv(table, **given).fitted == ()
    assert load_csv(table, **given, categories=["a"]).fitted == ()
    embedded = [name for name, spec in DATASETS.items() if spec.source is None]
    assert embedded
    assert all(load(name).fitted == () for name in embedded)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("no,yes", None),
        ("no", "use 2 to"),
        ("no,maybe", "has label 'yes'; use one of"),
        (",", "--classes is ','; use labels with commas between them"),
    ],
)
def test_classes_by_flag(given, names, table, tmp_path, cli):
    command = f"train --method split --epochs 1 --no-controls --csv {table} --label y"
    done = cli(f"{command} --classes {given} --out {tmp_path} --quiet")
    assert done.code == (0 if names is None else 2), done.err
    assert names is None or names in done.err


def test_a_search_is_a_release_and_one_setting_is_none():
    bound = Guarantee(sound=True, gap=None, epsilon=1.0, lower=0.1)
    assert after_search(bound, tried=1) == bound
    found = after_search(bound, tried=2)
    assert found == Guarantee(sound=False, gap="data-dependent-side", epsilon=1.0, lower=0.1)
    unsound = Guarantee(sound=False, gap="server-state", epsilon=1.0, lower=0.1)
    assert after_search(unsound, tried=9).gap == "server-state,data-dependent-side"
