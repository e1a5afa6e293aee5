"""Where things lie in the repository, and how its files are read."""

import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def read_json(path):
    """What a JSON file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def toml_beside(file, name):
    """The TOML file of a name that lies beside a file of tests."""
    return tomllib.loads(Path(file).with_name(name).read_text(encoding="utf-8"))


def sparse(path, size=1 << 40):
    """Make a file that says it is a terabyte long, and takes no room."""
    with path.open("wb") as file:
        file.truncate(size)
