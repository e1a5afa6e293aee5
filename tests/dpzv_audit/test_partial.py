"""Half-written run folders: a killed process's is removed by the next run, a living one's stays."""

import signal
import subprocess
import sys

import pytest

from dpzv_audit.base.store import partial_folder, remove_abandoned
from dpzv_audit.runs import write_run

WRITES = """
import sys, time
from pathlib import Path
from dpzv_audit.runs import write_run

with write_run(Path(sys.argv[1]), "a-run") as run:
    run.write("half.txt", "half")
    print(run.path.name, flush=True)
    time.sleep(600)
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing locks folders there")


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    partial = tmp_path / process.stdout.readline().strip()
    own = tmp_path / ".mine-0123abcd.partial.txt"
    own.write_text("not a folder of the tool's")
    (tmp_path / ".other.partial").mkdir()
    with write_run(tmp_path, "b-run"):
        assert (partial / "half.txt").is_file()  # its process lives
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert partial.is_dir()
    with write_run(tmp_path, "c-run"):
        assert not partial.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [own.name, ".other.partial", "b-run", "c-run"]


def test_a_folder_is_held_by_its_own_process_too(tmp_path):
    with partial_folder(tmp_path, "a-run") as partial:
        remove_abandoned(tmp_path)
        assert partial.is_dir()
    assert not partial.exists()


def test_a_link_is_not_followed(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / ".a-run-0123abcd.partial").symlink_to(kept)
    remove_abandoned(tmp_path)
    assert kept.is_dir()


def test_where_folders_cannot_be_locked_nothing_is_removed(tmp_path, monkeypatch):
    import fcntl

    def refuses(handle, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuses)
    with write_run(tmp_path, "a-run") as run:
        remove_abandoned(tmp_path)
        assert run.path.is_dir()
    assert (tmp_path / "a-run").is_dir()
