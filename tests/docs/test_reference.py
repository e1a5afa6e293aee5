"""The reference has what the code has: public names, commands with their options, objects of the schemas."""

import importlib
import logging
import re

import pytest

import dpzv_audit

from ..helpers.commands import every_command
from ..helpers.places import ROOT

PACKAGES = ("dpzv_audit", "attacks", "mechanisms", "reports")


def built(page, monkeypatch):
    """Return a page as mkdocs gets it."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("hooks").on_page_markdown((ROOT / "docs" / page).read_text("utf-8"))


def test_the_first_page_has_the_headings_of_the_readme(monkeypatch):
    pages = built("index.md", monkeypatch), (ROOT / "README.md").read_text("utf-8")
    first, readme = (re.findall(r"^## (.*)$", page, re.M) for page in pages)
    assert first == readme


def test_the_matrix_has_every_printed_cell(monkeypatch):
    page = built("results/matrix.md", monkeypatch)
    table = page.partition("| attack, adversary |")[2].partition("\n\n")[0]
    (count,) = re.findall(r"^(\d+) cells were measured", page, re.MULTILINE)
    assert len(table.splitlines()) - 2 == int(count)
    assert "\n| label_direct, client, by client 1 | split | 1.000 (0.999 to 1.000) | 0.107 | 1.000 | 7 |" in table


def test_the_table_of_benchmarks_adds_up_to_the_promises_kept(monkeypatch):
    page = built("benchmarks.md", monkeypatch)
    kept, made = re.search(r"^(\d+) of (\d+) promises", page, re.MULTILINE).groups()
    rows = re.findall(r"\| (\d+) of (\d+) \|", page)
    assert (sum(int(row[0]) for row in rows), sum(int(row[1]) for row in rows)) == (int(kept), int(made))


def test_the_page_of_python_has_every_exported_name_and_others_that_there_are():
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    listed = re.findall(r"^::: ([\w.]+)$", page, re.M)
    exported = {name for name in listed if re.fullmatch(r"dpzv_audit\.\w+", name)}
    assert exported == {f"dpzv_audit.{name}" for name in dpzv_audit.__all__} - {"dpzv_audit.__version__"}
    assert len(listed) == len(set(listed)) > len(exported)
    for name in set(listed) - exported:
        module, _, last = name.rpartition(".")
        if not module.endswith("flower"):  # which needs Flower
            assert hasattr(importlib.import_module(module), last), name


def test_the_page_of_the_command_line_has_every_command_with_every_option(monkeypatch):
    page = built("reference/command-line.md", monkeypatch)
    parts = dict(re.findall(r"^## ([a-z ]+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    commands = {" ".join(words): command for words, command, _ in every_command()}
    assert parts.keys() == commands.keys()
    for name, command in commands.items():
        options = [option for param in command.params for option in param.opts if option.startswith("--")]
        shown = re.findall(r"--[\w-]+", "\n".join(re.findall(r"^\| (`.*?`) \|", parts[name], re.M)))
        assert set(options) - {"--help", "--help-all"} <= set(shown), name
    assert "`--max-trials N`" in parts["verify"]
    assert "[default: 60.0]" in parts["verify"]


@pytest.mark.ci
def test_docstrings_of_all_modules_are_read_without_a_warning(caplog):
    griffe = pytest.importorskip("griffe")

    def read(home):
        members = [member for member in home.members.values() if not member.is_alias]
        for member in members:
            if member.docstring:
                member.docstring.parse("google")
        return len(members) + sum(read(member) for member in members if member.is_class or member.is_module)

    with caplog.at_level(logging.WARNING, "griffe"):
        assert sum(read(griffe.load(name, search_paths=[ROOT])) for name in PACKAGES) > 5000
        assert caplog.messages == []
        wrong = griffe.Docstring("Do.\n\nArgs:\n    x: One.\n", parent=griffe.Function("do"))
        wrong.parse("google")
        assert len(caplog.messages) == 2  # no such parameter, and no type


def test_tests_that_the_page_of_sharp_edges_names_exist():
    page = (ROOT / "docs" / "guide" / "sharp-edges.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    rows = [line for line in page.splitlines() if line.startswith("| **")]
    assert len(named) == len(rows) > 20
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text("utf-8") if name else (ROOT / path).is_file(), (path, name)


@pytest.mark.parametrize(("name", "least"), [("schemas", 41), ("claims-file", 9)])
def test_every_object_of_the_schemas_is_described_on_its_page(name, least, monkeypatch):
    page = built(f"reference/{name}.md", monkeypatch)
    assert "<!--" not in page
    headings = re.findall(r"^### (\S+)$", page, re.M)
    assert len(headings) == len(set(headings)) >= least  # links go by name
    linked = set(re.findall(r"\(#([\w-]+)\)", page))
    assert linked <= {heading.lower() for heading in headings}
    if name == "schemas":
        assert "| `success` | [Interval](#interval) or null |  |" in page
    else:
        assert "| `delta` | number | The delta of (epsilon, delta), between 0 and 1. Default: `1e-05`. |" in page
