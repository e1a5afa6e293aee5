"""Small files of scores with right answers, from the folder that `DPZV_AUDIT_CASES` names."""

import re
import shutil

import numpy as np
import pytest

BOUND = re.compile(r"epsilon is at least ([\d.]+) with")
HEADERS = ["cjk", "dollar", "hash", "num", "quoted", "unders", "unit", "unnamed"]
SAME = "Warning: the two files hold the same scores"
MERGED = "within 4 units in the last place of float64"
TOO_FINE = "which no double holds exactly"

# The row, the least and the largest right bound, and words of the answer.
BOUNDS = {
    "14-jaxp270-null-gdp/null": (0.0, 0.0, ""),
    "14-jaxp270-null-gdp/small": (0.0, 0.0, ""),
    "14-jaxp270-null-gdp/rev": (40.0, 42.0, "given Gaussian noise"),
    "15-leakpro465-ties/rr": (1.0, 1.0986, ""),
    "15-leakpro465-ties/quant": (1.3, 1.53, ""),
    "15-leakpro465-ties/tie": (0.0, 0.0, ""),
    "15-leakpro465-ties/tie4": (0.0, 0.0, ""),
    "16-leakpro282-outliers/a": (1.3, 4.38, ""),
    "16-leakpro282-outliers/off0": (2.2, 7.6, ""),
    "16-leakpro282-outliers/off8": (2.2, 7.6, ""),
    "16-leakpro282-outliers/sent": (2.2, 7.6, ""),
    "16-leakpro282-outliers/sent_full": (2.2, 7.6, ""),
    "16-leakpro282-outliers/n2n": (2.2, 7.6, ""),
    "16-leakpro282-outliers/lap0": (1.2, 2.0, ""),
    "16-leakpro282-outliers/lap": (1.2, 2.0, MERGED),
    "16-leakpro282-outliers/rr8": (1.0, 1.1, ""),
    "16-leakpro282-outliers/big": (0.0, 0.0, SAME),
    "17-pmeter25-constant/same": (0.0, 0.0, SAME),
    "17-pmeter25-constant/sep": (6.2, 6.45, ""),
    "18-tfp140-reversed/rev": (1.3, 1.8, ""),
    "20-leakpro461-dtypes/bef8": (1.0, 4.38, ""),
    "20-leakpro461-dtypes/f2": (1.0, 4.38, ""),
    "20-leakpro461-dtypes/f4": (1.0, 4.38, ""),
    "20-leakpro461-dtypes/i8": (1.0, 4.38, ""),
    "20-leakpro461-dtypes/longdouble": (1.0, 4.38, ""),
    "21-csv-kinds/cr": (0.4, 4.38, "500 + 500 scores"),
    "21-csv-kinds/k_npz": (0.4, 4.38, "500 + 500 scores"),
    "21-csv-kinds/inf": (0.4, 4.38, "500 + 500 scores"),
    "21-csv-kinds/hdr0": (0.4, 4.38, "'0', is taken for a header"),
    "22-anonymeter32-perfect/perfect": (6.2, 6.45, ""),
    "22-anonymeter32-perfect/imb": (0.0, 8.74, ""),
    "22-anonymeter32-perfect/n1": (0.0, 0.0, ""),
    "22-anonymeter32-perfect/n3": (0.0, 0.0, ""),
    "23-adjacent-floats/int": (6.2, 6.45, ""),
    **{f"23-adjacent-floats/{name}": (0.0, 0.0, MERGED) for name in ("plain", "sat", "soft", "soft_cp", "sub")},
    "23-adjacent-floats/soft_or": (0.0, 0.0, MERGED),
    "23-adjacent-floats/soft_seq": (0.0, 0.0, MERGED),
    "24-steinke-one-run/null": (0.0, 0.0, ""),
    "24-steinke-one-run/all": (0.0, 3.1, ""),
    "24-steinke-one-run/rr": (0.9, 1.4, ""),
    "27-inspire4-same-file/copy": (0.0, 0.0, SAME),
    "27-inspire4-same-file/same": (0.0, 0.0, SAME),
    "27-inspire4-same-file/shuf": (0.0, 0.0, SAME),
    "27-inspire4-same-file/half": (0.0, 0.0, "500 of the 1,000 scores"),
    "28-pure-dp/d300": (0.9, 1.1, ""),
}
REFUSED = {
    "16-leakpro282-outliers/ns": TOO_FINE,
    "23-adjacent-floats/i64": TOO_FINE,
    "23-adjacent-floats/u64": TOO_FINE,
    "19-leakpro349-lira/npz": "holds 2 arrays, must hold exactly one",
    "19-leakpro349-lira/twod": "must be one-dimensional",
    "20-leakpro461-dtypes/bool": "must be real numbers",
    "20-leakpro461-dtypes/jsonl": 'an object with one under "score"',
    "20-leakpro461-dtypes/nan": "row 45",
    "20-leakpro461-dtypes/null": "row 45",
    "21-csv-kinds/k_in.csv.gz": "unpack it",
    "21-csv-kinds/k_in.json": "write a number on each line",
    "21-csv-kinds/k_in.pkl": "write it with numpy.save",
    "21-csv-kinds/k_in.txt": "may be called .csv",
    "21-csv-kinds/k_in_hex.csv": "repr(float(x))",
    "21-csv-kinds/k_in_long.csv": "keep the column of the scores alone",
    "21-csv-kinds/k_in_pct.csv": "write 0.5 for 50%",
    "21-csv-kinds/k_in_tensor.csv": "repr(float(x))",
    "21-csv-kinds/k_in_utf16.csv": "must be UTF-8 text",
    "21-csv-kinds/k_tsv": "may be called .csv",
    "21-csv-kinds/pandas": "keep the column of the scores alone",
    "21-csv-kinds/semi": "write a decimal point for the comma",
    "28-pure-dp/d0": "for pure DP, which holds at every delta",
}


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


@pytest.mark.parametrize("row", BOUNDS)
def test_scores_give_the_right_bound(answer, row):
    least, most, words = BOUNDS[row]
    code, shown = answer(row)
    assert code == 0
    assert least <= float(BOUND.search(shown)[1]) <= most
    assert words in shown


@pytest.mark.parametrize("row", REFUSED)
def test_what_is_no_column_of_scores_is_refused_with_a_cure(answer, row):
    code, shown = answer(row)
    assert (code, REFUSED[row] in shown) == (2, True), shown
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
    files = f"audit scores {folder / 'in.csv'} {folder / 'out.csv'} --quiet"
    error = cli.refusal(files)
    assert "in.csv, row 1: '0' may be a header or a score" in error
    assert "give --header yes or no (in a claims file: header = true or false)" in error
    done = cli(f"{files} --header no")
    assert done.code == 0
    assert "with 301 + 300 scores" in done.out
    cli.refusal(f"{files} --header perhaps")
    verify = f"verify {folder / 'claims.toml'} --out {folder / 'runs'} --no-cache"
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
    verify = f"verify {folder / 'claims.toml'} --out {folder / 'runs'} --no-cache"
    assert cli(f"{verify} --allow not-tested").code == 0
    done = cli(verify)
    assert done.code == 1
    shown = " ".join(done.out.split())
    assert "row 1 of both files, '0', is taken for a header" in shown
    assert "The two files hold the same scores." in shown
