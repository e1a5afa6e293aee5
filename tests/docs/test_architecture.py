"""The page on architecture names files that exist, and the picture beside it folders that do."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def named_paths(text: str) -> list[str]:
    """Return what stands between backticks and looks like a file or a folder."""
    return [found for found in re.findall(r"`([^`\s]+)`", text) if found.endswith((".py", "/"))]


def exists(name: str) -> bool:
    """Say whether `name` is a path from the root, or of a module in one of the folders that the page describes."""
    places = ("", "mechanisms", "attacks", "dpzv_audit", "dpzv_audit/accounting", "dpzv_audit/games")
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


def test_a_file_that_does_not_exist_is_found():
    assert not exists("mechanisms/nowhere.py")
