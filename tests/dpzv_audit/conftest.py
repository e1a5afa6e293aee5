"""What tests of all packages share."""

import os
from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.data.spec import DATA_VARIABLE

from ..helpers.commands import Command
from ..helpers.places import ROOT


@pytest.fixture
def cli(capsys):
    """Runs a command line in this process."""
    return Command(capsys)


@pytest.fixture
def rng():
    """Random numbers that follow from the seed 0."""
    return np.random.default_rng(0)


@pytest.fixture
def real(request):
    """The folder with the real files that `@pytest.mark.parametrize("real", [...], indirect=True)` names."""
    names = request.param if isinstance(request.param, tuple) else (request.param,)
    for place in (os.environ.get(DATA_VARIABLE), ROOT.parent / "shared" / "data"):
        if place and all((Path(place) / name).exists() for name in names):
            return Path(place)
    return pytest.skip(f"no {', '.join(names)} in {DATA_VARIABLE} or ../shared/data")


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Evidence is kept in a folder of the test's, and no summary is written to GitHub."""
    monkeypatch.setenv("DPZV_AUDIT_CACHE", f"{tmp_path}/cache")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
