"""Peak memory of a round: what is counted, and the order of the methods on small images."""

import dataclasses

import pytest
import torch

from dpzv_audit.reproduce import TABLES, Setting, memory, reproduce, with_rows
from dpzv_audit.reproduce.memory import LiveBytes
from dpzv_audit.reproduce.planning import checked

from ...helpers.refusals import refused
from .conftest import drawn_figure


def test_live_bytes_follows_tensors_until_they_are_freed():
    with LiveBytes() as live:
        first = torch.zeros(1000)
        second = first + 1
        assert live.now == live.peak == 8000
        assert live.at_peak == {"zeros": 4000, "add": 4000}
        del second
        assert live.now == 4000
        assert live.by_operation["add"] == 0
        view = first[10:]
        assert live.now == 4000
        del first
        assert live.now == 4000  # the view keeps the storage
        del view
    assert live.now == 0
    assert live.peak == 8000


TINY = {
    "vocab_size": 30_522,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def on_a_small_bert(*rows):
    """Rows of the table of a client of BERT's size, on a far smaller one."""
    table = with_rows(TABLES["dpzv-figure4-bert"], rows)
    items = tuple(dataclasses.replace(item, batch_size=2, length=4, encoder=TINY) for item in table.items)
    return dataclasses.replace(table, items=items), Setting(load=lambda keywords: None, epochs=1, seeds=1)


def test_a_client_of_berts_shape_needs_the_extra(monkeypatch):
    monkeypatch.setattr(memory, "find_spec", lambda name: None)
    with refused(r"needs the extra \[text\]"):
        checked(*on_a_small_bert("VAFL"))


def test_a_client_of_berts_shape_starts_at_random_and_is_measured():
    pytest.importorskip("transformers", reason="the extra [text] is not installed")
    table, setting = on_a_small_bert("MeZO", "VAFL")
    assert len(checked(table, setting).rows) == 2
    mezo, vafl = reproduce(table, setting).rows
    tokens = 4 * 128 * 30_522 / 1e6  # most of so narrow a model are its token embeddings
    assert tokens < mezo.model_megabytes == vafl.model_megabytes < 1.1 * tokens
    assert 1.0 <= mezo.peak_of_model() < 1.5 < vafl.peak_of_model()
    assert sum(mezo.activations.values()) == pytest.approx(mezo.to_json()["activations_megabytes"])
    assert vafl.kept["gelu"] == pytest.approx(2 * 2 * 4 * 16 * 4 / 1e6)  # layers, records, tokens, width, bytes
    assert "gelu 0.0" not in memory.activations_in_words([mezo, vafl])


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
