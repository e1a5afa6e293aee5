"""The reference pages list the modules of every package."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEHIND_THE_COMMAND_LINE = {"dpzv_audit.cli"}


def test_every_package_is_listed_and_no_other():
    pages = (ROOT / "docs" / "reference").glob("*.md")
    listed = {name for page in pages for name in re.findall(r"<!-- modules of ([\w.]+) -->", page.read_text())}
    packages = {f"dpzv_audit.{path.parent.name}" for path in (ROOT / "dpzv_audit").glob("*/__init__.py")}
    assert listed == packages - BEHIND_THE_COMMAND_LINE | {"attacks", "mechanisms", "reports", "dpzv_audit."}


def test_tests_that_the_page_of_sharp_edges_names_exist():
    page = (ROOT / "docs" / "guide" / "sharp-edges.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    rows = [line for line in page.splitlines() if line.startswith("| **")]
    assert len(named) == len(rows) > 20
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text("utf-8") if name else (ROOT / path).is_file(), (path, name)


def test_every_object_of_the_schemas_is_described_on_its_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import hooks

    page = (ROOT / "docs" / "reference" / "schemas.md").read_text("utf-8")
    built = hooks.on_page_markdown(page)
    assert "<!--" not in built
    headings = re.findall(r"^### (\S+)$", built, re.M)
    assert len(headings) == len(set(headings)) > 40  # links go by name
    linked = set(re.findall(r"\(#([\w-]+)\)", built))
    assert linked <= {heading.lower() for heading in headings}
    assert "| `success` | [Interval](#interval) or null |  |" in built
