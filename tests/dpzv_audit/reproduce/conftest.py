"""Tables of papers at a size that takes seconds: digits in the place of MNIST."""

import dataclasses
import os
from pathlib import Path

import pytest

from dpzv_audit.data import load
from dpzv_audit.data.spec import DATA_VARIABLE
from dpzv_audit.reproduce import TABLES


@pytest.fixture(scope="session")
def digits():
    """A loader that gives digits for whatever is asked, cut among as many clients."""
    return lambda keywords: load("digits", clients=keywords["clients"])


@pytest.fixture(scope="session")
def small_table():
    """Two rows of table 4 of paper 003: VAFL, and ten directions."""
    table = TABLES["czofo-table4"]
    return dataclasses.replace(table, items=(table.items[0], table.items[2]))


@pytest.fixture
def real(request):
    """The folder with the real files that `@pytest.mark.parametrize("real", [...], indirect=True)` names."""
    names = request.param if isinstance(request.param, tuple) else (request.param,)
    places = [os.environ.get(DATA_VARIABLE), Path(__file__).parents[4] / "shared" / "data"]
    folder = next((Path(p) for p in places if p and all((Path(p) / name).exists() for name in names)), None)
    if folder is None:
        pytest.skip(f"no {', '.join(names)} in {DATA_VARIABLE} or ../shared/data")
    return folder
