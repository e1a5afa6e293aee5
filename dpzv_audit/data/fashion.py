"""Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017) from its four original IDX files, cut as MNIST is."""

from __future__ import annotations

from pathlib import Path

from dpzv_audit.data.files import Source
from dpzv_audit.data.idx import IdxFile
from dpzv_audit.data.mnist import MnistFiles, load_idx_images
from dpzv_audit.data.vertical import VerticalDataset

FASHION_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
FASHION_SOURCE = Source(
    name="fashion-mnist",
    folder="fashion-mnist",
    holds="the four IDX files themselves",
    origin=f"download the four .gz files from {FASHION_URL} (or give --download)",
)


def _file(name: str, shape: tuple[int, ...], md5_gzip: str) -> IdxFile:
    return IdxFile(name=name, shape=shape, md5_gzip=md5_gzip, md5_plain=None, url=f"{FASHION_URL}{name}.gz")


FASHION_FILES = MnistFiles(
    train_images=_file("train-images-idx3-ubyte", (60_000, 28, 28), "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    train_labels=_file("train-labels-idx1-ubyte", (60_000,), "25c81989df183df01b3e8a0aad5dffbe"),
    test_images=_file("t10k-images-idx3-ubyte", (10_000, 28, 28), "bef4ecab320f06d8554ea6380940ec79"),
    test_labels=_file("t10k-labels-idx1-ubyte", (10_000,), "bb300cfdad3c16e7a12a480ee83cd310"),
)
"""MD5s of the `.gz` files as its authors publish them; unpacked files have none and are refused."""


def load_fashion_mnist(
    *,
    clients: int | None = None,
    partition: str | None = None,
    data_dir: Path | None = None,
    files: MnistFiles = FASHION_FILES,
) -> VerticalDataset:
    """Return Fashion-MNIST (60,000 train and 10,000 test records, 10 classes), pixels in [0, 1].

    Partitions "strips" and "runs", clients and errors are those of `load_mnist`; the folder is
    `fashion-mnist/`, and its file names are the same as MNIST's, so the two need folders of their own.
    """
    return load_idx_images(FASHION_SOURCE, files, clients=clients, partition=partition, data_dir=data_dir)
