import inspect

import pytest

from dpzv_audit.data import DATASETS, DataSpec, Partition, load
from dpzv_audit.data.spec import DATA_VARIABLE

from ...helpers.places import toml_beside
from ...helpers.refusals import refusal, refused

EMBEDDED = {"digits", "breast-cancer"}


@pytest.mark.parametrize("name", DATASETS)
def test_every_loader_takes_what_its_entry_says(name):
    spec = DATASETS[name]
    request, *options = inspect.signature(spec.reader).parameters.values()
    assert (spec.name, request.name) == (name, "request")
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in options)
    assert "\n" not in spec.summary
    assert len(spec.summary) <= 120


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in EMBEDDED])
def test_every_set_with_files_says_what_to_download_and_where_to_put_it(name, tmp_path, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    for data_dir in (None, tmp_path):
        text = refusal(load, name, data_dir=data_dir)
        assert any(word in text for word in ("download", "get ", "make "))
        assert ("data_dir" if data_dir is None else str(tmp_path)) in text
    if DATASETS[name].remote:
        assert "give download" in text or "download it from https://" in text


TOLD = toml_beside(__file__, "told_without_files.toml")


@pytest.mark.parametrize(
    ("when", "name", "options", "words"),
    [(when, name, *told) for when, sets in TOLD.items() for name, all_told in sets.items() for told in all_told],
)
def test_what_a_set_says_without_its_files(when, name, options, words, tmp_path):
    folder = tmp_path if "empty" in when else tmp_path / "absent"
    assert words in refusal(load, name, data_dir=folder, **options)


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("clients", [0, -1])
def test_no_set_has_no_clients(name, clients, tmp_path):
    with refused(f"clients is {clients}"):
        load(name, clients=clients, data_dir=tmp_path)


def test_options_a_set_does_not_have_are_refused():
    with refused("option 'subset' is not for digits, which has no options"):
        load("digits", subset=True)


@pytest.mark.parametrize("name", DATASETS)
def test_without_a_partition_the_first_one_takes_its_own_number_of_clients(name):
    spec = DATASETS[name]
    assert spec.choose(None, None) == next((kind, way.clients) for kind, way in spec.partitions.items())
    for kind, way in spec.partitions.items():
        assert spec.choose(way.clients, kind) == spec.choose(None, kind) == (kind, way.clients)


def test_a_partition_of_one_number_of_clients_is_taken_for_that_number_alone():
    assert DATASETS["cifar10"].choose(2, None) == ("halves", 2)
    assert DATASETS["cifar10"].choose(16, None) == ("patches", 16)
    assert DATASETS["adult"].choose(4, None) == ("groups", 4)
    assert DATASETS["adult"].choose(5, None) == ("columns", 5)
    assert DATASETS["mnist"].choose(2, None) == ("strips", 2)


def test_a_set_must_say_what_its_numbers_come_from():
    with refused("data set ours: say its source, its files or the package"):
        DataSpec(name="ours", summary="", reader=load, partitions={"runs": Partition(clients=1, takes="1")})
    with refused("data set ours: state at least one partition"):
        DataSpec(name="ours", summary="", reader=load, partitions={}, package="numpy")


def test_other_numbers_of_clients_than_the_one_a_set_has_are_refused():
    halves = {"halves": Partition(clients=2, takes="2", fixed=True)}
    ours = DataSpec(name="ours", summary="", reader=load, partitions=halves, package="numpy")
    assert ours.choose(2, None) == ours.choose(None, None) == ("halves", 2)
    with refused("clients is 3; use 2 for halves"):
        ours.choose(3, None)
