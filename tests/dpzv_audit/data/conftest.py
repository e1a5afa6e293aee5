import os
from pathlib import Path

import pytest

from dpzv_audit.data.spec import DATA_VARIABLE


def data_folder(*needed):
    """The first data folder that has all of `needed`: DPZV_AUDIT_DATA, else ../shared/data."""
    places = [os.environ.get(DATA_VARIABLE), Path(__file__).parents[4] / "shared" / "data"]
    return next((Path(p) for p in places if p and all((Path(p) / name).exists() for name in needed)), None)


@pytest.fixture
def real(request):
    """The data folder with the real files that `@pytest.mark.parametrize("real", [...], indirect=True)` names."""
    names = request.param if isinstance(request.param, tuple) else (request.param,)
    folder = data_folder(*names)
    if folder is None:
        pytest.skip(f"no {', '.join(names)} in {DATA_VARIABLE} or ../shared/data")
    return folder
