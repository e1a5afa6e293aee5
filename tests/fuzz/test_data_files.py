"""Any bytes in a data file give a data set or one line that says what is wrong."""

import gzip
import hashlib
import io
import struct
import tarfile
import zlib
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
from PIL import Image
from scipy import io as scipy_io

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.npy import read_npz
from dpzv_audit.cli.releases import realised
from dpzv_audit.data import DATASETS, load, load_csv
from dpzv_audit.data.files import TarLimits, read_tar_members
from dpzv_audit.data.images import BATCHES, IdxFile, read_cifar10, read_idx_bytes
from dpzv_audit.data.mfeat import read_mat5
from dpzv_audit.data.spec import declared
from dpzv_audit.data.table import PublishedTable, read_table
from dpzv_audit.data.text import HashTokenizer, read_fasttext
from dpzv_audit.data.views import decode_image

RANDOM = np.random.default_rng(0)


def tar_of(members, compress=True):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(stream.getvalue(), mtime=0) if compress else stream.getvalue()


def saved(write, *arguments, **options):
    stream = io.BytesIO()
    write(stream, *arguments, **options)
    return stream.getvalue()


def test_idx_files(withstands):
    content = struct.pack(">4I", 0x0803, 3, 2, 2) + bytes(range(12))

    def read(path):
        stored = path.read_bytes()
        with suppress(OSError, EOFError, zlib.error):
            stored = gzip.decompress(stored)
        md5 = hashlib.md5(stored, usedforsecurity=False).hexdigest()  # so that what comes after it is reached
        read_idx_bytes(path, IdxFile(name="images", shape=(3, 2, 2), md5=md5))

    withstands(read, content, gzip.compress(content, mtime=0), name="images")


def test_cifar_batches(withstands):
    table = RANDOM.integers(0, 256, (10, 3073), dtype=np.uint8)
    table[:, 0] = np.arange(10)
    spec = replace(DATASETS["cifar10"], reader=partial(read_cifar10, 10))

    def read(path):
        for name in BATCHES[1:]:
            (path.parent / name).write_bytes(table.tobytes())
        try:
            spec.load(data_dir=path.parent, subset=True)
        finally:
            for name in BATCHES[1:]:
                (path.parent / name).unlink()

    withstands(read, table.tobytes(), name=BATCHES[0], share=0.5)


def test_cifar_archives(withstands):
    table = np.zeros((10, 3073), dtype=np.uint8)
    table[:, 0] = np.arange(10)
    spec = replace(DATASETS["cifar10"], reader=partial(read_cifar10, 10))
    archive = tar_of({f"cifar-10-batches-bin/{name}": table.tobytes() for name in BATCHES})

    def read(path):
        md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        source = replace(spec.source, remote=(replace(spec.remote[0], digest=md5),))
        replace(spec, source=source).load(data_dir=path.parent)

    withstands(read, archive, name="cifar-10-binary.tar.gz")


def test_members_of_archives(withstands):
    """The damage is done before it is compressed, so that it reaches what reads the headers."""
    plain = tar_of({"a/one.txt": b"one" * 50, "a/two.txt": b"two" * 300, "b": b""}, compress=False)
    limits = TarLimits(members=5, member_bytes=4096, total_bytes=1 << 16)

    def read(path):
        packed = path.with_name("packed.tar.gz")
        packed.write_bytes(gzip.compress(path.read_bytes(), compresslevel=1, mtime=0))
        try:
            for _, content in read_tar_members(packed, lambda name: True, limits):
                assert len(content) <= limits.member_bytes
        finally:
            packed.unlink()

    withstands(read, plain, name="plain.tar", share=2)


def test_review_archives(withstands):
    parts = {f"aclImdb/{split}/{side}/0_{n}.txt": b"a film" for split in ("train", "test") for side, n in
             (("pos", 9), ("neg", 2))}  # fmt: skip
    withstands(
        lambda path: load("imdb", data_dir=path.parent, subset=True, length=8), tar_of(parts), name="aclImdb_v1.tar.gz"
    )


def test_csv_tables(withstands):
    rows = [f"{n},{n / 7:.4f},{'red' if n % 2 else 'blue'},{'yes' if n % 3 else 'no'}" for n in range(12)]
    plain = "\n".join(["age,dose,colour,ill", *rows]).encode()
    quoted = b'"age","dose","colour","ill"\r\n' + b"".join(
        f'"{n}","{n}","a ""b""","{n % 2}"\r\n'.encode() for n in range(9)
    )
    withstands(
        lambda path: load_csv(path, label="ill", categories=["colour"]), plain, quoted, name="table.csv", share=3
    )


def test_adult_tables(withstands):
    row = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40"
    content = "".join(f"{row}, Cuba, {label}\n" for label in ("<=50K", ">50K", "<=50K")).encode()

    def read(path):
        (path.parent / "adult.test").write_bytes(content)
        try:
            load("adult", data_dir=path.parent, subset=True)
        finally:
            (path.parent / "adult.test").unlink()

    withstands(read, content, name="adult.data")


def test_bank_tables(withstands):
    line = "58;management;married;tertiary;no;2143;yes;no;unknown;5;may;261;1;-1;0;unknown;no\n"
    table = declared("bank", "table", PublishedTable)
    content = (";".join(table.layout.names) + "\n" + line * 3).encode()

    def read(path):
        rows = read_table(path, table.layout, table.columns, table.label)
        return rows.records(tuple(table.groups.values()), table.classes)

    withstands(read, content, name="bank-full.csv")


def test_lines_of_reviews(withstands):
    content = b"__label__1 Bad: it broke\n__label__2 Good: it lasts\n" * 3
    tokenizer = HashTokenizer(vocabulary=64, length=6)
    withstands(lambda path: read_fasttext(path, tokenizer), content, name="train.ft.txt")


def test_matlab_files(withstands):
    cells = np.empty((1, 2), dtype=object)
    cells[0, 0], cells[0, 1] = np.arange(6.0).reshape(2, 3), np.ones((2, 1))
    contents = [
        saved(scipy_io.savemat, {"X": cells, "Y": np.ones((2, 1))}, do_compression=packed) for packed in (True, False)
    ]
    withstands(lambda path: read_mat5(path, ("X", "Y"), 1 << 16), *contents, name="HW.mat", share=3)


def test_npz_files(withstands):
    arrays = {"images": np.zeros((3, 2, 2), dtype=np.uint8), "labels": np.arange(3)}
    contents = [saved(np.savez, **arrays), saved(np.savez_compressed, **arrays)]

    def read(path):
        try:
            read_npz(path, {"images": 12, "labels": 24})
        except (ValueError, OSError) as error:
            raise InputError(f"{path}: {error}") from error

    withstands(read, *contents, name="views.npz", share=3)


def test_images(withstands):
    image = Image.fromarray(RANDOM.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    contents = [saved(image.save, format=kind) for kind in ("PNG", "JPEG")]
    withstands(lambda path: decode_image(path, path.read_bytes()), *contents, name="view.png", share=3)


def test_schedule_files(withstands):
    batches = np.stack([RANDOM.permutation(20)[:4] for _ in range(5)])
    contents = [saved(np.save, batches), saved(np.savez, batches), saved(np.save, batches.astype(np.int16))]

    def read(path):
        realised(path, 20, rounds=5, distinct_ids=False)

    withstands(read, contents[0], contents[2], name="schedule.npy", share=3)
    withstands(lambda path: None if path.read_bytes() == contents[1] else read(path), contents[1], name="other.npy")
