import importlib
import json

import pytest

from dpzv_audit.base.errors import InputError, with_options
from dpzv_audit.base.findings import ADVERSARIES
from dpzv_audit.cli.flags import flag, said
from dpzv_audit.cli.listing import REGISTRIES, list_what, listed
from dpzv_audit.data import DATASETS

from ...helpers.refusals import refused


@pytest.mark.parametrize("what", REGISTRIES)
def test_every_registry_lists_all_it_has_with_one_line_each(what):
    module, name = REGISTRIES[what]
    registry = getattr(importlib.import_module(module), name)
    items = listed(what)
    assert [item["name"] for item in items] == list(registry)
    assert items
    for item in items:
        assert item["summary"]
        assert "\n" not in item["summary"]


def test_a_line_each_with_the_summaries_aligned(capsys):
    list_what(what="adversaries", as_json=False)
    lines = capsys.readouterr().out.splitlines()
    width = max(len(name) for name in ADVERSARIES)
    assert lines == [f"{name:<{width}}  {summary}" for name, summary in ADVERSARIES.items()]


def test_below_a_data_set_stands_what_it_needs(capsys):
    list_what(what="datasets", as_json=False)
    blocks = {}
    for line in capsys.readouterr().out.splitlines():
        if not line.startswith(" "):
            name = line.split()[0]
            blocks[name] = [line]
        else:
            blocks[name].append(line.strip())
    assert list(blocks) == list(DATASETS)
    for name, spec in DATASETS.items():
        first, *lines = blocks[name]
        assert first.endswith(spec.summary)
        text = "\n".join(lines)
        assert all(f"{name} (clients: {way.takes})" in text for name, way in spec.partitions.items())
        assert ("--subset" in text) == ("subset" in spec.options)
        if spec.source is None:
            assert "files: none needed" in lines
        else:
            assert f"files: {spec.source.folder}/{spec.source.names}" in text
            assert f"source: {with_options(spec.source.origin, flag)}" in lines


def test_the_files_that_download_fetches_are_said_to_be(capsys):
    fetched = {item["name"] for item in listed("datasets") if item["files"] and item["files"]["download"]}
    assert fetched == {"mnist", "fashion-mnist", "cifar10", "imdb", "adult"}
    sizes = {item["name"]: item["files"]["megabytes"] for item in listed("datasets") if item["files"]}
    assert {name: sizes[name] for name in fetched} == {
        "mnist": 11.6, "fashion-mnist": 30.9, "cifar10": 170.1, "imdb": 84.1, "adult": 6.0
    }  # fmt: skip


def test_json_is_one_object_and_nothing_else(capsys):
    list_what(what="adversaries", as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "schema": "dpzv-audit/list/1",
        "what": "adversaries",
        "items": [{"name": name, "summary": summary} for name, summary in ADVERSARIES.items()],
    }


def test_an_unknown_kind_suggests_the_nearest_or_lists_the_choices():
    with pytest.raises(InputError) as caught:
        list_what(what="attack", as_json=False)
    assert said(caught.value) == "WHAT is 'attack': did you mean 'attacks'?"
    with refused("use one of methods, defences, .*, planted, adversaries$"):
        list_what(what="zebras", as_json=False)
