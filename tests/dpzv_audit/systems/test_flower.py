"""What a Flower app sends is recorded as it travels: by a mod at a client, around the server, and in one process."""

import difflib
import importlib
import sys

import numpy as np
import pytest

from dpzv_audit.systems import Recorder
from dpzv_audit.systems.transcript import load

from ...helpers.places import ROOT
from ...helpers.refusals import refused

EXAMPLES = ROOT / "examples" / "flower"
MOST_LINES = 3
N, M = 6, 2
IDS = [4, 1, 3]


def test_the_app_needs_at_most_three_lines():
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("plain.py", "vertical.py"))
    changed = [line for line in difflib.ndiff(before, after) if line.startswith("+ ") and line[2:].strip()]
    assert 0 < len(changed) <= MOST_LINES


def test_without_flower_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.delitem(sys.modules, "dpzv_audit.systems.flower", raising=False)
    with pytest.raises(ImportError, match=r"needs the extra \[flower\]: pip install 'dpzv-audit\[flower\]'"):
        importlib.import_module("dpzv_audit.systems.flower")


@pytest.fixture
def flwr():
    return pytest.importorskip("flwr.app", reason="needs the extra [flower]")


@pytest.fixture
def flower(flwr):
    return importlib.import_module("dpzv_audit.systems.flower")


def message(flwr, node, what, group, **arrays):
    records = {name: flwr.ArrayRecord({"x": flwr.Array(values)}) for name, values in arrays.items()}
    return flwr.Message(flwr.RecordDict(records), node, what, group_id=group)


def client_app(flwr, mods=()):
    """A client that doubles what it gets, or embeds the records that it is asked about."""
    from flwr.clientapp import ClientApp

    app = ClientApp(mods=list(mods))

    @app.query("embed")
    def embed(request, context):
        shift = context.node_config["partition-id"]
        rows = np.float32(request.content[IDS_NAME]["x"].numpy()) if IDS_NAME in request.content else np.arange(N)
        h = np.stack([rows, rows + shift], 1).astype(np.float32)
        return flwr.Message(flwr.RecordDict({"up": flwr.ArrayRecord({"h": flwr.Array(h)})}), reply_to=request)

    @app.train("descend")
    def descend(request, context):
        return flwr.Message(flwr.RecordDict({"Losses!": flwr.MetricRecord({"loss": 0.5})}), reply_to=request)

    @app.evaluate("serve")
    def serve(request, context):
        return flwr.Message(flwr.RecordDict(), reply_to=request)

    return app


IDS_NAME = "ids"


def content(held):
    """Messages in full, whatever their tensors are called."""
    shown = []
    for m in held.messages:
        ids = held.tensors[m.ids].tolist() if m.ids else None
        shown.append((m.round, m.sender, m.receiver, m.kind, held.tensors[m.tensor].tolist(), ids))
    return shown


def train(flwr, grid, ids=None):
    """Two rounds: embeddings up, a gradient down; at the end a prediction is served."""
    down = np.ones((N if ids is None else len(ids), 2), np.float32)
    asked = {} if ids is None else {IDS_NAME: np.array(ids)}
    for number in ("0", "1"):
        list(grid.send_and_receive([message(flwr, node, "query.embed", number, **asked) for node in (1, 2)]))
        list(grid.send_and_receive([message(flwr, node, "train.descend", number, g=down * node) for node in (1, 2)]))
    list(grid.send_and_receive([message(flwr, 1, "evaluate.serve", "2", logits=down)]))


@pytest.mark.parametrize("ids", [None, IDS])
def test_messages_are_recorded_by_direction_with_the_ids_of_their_records(flwr, flower, ids):
    record = Recorder(N, M)
    grid = flower.local_grid(client_app(flwr), record, {})
    train(flwr, grid, ids)
    about = list(range(N)) if ids is None else ids
    per_record = [(m[0], m[1], m[2], m[3]) for m in content(record) if m[5] is not None]
    one_round = [(1, 0, "embeddings"), (2, 0, "embeddings"), (0, 1, "gradient"), (0, 2, "gradient")]
    assert per_record == [(r, *way) for r in (0, 1) for way in one_round] + [(2, 0, 1, "prediction")]
    assert all(m[5] == about for m in content(record) if m[5] is not None)
    others = [m[3] for m in content(record) if m[5] is None]
    assert others == (["ids"] * 2 * (ids is not None) + ["losses-", "losses-"]) * 2
    assert grid.log.public_ids == (ids is not None)


def test_mods_and_the_server_record_the_same_and_the_first_mod_sees_what_is_sent(flwr, flower, tmp_path):
    from flwr.serverapp import ServerApp

    said = {"records": N, "clients": M, "classes": 2, "tls": True}

    def noisy(request, context, call_next):
        reply = call_next(request, context)
        if "up" in reply.content:
            reply.content["up"]["h"] = flwr.Array(reply.content["up"]["h"].numpy() + np.float32(0.25))
        return reply

    server = flower.RecordedServer(ServerApp(), tmp_path, **said)
    server.main()(lambda grid, context: train(flwr, grid, IDS))
    app = client_app(flwr, [flower.client_mod(tmp_path, **said), noisy])
    server(flower.LocalGrid(app, M, {}), flwr.Context(0, 1, {}, flwr.RecordDict(), {}))
    by_server = load(tmp_path / "0" / "server")
    by_clients = load(flower.gather(tmp_path / "0"))
    key = str
    assert sorted(content(by_server), key=key) == sorted(content(by_clients), key=key)
    sent = next(m for m in content(by_clients) if m[3] == "embeddings" and m[1] == 1)
    assert sent[4] == [[i + 0.25, i + 0.25] for i in IDS]
    for found in (by_server, by_clients):
        assert found.manifest.encrypted
        assert found.manifest.public_ids


def test_bytes_are_those_of_the_payloads(flwr, flower):
    record = Recorder(N, M)
    grid = flower.LocalGrid(client_app(flwr), M, {})
    payload = 0

    class Counting(flower.LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            nonlocal payload
            messages = list(messages)
            replies = list(grid.send_and_receive(messages))
            for one in (*messages, *replies):
                for group in one.content.array_records.values():
                    # Flower counts names and the header of the NPY format too: 128 bytes.
                    payload += group.count_bytes() - sum(len(name) + 128 for name in group)
                payload += sum(group.count_bytes() - len("loss") for group in one.content.metric_records.values())
            return replies

    train(flwr, flower.RecordedGrid(Counting(client_app(flwr), M, {}), record), IDS)
    assert payload == sum(record.tensors[m.tensor].nbytes for m in record.messages) > 0


def test_pushing_and_pulling_records_as_sending_and_receiving_does(flwr, flower):
    records = [Recorder(N, M), Recorder(N, M)]
    grids = [flower.local_grid(client_app(flwr), record, {}) for record in records]
    requests = [[message(flwr, node, "query.embed", "0") for node in (1, 2)] for _ in grids]
    list(grids[0].send_and_receive(requests[0]))
    list(grids[1].pull_messages(reversed(list(grids[1].push_messages(requests[1])))))
    assert content(records[0]) == content(records[1])


def rounds_of(record, client, kind):
    return [m.round for m in record.messages if m.kind == kind and client in (m.sender, m.receiver)]


def exchanged(flwr, grid, number, nodes=(1, 2), **asked):
    """One exchange with nodes: embeddings up, and gradients pushed down, whose replies nobody awaits."""
    list(grid.send_and_receive([message(flwr, node, "query.embed", number, **asked) for node in nodes]))
    down = np.ones((len(asked.get(IDS_NAME, range(N))), 2), np.float32)
    grid.push_messages([message(flwr, node, "train.descend", number, g=down) for node in nodes])


@pytest.mark.parametrize("number", ["", "training", "4"])
def test_rounds_without_a_name_of_their_own_are_counted_by_replies(flwr, flower, number):
    record = Recorder(N, M)
    grid = flower.local_grid(client_app(flwr), record, {})
    for nodes in ((1, 2), (1,), (1, 2)):
        exchanged(flwr, grid, number, nodes)
    start = 4 if number == "4" else 0
    for kind in ("embeddings", "gradient"):
        assert rounds_of(record, 1, kind) == [start, start + 1, start + 2]
        assert rounds_of(record, 2, kind) == [start, start + 1]


def test_a_request_for_records_without_a_name_is_of_the_round_that_it_begins(flwr, flower):
    record = Recorder(N, M)
    grid = flower.local_grid(client_app(flwr), record, {})
    for ids in (IDS, IDS[:2]):
        exchanged(flwr, grid, "", ids=np.array(ids))
    for kind in ("ids", "embeddings", "gradient"):
        assert rounds_of(record, 1, kind) == [0, 1]


def test_names_that_are_numbers_of_rounds_stay_and_those_of_passes_are_told_apart(flwr, flower):
    record = Recorder(N, M)
    grid = flower.local_grid(client_app(flwr), record, {})
    for number, nodes in (("0", (1, 2)), ("1", (1,)), ("5", (1, 2))):
        exchanged(flwr, grid, number, nodes)
    assert rounds_of(record, 1, "embeddings") == [0, 1, 5]
    assert rounds_of(record, 2, "gradient") == [0, 5]
    record = Recorder(N, M)
    grid = flower.local_grid(client_app(flwr), record, {})
    for number in ("0", "0", "1", "1"):
        exchanged(flwr, grid, number)
    assert rounds_of(record, 1, "embeddings") == rounds_of(record, 2, "gradient") == [0, 1, 2, 3]
    record = Recorder(N, M)
    grid = flower.local_grid(client_app(flwr), record, {})
    for _ in range(2):  # two forward passes of one round
        list(grid.send_and_receive([message(flwr, 1, "query.embed", "0")]))
    assert rounds_of(record, 1, "embeddings") == [0, 0]


def test_mods_of_processes_count_rounds_as_the_server_does(flwr, flower, tmp_path):
    record = Recorder(N, M)
    mods = [flower.client_mod(tmp_path, records=N, clients=M, classes=2, tls=False)]
    grid = flower.local_grid(client_app(flwr, mods), record, {})
    for _ in range(3):
        exchanged(flwr, grid, "")

    def of_records(held):
        return sorted((m for m in content(held) if m[5] is not None), key=str)

    # Of a request that was pushed nobody awaits the reply, which the mod alone sees.
    assert of_records(load(flower.gather(tmp_path / "0"))) == of_records(record) != []


def test_what_cannot_be_recorded_is_one_line(flwr, flower, tmp_path):
    mod = flower.client_mod(tmp_path, records=N, clients=1, classes=2, tls=False)
    grid = flower.LocalGrid(client_app(flwr, [mod]), M, {})
    with refused("partition-id of the node is 1; use a whole number from 0 to 0"):
        grid.send_and_receive([message(flwr, 2, "query.embed", "0")])
    with refused("use the folder of a run"):
        flower.gather(tmp_path / "nothing")
