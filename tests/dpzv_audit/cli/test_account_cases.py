"""Small releases with right answers: what `account` prints as tightest is never below them, and little above."""

import re

import pytest

BOUNDS = {
    "01-prv17-tiny-delta/b": (0.07757, 1.005),
    "02-prv42-large-eps/b10": (4.984, 1.01),
    "03-tfp166-tiny-alpha/b": (0.009776, 1.01),
    "04-opacus74-q1": (14.8299, 1.001),
    "05-opacus643-gdp-rdp": (1.9608, 1.01),
    "06-opendp621-delta-near-1/c": (11.5696, 1.001),
}
REFUSED = ("d", "g1", "s1e-310", "s2.3e-308", "t1e-302", "t1e-305", "t1e-307")


@pytest.fixture
def answer(cases, cli):
    """Runs the command of a row, with --quiet."""

    def run(row):
        return cli((cases / "accounts" / row / "cmd").read_text().removeprefix("dpzv-audit"), "--quiet")

    return run


@pytest.mark.ci
@pytest.mark.parametrize("row", BOUNDS)
def test_the_tightest_bound_lies_next_to_the_right_one(answer, row):
    right, above = BOUNDS[row]
    done = answer(row)
    assert done.code == 0
    assert right * (1.0 - 1e-4) <= float(re.search(r"epsilon <= ([\d.]+)", done.out)[1]) <= above * right


@pytest.mark.parametrize("row", REFUSED)
def test_a_delta_too_small_is_one_line(answer, row):
    done = answer(f"01-prv17-tiny-delta/{row}")
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"dpzv-audit: error: --delta is \S+; use at least 1e-300: .+\n", done.err)
