"""Digests of folders: every change of a file that a program could read is another digest, and nothing hangs."""

import os
from pathlib import Path

import pytest

from dpzv_audit.base import files
from dpzv_audit.base.files import Undigested, confined_to, data_digest, tree_digest


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree"
    for name in ("a/one.json", "b/one.json", "code.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


CHANGES = {
    "content": lambda tree: (tree / "a/one.json").write_text("other"),
    "name": lambda tree: (tree / "code.py").rename(tree / "other.py"),
    "folder, as of a class of images": lambda tree: (tree / "a").rename(tree / "c"),
    "one more": lambda tree: (tree / "b/two.json").write_text(""),
    "one less": lambda tree: (tree / "b/one.json").unlink(),
    "two swapped": lambda tree: [
        (tree / "a/one.json").write_text("b/one.json"),
        (tree / "b/one.json").write_text("a/one.json"),
    ],
    "a link to nothing": lambda tree: (tree / "gone").symlink_to("nowhere"),
    "through a link to a folder": lambda tree: (
        (tree.parent / "far").mkdir(),
        (tree.parent / "far" / "data").write_text("1"),
        (tree / "linked").symlink_to(tree.parent / "far"),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("large", [False, True])
def test_every_change_is_another_digest(tree, change, large, monkeypatch):
    if large:
        monkeypatch.setattr(files, "MOST_DATA_BYTES", 3)
    before = [tree_digest([tree]), data_digest([tree])]
    assert [tree_digest([tree]), data_digest([tree])] == before
    CHANGES[change](tree)
    after = [tree_digest([tree]), data_digest([tree])]
    assert all(one != other for one, other in zip(before, after, strict=True))


def test_what_lies_behind_a_link_counts(tree, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "data").write_text("1")
    (tree / "linked").symlink_to(tmp_path / "far")
    (tree / "again").symlink_to(tree)  # and a circle ends
    before = tree_digest([tree])
    (tmp_path / "far" / "data").write_text("2")
    assert tree_digest([tree]) != before


def test_data_behind_a_link_out_of_bounds_do_not_count(tree, tmp_path):
    far = tmp_path / "tree-far"  # whose name only begins as that of the root
    far.mkdir()
    (tree / "linked").symlink_to(far)
    (tree / "kernel").symlink_to("/proc/self")
    with confined_to(tree):
        before = data_digest([tree])
        (far / "data").write_text("2")
        assert data_digest([tree]) == before


def test_a_folder_whose_name_begins_as_that_of_the_kernel_is_none_of_it(tree, monkeypatch):
    monkeypatch.setattr("dpzv_audit.base.files._OF_THE_KERNEL", (str(tree / "a"),))
    (tree / "ab").mkdir()
    (tree / "ab" / "data").write_text("1")
    before = data_digest([tree])
    (tree / "a" / "one.json").write_text("2")
    assert data_digest([tree]) == before
    (tree / "ab" / "data").write_text("2")
    assert data_digest([tree]) != before


def test_a_large_file_of_the_same_size_and_time_is_another(tree, monkeypatch):
    monkeypatch.setattr(files, "MOST_DATA_BYTES", 3)
    path = tree / "code.py"
    was = path.stat()
    before = data_digest([tree])
    path.write_text("CODE.PY")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (was.st_size, was.st_mtime_ns)
    assert data_digest([tree]) != before


@pytest.mark.parametrize(
    "kept",
    [
        "__pycache__/code.cpython-311.pyc",
        ".git/index",
        "env/pyvenv.cfg",
        "lib/site-packages/library.py",
        "dpzv-runs/20261121-170405-verify-claims-seed0/result.json",
        "dpzv-runs/20261121-170405-attack-dpzv-digits-label_direct-seed12-2/report.html",
        ".20261121-170405-verify-claims-seed0-0a1b2c3d.partial/result.json",
        f"kept/0a/{'0a' * 32}/evidence.json",
        "dpzv-runs/audits/0123456789abcdef/000000000-000000064.npz",
        "dpzv-runs/checkpoints/0123456789abcdef.lock",
        "dpzv-audit-error-20261121-170405-0a1b2c3d.log",
        "junit.xml",
    ],
)
def test_what_the_tool_and_others_keep_for_themselves_counts_for_nothing(tree, kept):
    before = tree_digest([tree], outputs=[tree / "junit.xml"])
    (tree / kept).parent.mkdir(parents=True, exist_ok=True)
    (tree / kept).write_text("kept")
    assert tree_digest([tree], outputs=[tree / "junit.xml"]) == before


@pytest.mark.parametrize("mine", ["dpzv-runs/noise.json", "kept/0a/noise.json", "audits/noise.json", "x.partial/a"])
def test_what_only_lies_beside_it_counts(tree, mine):
    before = tree_digest([tree])
    (tree / mine).parent.mkdir(parents=True)
    (tree / mine).write_text("data")
    assert tree_digest([tree]) != before


def test_too_much_or_no_file_at_all_has_no_digest(tree, monkeypatch):
    os.mkfifo(tree / "pipe")
    with pytest.raises(Undigested, match="pipe: is a FIFO; use a regular file"):
        tree_digest([tree])
    assert data_digest([tree]), "which no loader of data opens"
    (tree / "pipe").unlink()
    monkeypatch.setattr(files, "MOST_BYTES", 20)
    with pytest.raises(Undigested, match="more than 20 bytes"):
        tree_digest([tree])
    monkeypatch.setattr(files, "MOST_FILES", 2)
    with pytest.raises(Undigested, match=f"{tree} holds more than 2 files"):
        tree_digest([tree])


@pytest.mark.skipif("os.geteuid() == 0", reason="root reads everything")
def test_a_file_that_cannot_be_read_has_no_digest(tree):
    (tree / "code.py").chmod(0)
    with pytest.raises(Undigested, match="cannot be read"):
        tree_digest([tree])


def test_a_place_that_is_gone_has_no_digest(tmp_path):
    with pytest.raises(Undigested, match="cannot be read"):
        tree_digest([Path(tmp_path / "gone")])
