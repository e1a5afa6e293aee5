"""The page on architecture names files that exist, and the picture beside it folders that do."""

import inspect
import re
import sys
from pathlib import Path

from dpzv_audit.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")

LONGEST_PATH = 16
STOPS = re.compile(
    r"dpzv_audit/(claims|evidence)/|dpzv_audit/base/executor|dpzv_audit/cli/verify|reports/(ci|sarif|junit)"
)
"""Files that a claim passes; all commands share the others."""


def named_paths(text):
    """Return what stands between backticks and looks like a file or a folder."""
    return [found for found in re.findall(r"`([^`\s]+)`", text) if found.endswith((".py", "/"))]


def exists(name):
    """Say whether `name` is a path from the root, or of a module in one of the folders that the page describes."""
    places = (
        "",
        "mechanisms",
        "attacks",
        "dpzv_audit",
        "dpzv_audit/base",
        "dpzv_audit/accounting",
        "dpzv_audit/claims",
        "dpzv_audit/evidence",
        "dpzv_audit/games",
        "dpzv_audit/systems",
        "mechanisms/methods",
        "reports",
    )
    return any((ROOT / place / name).exists() for place in places)


def test_every_file_and_folder_on_the_page_exists():
    paths = named_paths(PAGE)
    assert len(paths) > 40
    assert [path for path in paths if not exists(path)] == []


def test_the_picture_names_folders_and_modules_that_exist():
    picture = (ROOT / "docs" / "images" / "architecture.svg").read_text("utf-8")
    names = [name for box in re.findall(r'class="t"[^>]*>([^<]+)<', picture) for name in box.split(", ")]
    assert len(names) > 8
    assert [name for name in names if not exists(name)] == []


def test_a_claim_passes_the_files_of_the_page_from_toml_to_sarif_and_no_other(tmp_path):
    listed = re.findall(r"^\d+\. `([^`]+)`", PAGE.partition("## A claim's path")[2], re.MULTILINE)
    file = tmp_path / "claims.toml"
    config = "batch_size = 16\nepochs = 1"
    file.write_text(
        f"[[claim]]\nname = 'one'\nmethod = 'dpzv'\nepsilon = 2.0\nrecords = 64\n[claim.config]\n{config}\n"
    )
    outputs = [f"--{kind}={tmp_path / kind}" for kind in ("sarif", "junit", "ledger")]
    passed = set()

    def note(frame, event, argument):
        # Modules and bodies of classes run where they are first imported.
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            passed.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        main(["verify", str(file), "--cache", str(tmp_path / "cache"), *outputs])
    finally:
        sys.setprofile(None)
    inside = {Path(name).relative_to(ROOT).as_posix() for name in passed if Path(name).is_relative_to(ROOT)}
    assert {name for name in inside if STOPS.match(name)} == set(listed)
    assert len(listed) <= LONGEST_PATH


def test_a_file_that_does_not_exist_is_found():
    assert not exists("mechanisms/nowhere.py")
