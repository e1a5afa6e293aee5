"""Tables of papers at a size that takes seconds: digits in the place of MNIST."""

import dataclasses

import pytest

from dpzv_audit.data import load
from dpzv_audit.reproduce import TABLES
from dpzv_audit.results import PaperFigure
from reports.tabular import paper_figure


def drawn_figure(table, result, name="figure"):
    """Return a figure of a result as SVG."""
    figure = table.figures[name](result)
    assert PaperFigure.model_validate(figure.to_json()) == figure
    return paper_figure(table.name, figure)


@pytest.fixture(scope="session")
def digits():
    """A loader that gives digits for whatever is asked, cut among as many clients."""
    return lambda keywords: load("digits", clients=keywords["clients"])


@pytest.fixture(scope="session")
def small_table():
    """Two rows of table 4 of paper 003: VAFL, and ten directions."""
    table = TABLES["czofo-table4"]
    return dataclasses.replace(table, items=(table.items[0], table.items[2]))
