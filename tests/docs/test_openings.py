"""Pages of results and of faults open with what was found; of results a figure follows."""

import re

import pytest

from ..helpers.places import ROOT

FOUND = {path.stem: path for path in sorted((ROOT / "docs" / "found").glob("*.md")) if path.stem != "index"}
RESULTS = {path.stem: path for path in sorted((ROOT / "docs" / "results").glob("*.md"))}
SMALL_TABLES = {
    "attack-figures",
    "attack-figures-others",
    "czofo-table2",
    "defence-attacks",
    "defence-published",
    "defence-rule",
    "index",
    "method-figures",
}
"""Pages of small tables, and the list of the pages: no figure stands for one of them."""


def opening(path):
    """Return the paragraph below the heading of a page."""
    return path.read_text("utf-8").split("\n\n")[1]


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_opens_with_a_sentence_and_a_figure_stands_before_its_table(name):
    text = RESULTS[name].read_text("utf-8")
    assert re.fullmatch(r"[\w`“][^|]{20,}[.:]", opening(RESULTS[name]), flags=re.DOTALL)
    if name not in SMALL_TABLES:
        assert "\n![" in text.partition("\n|")[0]


@pytest.mark.parametrize("name", FOUND)
def test_a_fault_opens_with_epsilons_that_its_commands_print(name):
    text = FOUND[name].read_text("utf-8")
    first = opening(FOUND[name])
    measured = re.findall(r"at\s+least\s+(\d+\.\d+)", first)
    assert measured
    assert set(measured) <= set(re.findall(r"epsilon >= (\d+\.\d+)", text))
