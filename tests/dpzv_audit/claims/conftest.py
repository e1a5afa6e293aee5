"""Claims files with score files beside them, and a user's package whose mechanism counts its runs."""

import pytest

from ...helpers.scores import score_files

MECHANISM = '''
"""A Gaussian mechanism of mu = {mu}, which leaves a mark when it is imported and one for every run."""
import pathlib, sys

HERE = pathlib.Path(__file__).parent.parent
(HERE / "imported").write_text("yes")


class Mechanism:
    runs = 0

    def run(self, world, rng):
        Mechanism.runs += 1
        if Mechanism.runs >= getattr(sys, "stop_mechanism_at", 10**9):  # no file: what it reads is compared
            raise KeyboardInterrupt
        return rng.normal({mu} if world else 0.0)


def build():
    return Mechanism()


def broken():
    raise ValueError("no such\\nluck")


def wrong():
    return lambda world, rng: "nothing"


number = 3
'''


@pytest.fixture
def claims_folder(tmp_path):
    """Scores of a Gaussian mechanism of mu = 1 (epsilon 4.38 at delta 1e-5) in in.csv and out.csv."""
    score_files(tmp_path, 4000)
    return tmp_path


@pytest.fixture
def mechanism_folder(tmp_path, monkeypatch):
    """A folder with a package of a name of its own, so that no test sees the import of another."""
    import sys

    name = f"vault_{tmp_path.name.replace('-', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(MECHANISM.format(mu=3.0))
    yield tmp_path, name
    sys.modules.pop(name, None)
