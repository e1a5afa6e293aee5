import gzip
import io
import tarfile

import pytest

from dpzv_audit.data.files import TarLimits, read_tar_members

from ...helpers.memory import memory_below
from ...helpers.refusals import refusal

LIMITS = TarLimits(members=10, member_bytes=1000, total_bytes=100_000)


def entry(name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def archive(path, *entries, format=tarfile.GNU_FORMAT):
    with tarfile.open(path, "w:gz", format=format) as made:
        for info, content in entries:
            made.addfile(info, io.BytesIO(content))
    return path


def read(path, limits=LIMITS):
    return dict(read_tar_members(path, lambda name: name.endswith(".txt"), limits))


def refused(path, limits=LIMITS):
    text = refusal(read, path, limits)
    assert text.startswith(f"{path}: ")
    return text


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_wanted_members_are_read_in_order_and_others_passed_over(tmp_path, format):
    path = archive(
        tmp_path / "a.tar.gz",
        entry("d", type=tarfile.DIRTYPE),
        entry("./d/b.txt", b"x" * 512),
        entry("d/big.feat", b"y" * 5000),
        entry("d/a.txt", b"second"),
        entry("d/empty.txt"),
        format=format,
    )
    assert list(read(path).items()) == [("d/b.txt", b"x" * 512), ("d/a.txt", b"second"), ("d/empty.txt", b"")]


@pytest.mark.parametrize("name", ["/etc/a.txt", "../a.txt", "d/../../a.txt", "d\\a.txt"])
def test_names_that_point_outside_are_refused(tmp_path, name):
    assert "points outside the archive" in refused(archive(tmp_path / "a.tar.gz", entry(name, b"x")))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_special_files_are_refused_wanted_or_not(tmp_path, kind):
    for name in ("a.txt", "other"):
        path = archive(tmp_path / "a.tar.gz", entry(name, type=kind, linkname="/etc/passwd"))
        assert "is a link or a special file" in refused(path)


def test_a_member_twice_is_refused(tmp_path):
    path = archive(tmp_path / "a.tar.gz", entry("a.txt", b"1"), entry("./a.txt", b"2"))
    assert "holds 'a.txt' twice" in refused(path)


def test_too_many_members_and_too_large_ones_are_refused(tmp_path):
    many = archive(tmp_path / "many.tar.gz", *(entry(f"{n}.txt", b"1") for n in range(11)))
    assert "has more than 10 members" in refused(many)
    large = archive(tmp_path / "large.tar.gz", entry("a.txt", b"1" * 1001))
    assert "'a.txt' has 1001 bytes; use 1000 at most" in refused(large)


def test_a_bomb_of_an_unwanted_member_is_stopped_at_the_total(tmp_path):
    path = archive(tmp_path / "bomb.tar.gz", entry("zeros.bin", bytes(20_000_000)), entry("a.txt", b"1"))
    with memory_below(2_000_000):
        assert "unpacks to more than 100000 bytes" in refused(path)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_bomb_of_a_header_is_stopped_before_it_is_read(tmp_path, format):
    limits = TarLimits(members=10, member_bytes=1000, total_bytes=1 << 30)
    path = archive(tmp_path / "bomb.tar.gz", entry("n" * 20_000_000 + ".txt", b"1"), format=format)
    with memory_below(2_000_000):
        assert "has a header of" in refused(path, limits)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.7, 0.95])
def test_truncated_archives_are_refused(tmp_path, keep):
    import random

    noise = random.Random(0)
    path = archive(tmp_path / "a.tar.gz", *(entry(f"{n}.txt", noise.randbytes(900)) for n in range(8)))
    stored = path.read_bytes()
    path.write_bytes(stored[: int(len(stored) * keep)])
    assert "is truncated or no tar.gz archive" in refused(path)


def test_a_tar_cut_within_a_member_and_packed_again_is_refused(tmp_path):
    path = archive(tmp_path / "a.tar.gz", entry("a.txt", b"x" * 900))
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:900]))
    assert "truncated" in refused(path)


# a fixed time: workers must collect the same names
@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", gzip.compress(b"no tar" * 1000, mtime=0)])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(content)
    assert "is truncated or no tar.gz archive" in refused(path)


def test_an_absent_file_cannot_be_read(tmp_path):
    assert "cannot be read" in refused(tmp_path / "absent.tar.gz")
