"""The page of all runs: what it reads and says, who may ask for it, and what it does in a real headless Chromium.

The command that docs/guide/view.md begins with is the one that is served here.
"""

import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.cli import main, view
from dpzv_audit.cli.view import HERE, Server
from dpzv_audit.results import read
from reports import risk
from reports.answer import answer_of
from reports.view import _NOT_LISTED, Pages, details_of, row_of, runs_in

from ..helpers.chromium import CHROMIUM, browser
from ..helpers.commands import Command
from .conftest import RESULTS
from .test_faces import file_of, random_claim

NASTY = "</script><img src=x onerror=\"document.title='run'\">%{x}<a href='javascript:1'>&amp;"
COMMIT = "4f2a9c1"
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found")


def write(folder, result):
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(result if isinstance(result, str) else json.dumps(result), "utf-8")
    return folder


def pages(folder):
    return Pages(folder, lambda: "")


def taken(file):
    """Return what a file of data hands over to the page: its name and its value."""
    name, text = json.loads(f"[{file.content.decode().removeprefix('dpzvTake(').removesuffix(');' + chr(10))}]")
    return name, json.loads(text)


def listed(made):
    return taken(made.get("runs.js"))[1]


@pytest.fixture
def runs(tmp_path, results):
    """A folder with a run of each kind, two of them below a commit, and what no page may follow or show."""
    folder = tmp_path / "runs"
    for hour, (kind, result) in enumerate(sorted(results.items())):
        above = folder / f"privacy-{COMMIT}" if kind in ("attack", "audit") else folder
        write(above / f"20261128-{hour:02}0000-{kind}-seed0", result)
    return folder


# What is listed.


def test_rows_have_the_word_and_the_numbers_of_every_other_face(of_each_schema):
    for kind, raw in of_each_schema.items():
        result, other = read(raw)
        answer, row = answer_of(result), row_of(result)
        assert (row["word"], row["about"]) == (answer.judgement.word, answer.judgement.about), kind
        verdict = result.verdict
        if verdict is not None and verdict.measured is not None and verdict.measured.quantity == "epsilon":
            assert row["measured"][0] == verdict.measured.value, kind
        if verdict is not None and verdict.proven is not None:
            assert row["proven"][0] == verdict.proven.value, kind
        head = details_of(result, other)["head"]
        assert (head["facts"], head["notes"], head["subject"]) == (answer.facts, answer.judgement.notes, answer.subject)


@pytest.mark.parametrize(
    ("game", "certified", "measured"),
    [(0.5, 0.25, "≥ 0.5"), (0.5, 1.25, "≥ 1.25"), (0.0, None, "≥ 0"), (None, None, ""), (None, 1.25, "≥ 1.25")],
)
def test_all_attacks_have_the_largest_epsilon_that_coins_certify(game, certified, measured):
    cell = {
        "attack": "label_direct",
        "adversary": "client",
        "state": "measured",
        "success": 0.5,
        "certified": certified,
    }
    beside = {"adversary": "client", "epsilon_lower": game, "reason": "time was short"}
    raw = {"schema": "dpzv-audit/attacks/1", "method": "system:a:b", "attacks": [cell], "coin_game": beside}
    result, _ = read(raw)
    assert row_of(result)["measured"][1] == measured
    assert measured.removeprefix("≥ ") in answer_of(result).facts["measured"]
    assert row_of(read(raw | {"coin_game": None})[0])["measured"] == [None, ""]


def test_what_the_list_does_not_read_changes_no_row(of_each_schema):
    for raw in of_each_schema.values():
        assert row_of(read({key: raw[key] for key in raw if key not in _NOT_LISTED})[0]) == row_of(read(raw)[0])


def test_a_row_names_the_attack_whose_success_it_shows(results):
    other = {"attack": "label_scalar", "adversary": "colluding-clients", "method": "dpzv", "metric": "labels found"}
    other |= {"dataset": "digits", "success": 0.4, "reference": 0.1, "clear": True, "trainings": 9}
    row = row_of(read({**results["attack"], "beside": [other]})[0])
    assert (row["attacker"], row["success"][1]) == ("all clients together: label_scalar", "40.0%")


def test_a_row_says_when_on_which_commit_and_against_whom(runs):
    rows = {row["folder"]: row for row in listed(pages(runs))["runs"]}
    assert len(rows) == len(RESULTS)
    (attack,) = (row for row in rows.values() if row["command"] == "attack")
    assert attack["date"].startswith("2026-11-28 0")
    assert attack["folder"].startswith(f"privacy-{COMMIT}/20261128-")
    assert (attack["commit"], attack["version"], attack["system"], attack["data"]) == (
        COMMIT,
        "0.1.0",
        "dpzv",
        "digits",
    )
    assert attack["attacker"] == "one curious client: label_direct"
    assert attack["measured"] == [2.1374, "≥ 2.13"]
    assert (attack["success"][1], attack["baseline"][1]) == ("12.1%", "10.4%")
    assert [row["commit"] for row in rows.values() if row["command"] == "train"] == [""]


@pytest.mark.parametrize("name", ["20261128-101010", "deadbeef", "1234567", "label_direct", "0a"])
def test_not_every_word_is_a_commit(name, tmp_path, results):
    write(tmp_path / name / "20261128-101010-attack-dpzv-seed0", results["attack"])
    assert [run.facts()["commit"] for run in runs_in(tmp_path)] == [""]


def test_every_claim_about_an_epsilon_is_a_point_of_its_own():
    claims = [random_claim(np.random.default_rng(place), place) for place in range(20)]
    points = row_of(file_of(claims))["points"]
    assert len(points) == sum(claim.form != "attack" for claim in claims) > 3
    by_name = {claim.name: claim for claim in claims}
    for point in points:
        claim = by_name[point["line"]]
        assert (point["claimed"], point["measured"], point["proven"]) == (
            claim.claimed,
            claim.epsilon_lower,
            claim.upper,
        )


# What is read.


def opened(act):
    """Return the paths of all files that are opened while `act` runs."""
    paths = []
    on = [True]

    def hook(event, arguments):
        if on[0] and event == "open" and not isinstance(arguments[0], int):
            paths.append(os.fsdecode(arguments[0]))

    sys.addaudithook(hook)
    act()
    on[0] = False
    return paths


def test_nothing_of_a_run_is_opened_but_its_result(runs):
    for run in runs_in(runs):
        for name in ("report.html", "models.safetensors", "environment.json", "measured.json", "x.pkl"):
            (run.path.parent / name).write_bytes(b"not to be read")
    made = pages(runs)

    def ask():
        listed(made)
        assert [taken(made.get(name)) for name in made.names() if name.startswith("runs/")]

    inside = [Path(path) for path in opened(ask) if str(runs) in path]
    assert {path.name for path in inside if not path.is_dir()} == {"result.json"}
    assert sum(path.name == "result.json" for path in inside) == 2 * len(RESULTS)  # once for the list, once when opened


def test_results_within_a_run_belong_to_it(tmp_path, results):
    run = write(tmp_path / "20261128-101010-attack-dpzv-seed0", results["attack"])
    write(run / "label_scalar-dpzv", results["attack"])
    assert [run.place for run in runs_in(tmp_path)] == ["20261128-101010-attack-dpzv-seed0"]
    assert [run.place for run in runs_in(run)] == ["20261128-101010-attack-dpzv-seed0"]


def test_no_link_is_followed(tmp_path, results):
    outside = write(tmp_path / "outside", results["attack"])
    inside = tmp_path / "runs"
    inside.mkdir()
    (inside / "folder").symlink_to(outside)
    (inside / "file").mkdir()
    (inside / "file" / "result.json").symlink_to(outside / "result.json")
    page = listed(pages(inside))
    assert page["runs"] == []
    assert [(row["folder"], row["unreadable"]) for row in page["unreadable"]] == [
        ("file", "result.json: is a link; use a regular file")
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds a JSON list, not a result"),
        ('{"schema": "other/1"}', "key 'schema' is 'other/1'"),
        ('{"schema": "dpzv-audit/verify/1"}', "no result of verify"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema": NaN}', "NaN is not a JSON number"),
        ("\udcff", "is not JSON"),
    ],
)
def test_what_cannot_be_read_is_listed_with_the_reason(content, reason, runs):
    folder = runs / "20261128-235959-foreign"
    folder.mkdir()
    (folder / "result.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    page = listed(made := pages(runs))
    assert len(page["runs"]) == len(RESULTS)
    (row,) = page["unreadable"]
    assert reason in row["unreadable"]
    assert "\n" not in row["unreadable"]
    assert taken(made.get(f"runs/{row['id']}.js"))[1]["unreadable"] == row["unreadable"]


def test_a_result_that_is_too_large_is_skipped_and_named(runs, monkeypatch):
    monkeypatch.setattr("reports.view.MOST_BYTES", 5_000)
    (row, *_) = listed(pages(runs))["unreadable"]
    assert row["unreadable"] == "result.json: has more than 5000 bytes; use 5000 at most"


def test_a_table_without_columns_is_a_run_like_others(tmp_path, results):
    write(tmp_path / "a", {**results["reproduce"], "columns": [], "cells": [[]]})
    (row,) = listed(made := pages(tmp_path))["runs"]
    assert taken(made.get(f"runs/{row['id']}.js"))[1]["head"]["rows"] == []


def test_an_error_in_one_run_does_not_hide_the_others(runs, monkeypatch):
    monkeypatch.setattr("reports.view._success", lambda result: math.log(len(result.command_line or ())) and {})
    page = listed(pages(runs))
    assert page["unreadable"]
    assert all("cannot be shown (" in row["unreadable"] for row in page["unreadable"])


def test_no_name_leads_out_of_the_folder(runs):
    made = pages(runs)
    listed(made)
    names = list(made.names())
    assert all(made.get(name) is not None for name in names)
    for name in (
        "../x",
        "runs/../../x",
        "runs/",
        "runs/0000000000000000.js",
        "/etc/passwd",
        "report.html",
        names[4] + "x",
    ):
        assert made.get(name) is None, name


def test_text_of_runs_travels_as_a_string_of_plain_characters(tmp_path, results):
    write(
        tmp_path / "a",
        {**results["attack"], "method": NASTY, "config": {"__proto__": {"x": NASTY}, "a\u202eb": "\x00"}},
    )
    made = pages(tmp_path)
    row = listed(made)["runs"][0]
    assert row["system"] == NASTY
    files = [made.get(name).content for name in made.names() if name.startswith("runs")]
    assert len(files) == 2
    for content in files:
        assert content.isascii()
        assert not set(b"<>&") & set(content)
    value = taken(made.get(f"runs/{row['id']}.js"))[1]
    assert any("__proto__" in key for key in value["settings"])
    assert any(key.endswith("a\\u202eb") for key in value["settings"])


def test_numbers_that_javascript_lacks_and_long_texts_are_text(tmp_path, results):
    text = json.dumps({**results["attack"], "config": {"a": "x" * 5000}}).replace('"seed": 0', '"seed": 0, "z": 1e999')
    write(tmp_path / "a", text)
    made = pages(tmp_path)
    (row,) = listed(made)["runs"]
    value = taken(made.get(f"runs/{row['id']}.js"))[1]
    assert value["unknown"] == ["z"]
    assert max(map(len, value["settings"].values())) <= 1001


# Who may ask.


@contextmanager
def serving(folder, drawing=lambda: ""):
    with Server(Pages(folder, drawing), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path=None, method="GET", **headers):
    connection = http.client.HTTPConnection(HERE, server.server_port, timeout=30)
    path = "/" + server.address.split("/", 3)[3] if path is None else path
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer, answer.read()


@pytest.fixture
def server(runs):
    with serving(runs) as made:
        yield made


def test_only_this_machine_is_listened_to(server):
    assert server.server_address[0] == "127.0.0.1"
    answer, content = ask(server)
    assert (answer.status, b"<!doctype html>" in content) == (200, True)
    others = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for other in others:
        with pytest.raises(OSError), socket.create_connection((other, server.server_port), timeout=5):
            pass


@pytest.mark.parametrize("host", ["example.org", "example.org:{}", "127.0.0.1", "127.0.0.1.example.org:{}", ""])
def test_other_hosts_are_refused(server, host):
    answer, content = ask(server, Host=host.format(server.server_port))
    assert answer.status == 421
    assert content == b"421 Misdirected Request\n"
    assert ask(server, Host=f"localhost:{server.server_port}")[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "<b>"])
def test_nothing_but_get_is_answered(server, method):
    answer, content = ask(server, method=method)
    assert answer.status == 501
    assert b"<" not in content


def test_the_path_is_a_secret_and_leads_nowhere_else(server):
    secret = "/" + server.address.split("/", 3)[3]
    assert ask(server, f"{secret}runs.js")[0].status == 200
    for path in ("/", "/runs.js", f"/x{secret}runs.js", f"{secret}../../../etc/passwd", f"{secret}result.json", "//"):
        assert ask(server, path)[0].status == 404, path
    with serving(server.pages.folder) as other:
        assert other.address.split("/")[3] != server.address.split("/")[3]


def test_a_page_may_load_nothing_but_its_own_scripts(server):
    answer, content = ask(server)
    page = content.decode()
    stated = re.search('http-equiv="Content-Security-Policy" content="(.+?)">', page)[1]
    policy = dict(part.split(" ", 1) for part in stated.split("; "))
    nonce = policy["script-src"].removeprefix("'nonce-").removesuffix("'")
    assert policy == {
        "default-src": "'none'",
        "script-src": f"'nonce-{nonce}'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert page.count("<script") == page.count(f'<script nonce="{nonce}" src=') == 2
    assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"


# The command.


@pytest.fixture
def cli(capsys):
    return Command(capsys)


@pytest.fixture
def drawn(monkeypatch):
    """Let the command draw with nothing, where plotly is not installed."""
    monkeypatch.setattr(view, "drawing", lambda: lambda: "// plotly")


def test_a_folder_that_is_not_there_is_one_line(cli, drawn):
    words = "nowhere: is no folder; give one with run folders, such as dpzv-audit attack writes"
    assert cli.refusal("view nowhere") == f"dpzv-audit: error: {words}"


def test_without_plotly_one_line_says_what_to_install(monkeypatch, cli, tmp_path):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert cli.refusal("view", tmp_path, code=3) == f"dpzv-audit: error: {view.MISSING}"


def test_a_port_that_is_taken_is_one_line(cli, drawn, tmp_path):
    with socket.create_server((HERE, 0)) as taken_port:
        port = taken_port.getsockname()[1]
        refusal = cli.refusal(f"view --no-browser --port {port}", tmp_path)
    assert refusal.startswith(f"dpzv-audit: error: --port is {port}, which cannot be listened on (")
    assert "--port is 65536" in cli.refusal("view --port 65536", tmp_path)


@pytest.mark.parametrize(
    ("flags", "terminal", "opens"), [("", True, True), ("--no-browser", True, False), ("", False, False)]
)
def test_the_browser_is_opened_where_a_terminal_is(cli, drawn, tmp_path, monkeypatch, flags, terminal, opens):
    def ended(server):
        raise KeyboardInterrupt

    addresses = []
    monkeypatch.setattr(Server, "serve_forever", ended)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setattr(view.webbrowser, "open", addresses.append)
    done = cli(f"view {flags}", tmp_path)
    assert (done.code, done.err) == (0, "")
    (address,) = re.findall(r"^http://127\.0\.0\.1:\d+/\S{22}/$", done.out, re.MULTILINE)
    assert addresses == [address] * opens


def test_the_command_serves_until_it_is_interrupted(runs):
    pytest.importorskip("plotly")
    command = [sys.executable, "-m", "dpzv_audit", "view", str(runs), "--no-browser"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    def interruptible():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores it

    with subprocess.Popen(command, **pipes, preexec_fn=interruptible) as process:
        try:
            address = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{address}runs.js", timeout=60) as answer:
                assert answer.read().startswith(b'dpzvTake("runs", ')
            process.send_signal(signal.SIGINT)
            assert (process.wait(60), process.stderr.read()) == (0, "")
        finally:
            process.kill()


def test_export_writes_the_page_into_an_empty_folder_alone(cli, drawn, runs, tmp_path):
    assert cli.answer("view", runs, "--export", tmp_path / "page")["runs"] == len(RESULTS)
    files = {str(path.relative_to(tmp_path / "page")) for path in (tmp_path / "page").rglob("*") if path.is_file()}
    assert files == {"index.html", "view.js", "plotly.js", "runs.js", *(f"runs/{run.key}.js" for run in runs_in(runs))}
    assert "use an empty folder" in cli.refusal("view", runs, "--export", tmp_path / "page")
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "page").rglob("*")} == {0}


def test_an_export_that_fails_leaves_nothing(cli, drawn, runs, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(view, "write_atomically", full)
    assert "No space left on device" in cli.refusal("view", runs, "--export", tmp_path / "page", code=3)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


# In a browser.


MANY = 1000


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as made:
        made.size(1280)
        yield made


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    """A folder with a run of each kind, four more of one claim on as many commits, and one with hostile text."""
    folder = tmp_path_factory.mktemp("view") / "runs"
    for hour, (kind, result) in enumerate(sorted(RESULTS.items())):
        write(folder / f"20261128-{hour:02}0000-{kind}-seed0", result)
    for day, upper in enumerate((5.8127, 4.5, 3.25, 2.5), start=1):
        privacy = RESULTS["attack"]["privacy"] | {"upper": upper}
        above = folder / f"{day}a2b3c{day}d"
        write(
            above / f"202611{day:02}-000000-attack-vafl-seed0",
            RESULTS["attack"] | {"method": "vafl", "privacy": privacy},
        )
    lines = {NASTY: RESULTS["attack"]["tradeoff"]["claimed"], "__proto__": RESULTS["attack"]["tradeoff"]["claimed"]}
    alpha = RESULTS["attack"]["tradeoff"]["alpha"]
    figures = {"rounds": {}, "tradeoff": {"alpha": alpha, **lines}}
    write(folder / "20261128-230000-account-x", RESULTS["account"] | {"method": NASTY, "figures": figures})
    write(folder / "20261128-230001-broken", "{")
    return folder


@pytest.fixture(scope="module")
def exported(some, tmp_path_factory):
    """The page on those runs as files."""
    pytest.importorskip("plotly")
    folder = tmp_path_factory.mktemp("exported") / "page"
    assert main(["view", str(some), "--export", str(folder), "--quiet"]) == 0
    return (folder / "index.html").as_uri()


def row_ids(tab, words):
    """Return the runs of the list whose row has all the words, from the top."""
    rows = tab.js(
        "[...document.querySelectorAll('.list tbody tr')].filter((row) => !row.hidden)"
        ".map((row) => [row.querySelector('td.date a').hash.slice(5), row.innerText.replaceAll('\\n', ' ')])"
    )
    return [key for key, text in rows if all(word in text for word in words.split())]


def choose(tab, name, value):
    """Set a box, a list or a slider as a user does, to what an expression is."""
    tab.js(
        f"(() => {{ const box = document.getElementById('{name}'); box.value = {value};"
        "for (const each of ['input', 'change']) box.dispatchEvent(new Event(each)); })()"
    )


@in_chromium
def test_the_list_sorts_filters_and_names_what_it_cannot_read(tab, exported):
    tab.open(exported)
    assert tab.js("document.querySelector('[role=status]').textContent") == f"{len(RESULTS) + 5} runs"
    assert "broken: result.json: is not JSON" in tab.js("document.querySelector('.unreadable').textContent")
    tab.js("document.querySelectorAll('.list th button')[7].click()")  # measured epsilon, the largest first
    column = "[...document.querySelectorAll('.list td:nth-child(9)')].map((cell) => cell.textContent)"
    shown = tab.js(column)
    numbers = [float(text[2:]) for text in shown if text != "–"]
    assert len(numbers) > 4
    assert numbers == sorted(numbers, reverse=True)
    assert shown[len(numbers) :] == ["–"] * (len(shown) - len(numbers))
    tab.js("document.querySelectorAll('.list th button')[7].click()")
    assert [float(text[2:]) for text in tab.js(column) if text != "–"] == numbers[::-1]
    tab.js(
        "const box = document.querySelector('input[type=search]'); box.value = 'VAFL refuted 4a2b';"
        "box.dispatchEvent(new Event('input'))"
    )
    assert tab.js("document.querySelector('[role=status]').textContent") == f"1 of {len(RESULTS) + 5} runs"
    assert len(row_ids(tab, "vafl 4a2b3c4d refuted")) == 1
    tab.js("box.value = ''; box.dispatchEvent(new Event('input'))")
    assert tab.console == []


@in_chromium
def test_runs_stand_side_by_side_with_what_differs(tab, exported):
    tab.open(exported)
    one, other, train = (row_ids(tab, f"vafl {word}")[0] for word in ("1a2b3c1d", "4a2b3c4d", "train"))
    assert tab.js("document.getElementById('compare').disabled")
    for key in (one, other):
        tab.js(f"document.querySelector('a[href=\"#run/{key}\"]').closest('tr').querySelector('input').click()")
    assert tab.js("document.getElementById('compare').textContent") == "Compare 2 runs"
    tab.js("document.getElementById('compare').click()")
    tab.until("document.querySelector('h1').textContent === '2 runs side by side'")
    tables = tab.js(
        "[...document.querySelectorAll('table')].map((table) => Object.fromEntries([...table.rows].map("
        "(row) => [...row.cells].map((cell) => cell.innerText)).map(([name, ...others]) => [name, others])))"
    )
    assert tables[0]["proven ε"] == ["≤ 5.82", "≤ 2.5"]
    assert tables[0]["verdict"][0].startswith(
        "refuted: ε ≤ 1 (δ = 1e-05, one label changed) against one curious client"
    )
    assert tables[1]["privacy, upper"] == ["5.81", "2.5"]
    assert "None: the runs have the same settings." in tab.js("document.body.innerText")
    assert len(tables) == 2
    tab.go(f"compare/{one},{train}")
    settings = tab.js(
        "[...document.querySelectorAll('table')[1].rows].map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    assert ["The run: method", "vafl", "vafl"] not in settings
    assert ["The run: seed", "0", "3"] in settings
    assert tab.console == []


@in_chromium
def test_epsilon_is_drawn_by_date_and_by_commit_with_values_under_the_pointer(tab, exported):
    tab.open(exported)
    tab.go("epsilon")
    name = "vafl on digits, one curious client"
    choose(tab, "line", f"[...box.options].find((each) => each.textContent.startsWith({name!r})).value")
    tab.until("document.getElementById('epsilon').data?.length === 3")
    drawn = tab.js("document.getElementById('epsilon').data.map((t) => [t.x, t.y])")
    dates = [f"2026-11-0{day} 00:00:00" for day in range(1, 5)]
    assert drawn == [[dates, [2.1374] * 4], [dates, [5.8127, 4.5, 3.25, 2.5]], [dates, [1] * 4]]
    choose(tab, "axis", "'commit'")
    tab.until("document.getElementById('epsilon').data[0].x[0] === '1a2b3c1d'")
    assert tab.js("document.getElementById('epsilon').data[1].x") == [f"{day}a2b3c{day}d" for day in range(1, 5)]
    tab.until("document.querySelectorAll('#epsilon .trace .points path').length >= 12")
    third = "document.querySelectorAll('#epsilon .trace')[1].querySelectorAll('.points path')[2]"
    box = tab.js(f"{third}.getBoundingClientRect().toJSON()")
    tab.point(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tab.until("document.querySelector('#epsilon .hovertext')")
    said = tab.js("document.querySelector('#epsilon .hoverlayer').textContent")
    assert "proven ε 3.25" in said
    assert "2026-11-03 00:00, commit 3a2b3c3d, refuted" in said
    assert tab.console == []


@in_chromium
def test_curves_of_a_run_tell_their_values_under_the_pointer(tab, exported):
    tab.open(exported)
    (key,) = row_ids(tab, "vafl 1a2b3c1d")
    tab.go(f"run/{key}")
    tab.until("document.querySelector('.plot .trace')")
    place = "document.querySelector('.plot')"
    tradeoff = RESULTS["attack"]["tradeoff"]
    assert tab.js(f"{place}.data.map((t) => t.name)") == [
        "no information",
        "95% band",
        "95% band",
        "claimed",
        "proven",
        "measured",
    ]
    at = tradeoff["alpha"].index(0.2)
    assert tab.js(f"{place}.data[5].y[{at}]") == pytest.approx(1.0 - tradeoff["empirical"][at])
    tab.js(f"{place}.scrollIntoView()")
    spot = tab.js(
        f"(() => {{ const b = {place}.querySelector('.nsewdrag').getBoundingClientRect();"
        "return [b.x + 0.2 * b.width, b.y + b.height / 2]; })()"
    )
    tab.point(*spot)
    tab.until(f"{place}.querySelector('.hoverlayer').textContent.includes('measured')")
    said = tab.js(f"{place}.querySelector('.hoverlayer').textContent")
    values = {
        name: f"{100 * (1.0 - tradeoff[part][at]):.1f}%"
        for name, part in {
            "claimed": "claimed",
            "measured": "empirical",
            "proven": "recomputed",
            "95% band, low": "empirical_high",
        }.items()
    }
    assert all(f"{name} : {value}" in said for name, value in values.items()), said
    head = tab.js("document.querySelector('main').innerText")
    answer = answer_of(read(RESULTS["attack"])[0])
    assert all(note in head for note in answer.judgement.notes)
    assert "refuted: ε ≤ 1 (δ = 1e-05, one label changed) against one curious client" in head
    assert tab.console == []


@in_chromium
@pytest.mark.parametrize(
    "made",
    [
        *(risk.risk_from_mu(mu) for mu in (0.0, 1e-3, 0.268, 1.257, 5.0)),
        risk.risk_from_epsilon(1.0, 1e-5),
        risk.risk_from_epsilon(0.0, 0.0),
        risk.risk_from_epsilon(4.0, 0.1),
        risk.risk_from_epsilon(40.0, 0.0),
        risk.risk_from_epsilon(5000.0, 0.0),
        risk.risk_from_points([0.0, 0.1, 0.5, 1.0], [1.0, 0.4, 0.1, 0.0]),
        risk.risk_from_points([0.0, 0.0, 1.0], [0.9, 0.7, 0.0]),
    ],
    ids=str,
)
def test_sliders_use_the_formulas_of_reports(tab, exported, made):
    if not tab.js("globalThis.dpzvRisk && location.protocol === 'file:'"):
        tab.open(exported)
    curve = json.dumps(made.curve)
    for rate, expected in zip(risk.RATES, made.true_positives, strict=True):
        assert tab.js(f"dpzvRisk.detected({curve}, {rate})") == pytest.approx(expected, abs=1e-9)
    for prior, expected in ((0.5, made.wrong), (risk.RARE, made.wrong_if_rare)):
        assert tab.js(f"dpzvRisk.wrong({curve}, {prior})") == pytest.approx(expected, abs=1e-9)
        rate, found = risk.RATES[0], made.true_positives[0]
        assert tab.js(f"dpzvRisk.posterior({curve}, {prior}, {rate})") == pytest.approx(
            prior * found / (prior * found + (1.0 - prior) * rate), abs=1e-9
        )


@in_chromium
def test_sliders_say_in_plain_words_what_the_best_attacker_does(tab, exported):
    tab.open(exported)
    tab.go("meaning")
    assert "the best guess between two neighbouring data sets is right at most 73.2% of the time" in tab.js(
        "document.body.innerText"
    )

    def move(name, value):
        choose(tab, name, value)
        return tab.js("document.querySelector('main').innerText")

    said = move("prior", 0.1)
    assert risk.risk_from_epsilon(1.0, 1e-5).wrong_if_rare == pytest.approx(0.099999)  # a guess of no use but by delta
    assert "is right at most 90.1% of the time (without the messages: 90%)" in said
    assert "has a chance of at most 23.3%, up from 10% before" in said
    assert "true positives at 10% false positives" in move("rate", -1)
    move("own-delta", 0)
    assert "after an alarm" in (said := move("own-epsilon", 3))
    # e^3 times the odds of 1 to 9.
    assert f"at most {math.ceil(1000 * math.exp(3) / (math.exp(3) + 9)) / 10}%" in move("rate", -4)
    assert "Epsilon is a number from 0 to 100" in move("own-epsilon", -1)
    assert tab.console == []


@in_chromium
def test_text_of_runs_is_never_markup(tab, exported):
    tab.open(exported)
    (key,) = row_ids(tab, "</script>")
    for place in (f"run/{key}", f"compare/{key},{row_ids(tab, 'vafl 1a2b3c1d')[0]}", "epsilon", ""):
        tab.go(place)
        if place.startswith("run"):
            tab.until("document.querySelector('.plot .legend')")
            legend = tab.js("document.querySelector('.plot .legend').textContent")
            assert "<img" in legend
            assert "__proto__" in legend
        assert NASTY.partition("%")[0] in tab.js("document.body.textContent")
        assert tab.js("document.querySelectorAll('main img, main a[href^=javascript], main script').length") == 0
        assert tab.js("document.title") == "Runs – dpzv-audit"
    assert tab.console == []


@pytest.mark.ci
@in_chromium
def test_a_thousand_runs_are_listed_from_a_server_which_reads_each_once(tab, tmp_path):
    pytest.importorskip("plotly")
    folder = tmp_path / "runs"
    for place in range(MANY):
        write(folder / f"20261128-{place:06}-attack-dpzv-seed{place}", RESULTS["attack"] | {"seed": place})
    with serving(folder, view.drawing()) as server:
        found = []
        paths = opened(lambda: (tab.open(server.address), found.append(len(row_ids(tab, "refuted dpzv")))))
        assert found == [MANY]
        assert sum(path.endswith("result.json") for path in paths) == MANY
        tab.js(
            "const box = document.querySelector('input[type=search]'); box.value = '20261128-000700';"
            "box.dispatchEvent(new Event('input'))"
        )
        (key,) = row_ids(tab, "")
        again = opened(lambda: tab.go(f"run/{key}"))
        assert sum(path.endswith("result.json") for path in again) == 1
        assert "The run: seed700" in tab.js(
            "[...document.querySelectorAll('.settings tr')].map((r) => r.textContent).join(' ')"
        )
    assert tab.console == []


@in_chromium
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_view_fits_the_window_and_can_be_read(tab, exported, width, dark):
    look = Path(__file__).with_name("look.js").read_text("utf-8")
    tab.size(width, dark=dark)
    tab.open(exported)
    runs = row_ids(tab, "vafl 1a2b3c1d") + row_ids(tab, "verify") + row_ids(tab, "</script>")
    tab.js(look[: look.index("const look =")] + "; globalThis.contrast = contrast")
    for place in ("", *(f"run/{key}" for key in runs), f"compare/{','.join(runs[:2])}", "epsilon", "meaning"):
        tab.go(place)
        assert tab.js("document.documentElement.scrollWidth") <= width, place
        page = "rgb(20, 22, 27)" if dark else "rgb(255, 255, 255)"
        assert tab.js("getComputedStyle(document.body).backgroundColor") == page
        faint = tab.js(
            "[...document.querySelectorAll('main :is(p, td, th, a, .tag, .word), nav a')].map((e) => {"
            "const color = (b) => getComputedStyle(b ?? document.body).backgroundColor;"
            "let b = e; while (b && /, 0\\)$/.test(color(b))) b = b.parentElement; const behind = color(b);"
            "return [e.textContent.slice(0, 40), contrast(getComputedStyle(e).color, behind)]; })"
            ".filter(([, ratio]) => ratio < 4.5)"
        )
        assert faint == [], place
    tab.size(1280)
