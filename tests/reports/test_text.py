import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import text

FINITE = st.floats(min_value=-1e300, max_value=1e300)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (True, "yes"),
        (1408, "1,408"),
        (1.0, "1"),
        (0.12074, "0.121"),
        (1e-5, "1e-5"),
        (0.00123456, "0.00123"),
        (16384.6, "16,400"),
        (float("inf"), "∞"),
        (float("-inf"), "−∞"),
        (float("nan"), "not a number"),
        (-2.5, "-2.5"),
        (10**400, "very large"),
    ],
)
def test_number_shows_known_values(value, shown):
    assert text.number(value) == shown


@given(FINITE)
def test_bounds_never_overstate(value):
    down = float(text.lower_bound(value).replace(",", ""))
    up = float(text.upper_bound(value).replace(",", ""))
    assert down <= value
    assert value - up <= 1e-9 * abs(value)  # an upper bound is right to nine digits, as `rounding` says
    assert math.isclose(down, up, rel_tol=2e-2, abs_tol=5e-324)


def test_bounds_round_outward_at_the_claim():
    assert text.lower_bound(1.00004) == "1"
    assert text.upper_bound(1.00004) == "1.01"
    assert text.lower_bound(1.00004, 1.0) == "1.00004"
    assert text.upper_bound(0.99996, 1.0) == "1"


@given(st.text())
def test_clean_text_can_be_written_and_holds_no_control(value):
    cleaned = text.clean(value)
    cleaned.encode("utf-8")
    assert all(c in "\t\n" or (ord(c) >= 32 and not 127 <= ord(c) < 160) for c in cleaned)
    assert not set(cleaned) & set("\u202e\u2066\u200b\u2028")


def test_clean_shows_what_it_removes():
    assert text.clean("a\x1b[31m\u202eb\ud800") == "a\\u001b[31m\\u202eb\\ud800"


@given(st.text())
def test_markdown_text_is_one_line_without_markup(value):
    shown = text.markdown(value)
    assert "\n" not in shown
    assert "<" not in shown
    assert "://" not in shown
    for mark in "|`*[]$":
        assert shown.count(mark) == shown.count("\\" + mark)


def test_markdown_keeps_names_and_numbers_readable():
    assert text.markdown("label_direct 0.95") == "label_direct 0.95"
    assert text.markdown("1. not a list") == "1\\. not a list"
    assert text.markdown("# no heading") == "\\# no heading"
    assert text.markdown("_a_ a|b <b>") == "\\_a\\_ a\\|b &lt;b&gt;"


@given(st.recursive(st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)))
def test_json_reads_back_and_holds_no_markup(value):
    shown = text.to_json(value, indent=2)
    assert json.loads(shown) == value
    assert not set(shown) & set("<>&")
    assert shown.isascii()


@pytest.mark.parametrize(
    ("level", "shown"),
    [(0.95, "95%"), (0.999, "99.9%"), (0.975, "97.5%"), (1 - 0.05 / 3, "98.33%"), (0.99999, "99.999%"), (1.0, "100%")],
)
def test_confidence_has_the_digits_that_matter(level, shown):
    assert text.percent(level) == shown


@given(st.floats(min_value=0.5, max_value=1.0, exclude_max=True))
def test_no_confidence_is_rounded_up_to_certainty(level):
    assert 0.0 < float(text.percent(level).removesuffix("%")) < 100.0
