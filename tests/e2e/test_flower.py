"""The vertical Flower example for real, as docs/guide/from-flower.md starts it: a SuperLink, two SuperNodes, an app."""

import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from attacks.core.knowledge import FewLabels
from attacks.label.direction import by_direction
from dpzv_audit.systems.replay import replay
from dpzv_audit.systems.transcript import load
from mechanisms.core.channel import Adversary, Channel, ViewRecorder

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "flower"
NAMELESS = Path(__file__).parent / "nameless.py"
SCRIPTS = sysconfig.get_path("scripts")
N = 569
ATTACK = ("--attack", "label_direction", "--attack-set", "labels_per_class=1", "--trials", "4")

pytest.importorskip("flwr", reason="needs the extra [flower]")


@pytest.fixture
def folder(tmp_path):
    for file in (*EXAMPLES.glob("*.py"), EXAMPLES / "pyproject.toml"):
        shutil.copy(file, tmp_path)
    return tmp_path


def test_all_labels_leak_in_one_round(tool, folder):
    result = tool.json("attack", "--system", "federation:train", *ATTACK, "--out", folder / "runs", cwd=folder)
    assert result["success"]["value"] == 1.0
    assert result["measures"]["labels found"]["value"] == 1.0
    assert result["controls"]["positive"]["value"] >= result["controls"]["positive"]["expected"]
    assert result["privacy"]["upper"] is None
    assert result["privacy"]["gap"] == "no-release"


def test_noise_that_alone_moves_the_server_has_its_bound_and_no_other_server_has(tool, folder):
    result = tool.json("attack", "--system", "private:train", *ATTACK, "--out", folder / "runs", cwd=folder)
    assert result["success"]["value"] < 0.6
    assert result["privacy"]["gap"] is None
    assert result["certified"]["epsilon_lower"] <= result["privacy"]["upper"] == pytest.approx(4.377, abs=1e-3)
    (folder / "own_top.py").write_text(
        "import private\nfrom federation import train as learn\nfrom private import data\n\n"
        "def train(task, record, seed):\n    return learn(task, record, seed, 1, private.protect, clear_top=True)\n\n"
        "def releases(task):\n    return {**private.releases(task), 'server_update': 'sgd'}\n"
    )
    result = tool.json("attack", "--system", "own_top:train", *ATTACK, "--out", folder / "runs", cwd=folder)
    assert result["privacy"]["upper"] is None
    assert "server-state" in result["privacy"]["gap"]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Wire:
    """Passes what a node and its SuperLink send each other on, and keeps it: an eavesdropper's place."""

    def __init__(self, to):
        self.heard = bytearray()
        self._to = to
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                here, _ = self._listening.accept()
                there = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            for source, target in ((here, there), (there, here)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source, target):
        try:
            while data := source.recv(1 << 16):
                self.heard += data
                target.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            target.close()

    def close(self):
        self._listening.close()


@contextmanager
def started(command, name, cwd, env):
    """Run a command of this environment in a process group of its own; end the group after the block."""
    with (cwd / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [f"{SCRIPTS}/{command[0]}", *command[1:]], cwd=cwd, env=env, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        finally:
            # What it started may outlive it by a moment.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def listens(port, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.2)
    return False


def content(held):
    """Messages in full, with clients by what they send first: a server and the nodes number them each in their way."""
    first = {m.sender: held.tensors[m.tensor].tobytes() for m in reversed(held.messages) if m.kind == "embeddings"}
    return sorted(
        (m.round, first.get(m.sender, b""), first.get(m.receiver, b""), m.kind, held.tensors[m.tensor].tobytes())
        for m in held.messages
    )


def ran(folder, file, clients, rounds, link, ports):
    """Run the app in `file` by a SuperLink and SuperNodes, which reach it by `ports`; return the folder of its run."""
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "COLUMNS")} | {
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }
    app = folder / "app"
    app.mkdir()
    shutil.copy(file, app / "vertical.py")
    stated = (EXAMPLES / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(stated.replace("rounds = 1\n", f"rounds = {rounds}\n"))
    superlink = ["flower-superlink", "--insecure", "--disable-runtime-dependency-installation", "--port", str(link)]
    with ExitStack() as running:
        running.enter_context(started(superlink, "superlink", folder, env))
        assert listens(link), (folder / "superlink.log").read_text()
        for number, port in enumerate(ports):
            config = f"partition-id={number} num-partitions={clients}"
            reached = ("--insecure", "--superlink", f"127.0.0.1:{port}")
            node = ["flower-supernode", *reached, "--port", str(free_port()), "--node-config", config]
            running.enter_context(started(node, f"node-{number}", folder, env))
        run = ["flwr", "run", str(app), "here", "--stream"]
        done = subprocess.run(
            [f"{SCRIPTS}/{run[0]}", *run[1:]],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        output = done.stdout + "".join(path.read_text() for path in folder.glob("*.log"))
        (seen,) = folder.glob("seen/*") if (folder / "seen").exists() else pytest.fail(output)
    return seen


def test_real_processes_send_what_is_recorded_and_it_gives_all_labels_away(folder):
    link = free_port()
    wire = Wire(link)
    seen = ran(folder, EXAMPLES / "vertical.py", 2, 1, link, (wire.port, link))
    wire.close()

    from dpzv_audit.systems.flower import gather

    by_server, by_clients = load(seen / "server"), load(gather(seen))
    assert content(by_server) == content(by_clients)
    assert [m.kind for m in by_clients.messages] == ["embeddings"] * 2 + ["gradient"] * 2
    assert not by_clients.manifest.encrypted

    # Without TLS what crossed the wire of client 1 is there in the clear, and nothing of client 2's.
    for message in by_clients.messages:
        crossed = by_clients.tensors[message.tensor].tobytes() in bytes(wire.heard)
        assert crossed == (1 in (message.sender, message.receiver))

    _, benign = load_breast_cancer(return_X_y=True)
    labels = 1 - benign
    seer = ViewRecorder(Adversary("client", (1,)))
    channel = Channel((seer,))
    replay([by_clients], channel, "the app")
    assert channel.ledger.up == channel.ledger.down == 2 * N * 4 * 4
    positive = int(np.flatnonzero(labels == 1)[0])
    known = SimpleNamespace(
        client=1,
        records=N,
        batches=1,
        seed=0,
        rarer=1,
        share_of_ones=float(labels.mean()),
        config=SimpleNamespace(epochs=1),
    )
    known.granted = lambda kind: FewLabels(torch.tensor([[positive]]), torch.tensor([[1]]))
    guesses = by_direction(seer.view, known)
    assert guesses.labels.numel() == N - 1
    np.testing.assert_array_equal(guesses.labels.flatten(), labels[guesses.ids.flatten()])


def test_an_app_that_names_no_rounds_gives_labels_to_each_client(tool, tmp_path):
    """In the shape of Flower's own vertical example: no group_id, and gradients whose replies nobody awaits."""
    link = free_port()
    seen = ran(tmp_path, NAMELESS, 3, 2, link, (link,) * 3)

    from dpzv_audit.systems.flower import gather

    by_server, by_clients = load(seen / "server"), load(gather(seen))
    for kind in ("embeddings", "gradient"):
        sent = [m for m in by_server.messages if m.kind == kind]
        assert sorted((m.round, max(m.sender, m.receiver)) for m in sent) == [(r, c) for r in (0, 1) for c in (1, 2, 3)]
    # The app ends once its last gradients are pushed: a client may never get them.
    before = {m for m in content(by_server) if m[0] == 0}
    assert before <= set(content(by_clients)) <= set(content(by_server))
    _, benign = load_breast_cancer(return_X_y=True)
    (tmp_path / "labels.csv").write_text("".join(f"{label}\n" for label in ("label", *(1 - benign))))
    for client in ("1", "2", "3"):
        found = tool.json(
            *("attack", "--transcript", seen / "server", "--labels", tmp_path / "labels.csv", "--client", client),
            *("--attack", "label_denoised", "--out", tmp_path / "runs"),
        )
        # Clients are numbered as their nodes come: which of three is client 1 changes from run to run.
        assert found["success"]["value"] > 0.99
        assert found["measures"]["labels found"]["value"] > 0.95


def test_an_app_that_names_no_rounds_is_attacked_as_a_system(tool, tmp_path):
    shutil.copy(NAMELESS, tmp_path)
    options = ("--attack", "label_denoised", "--trials", "2", "--out", tmp_path / "runs")
    found = tool.json("attack", "--system", "nameless:train", *options, cwd=tmp_path)
    assert found["success"]["value"] > 0.99
