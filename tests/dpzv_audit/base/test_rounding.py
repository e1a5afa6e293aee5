"""What is printed stays true, and equal numbers are printed equally wherever they stand."""

import html
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.base.rounding import (
    as_claimed,
    down,
    exact_p_value,
    interval,
    p_equals,
    p_value,
    percent_down,
    percent_up,
    up,
)
from reports.text import lower_bound, upper_bound

from ...helpers.places import read_json


def read(text):
    return float(text.replace(",", "").rstrip("%"))


@given(st.floats(1e-300, 1e300))
def test_bounds_stay_true_and_lose_at_most_the_third_digit(value):
    low, high = read(down(value)), read(up(value))
    assert low <= value <= high * (1.0 + 1e-8)  # upper bounds are right to nine digits
    assert high - low <= 1.01e-2 * value
    assert value <= read(exact_p_value(value)) * (1.0 + 1e-8)
    assert read(exact_p_value(value)) <= 1.11 * value
    assert (lower_bound(value), upper_bound(value)) == (down(value), up(value))
    assert (down(low), up(low)) == (down(value), down(value))  # what is printed says the same when it is printed again


CLAIMS = st.floats(1e-6, 1e9).map(lambda claimed: float(f"{claimed:.6g}"))
NEAR = st.floats(1e-7, 1.0).map(lambda size: size**3).filter(lambda size: size > 1e-7)


@given(CLAIMS, st.none() | NEAR, st.booleans())
def test_a_bound_lies_visibly_on_its_side_of_the_claim(claimed, distance, above):
    """1.003 refutes a claim of 1, and must not stand there as "at least 1"."""
    value = claimed * (1.0 + (distance or 0.0) * (1.0 if above else -0.5))
    low, high = down(value, beside=claimed), up(value, beside=claimed)
    printed = read(as_claimed(claimed))
    assert read(low) <= value <= read(high) * (1.0 + 1e-8)
    assert (read(low) > printed) == (value > claimed)
    assert (read(high) > printed) == (value > claimed)
    if low != down(value):  # no digit more than it takes
        assert low == next(text for digits in range(4, 18) if read(text := down(value, digits)) > claimed)
        assert read(down(value)) <= claimed < value
    if high != up(value):
        assert value <= claimed < read(up(value))


@given(st.integers(1, 9999).map(lambda share: share / 10000), st.sampled_from([3e-6, 2e-5, 4e-4]), st.booleans())
def test_a_share_lies_visibly_on_its_side_of_the_limit(limit, distance, above):
    share = limit + (distance if above else -distance)
    for text in (percent_down(share, beside=limit), percent_up(share, beside=limit)):
        assert (read(text) > 100.0 * limit + 1e-9) == above
    assert (
        read(percent_down(share, beside=limit)) - 1e-6 <= 100.0 * share <= read(percent_up(share, beside=limit)) + 1e-6
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0312, "p = 0.032"), (1.0, "p = 1"), (1e-4, "p = 0.0001"), (9.99e-5, "p < 0.0001"), (0.0, "p < 0.0001")],
)
def test_a_small_p_value_is_only_said_to_be_small(value, shown):
    assert p_equals(value) == shown
    assert p_value(value) == shown.removeprefix("p ").removeprefix("= ")


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
    done = cli(f"{command} --verbose")
    assert done.code == 0
    text = " ".join(done.out.split())
    ceiling, lower = (down(bound[key], beside=1.0) for key in ("ceiling", "epsilon_lower"))
    assert f"this test can certify at most {ceiling}" in text
    assert f"this test can certify at most {ceiling}" in found["meaning"]
    assert re.search(rf"joint +{re.escape(lower)} +{re.escape(ceiling)} ", text)
    assert math.isclose(bound["ceiling"], read(ceiling), rel_tol=1e-2)

    done = cli("verify claims.toml --no-cache --verbose")
    assert done.code == 1
    text = " ".join(done.out.split())
    (entry,) = read_json(next(tmp_path.glob("dpzv-runs/*/result.json")))["claims"]
    page = html.unescape(next(tmp_path.glob("dpzv-runs/*/report.md")).read_text())
    p, lower = p_value(entry["p_value"]), down(entry["epsilon_lower"], beside=1.0)
    assert entry["adjusted_p_value"] == entry["p_value"]
    for said in (text, entry["sentence"], page):
        assert f"at least {lower} ({p_equals(entry['p_value'])})" in said
    assert f"≥ {lower} " in text
    assert f" {p} " in text
    assert down(entry["looks"][0]["ceiling"], beside=1.0) in page


@pytest.mark.parametrize("share", [1e26, 1e30, 1e300, 5e-324, math.inf])
def test_any_number_is_printed_as_a_share(share):
    """A result that somebody edited may say that a share is anything."""
    assert float(percent_down(share)[:-1]) <= 100.0 * share <= float(percent_up(share)[:-1]) * (1 + 1e-9) + 1e-9
    assert interval(-share, share)
