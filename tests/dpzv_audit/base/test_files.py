"""Opening files that others may have named: never another one than was looked at, nor one outside of bounds."""

import os

import pytest

from dpzv_audit.base import files
from dpzv_audit.base.files import MOST_VALUES, confined_to, json_in, open_plain, read_plain

from ...helpers.refusals import refused


@pytest.fixture
def place(tmp_path):
    """A folder with a file in it, and a secret beside it."""
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    (folder / "other").write_text("other")
    (tmp_path / "secret").write_text("secret")
    return folder


def link(path, target):
    """Put a link in the place of a file, in one step."""
    path.with_name("new").symlink_to(target)
    os.replace(path.with_name("new"), path)


def before_calls(monkeypatch, module, name, *actions):
    """Let each of the next calls of a function follow an action, as of another process that has waited for it."""
    real = getattr(module, name)
    waiting = list(actions)

    def called(*arguments, **named):
        if waiting:
            waiting.pop(0)()
        return real(*arguments, **named)

    monkeypatch.setattr(module, name, called)
    return waiting


SWAPS = {
    "a link out of the folder": lambda folder: link(folder / "mine", "../secret"),
    "a link within it": lambda folder: link(folder / "mine", "other"),
    "another file": lambda folder: os.replace(folder / "other", folder / "mine"),
}


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("confined", [True, False])
def test_a_file_that_is_swapped_as_it_is_opened_is_not_read(place, monkeypatch, swap, confined):
    waiting = before_calls(monkeypatch, files.os, "open", lambda: SWAPS[swap](place))
    with confined_to(place if confined else None), refused("mine: was replaced while it was"):
        open_plain(place / "mine")
    assert not waiting
    assert read_plain(place / "mine", 9) != b"mine", "what was swapped is read when nobody swaps it"


def test_a_file_that_is_swapped_back_is_not_read(place, monkeypatch):
    """Outside when it is looked at, inside when its path is followed, outside when it is opened, and inside again."""
    link(place / "mine", "../secret")
    with confined_to(place):
        opened = before_calls(monkeypatch, files.os, "open", lambda: link(place / "mine", "../secret"))
        # Followed twice before it is opened.
        inside = (lambda: link(place / "mine", "other"), lambda: None, lambda: link(place / "mine", "other"))
        followed = before_calls(monkeypatch, files.os.path, "realpath", *inside)
        with refused("mine: was replaced while it was opened"):
            open_plain(place / "mine")
    assert not opened
    assert not followed


@pytest.mark.parametrize("links", [True, False])
def test_a_fifo_that_takes_the_place_of_a_file_is_not_waited_for(place, monkeypatch, links):
    def swap():
        (place / "mine").unlink()
        os.mkfifo(place / "mine")

    before_calls(monkeypatch, files.os, "open", swap)
    with refused(r"mine: (was replaced while it was opened|is a FIFO)"):
        open_plain(place / "mine", links=links)


def outside_by_a_chain(folder):
    link(folder / "mine", "first")
    (folder / "first").symlink_to("second")
    (folder / "second").symlink_to("../secret")
    return folder / "mine"


def outside_by_a_folder(folder):
    (folder / "within").symlink_to("..")
    return folder / "within" / "secret"


def outside_by_dots(folder):
    (folder / "up").symlink_to("..")
    return folder / "up" / "root" / ".." / "secret"


def beside(folder):
    """A file in a folder whose name begins as that of the root."""
    other = folder.with_name("root-2")
    other.mkdir()
    (other / "secret").write_text("secret")
    link(folder / "mine", other / "secret")
    return folder / "mine"


OUTSIDE = {
    "a link": lambda folder: [link(folder / "mine", "../secret"), folder / "mine"][1],
    "a chain of links": outside_by_a_chain,
    "a folder that is a link": outside_by_a_folder,
    "two dots": lambda folder: folder / ".." / "secret",
    "two dots after a link": outside_by_dots,
    "a folder of nearly the same name": beside,
}  # fmt: skip


@pytest.mark.parametrize("way", OUTSIDE)
def test_nothing_outside_is_opened(place, way):
    path = OUTSIDE[way](place)
    assert read_plain(path, 9) == b"secret", "without bounds it would be"
    with confined_to(place), refused(r"leads to .*secret; use one below .*root"):
        open_plain(path)


def test_a_root_that_is_a_link_bounds_what_it_leads_to(place, tmp_path):
    (tmp_path / "named").symlink_to("root")
    with confined_to(tmp_path / "named"):
        for root in ("named", "root"):
            assert read_plain(tmp_path / root / "mine", 9) == b"mine"
        with refused("use one below"):
            open_plain(tmp_path / "named" / ".." / "secret")


def test_a_link_is_none_of_the_files_that_must_be_there_themselves(place):
    link(place / "mine", "other")
    with refused("mine: is a link; use a regular file"):
        open_plain(place / "mine", links=False)
    assert read_plain(place / "other", 10, links=False) == b"other"


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_one_line(place, name):
    with refused("is no name that a file can have"):
        open_plain(place / name)


def test_no_more_than_the_most_is_read(place):
    assert read_plain(place / "mine", 4) == b"mine"
    with refused("mine: has more than 3 bytes; use 3 at most"):
        read_plain(place / "mine", 3)


def test_what_grows_while_it_is_read_is_whole_or_refused(place, monkeypatch):
    real = os.fstat

    def smaller(handle):
        found = real(handle)
        return os.stat_result((*found[:6], 2, *found[7:])) if found.st_size == 4 else found

    monkeypatch.setattr(files.os, "fstat", smaller)
    monkeypatch.setattr(files.os.path, "samestat", lambda one, other: True)
    assert read_plain(place / "mine", 4) == b"mine"
    with refused("has more than 3 bytes"):
        read_plain(place / "mine", 3)


def test_json_of_too_many_values_is_not_parsed():
    assert json_in(b'{"a": [1, 2.5, "x"]}') == {"a": [1, 2.5, "x"]}
    assert len(json_in(b"[" + b"0," * 1000 + b"0]", 1002)) == 1001
    for content in (b"[" + b"0," * MOST_VALUES + b"0]", b"[" * (MOST_VALUES + 1)):
        with pytest.raises(ValueError, match="holds more than 5,000,000 values"):
            json_in(content)
