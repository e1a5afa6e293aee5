"""Whether git tracks a path, told from its index alone; the same as git itself says."""

import shutil
import subprocess

import pytest

from dpzv_audit.base.tracked import tracked_at

from ...helpers.refusals import refused

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")
NAMES = ("a", "a.txt", "ab/c.json", "cache/x/evidence.json", "ledger.jsonl", "long/" + "n" * 5000, "ü/ñ", "zz/z/z")


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, "-C", str(folder), *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q")
    return root


def fill(root, names=NAMES):
    for name in names:
        path = root / (name if len(name) < 300 else f"{name[:5]}{name[5:205]}/{name[205:405]}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    git(root, "add", "-A")


@pytest.mark.parametrize("version", ["2", "3", "4", "split", "sha256"])
def test_what_git_tracks_is_found_in_every_kind_of_index(tmp_path, repository, version):
    root = repository
    if version == "sha256":
        root = tmp_path / "sha256"
        root.mkdir()
        git(root, "init", "-q", "--object-format=sha256")
    if version == "split":
        git(root, "update-index", "--split-index")
    fill(root)
    if version in ("2", "4"):
        git(root, "update-index", f"--index-version={version}")
    if version == "3":
        (root / "later").write_text("")
        git(root, "add", "-N", "later")  # takes the flags that version 3 brought
    git(root, "commit", "-q", "-m", "all")
    (root / "new" / "deep").mkdir(parents=True)
    (root / "new" / "deep" / "file").write_text("")
    git(root, "add", "-A")
    (root / "untracked").mkdir()
    for path in ("ledger.jsonl", "cache", "cache/x", "cache/x/evidence.json", "a", "ü", "zz/z/z", "new", "long", "a/b"):
        assert tracked_at(root / path), path
    assert tracked_at(root), "the whole repository"
    for path in ("ledger", "cach", "cache/y", "untracked", "b", "a.tx", "zz/z/y", "ab/c.json2"):
        assert not tracked_at(root / path), path
    for line in git(root, "ls-files", "-z").split(b"\0")[:-1]:
        assert tracked_at(root / line.decode())
    assert not tracked_at(tmp_path / "elsewhere")


def test_links_and_submodules_that_git_tracks_are_found(tmp_path, repository):
    fill(repository, ["a"])
    (tmp_path / "outside").mkdir()
    (repository / "linked").symlink_to(tmp_path / "outside")
    git(repository, "add", "-A")
    assert tracked_at(repository / "linked" / "cache")
    (tmp_path / "away").symlink_to(repository / "a")
    assert tracked_at(tmp_path / "away"), "a link from outside leads to what is tracked"
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    fill(inner, ["cache/evidence.json"])
    git(inner, "commit", "-q", "-m", "planted")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "module")
    assert tracked_at(repository / "module" / "cache").endswith("evidence.json")
    assert tracked_at(repository / "module" / "other").endswith("module"), "the repository around it tracks it whole"
    work = tmp_path / "work"
    git(repository, "commit", "-q", "-m", "all")
    git(repository, "worktree", "add", "-q", str(work))
    assert tracked_at(work / "a")
    assert not tracked_at(work / "b")


def test_an_index_that_cannot_be_read_is_told(repository):
    fill(repository, ["a"])
    index = repository / ".git" / "index"
    for content in (b"", b"DIRC", index.read_bytes()[:90], b"DIRC" + bytes(7) + b"\xff" * 90):
        index.write_bytes(content)
        with refused("is no index of git's that can be read"):
            tracked_at(repository / "b")
    index.unlink()
    assert not tracked_at(repository / "a")
