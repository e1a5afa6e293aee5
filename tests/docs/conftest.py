"""The site, built once for all tests that look at it."""

import os
import subprocess
import sys

import pytest

from ..helpers.places import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Return the folder of the built site; a warning of the build fails it."""
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder
