"""Small files of scores with right answers, from the folder that `DPZV_AUDIT_CASES` names."""

import re
import shutil

import numpy as np
import pytest

from ...helpers.places import toml_beside

BOUND = re.compile(r"epsilon is at least ([\d.]+) with")
HEADERS = ["cjk", "dollar", "hash", "num", "quoted", "unders", "unit", "unnamed"]

CASES = toml_beside(__file__, "score_cases.toml")


@pytest.fixture
def answer(cases, tmp_path, monkeypatch, cli):
    """Runs the command of a row in a copy of its folder: its exit code, and all that it prints."""

    def run(row):
        case = row.partition("/")[0]
        folder = tmp_path / row
        shutil.copytree(cases / "scores" / case, folder.parent, dirs_exist_ok=True)
        monkeypatch.chdir(folder)
        done = cli((folder / "cmd").read_text().removeprefix("dpzv-audit"))
        return done.code, " ".join((done.out + done.err).split())

    return run


@pytest.mark.parametrize("row", CASES["bounds"])
def test_scores_give_the_right_bound(answer, row):
    least, most, words = CASES["bounds"][row]
    code, shown = answer(row)
    assert code == 0
    assert least <= float(BOUND.search(shown)[1]) <= most
    assert words in shown


@pytest.mark.parametrize("row", CASES["refused"])
def test_what_is_no_column_of_scores_is_refused_with_a_cure(answer, row):
    code, shown = answer(row)
    assert (code, CASES["refused"][row] in shown) == (2, True), shown
    assert shown.count("dpzv-audit: error") == 1


def test_a_header_is_no_score_whatever_it_says(cases, tmp_path, cli, answer):
    rows = [np.loadtxt(cases / f"scores/26-headers/{side}_cjk.csv", skiprows=1) for side in ("in", "out")]
    for side, scores in zip(("in", "out"), rows, strict=True):
        np.save(tmp_path / f"{side}.npy", scores)
    without = BOUND.search(cli(f"audit scores {tmp_path}/in.npy {tmp_path}/out.npy --quiet").out)[1]
    for name in HEADERS:
        code, shown = answer(f"26-headers/{name}")
        assert (code, BOUND.search(shown)[1], "50 + 50 scores" in shown) == (0, without, True), name
        assert ("is taken for a header" in shown) == (name in ("num", "unnamed"))


@pytest.fixture
def headed(tmp_path):
    """Two files of random scores below a row "0", and a claims file on them whose `header` stands where %s does."""
    rng = np.random.default_rng(0)
    for side, shift in (("in", 1.0), ("out", 0.0)):
        scores = (shift + rng.normal(size=300)).tolist()
        (tmp_path / f"{side}.csv").write_text("\n".join(["0", *map(repr, scores)]))
    (tmp_path / "out.csv").write_text((tmp_path / "out.csv").read_text().removeprefix("0\n"))
    claim = '[[claim]]\nname = "c"\nscores = {in = "in.csv", out = "out.csv"%s}\nepsilon = 0.1\ndelta = 1e-5\n'
    return tmp_path, claim


def test_a_first_row_is_asked_about_and_the_answer_is_taken(headed, cli):
    folder, claim = headed
    files = f"audit scores {folder}/in.csv {folder}/out.csv --quiet"
    error = cli.refusal(files)
    assert "in.csv, row 1: '0' may be a header or a score" in error
    assert "give --header yes or no (in a claims file: header = true or false)" in error
    done = cli(f"{files} --header no")
    assert done.code == 0
    assert "With 301 + 300 scores" in done.out
    cli.refusal(f"{files} --header perhaps")
    verify = f"verify {folder}/claims.toml --out {folder}/runs --no-cache"
    (folder / "claims.toml").write_text(claim % "")
    error = cli.refusal(verify)
    assert "claim 'c': scores file" in error
    assert "'0' may be a header or a score" in error
    (folder / "claims.toml").write_text(claim % ", header = false")
    done = cli(verify)
    assert done.code == 1
    assert "refuted" in done.out


def test_what_is_taken_for_a_header_and_what_is_the_same_is_said_by_verify(headed, cli):
    folder, claim = headed
    (folder / "out.csv").write_text((folder / "in.csv").read_text())
    (folder / "claims.toml").write_text(claim % "")
    verify = f"verify {folder}/claims.toml --out {folder}/runs --no-cache"
    assert cli(f"{verify} --allow not-tested").code == 0
    done = cli(verify)
    assert done.code == 1
    shown = " ".join(done.out.split())
    assert "row 1 of both files, '0', is taken for a header" in shown
    assert "The two files hold the same scores." in shown
