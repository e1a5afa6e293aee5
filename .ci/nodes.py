"""Counts code: the nodes of the syntax trees of each folder, whatever its lines, names and comments look like.

python .ci/nodes.py [FOLDER ...]      by default the four packages, then tests; docstrings count, comments do not
"""

import ast
import sys
from pathlib import Path

PACKAGES = ("dpzv_audit", "mechanisms", "attacks", "reports")


def nodes(folder: Path) -> int:
    """Return the nodes of the syntax trees of all Python files below a folder, as `ast.walk` counts them."""
    return sum(1 for path in folder.rglob("*.py") for _ in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def main(folders: list[str]) -> None:
    """Print the count of each folder, and of the packages together."""
    counts = {name: nodes(Path(name)) for name in folders or (*PACKAGES, "tests")}
    for name, count in counts.items():
        print(f"{count:9,} {name}")
    if not folders:
        print(f"{sum(counts[name] for name in PACKAGES):9,} packages")


if __name__ == "__main__":
    main(sys.argv[1:])
