"""A recorded training is attacked through the installed command: what plain numpy wrote, and what a recorder saved."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dpzv_audit.systems import Recorder

WRITER = Path(__file__).resolve().parents[2] / "examples" / "transcript" / "write.py"


@pytest.fixture(scope="session")
def written(tool, tmp_path_factory):
    """The folder with `run` and `labels.csv` that the example writes."""
    folder = tmp_path_factory.mktemp("written") / "here"
    subprocess.run([sys.executable, WRITER, folder], check=True, env=tool.environment, timeout=60)
    return folder


def mount(tool, written, tmp_path, attack, *more, labels="labels.csv"):
    given = ("--transcript", "run", "--labels", labels, "--attack", attack, "--out", tmp_path / "out", *more)
    return tool.json("attack", *given, cwd=written)


def changed(written, tmp_path, **keys):
    """A copy of what was written, with other keys in its manifest."""
    folder = tmp_path / "copy"
    shutil.copytree(written, folder)
    path = folder / "run" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return folder


def test_the_writer_knows_nothing_of_the_tool_and_writes_the_same_again(written, tool, tmp_path):
    assert "dpzv_audit" not in WRITER.read_text()
    subprocess.run([sys.executable, WRITER, tmp_path / "again"], check=True, env=tool.environment, timeout=60)
    for name in ("run/manifest.json", "run/tensors.safetensors", "labels.csv", "bank.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (written / name).read_bytes()


@pytest.mark.parametrize(
    ("attack", "least"), [("label_direction", 0.99), pytest.param("label_norm", 0.9, marks=pytest.mark.ci)]
)
def test_labels_are_found_in_what_was_written(tool, written, tmp_path, attack, least):
    result = mount(tool, written, tmp_path, attack)
    assert result["method"] == "transcript:run"
    assert result["dataset"] == "labels.csv"
    assert result["success"]["value"] >= least
    assert result["baselines"] == {"a constant score": 0.5}
    control = result["controls"]["permuted_labels"]
    assert control["p_value"] <= 1e-3
    assert control["tested_by"] == "10,000 orders of the labels"
    assert control["value"] == pytest.approx(0.5, abs=0.01)
    assert result["controls"]["positive"]["value"] >= result["controls"]["positive"]["expected"]
    assert result["certified"] is None
    assert "cannot be repeated" in result["not_certified"]
    assert "cannot be repeated" in result["sentence"]
    assert result["privacy"]["upper"] is None
    page = Path(result["run"], "report.html").read_text()
    assert "permuted labels" in page
    assert "p < 0.0001" in page or "p &lt; 0.0001" in page


@pytest.mark.parametrize("attack", ["label_direction", pytest.param("label_norm", marks=pytest.mark.ci)])
def test_labels_of_others_are_not_found(tool, written, tmp_path, attack):
    """The p-value of labels in an order drawn at random is at most 1e-4 with probability at most 1e-4 (fixed seed).

    The area's standard deviation is 0.03 at such counts: 0.2 is beyond six of them.
    """
    labels = np.loadtxt(written / "labels.csv", skiprows=1, dtype=int)
    np.save(tmp_path / "other.npy", np.random.default_rng(5).permutation(labels))
    result = mount(tool, written, tmp_path, attack, labels=tmp_path / "other.npy")
    assert result["controls"]["permuted_labels"]["p_value"] > 1e-4
    assert abs(result["success"]["value"] - 0.5) < 0.2


def test_a_report_is_rendered_of_it(tool, written, tmp_path):
    found = mount(tool, written, tmp_path, "label_norm")
    done = tool("report", found["run"], "--format", "md")
    assert done.returncode == 0, done.stderr
    assert "permuted labels" in Path(found["run"], "report.md").read_text()


@pytest.mark.slow
def test_all_attacks_that_apply_are_mounted(tool, written, tmp_path):
    result = mount(tool, written, tmp_path, "all")
    measured = [entry for entry in result["attacks"] if entry["state"] == "measured"]
    assert [entry["permutation_p"] for entry in measured] == [pytest.approx(1 / 10_001)] * 6
    page = (Path(result["run"]) / "report.md").read_text()
    assert "permutation p" in page
    names = {
        "label_norm",
        "label_direction",
        "label_enumeration",
        "label_denoised",
        "label_similarity",
        "label_matching",
    }
    assert {entry["attack"] for entry in measured} == names
    assert all(entry["reason"] for entry in result["attacks"] if entry["state"] != "measured")


def test_summed_logits_are_attacked_by_an_eavesdropper_where_ids_are_public(tool, refused, tmp_path):
    """Three classes, one pass: the negative coordinate of each gradient is the label, for whoever sees it."""
    code = """
import numpy as np
from dpzv_audit.systems import Recorder
rng = np.random.default_rng(0)
labels = rng.integers(3, size=60)
record = Recorder(records=60, clients=1)
for number, ids in enumerate(np.split(rng.permutation(60), 4)):
    logits = rng.standard_normal((15, 3))
    record.sent(number, 1, 0, "embeddings", logits, ids)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    record.sent(number, 0, 1, "gradient", shares - np.eye(3)[labels[ids]], ids)
record.save("run", classes=3, public_ids=True, top_model=False)
np.save("labels.npy", labels)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=tool.environment, timeout=60)
    for adversary in ("client", "eavesdropper"):
        result = mount(tool, tmp_path, tmp_path, "label_direct", "--adversary", adversary, labels="labels.npy")
        assert result["success"]["value"] == 1.0
        assert set(result["baselines"]) == {"majority", "prior"}
        assert result["controls"]["permuted_labels"]["p_value"] == pytest.approx(1 / 10_001)
    path = tmp_path / "run" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"encrypted": True}))
    options = (
        "--transcript",
        "run",
        "--labels",
        "labels.npy",
        "--attack",
        "label_direct",
        "--adversary",
        "eavesdropper",
    )
    assert "sent under TLS, of which an eavesdropper sees lengths" in refused(tool("attack", *options, cwd=tmp_path), 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--transcript", "run"), "--labels FILE is missing"),
        (("--labels", "labels.csv"), "goes with --transcript DIR alone"),
        (("--transcript", "nowhere", "--labels", "labels.csv"), "nowhere/manifest.json: cannot be read"),
        (("--transcript", "run", "--labels", "nowhere.csv"), "nowhere.csv: cannot be read"),
        (("--transcript", "run", "--labels", "labels.csv", "--trials", "8"), "--trials does not go with --transcript"),
        (("--transcript", "run", "--labels", "labels.csv", "--dataset", "digits"), "--dataset does not go with"),
        (("--transcript", "run", "--labels", "labels.csv", "--resume"), "--resume does not go with"),
    ],
)
def test_what_does_not_go_together_is_one_line(tool, refused, written, tmp_path, words, message):
    done = tool("attack", "--attack", "label_norm", *words, "--out", tmp_path, cwd=written)
    assert message in refused(done, 2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("attack", "unlocked_by"),
    [
        ("label_direct", "top_model True, needs False"),
        ("label_completion", "a transcript holds no model of client 1; a system that returns it has one"),
        ("label_spectral", "a transcript holds no model of client 1; a system that returns it has one"),
        (
            "membership_lira",
            "it needs more than one view, and a transcript is one; a method or a system trains as often as it needs",
        ),
        ("feature_inversion", "a transcript holds no features of client 1; --features 1=FILE gives them"),
    ],
)
def test_an_attack_that_does_not_apply_says_what_would_unlock_it(tool, refused, written, tmp_path, attack, unlocked_by):
    given = ("--transcript", "run", "--labels", "labels.csv", "--attack", attack, "--out", tmp_path)
    assert unlocked_by in refused(tool("attack", *given, cwd=written), 2)


def test_what_the_server_learns_is_found_where_features_are_given(tool, refused, written, tmp_path):
    """Without features that comes first among what was not tested."""
    server = ("--adversary", "server")
    nothing = mount(tool, written, tmp_path, "all", *server)
    assert nothing["mounted"] == 0
    words = "no attack looked at what the server learns about the features of client"
    assert nothing["not_tested"] == [f"{words}s 1, 2; --features M=FILE gives those of client M"]
    reasons = {entry["attack"]: entry["reason"] for entry in nothing["attacks"]}
    line = "a transcript holds no features of client 1; features 1=FILE gives them"
    assert reasons == dict.fromkeys(("feature_inversion", "attribute_inference", "record_linkage"), line)
    found = mount(tool, written, tmp_path, "record_linkage", "--features", "bank.csv")
    assert found["success"]["value"] > 0.2 > 0.1 > found["controls"]["permuted_records"]["value"]
    assert found["controls"]["permuted_records"]["p_value"] <= 1e-4
    assert found["controls"]["positive"]["value"] >= found["controls"]["positive"]["expected"]
    assert "With records in another order it does as well with p" in found["sentence"]
    assert "the server (on client 1 of 2)" in found["sentence"]
    assert "records dealt by coins" in found["not_certified"]
    wrong = ("--transcript", "run", "--labels", "labels.csv", "--features")
    for given, rule in {"3=bank.csv": "use M=FILE with M in 1 to 2", "labels.csv": "has no column but 'label'"}.items():
        assert rule in refused(tool("attack", *wrong, given, cwd=written), 2)
    assert "goes with --transcript DIR alone" in refused(tool("attack", "--features", "bank.csv", cwd=written), 2)


def test_a_transcript_without_gradients_to_a_client_says_who_is_attacked(tool, refused, written, tmp_path):
    messages = json.loads((written / "run" / "manifest.json").read_text())["messages"]
    folder = changed(written, tmp_path, messages=[message for message in messages if message["receiver"] != 1])
    command = ("attack", "--transcript", "run", "--labels", "labels.csv", "--attack", "label_norm")
    done = tool(*command, "--client", "1", cwd=folder)
    assert "record a 'gradient' from 0 to client 1, who looks" in refused(done, 2)
    result = json.loads(tool(*command, "--json", cwd=folder).stdout)
    assert result["clients"] == [2]
    assert result["success"]["confidence"] == 0.95


def test_gradients_of_two_widths_are_one_line(tool, refused, written, tmp_path):
    messages = json.loads((written / "run" / "manifest.json").read_text())["messages"]
    first = next(message for message in messages if message["receiver"] == 1)
    # The ids of a batch, as numbers of one column, in the place of a gradient.
    messages[messages.index(first)] = {**first, "tensor": first["ids"]}
    folder = changed(written, tmp_path, messages=messages)
    done = tool("attack", "--transcript", "run", "--labels", "labels.csv", "--attack", "label_norm", cwd=folder)
    assert "what client 1 got is [1, 4] numbers wide; keep one width" in refused(done, 2)


def test_a_few_messages_of_a_thousand_clients_take_seconds(tool, tmp_path):
    """The client that finds most is measured, with one positive control, of few clients: it took minutes."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(200) % 2)
    record = Recorder(records=200, clients=1000)
    for number, (client, signal) in enumerate([(3, 0.0), (700, 1.0), (999, 0.1)] * 4):
        ids = rng.permutation(200)[:100]
        record.sent(number, client, 0, "embeddings", rng.standard_normal((100, 4)), ids)
        gradient = signal * (1 - 2 * labels[ids])[:, None] + 0.3 * rng.standard_normal((100, 4))
        record.sent(number, 0, client, "gradient", gradient, ids)
    record.save(tmp_path / "run", classes=2)
    np.save(tmp_path / "labels.npy", labels)
    mounted = ("attack", "--transcript", "run", "--labels", "labels.npy", "--attack", "label_direction", "--out", "out")
    started = time.monotonic()
    result = tool.json(*mounted, cwd=tmp_path, limit=60)
    assert time.monotonic() - started < 30, "3 s on a machine that does nothing else"
    assert result["clients"] == [700]
    assert result["controls"]["positive"]["value"] >= result["controls"]["positive"]["expected"]
    alone = tool.json(*mounted, "--client", "700", cwd=tmp_path)
    assert (result["success"]["value"], result["bytes"]) == (alone["success"]["value"], alone["bytes"])
    assert result["success"]["low"] < alone["success"]["low"], "three clients share the error rate"
