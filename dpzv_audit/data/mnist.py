"""MNIST from its four original IDX files (LeCun, Cortes, Burges), cut into strips or runs of pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.files import DATA_VARIABLE, Source
from dpzv_audit.data.idx import IdxFile, find_idx, read_idx
from dpzv_audit.data.partition import Blocks, equal_runs, row_strips, scaled
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError

__all__ = ["DATA_VARIABLE", "MNIST_FILES", "MnistFiles", "load_idx_images", "load_mnist", "mnist_folder"]

MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MNIST_SOURCE = Source(
    name="mnist",
    folder="mnist",
    holds="the four IDX files themselves",
    origin=f"download the four .gz files from {MNIST_URL} (or give --download)",
)

PIXEL_MAXIMUM = 255.0
"""The largest grey value of the format: a public constant, so scaling looks at no record."""

DEFAULT_CLIENTS = {"strips": 7, "runs": 2}
"""Clients of each partition unless told otherwise: paper 001's strips of 4 rows, paper 003's halves."""


@dataclass(frozen=True, kw_only=True)
class MnistFiles:
    """The four files a folder must hold."""

    train_images: IdxFile
    train_labels: IdxFile
    test_images: IdxFile
    test_labels: IdxFile


MNIST_FILES = MnistFiles(
    train_images=IdxFile(
        name="train-images-idx3-ubyte",
        shape=(60_000, 28, 28),
        md5_gzip="f68b3c2dcbeaaa9fbdd348bbdeb94873",
        md5_plain="6bbc9ace898e44ae57da46a324031adb",
        url=MNIST_URL + "train-images-idx3-ubyte.gz",
    ),
    train_labels=IdxFile(
        name="train-labels-idx1-ubyte",
        shape=(60_000,),
        md5_gzip="d53e105ee54ea40749a09fcbcd1e9432",
        md5_plain="a25bea736e30d166cdddb491f175f624",
        url=MNIST_URL + "train-labels-idx1-ubyte.gz",
    ),
    test_images=IdxFile(
        name="t10k-images-idx3-ubyte",
        shape=(10_000, 28, 28),
        md5_gzip="9fb629c4189551a2d022fa330f9573f3",
        md5_plain="2646ac647ad5339dbf082846283269ea",
        url=MNIST_URL + "t10k-images-idx3-ubyte.gz",
    ),
    test_labels=IdxFile(
        name="t10k-labels-idx1-ubyte",
        shape=(10_000,),
        md5_gzip="ec29112dd5afa0611ce80d1b7f02629c",
        md5_plain="27ae3e4e09519cfbb04c329615203637",
        url=MNIST_URL + "t10k-labels-idx1-ubyte.gz",
    ),
)
"""MD5s of the `.gz` files as published; those of the plain files were computed by unpacking such files."""


def load_mnist(
    *,
    clients: int | None = None,
    partition: str | None = None,
    data_dir: Path | None = None,
    files: MnistFiles = MNIST_FILES,
) -> VerticalDataset:
    """Return MNIST (60,000 train and 10,000 test records, 10 classes), pixels in [0, 1].

    `partition` "strips" (default): `clients` strips of 28 / clients rows, blocks (N, 1, 28 / clients, 28);
    default 7. "runs": `clients` equal runs of the flattened image, blocks (N, 784 / clients); default 2.
    `data_dir` is the folder that holds `mnist/` or the four files themselves; without it the environment
    variable DPZV_AUDIT_DATA. `files` is what the files must be. Raises `InputError` for a missing folder or
    file, for a file that is not the original, and for clients that do not divide the image.
    """
    return load_idx_images(MNIST_SOURCE, files, clients=clients, partition=partition, data_dir=data_dir)


def load_idx_images(
    source: Source, files: MnistFiles, *, clients: int | None, partition: str | None, data_dir: Path | None
) -> VerticalDataset:
    """Return the images of `files` (10 classes) as `load_mnist` cuts them; raises what it raises."""
    kind = "strips" if partition is None else partition
    if kind not in DEFAULT_CLIENTS:
        raise InputError(f"partition is {partition!r}, {source.name} has: {', '.join(DEFAULT_CLIENTS)}")
    count = DEFAULT_CLIENTS[kind] if clients is None else clients
    blank = np.zeros((1, *files.train_images.shape[1:]), dtype=np.uint8)
    _cut(blank, kind, count)  # a wrong number of clients is told before 55 MB are read
    folder = source.locate(data_dir)
    parts = (files.train_images, files.train_labels, files.test_images, files.test_labels)
    if not any((folder / f"{part.name}{end}").is_file() for part in parts for end in (".gz", "")):
        raise source.missing(folder / f"{files.train_images.name}.gz")
    digests: dict[str, str] = {}

    def read(file: IdxFile) -> npt.NDArray[np.uint8]:
        array, digests[find_idx(folder, file).name] = read_idx(folder, file)
        return array

    def records(images: IdxFile, labels: IdxFile) -> Records:
        values = read(labels).astype(np.int64)
        return Records(features=scaled(_cut(read(images), kind, count), PIXEL_MAXIMUM), labels=values)

    return VerticalDataset(
        name=source.name,
        train=records(files.train_images, files.train_labels),
        test=records(files.test_images, files.test_labels),
        classes=10,
        partition=_describe(kind, count, files.train_images.shape[1:]),
        digests=digests,
        columns=files.train_images.shape[2],  # a run of whole rows is a picture; one that ends within a row is not
    )


def mnist_folder(data_dir: Path | None) -> Path:
    """Return the folder of the IDX files: `mnist/` in `data_dir` (or DPZV_AUDIT_DATA) if there, else itself.

    Raises `InputError` naming the flag or the variable if neither is set or the folder does not exist.
    """
    return MNIST_SOURCE.locate(data_dir)


def _cut(images: npt.NDArray[np.uint8], kind: str, clients: int) -> Blocks:
    return row_strips(images, clients) if kind == "strips" else equal_runs(images, clients)


def _describe(kind: str, clients: int, shape: tuple[int, ...]) -> str:
    height, width = shape
    if kind == "strips":
        return f"{clients} clients, strips: {height // clients} of the {height} image rows each"
    return f"{clients} clients, runs: {height * width // clients} of the {height * width} flattened pixels each"
