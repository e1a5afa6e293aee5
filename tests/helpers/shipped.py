"""The modules that are shipped, and their syntax: what tests of the code itself share."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    path.relative_to(ROOT).as_posix(): path
    for package in ("dpzv_audit", "mechanisms", "attacks", "reports")
    for path in sorted((ROOT / package).rglob("*.py"))
}
"""Paths by what they are called from the root."""


@cache
def tree_of(name):
    """The syntax tree of a module."""
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))
