"""Attacks, methods and defences have a card each, of few words, and its figures are those of its printed example."""

import re
from pathlib import Path

import pytest

from attacks import ATTACKS
from mechanisms import METHODS
from mechanisms.defences import DEFENCES

from .loaded import blocks

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {"attacks": ATTACKS, "methods": METHODS, "defences": DEFENCES}
WORDS = 250


def cards(group):
    """Return the cards on the page of `group` as (name, text), without what is filled in when the site is built."""
    page = re.sub(r"<!--.*?-->", "", (ROOT / "docs" / group / "index.md").read_text("utf-8"))
    sections = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    return [(name, text) for name, text in zip(sections[1::2], sections[2::2], strict=True) if name in GROUPS[group]]


@pytest.fixture
def hooks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import hooks

    return hooks


@pytest.mark.parametrize("group", GROUPS)
def test_every_name_has_one_card(group):
    assert sorted(name for name, _ in cards(group)) == sorted(GROUPS[group])


@pytest.mark.parametrize("group", GROUPS)
def test_a_card_has_few_words(group):
    assert {name: len(text.split()) for name, text in cards(group) if len(text.split()) > WORDS} == {}


@pytest.mark.parametrize("group", GROUPS)
def test_what_a_page_of_cards_asks_for_is_filled_in(group, hooks):
    built = hooks.on_page_markdown((ROOT / "docs" / group / "index.md").read_text("utf-8"))
    assert not re.findall(r"<!-- (?!run: ).*?-->", built)


def test_settings_name_their_choices(hooks):
    (row,) = (line for line in hooks.settings("dpzv").splitlines() if line.startswith("| `server_update` | `sgd` |"))
    assert "One of `sgd`, `zo`, `joint-zo`, `dp-sgd`, `dp-zo`, `frozen`." in row
    assert "`shares`" in hooks.settings("label-cluster")


def test_a_card_has_the_numbers_of_its_printed_example(hooks):
    shown = hooks.figures("label_direct")
    (block,) = (b for b in blocks.blocks(ROOT / "docs/printed/attacks/label_direct.md") if b.language == "console")
    (row,) = re.findall(r"^  label_direct +(\S+) +(\S+)  (.+)$", block.text, re.MULTILINE)
    assert f"| label_direct | {' | '.join(row)} |" in shown
    assert f"| {re.search(r'Attacks, [0-9]+ trainings', block.text)[0]} | labels found | baseline |  |" in shown
    assert re.search(r"test accuracy \S+", block.text)[0] in shown
    assert f"```sh\n{blocks.commands(block.text)[0]}\n```" in shown


def test_a_heading_of_many_lines_is_one(hooks):
    text = "                      area under\n                         the ROC\n"
    text += "Attacks, 8 trainings       curve  baseline\n  label_norm               0.982     0.965  no leak seen\n"
    assert hooks.columns(text).splitlines() == [
        "| Attacks, 8 trainings | area under the ROC curve | baseline |  |",
        "| --- | --- | --- | --- |",
        "| label_norm | 0.982 | 0.965 | no leak seen |",
    ]


def test_figures_without_a_printed_example_are_refused(hooks):
    with pytest.raises(ValueError, match=r"<!-- figures of nothing -->: no page docs/printed/\*/nothing\.md has"):
        hooks.on_page_markdown("<!-- figures of nothing -->")
