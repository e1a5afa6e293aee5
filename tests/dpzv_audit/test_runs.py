import errno
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit import runs
from dpzv_audit.base.errors import AuditError, InputError
from dpzv_audit.runs import environment, json_text, load_origin, load_run, run_name, slug, write_run

from ..helpers.places import read_json
from ..helpers.refusals import refused

RESULT = {"schema": "dpzv-audit/attack/1", "success": {"value": 0.5, "n": 8}}


def check_refused(out, words, error=AuditError):
    """Where `out` cannot be a folder of runs the block is not run, and one line of the right exit code says why."""
    with refused(words, error) as caught, write_run(out, "run"):
        pytest.fail("the block ran")
    assert caught.value.exit_code == error.exit_code


def test_a_run_folder_appears_whole_when_the_block_ends(tmp_path):
    out = tmp_path / "deep" / "runs"
    with write_run(out, "a-run") as folder:
        folder.write("result.json", RESULT)
        folder.write("report.md", "# ε = 1\n")
        folder.write("figures/curve.svg", b"<svg/>")
        partial = folder.path
        assert partial.name.startswith(".a-run-")
        assert partial.name.endswith(".partial")
        assert [path.name for path in out.iterdir()] == [partial.name]
    assert folder.path == out / "a-run"
    assert [path.name for path in out.iterdir()] == ["a-run"]
    assert (folder.path / "report.md").read_bytes() == "# ε = 1\n".encode()
    assert (folder.path / "figures" / "curve.svg").read_bytes() == b"<svg/>"
    assert load_run(folder.path) == load_run(folder.path / "result.json") == RESULT


def test_a_taken_name_gets_a_number_and_nothing_is_replaced(tmp_path):
    paths = []
    for content in "abc":
        with write_run(tmp_path, "run") as folder:
            folder.write("who.txt", content)
        paths.append(folder.path)
    assert [path.name for path in paths] == ["run", "run-2", "run-3"]
    assert [(path / "who.txt").read_text() for path in paths] == ["a", "b", "c"]


def test_a_name_taken_between_the_look_and_the_rename_gets_a_number(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "other.txt").write_text("another process")
    monkeypatch.setattr(runs.os.path, "lexists", lambda path: False)
    with write_run(tmp_path, "run") as folder:
        folder.write("who.txt", "me")
    assert folder.path.name == "run-2"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["other.txt"]


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt(), SystemExit(1), InputError("bad")])
def test_nothing_is_left_when_the_block_fails(tmp_path, error):
    def fail():
        with write_run(tmp_path, "run") as folder:
            folder.write("result.json", RESULT)
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["write", "sync", "rename"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, when):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = {"write": (runs, "private_file"), "sync": (runs.os, "fsync"), "rename": (Path, "rename")}[when]

    def fill():
        with write_run(tmp_path, "run") as folder:
            monkeypatch.setattr(*target, full)
            folder.write("result.json", RESULT)

    with refused(f"under {tmp_path}: No space left on device; no run folder was left", AuditError) as caught:
        fill()
    assert caught.value.exit_code == 3
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_the_system_really_refuses_leaves_nothing(tmp_path):
    assert pytest.importorskip("resource", reason="needs POSIX resource limits")
    # RLIMIT_FSIZE makes the kernel refuse in the middle of a write, as a full disk does
    script = """
        import resource, signal, sys
        from pathlib import Path
        from dpzv_audit.base.errors import AuditError
        from dpzv_audit.runs import write_run
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            with write_run(Path(sys.argv[1]), "run") as folder:
                folder.write("small.txt", "fits")
                folder.write("large.bin", bytes(100_000))
        except AuditError as error:
            print(error)
            sys.exit(error.exit_code)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith(f"cannot write large.bin under {tmp_path}: File too large")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_exit_code_3(tmp_path):
    tmp_path.chmod(0o500)
    try:
        for out in (tmp_path, tmp_path / "runs"):
            check_refused(out, "Permission denied")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("step", ["out", "run"])
def test_a_refused_folder_is_exit_code_3(tmp_path, monkeypatch, step):
    original = Path.mkdir

    def mkdir(self, *arguments, **options):
        if (self.name == "runs") == (step == "out"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        original(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    check_refused(tmp_path / "runs", "Read-only file system")


@pytest.mark.parametrize("inner", [".", "runs", "runs/deep"])
def test_an_out_that_is_a_file_is_the_users_mistake(tmp_path, inner):
    file = tmp_path / "file"
    file.write_text("mine")
    check_refused(file / inner, f"^out is {file}.* is not a folder; give a folder", InputError)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("out", ["attacks", "reports", "mechanisms/runs", "dpzv_audit"])
def test_an_out_named_like_a_package_is_refused(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    check_refused(Path(out), f"out is {out}; use a folder that has no name of a package", InputError)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_within_a_project_of_such_a_name_is_fine(tmp_path):
    (tmp_path / "reports").mkdir()
    with write_run(tmp_path / "reports" / "runs", "run") as folder:
        folder.write("a.txt", "a")
    assert folder.path.is_dir()


BAD_NAMES = ["../evil", "/evil", "a/../../evil", "", ".hidden", "a//b", "a/", "a\\b", "a\nb", "c:evil"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_files_stay_in_their_folder(tmp_path, name):
    with refused("run file name is"), write_run(tmp_path / "out", "run") as folder:
        folder.write(name, "evil")
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]


@given(st.text(max_size=300))
def test_slugs_are_single_harmless_path_components(text):
    assert set(slug(text)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    assert 1 <= len(slug(text)) <= 40
    assert Path(slug(text)).parts == (slug(text),)
    assert slug(slug(text)) == slug(text)


def test_a_run_cannot_climb_out_by_its_name(tmp_path):
    with write_run(tmp_path / "out", "../../evil") as folder:
        folder.write("a.txt", "a")
    assert folder.path == tmp_path / "out" / "evil"


def test_run_names_sort_by_time_and_are_in_utc():
    now = datetime(2026, 11, 20, 23, 15, 30, tzinfo=UTC)
    name = run_name("attack", "dpzv", "digits", "label_direct", seed=0, now=now)
    assert name == "20261120-231530-attack-dpzv-digits-label_direct-seed0"
    east = now.astimezone(timezone(timedelta(hours=9)))
    assert run_name("train", "dpzv", "digits", seed=7, now=east) == "20261120-231530-train-dpzv-digits-seed7"
    assert run_name("audit", seed=3, now=now) == "20261120-231530-audit-seed3"
    assert run_name("verify", "pkg.mod:build/../x", seed=3, now=now).endswith("verify-pkg-mod-build-x-seed3")
    assert run_name("attack", seed=0, now=now + timedelta(hours=1)) > name
    assert slug(name, limit=160) == name


def test_the_present_is_the_default_time():
    before = datetime.now(UTC).replace(microsecond=0)
    stamp = datetime.strptime(run_name("train", seed=0)[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    assert before <= stamp <= datetime.now(UTC)


@dataclass(frozen=True)
class Point:
    name: str
    values: tuple[float, ...]


def test_json_keeps_the_order_and_the_letters_and_ends_in_a_newline(tmp_path):
    value = {"z": Point("ε", (0.1, 2.0)), "a": None}
    text = '{\n  "z": {\n    "name": "ε",\n    "values": [\n      0.1,\n      2.0\n    ]\n  },\n  "a": null\n}\n'
    assert json_text(value) == text
    with write_run(tmp_path, "run") as folder:
        assert folder.write("a.json", value).read_bytes() == text.encode()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_json_has_no_nan_and_no_infinity(tmp_path, number):
    with (
        refused(r"result\.json cannot be written as JSON", AuditError),
        write_run(tmp_path, "r") as folder,
    ):
        folder.write("result.json", {"epsilon": [number]})
    assert list(tmp_path.iterdir()) == []


def test_bytes_of_no_encoding_survive_as_json(tmp_path):
    argument = os.fsdecode(b"caf\xe9") if os.name != "nt" else "caf\udce9"
    with write_run(tmp_path, "run") as folder:
        path = folder.write("environment.json", {"command_line": [argument]})
        assert read_json(path) == {"command_line": ["caf\udce9"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b'{"schema": "dpzv-audit/attack/1",', "is not JSON .*line 1 column"),
        (b'{"schema": "dpzv-audit/attack/1", "x": NaN}', "NaN is not a JSON number"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "holds a JSON list; use an object"),
    ],
)
def test_a_result_that_is_not_ours_is_one_line(tmp_path, content, message):
    file = tmp_path / "result.json"
    file.write_bytes(content)
    for path in (tmp_path, file):
        with refused(message) as caught:
            load_run(path)
        assert str(caught.value).startswith(f"{file}: ")


def test_a_missing_run_names_what_was_looked_for(tmp_path):
    with refused(r"result\.json: no such file; use a run folder"):
        load_run(tmp_path)
    with refused("absent: no such file"):
        load_run(tmp_path / "absent")


def test_the_environment_says_what_a_result_may_depend_on(monkeypatch):
    import numpy as np

    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/dpzv-audit", "attack", "--seed", "1"])
    found = environment()
    assert found["command_line"] == ["dpzv-audit", "attack", "--seed", "1"]
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cpus"] == os.cpu_count()
    assert found["packages"]["numpy"] == np.__version__
    assert found["cpu_features"]["numpy"] == np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    assert json.loads(json_text(found)) == found
    assert datetime.fromisoformat(found["date"]) <= datetime.now(UTC)
    assert environment() | {"date": found["date"]} == found
    monkeypatch.setattr(sys, "argv", ["/somewhere/dpzv_audit/__main__.py", "list"])
    assert environment()["command_line"] == ["python -m dpzv_audit", "list"]
    assert environment(["dpzv-audit", "x"])["command_line"] == ["dpzv-audit", "x"]


@pytest.mark.parametrize(
    ("name", "facts", "origin"),
    [
        (
            "a",
            '{"dpzv_audit": "0.3", "date": "2026-11-27T18:37:38Z"}',
            ["dpzv-audit 0.3", "27 November 2026, 18:37 UTC"],
        ),
        ("20261103-010203-train-seed0", '{"dpzv_audit": "0.3"}', ["dpzv-audit 0.3", "3 November 2026, 01:02 UTC"]),
        ("20261103-010203-train-seed0", None, ["3 November 2026, 01:02 UTC"]),
        ("20261103-010203-train-seed0", "{", ["3 November 2026, 01:02 UTC"]),
        ("20269999-010203-train-seed0", "[1]", []),
        ("a", '{"dpzv_audit": 3, "date": "<b>"}', []),
        ("a", None, []),
    ],
)
def test_a_page_says_when_and_by_which_version_as_far_as_that_is_known(tmp_path, name, facts, origin):
    folder = tmp_path / name
    (folder / "inner").mkdir(parents=True)
    if facts is not None:
        (folder / "environment.json").write_text(facts)
    assert load_origin(folder) == origin
    if facts is not None and facts.endswith("}"):
        assert load_origin(folder / "inner") == origin, "a result inside has the origin of the run around it"


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(runs, "PACKAGES", ("numpy", "no-such-package-here"))
    assert environment()["packages"]["no-such-package-here"] is None
