"""Where things lie in the repository, and how its JSON files are read."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def read_json(path):
    """What a JSON file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def sparse(path, size=1 << 40):
    """Make a file a terabyte long by zeros that take no room."""
    with path.open("ab") as file:
        file.truncate(size)
