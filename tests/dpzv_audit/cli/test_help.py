"""Help: panels in one order, every flag on one line, details behind `--help-all`."""

import re

import pytest

from dpzv_audit.base.registry import importing_nothing
from dpzv_audit.cli.commands import Audits, Commands
from dpzv_audit.cli.flags import PANELS, Described, _described, built_in_names
from dpzv_audit.cli.listing import names_of

from ...helpers.commands import every_command

OPTIONS = {" ".join(words): command.params for words, command, _ in every_command()}
INDENT = "    "


@pytest.fixture
def panels(cli, monkeypatch):
    """Return the lines of each panel of a command's help, by the panel's name."""

    def shown(words, columns=100, flag="--help"):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, *parts = re.split(r"^(\w[\w ]*):\n", cli(f"{words} {flag}").out.partition("\n\n")[2], flags=re.MULTILINE)
        return {name: text.rstrip("\n").splitlines() for name, text in zip(parts[::2], parts[1::2], strict=True)}

    return shown


@pytest.mark.parametrize("name", OPTIONS)
def test_every_flag_has_one_line_at_a_hundred_columns(name, panels):
    shown = panels(name)
    lines = [line for panel, rows in shown.items() if panel != "Arguments" for line in rows]
    assert [line for line in lines if line.startswith(INDENT)] == []
    flags = {flag for line in lines for flag in re.findall(r"(?:^|, )(-[\w-]+)", line.strip().partition("  ")[0])}
    known = {flag for param in OPTIONS[name] if param.param_type_name == "option" for flag in param.opts}
    assert flags == known | {"-h", "--help", "--help-all"}
    assert all(re.match(r"  -\S.{0,28}  +\S", line) for line in lines), "a flag without a text"


@pytest.mark.parametrize("name", OPTIONS)
def test_panels_come_in_order_and_help_is_short(name, panels, cli, monkeypatch):
    shown = [panel for panel in panels(name) if panel != "Arguments"]
    assert shown == [panel for panel in PANELS if panel in shown]
    assert shown[0] == "Basics" or name in ("report", "list", "view")
    assert shown[-1] == "Output"
    monkeypatch.setenv("COLUMNS", "100")
    text = cli(f"{name} --help").out
    assert f"Example: dpzv-audit {name} " in text
    assert len(text.splitlines()) <= 85
    head = re.split(r"^\w[\w ]*:\n", text, maxsplit=1, flags=re.MULTILINE)[0]
    assert len(head.splitlines()) <= 14


def test_one_flag_in_twenty_takes_a_second_line_at_eighty_columns(panels):
    lines = [line for name in OPTIONS for rows in panels(name, 80).values() for line in rows]
    second = [line for line in lines if line.startswith(INDENT)]
    assert 0 < len(second) <= 0.05 * len(lines)


def test_help_all_adds_the_details(panels):
    (short,) = (line for line in panels("attack")["Data"] if "--classes" in line)
    details = " ".join(" ".join(panels("attack", flag="--help-all")["Data"]).split())
    assert short.endswith("With --csv: all possible labels")
    assert "With --csv: all possible labels. Without it they are read from the file, and no noise covers" in details


def test_a_docstring_is_read_panel_by_panel():
    text, options = _described(
        """Do it.

        Longer text.

        Basics:
            name NAME: Short. Long
                text: more.
        Audit:
            flag: Other.
        """
    )
    assert text == "Do it.\n\nLonger text.\n"
    assert options == {
        "name": Described("NAME", "Short. Long text: more.", "Basics"),
        "flag": Described(None, "Other.", "Audit"),
    }


def test_flags_that_commands_share_come_in_one_order(panels):
    shown = {}
    for name in ("account", "calibrate", "attack", "train", "audit method"):
        flags = {panel: re.findall(r"^  (--[a-z-]+)", "\n".join(rows), re.M) for panel, rows in panels(name).items()}
        shown[name] = flags
    for first, second in (("account", "calibrate"), ("attack", "train"), ("attack", "audit method")):
        for panel in shown[first].keys() & shown[second].keys() - {"Execution"}:
            ours, theirs = shown[first][panel], shown[second][panel]
            assert [flag for flag in ours if flag in theirs] == [flag for flag in theirs if flag in ours]


@pytest.mark.parametrize(("words", "group"), [("", Commands), ("audit", Audits)])
def test_the_list_of_commands_has_one_line_for_each_at_eighty_columns(words, group, panels):
    shown = panels(words, 80)
    assert list(shown) == [*group.SECTIONS, "Options"]
    for panel, section in group.SECTIONS.items():
        assert [line.split()[0] for line in shown[panel]] == list(section)
        assert [line for line in shown[panel] if line.startswith(INDENT) or not line.endswith(".")] == []


@pytest.mark.parametrize(
    ("flag", "kind"),
    [("--method", "methods"), ("--attack", "attacks"), ("--defence", "defences"), ("--dataset", "datasets")],
)
def test_names_that_completion_offers_are_those_of_the_registry(flag, kind):
    with importing_nothing():
        assert sorted(built_in_names(flag)) == sorted(names_of(kind))
