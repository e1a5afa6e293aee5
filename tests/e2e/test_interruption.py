"""A run that cannot end leaves nothing behind: a full disk, and Ctrl-C."""

import fcntl
import json
import os
import pty
import re
import resource
import select
import signal
import stat
import subprocess
import termios
import time
from pathlib import Path

import numpy as np
import pytest

from .conftest import without_heartbeat

QUICK = ("--runs", "0", "--trials", "1", "--epochs", "1")


def small_disk():
    """No file of this process may grow beyond 8 kB: a write fails as on a full disk, in the middle of a file."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
"""How a command may be ended, and its exit code."""


def ordinary_interrupt():
    """Let all signals act, also where the test run itself was started in the background or by nohup."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def started(tool, *arguments, command=None, before=ordinary_interrupt, **options):
    """The command on its way, to be interrupted."""
    return subprocess.Popen(
        [*(command or tool.command), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=tool.environment,
        preexec_fn=before,
        **options,
    )


def communicated(process):
    """Return what the process printed and said, once it has ended."""
    printed, message = process.communicate(timeout=60)
    return printed, without_heartbeat(message)


@pytest.mark.ci
@pytest.mark.usefixtures("main_run")  # its run has built matplotlib's font list, which is larger than the limit
def test_a_full_disk_is_one_line_and_leaves_no_run_folder(tool, refused, tmp_path):
    out = tmp_path / "runs"
    done = tool("attack", *QUICK, "--out", out, preexec_fn=small_disk, fresh=True)
    line = refused(done, 3)
    assert str(out) in line
    assert "no run folder was left" in line
    assert "steps are kept in" in line
    assert [path.name for path in out.iterdir()] == ["attacks"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.ci)])
def test_an_interrupt_is_one_line_and_leaves_nothing(tool, tmp_path, number):
    """Of a command that keeps nothing; those that do are below."""
    process = started(tool, "attack", "--self-check", "--epochs", "3000", cwd=tmp_path)
    wait_for_training(process)
    process.send_signal(number)
    printed, message = communicated(process)
    assert process.returncode == SIGNALS[number], message
    assert printed == ""
    assert message == "dpzv-audit: interrupted\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.ci)])
def test_an_interrupted_training_says_how_to_go_on(tool, tmp_path, number):
    training = ("train", "--method", "vafl", "--epochs", "2000", "--no-controls", "--out", str(tmp_path / "runs"))
    process = started(tool, *training)
    wait_for_checkpoint(process, tmp_path / "runs")
    process.send_signal(number)
    printed, message = communicated(process)
    assert process.returncode == SIGNALS[number], message
    assert printed == ""
    (kept,) = (tmp_path / "runs" / "checkpoints").iterdir()
    assert re.fullmatch(
        rf"dpzv-audit: interrupted; \d+ of 2000 epochs are kept in {re.escape(str(kept))}; "
        r"the same command with --resume goes on from there\n",
        message,
    )


@pytest.mark.ci
@pytest.mark.parametrize(
    ("number", "jobs", "group"),
    [
        (signal.SIGINT, "1", False),
        (signal.SIGTERM, "2", True),
        pytest.param(signal.SIGHUP, "2", False, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_audit_says_how_to_go_on(tool, tmp_path, number, jobs, group):
    """By a signal to the command alone, or to its workers too, as a scheduler sends it to a whole job."""
    out = tmp_path / "runs"
    audit = ("audit", "method", "dpzv", "--set", "top_model=false", "--runs", "100000", "--chunk", "4")
    process = started(tool, *audit, "--jobs", jobs, "--out", str(out), start_new_session=True)
    wait_for_checkpoint(process, out, "audits/*/*.npz")
    os.killpg(process.pid, number) if group else process.send_signal(number)
    _, message = communicated(process)
    assert process.returncode == SIGNALS[number], message
    go_on = "the same command with --resume goes on from there"
    assert message == f"dpzv-audit: interrupted; what was done is kept in {out / 'audits'}; {go_on}\n"
    assert_ended(process)


@pytest.mark.slow
@pytest.mark.parametrize("group", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_interrupted_matrix_keeps_finished_cells_and_no_half_ones(tool, tmp_path, group):
    out = tmp_path / "runs"
    matrix = ("matrix", "--methods", "vafl,split", "--attacks", "label_direct,label_norm,label_spectral", "--jobs", "2")
    process = started(
        tool, *matrix, "--dataset", "breast-cancer", "--epochs", "60", "--out", str(out), start_new_session=True
    )
    wait_for_checkpoint(process, out, "*/cells/[!.]*/cell.json")
    os.killpg(process.pid, signal.SIGTERM) if group else process.send_signal(signal.SIGTERM)
    _, message = communicated(process)
    assert process.returncode == 143, message
    assert re.fullmatch(
        r"dpzv-audit: interrupted; what was done is kept in .*; the same .* goes on from there\n", message
    )
    assert list(out.rglob("cell.json"))
    assert not list(out.rglob("*.partial"))
    assert_ended(process)


@pytest.mark.ci
def test_a_closed_terminal_costs_verify_nothing_that_it_has(tool, tmp_path):
    """The system sends SIGHUP, and whatever is written to the terminal from then on fails."""
    (tmp_path / "claims.toml").write_text(
        '[[claim]]\nname = "a"\nmethod = "dpzv"\nepsilon = 1.0\ndelta = 1e-5\nadversary = "release"\n'
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*tool.command, "verify", "claims.toml", "--no-cache", "--out", "runs"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env={**tool.environment, "TERM": "xterm"},
        preexec_fn=at_own_terminal,
    )
    os.close(theirs)
    shown, limit = b"", time.monotonic() + 60
    while b"on trainings" not in shown:
        assert time.monotonic() < limit, shown
        if select.select([ours], [], [], 0.5)[0]:
            shown += os.read(ours, 1 << 16)
    os.close(ours)
    assert process.wait(timeout=60) == 129
    (folder,) = (tmp_path / "runs").iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert [claim["name"] for claim in result["claims"]] == ["a"]
    assert result["interrupted"]


def at_own_terminal():
    """Make the terminal on stdin that of a session of its own, which is told when it is closed."""
    ordinary_interrupt()
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.ci
def test_nohup_is_kept(tool, tmp_path):
    """A signal that was ignored from the start goes on being ignored."""
    out = tmp_path / "runs"
    attack = ("attack", "--runs", "2000000", "--epochs", "1", "--out", str(out))
    process = started(tool, *attack, before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for_training(process)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=2)
    process.send_signal(signal.SIGTERM)
    _, message = communicated(process)
    assert process.returncode == 143, message


def assert_ended(process):
    """No process of the session that `process` led is left."""
    limit = time.monotonic() + 20
    while True:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < limit
        time.sleep(0.1)


def wait_for_checkpoint(process, out, pattern="checkpoints/*.safetensors"):
    """Return once what `process` does has saved itself under `out`."""
    limit = time.monotonic() + 300
    while not list(out.glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.05)


def wait_for_training(process):
    """Return a second and a half after the process has loaded torch (where that can be seen; else after 8 s)."""
    maps = Path(f"/proc/{process.pid}/maps")
    limit = time.monotonic() + 60
    while maps.exists() and "libtorch_cpu" not in maps.read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.1)
    time.sleep(1.5 if maps.exists() else 8.0)
    assert process.poll() is None, process.communicate()


@pytest.mark.ci
def test_an_interrupted_training_goes_on_to_the_same_numbers(tool, tmp_path):
    training = ("train", "--method", "vafl", "--epochs", "200", "--no-controls", "--out", str(tmp_path / "runs"))
    process = started(tool, *training)
    wait_for_checkpoint(process, tmp_path / "runs")
    process.send_signal(signal.SIGKILL)  # no warning: the worst way to stop
    communicated(process)
    resumed = tool.json(*training, "--resume")
    whole = tool.json("train", "--method", "vafl", "--epochs", "200", "--no-controls", "--out", tmp_path / "whole")
    assert resumed["utility"] == whole["utility"]
    assert resumed["bytes"] == whole["bytes"]
    assert not (tmp_path / "runs" / "checkpoints").exists()
    assert resumed["resumed_at_epoch"] > 0
    assert whole["resumed_at_epoch"] == 0
    assert resumed["staleness"] == whole["staleness"]
    assert whole["staleness"] is not None


NOISED = ("train", "--method", "dpzv-sound", "--epochs", "150", "--no-controls")


@pytest.fixture
def killed(tool, tmp_path):
    """A training with secret noise that was killed after its first checkpoint; the file of its noise's key."""
    process = started(tool, *NOISED, "--out", str(tmp_path / "runs"))
    wait_for_checkpoint(process, tmp_path / "runs")
    process.send_signal(signal.SIGKILL)
    communicated(process)
    (key,) = (tmp_path / "runs" / "checkpoints").glob("*.noise-key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    return key


@pytest.mark.ci
def test_the_key_of_secret_noise_survives_a_kill_and_ends_with_the_run(tool, killed, tmp_path):
    resumed = tool.json(*NOISED, "--resume", "--out", tmp_path / "runs")
    assert resumed["resumed_at_epoch"] > 0
    assert resumed["noise"]["from"] == "operating system"
    assert list(resumed["published"]["inside_bound"]) == ["models.safetensors"]
    assert not killed.parent.exists()


@pytest.mark.slow
def test_without_the_key_rounds_are_not_released_a_second_time(tool, refused, killed, tmp_path):
    killed.unlink()
    line = refused(tool(*NOISED, "--resume", "--out", tmp_path / "runs"), 2)
    assert "would be released a second time with other noise; start without --resume" in line


CLAIMS = """
[[claim]]
name = "false, of scores"
scores = { in = "in.csv", out = "out.csv" }
epsilon = 0.5

[[claim]]
name = "true, of scores"
scores = { in = "in.csv", out = "out.csv" }
epsilon = 3.0

[[claim]]
name = "false, drawn"
mechanism = "planted:noise-over-b"
epsilon = 1.0
"""


@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.ci), pytest.param(30, marks=pytest.mark.slow)])
def test_verify_killed_at_any_moment_resumes_to_the_same_numbers(tool, tmp_path, kills):
    """Half of the kills fall anywhere, half into the time from just before the ledger is written to the end."""
    rng = np.random.default_rng(kills)
    np.savetxt(tmp_path / "in.csv", rng.normal(1.0, 1.0, 1000))
    np.savetxt(tmp_path / "out.csv", rng.normal(0.0, 1.0, 1000))
    (tmp_path / "claims.toml").write_text(CLAIMS)

    def command(name):
        return ("verify", "claims.toml", "--ledger", f"{name}.jsonl", "--cache", f"{name}-cache", "--out", name)

    def numbers(*more):
        done = tool(*more, "--json", "--quiet", cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        result = json.loads(done.stdout)
        return {key: result[key] for key in ("claims", "level", "summary", "sentence", "controls")}

    assert tool("verify", "claims.toml", "--check", cwd=tmp_path).returncode == 0  # what is forked is loaded now
    started_at = time.monotonic()
    whole = numbers(*command("whole"))
    seconds = time.monotonic() - started_at
    entered = 0
    for number in range(kills):
        name = f"killed-{number}"
        ledger = tmp_path / f"{name}.jsonl"
        process = started(tool, *command(name), command=tool.forked, before=None, cwd=tmp_path)
        if number % 2:
            time.sleep(rng.uniform(0.0, seconds))
        else:
            limit = time.monotonic() + 120
            while not ledger.with_name(f".{ledger.name}.lock").exists() and process.poll() is None:
                assert time.monotonic() < limit
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, 0.3 * seconds))
        process.send_signal(signal.SIGKILL)
        communicated(process)
        entered += ledger.exists() and not list((tmp_path / name).glob("[!.]*"))
        assert numbers(*command(name), "--resume") == whole
        assert len(ledger.read_text().splitlines()) == 2
    assert entered or kills < 30, "some kill fell between the ledger and the run folder"
