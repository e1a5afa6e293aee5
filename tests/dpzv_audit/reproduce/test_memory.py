"""Peak memory of a round: what is counted, and the order of the methods on small images."""

import dataclasses

import pytest
import torch

from dpzv_audit.reproduce import TABLES, Setting, reproduce, with_rows
from dpzv_audit.reproduce.memory import LiveBytes

from .conftest import drawn_figure


def test_live_bytes_follows_tensors_until_they_are_freed():
    with LiveBytes() as live:
        first = torch.zeros(1000)
        second = first + 1
        assert live.now == live.peak == 8000
        del second
        assert live.now == 4000
        view = first[10:]
        assert live.now == 4000
        del first
        assert live.now == 4000  # the view keeps the storage
        del view
    assert live.now == 0
    assert live.peak == 8000


@pytest.fixture(scope="module")
def result():
    table = with_rows(TABLES["dpzv-figure4-memory"], ("MeZO", "VAFL"))
    items = tuple(dataclasses.replace(item, batch_size=2, image_size=8) for item in table.items)
    table = dataclasses.replace(table, items=items)
    return table, reproduce(table, Setting(load=lambda keywords: pytest.fail("no data are needed"), epochs=1, seeds=1))


@pytest.mark.slow
def test_in_place_takes_about_its_model_and_first_order_several(result):
    mezo, vafl = result[1].to_json()["rows"]
    both = mezo["model_megabytes"] + mezo["activations_megabytes"]
    assert mezo["model_megabytes"] == pytest.approx(44.7, abs=0.2)
    assert both <= mezo["peak_megabytes"] + mezo["activations_megabytes"] <= 1.3 * both + mezo["activations_megabytes"]
    assert mezo["peak_megabytes"] <= 1.3 * both
    assert vafl["peak_megabytes"] > 2 * vafl["model_megabytes"]


@pytest.mark.slow
def test_the_figure_gives_every_ratio(result):
    table, found = result
    drawn = drawn_figure(table, found)
    for row in found.rows:
        assert f"{row.peak_megabytes / row.model_megabytes:.2f}" in drawn
