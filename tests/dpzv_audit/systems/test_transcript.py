"""A transcript reads back what was recorded, refuses what is damaged, and two parties' parts merge to the whole."""

import json
import time

import numpy as np
import pydantic
import pytest
import torch
from jsonschema import Draft202012Validator
from packaging.version import Version
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from dpzv_audit.systems import Recorder
from dpzv_audit.systems.transcript import MANIFEST, Manifest, load, schema_of_transcripts

from ...helpers.places import ROOT, read_json
from ...helpers.refusals import refused

IDS = np.array([2, 0])


def recorded(memory=1 << 30):
    record = Recorder(records=4, clients=2, memory=memory)
    rng = np.random.default_rng(0)
    for number in range(3):
        for client in (1, 2):
            record.sent(number, client, 0, "embeddings", rng.standard_normal((2, 3)), IDS + number % 2)
        for client in (1, 2):
            record.sent(number, 0, client, "gradient", rng.standard_normal((2, 3)), IDS + number % 2)
    record.sent(3, 0, 1, "scalar", 2.5)
    record.note(1, "direction", np.arange(3.0))
    return record


def same(one, other):
    """Whether two records hold the same messages and notes, whatever their tensors are called."""

    def content(held):
        messages = []
        for m in held.messages:
            ids = held.tensors[m.ids].tolist() if m.ids else None
            messages.append((m.round, m.sender, m.receiver, m.kind, held.tensors[m.tensor].tolist(), ids))
        return messages, [(n.party, n.name, held.tensors[n.tensor].tolist()) for n in held.notes]

    return content(one) == content(other)


@pytest.mark.parametrize("memory", [1 << 30, 100, 0])
def test_a_transcript_reads_back_what_was_recorded(tmp_path, memory):
    folder = recorded(memory).save(tmp_path / "run", classes=3, public_ids=True)
    found = load(folder)
    assert same(found, recorded())
    assert (found.records, found.clients, found.manifest.classes, found.manifest.public_ids) == (4, 2, 3, True)
    assert all(path.stat().st_mode & 0o077 == 0 for path in [folder, *folder.iterdir()])


def test_a_folder_that_holds_files_is_not_written_over(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with refused("holds files; use an empty or new folder"):
        recorded().save(tmp_path, classes=2)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_parts_of_two_parties_merge_to_the_whole(tmp_path):
    whole = recorded()
    for party, name in ((0, "server"), (1, "one"), (2, "two")):
        part = Recorder(records=4, clients=2)
        for m in whole.messages:
            if m.sender == party:
                ids = whole.tensors[m.ids] if m.ids else None
                part.sent(m.round, m.sender, m.receiver, m.kind, whole.tensors[m.tensor], ids)
        for n in whole.notes:
            if n.party == party:
                part.note(n.party, n.name, whole.tensors[n.tensor])
        part.save(tmp_path / name, classes=2)
    merged = Recorder(records=4, clients=2)
    merged.merge(tmp_path / "server", tmp_path / "two", tmp_path / "one")
    whole.messages[:] = sorted(whole.messages, key=lambda m: (m.round, m.receiver != 0, -m.sender))
    assert same(merged, whole)


def test_parts_of_another_training_do_not_merge(tmp_path):
    recorded().save(tmp_path / "other", classes=2)
    with refused("is of 4 records and 2 clients; use one of the same training, of 5 and 2"):
        Recorder(records=5, clients=2).merge(tmp_path / "other")


def change(folder, **keys):
    path = folder / MANIFEST
    path.write_text(json.dumps(read_json(path) | keys))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"schema": "dpzv-audit/transcript/9"}, "key schema: "),
        ({"records": 0}, "key records: "),
        ({"clients": "two"}, "key clients: "),
        ({"more": 1}, "key more: "),
        ({"files": ["../elsewhere.safetensors"]}, "use names of files beside the manifest"),
        ({"files": ["absent.safetensors"]}, "absent.safetensors"),
        ({"records": 2}, "ids 'i0' are out of range; use 0 to 1"),
        ({"clients": 1}, "messages.1: is from 2 to 0; use two of the parties 0 to 1"),
        ({"notes": [{"party": 1, "name": "x", "tensor": "nix"}]}, "note 'x' names a tensor or a party that is not"),
    ],
)
def test_a_damaged_manifest_is_refused_in_one_line(tmp_path, keys, words):
    folder = recorded().save(tmp_path / "run", classes=2)
    change(folder, **keys)
    with refused(words) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"tensor": "nix"}, "tensor 'nix' is in none of"),
        ({"ids": ""}, "an 'embeddings' has no ids"),
        ({"ids": "m1"}, "ids 'm1' do not fit; use whole numbers, one for each row"),
        ({"kind": "Soft labels"}, "key messages.0.kind: "),
        ({"round": -2}, "key messages.0.round: "),
    ],
)
def test_a_wrong_message_is_named(tmp_path, entry, words):
    folder = recorded().save(tmp_path / "run", classes=2)
    messages = read_json(folder / MANIFEST)["messages"]
    change(folder, messages=[messages[0] | entry, *messages[1:]])
    with refused(words):
        load(folder)


def test_no_manifest_and_no_safetensors(tmp_path):
    with refused(r"manifest.json: cannot be read"):
        load(tmp_path)
    folder = recorded().save(tmp_path / "run", classes=2)
    (folder / "tensors-00000.safetensors").write_bytes(b"no")
    with refused("cannot be read as safetensors"):
        load(folder)


def test_ten_lines_of_numpy_write_one(tmp_path):
    save_file(
        {"g": np.ones((2, 3), np.float32), "h": np.ones((2, 3), np.float32), "ids": IDS}, tmp_path / "a.safetensors"
    )
    messages = [
        {"round": 0, "sender": 1, "receiver": 0, "kind": "embeddings", "tensor": "h", "ids": "ids"},
        {"round": 0, "sender": 0, "receiver": 1, "kind": "gradient", "tensor": "g", "ids": "ids"},
    ]
    manifest = {"schema": "dpzv-audit/transcript/1", "records": 4, "clients": 1, "classes": 2}
    manifest |= {"files": ["a.safetensors"], "messages": messages}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert [m.kind for m in load(tmp_path).messages] == ["embeddings", "gradient"]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"m0": np.array([[np.nan, 0, 0], [0, 0, 0]])}, "messages.0: tensor 'm0' holds nan; use finite"),
        ({"m0": np.array(1.0)}, "messages.0: ids 'i0' do not fit; use whole numbers, one for each row"),
        ({"m0": np.zeros((2, 0))}, "messages.0: tensor 'm0' holds values of type"),
        ({"i0": np.zeros(())}, "messages.0: ids 'i0' do not fit; use whole numbers"),
    ],
)
def test_a_wrong_tensor_is_named(tmp_path, tensors, words):
    folder = recorded().save(tmp_path / "run", classes=2)
    (path,) = folder.glob("*.safetensors")
    save_file(load_file(path) | tensors, path)
    with refused(words):
        load(folder)


def test_a_type_that_numpy_has_not_is_refused(tmp_path):
    folder = recorded().save(tmp_path / "run", classes=2)
    (path,) = folder.glob("*.safetensors")
    save_torch(
        {name: torch.tensor(values) for name, values in load_file(path).items()}
        | {"m0": torch.zeros(2, 3, dtype=torch.bfloat16)},
        path,
    )
    with refused("tensor 'm0' cannot be read by numpy"):
        load(folder)


@pytest.mark.parametrize(
    ("record", "classes", "words"),
    [
        (Recorder(records=4, clients=2), 2, "nothing was recorded"),
        (recorded(), 1, "classes is 1; use a whole number of at least 2"),
    ],
)
def test_what_is_no_transcript_is_not_written(tmp_path, record, classes, words):
    with refused(words):
        record.save(tmp_path / "run", classes=classes)
    assert not (tmp_path / "run").exists()


def test_ten_thousand_messages_are_read_in_seconds(tmp_path):
    record = Recorder(records=4, clients=1)
    for number in range(5000):
        record.sent(number, 1, 0, "embeddings", np.ones((2, 3)), IDS + number % 2)
        record.sent(number, 0, 1, "gradient", np.ones((2, 3)), IDS + number % 2)
    record.save(tmp_path / "run", classes=2)
    start = time.perf_counter()
    assert len(load(tmp_path / "run").messages) == 10_000
    # A header that is read for each message takes minutes.
    assert time.perf_counter() - start < 20


@pytest.mark.skipif(
    Version(pydantic.VERSION) < Version("2.13"), reason="published as pydantic 2.13 and later describe the same models"
)
def test_the_published_schema_is_that_of_the_manifest(tmp_path):
    page = ROOT / "docs" / "reference" / "transcript.schema.json"
    schema = schema_of_transcripts()
    command = "python -m dpzv_audit.systems.transcript > docs/reference/transcript.schema.json"
    assert page.read_text("utf-8") == json.dumps(schema, indent=1) + "\n", f"run: {command}"
    written = read_json(recorded().save(tmp_path / "run", classes=3, top_model=False) / MANIFEST)
    validator = Draft202012Validator(schema)
    assert validator.is_valid(written)
    assert written["top_model"] is False
    for wrong in ({**written, "x": 1}, {**written, "records": 0}, {**written, "schema": "dpzv-audit/transcript/2"}, {}):
        assert not validator.is_valid(wrong)


def test_the_schema_says_every_key():
    schema = Manifest.model_json_schema(by_alias=True)
    assert set(schema["required"]) == {"schema", "records", "clients", "classes", "files", "messages"}
    described = [*schema["properties"].values(), *schema["$defs"]["SentEntry"]["properties"].values()]
    assert all(one.get("description") for one in described)
