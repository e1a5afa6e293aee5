"""What is printed stays true, and equal numbers are printed equally wherever they stand."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.base.rounding import down, interval, p_value, percent_down, percent_up, up
from reports.text import lower_bound, upper_bound

from ...helpers.places import read_json


def read(text):
    return float(text.replace(",", "").rstrip("%"))


@given(st.floats(1e-300, 1e300))
def test_bounds_stay_true_and_lose_at_most_the_fourth_digit(value):
    low, high = read(down(value)), read(up(value))
    assert low <= value <= high * (1.0 + 1e-8)  # upper bounds are right to nine digits
    assert high - low <= 1.01e-3 * value
    assert value <= read(p_value(value)) * (1.0 + 1e-8)
    assert read(p_value(value)) <= 1.11 * value
    assert (lower_bound(value), upper_bound(value)) == (down(value), up(value))
    assert (down(low), up(low)) == (down(value), down(value))  # what is printed says the same when it is printed again


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.booleans())
def test_shares_stay_true(one, other, percent):
    low, high = sorted((one, other))
    ends = [read(end) / (100.0 if percent else 1.0) for end in interval(low, high, percent=percent).split(" to ")]
    assert ends[0] <= low + 1e-9
    assert high - 1e-9 <= ends[1]
    assert ends[1] - ends[0] <= high - low + 0.0021
    assert read(percent_down(low)) <= 100.0 * low + 1e-6
    assert 100.0 * high - 1e-6 <= read(percent_up(high)) <= 100.0 * high + 0.1001


@pytest.mark.parametrize("n", [60, pytest.param(777, marks=pytest.mark.ci)])
def test_text_table_report_and_json_say_the_same_of_scores(n, tmp_path, cli, monkeypatch):
    """A ceiling was 4.76 in a table and 4.75 in a sentence."""
    monkeypatch.chdir(tmp_path)
    for name, shift in (("in", 2 * n), ("out", 0)):
        (tmp_path / f"{name}.csv").write_text("".join(f"{shift + place}\n" for place in range(n)))
    claim = '[[claim]]\nname = "c"\nscores = { in = "in.csv", out = "out.csv" }\nepsilon = 1.0\n'
    (tmp_path / "claims.toml").write_text(claim)
    command = "audit scores in.csv out.csv --estimator joint --epsilon 1"
    found = cli.answer(f"{command}")
    (bound,) = found["estimators"]
    done = cli(command)
    assert done.code == 0
    text = " ".join(done.out.split())
    ceiling, lower = down(bound["ceiling"]), down(bound["epsilon_lower"])
    assert f"the detection limit is {ceiling}" in text
    assert f"the detection limit is {ceiling}" in found["meaning"]
    assert re.search(rf"joint +{re.escape(lower)} +{re.escape(ceiling)} ", text)
    assert math.isclose(bound["ceiling"], read(ceiling), rel_tol=1e-3)

    done = cli("verify claims.toml --no-cache")
    assert done.code == 1
    text = " ".join(done.out.split())
    (entry,) = read_json(next(tmp_path.glob("dpzv-runs/*/result.json")))["claims"]
    page = next(tmp_path.glob("dpzv-runs/*/report.md")).read_text()
    p, lower = p_value(entry["p_value"]), down(entry["epsilon_lower"])
    assert entry["adjusted_p_value"] == entry["p_value"]
    for said in (text, entry["sentence"], page):
        assert f"at least {lower} (p = {p})" in said
    assert f"≥ {lower} " in text
    assert f" {p} " in text
    assert down(entry["looks"][0]["ceiling"]) in page


@pytest.mark.parametrize("share", [1e26, 1e30, 1e300, 5e-324, math.inf])
def test_any_number_is_printed_as_a_share(share):
    """A result that somebody edited may say that a share is anything."""
    assert float(percent_down(share)[:-1]) <= 100.0 * share <= float(percent_up(share)[:-1]) * (1 + 1e-9) + 1e-9
    assert interval(-share, share)
