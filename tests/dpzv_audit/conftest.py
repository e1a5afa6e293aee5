"""What tests of all packages share."""

import pytest

from ..helpers.commands import Command


@pytest.fixture
def cli(capsys):
    """Runs a command line in this process."""
    return Command(capsys)
