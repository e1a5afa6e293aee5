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
