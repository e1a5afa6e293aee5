"""Where things lie in the repository, and how its files are read."""

import json
import os
import tomllib
from pathlib import Path

from dpzv_audit.data.spec import DATA_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
DEBIAN = Path("/usr/share/datasets")
"""Where Debian's package dataset-fashion-mnist puts the files."""


def fashion_folder():
    """The data folder that has Fashion-MNIST, or None."""
    places = [os.environ.get(DATA_VARIABLE), ROOT.parent / "shared" / "data", DEBIAN]
    return next((Path(place) for place in places if place and (Path(place) / "fashion-mnist").is_dir()), None)


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
