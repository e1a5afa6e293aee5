"""Data sets, divided vertically: those that come with the package by name, and tables and pictures of one's own."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..base.registry import Registry
from .images import (
    count_cifar10,
    count_idx_images,
    declared_idx_files,
    read_cifar10,
    read_digits,
    read_idx_images,
)
from .mfeat import read_mfeat
from .spec import DataRequest, DataSpec, Partition, RemoteFile, Source, declared, declared_spec
from .table import CsvTable, PublishedTable, load_csv, read_breast_cancer, read_published_set
from .text import read_amazon_polarity, read_imdb
from .vertical import Records, VerticalDataset
from .views import count_eth80, count_modelnet40, load_views, read_eth80, read_modelnet40

__all__ = [
    "DATASETS",
    "CsvTable",
    "DataRequest",
    "DataSpec",
    "Partition",
    "Records",
    "RemoteFile",
    "Source",
    "VerticalDataset",
    "load",
    "load_csv",
    "load_views",
]


def _table(name: str) -> Callable[..., VerticalDataset]:
    return partial(read_published_set, declared(name, "table", PublishedTable))


_READERS: dict[str, Callable[..., VerticalDataset]] = {
    "digits": read_digits,
    "mnist": partial(read_idx_images, declared_idx_files("mnist")),
    "fashion-mnist": partial(read_idx_images, declared_idx_files("fashion-mnist")),
    "cifar10": partial(read_cifar10, 10_000),
    "eth80": read_eth80,
    "modelnet40": read_modelnet40,
    "mfeat": read_mfeat,
    "amazon-polarity": read_amazon_polarity,
    "imdb": partial(read_imdb, 25_000),
    "adult": _table("adult"),
    "bank": _table("bank"),
    "breast-cancer": read_breast_cancer,
}


_COUNTERS: dict[str, Callable[[DataRequest], int]] = {
    "mnist": partial(count_idx_images, declared_idx_files("mnist")),
    "fashion-mnist": partial(count_idx_images, declared_idx_files("fashion-mnist")),
    "cifar10": count_cifar10,
    "eth80": count_eth80,
    "modelnet40": count_modelnet40,
}
DATASETS = Registry(
    "dpzv_audit.datasets",
    DataSpec,
    [declared_spec(name, reader, _COUNTERS.get(name)) for name, reader in _READERS.items()],
)


def load(
    name: str,
    *,
    clients: int | None = None,
    partition: str | None = None,
    data_dir: Path | None = None,
    **options: Any,
) -> VerticalDataset:
    """Return the data set `name`, cut for `clients` in the way `partition` names; None is its own default.

    `data_dir` is where data sets that are not embedded have their files. `options` are the data set's own:
    `subset=True` (use files that are not the complete original), `colour`, `size`, `length`, `vocabulary`, ... Raises
    `InputError` for an unknown name (with the nearest known one), for an option the data set does not have, and for
    whatever its reader refuses.
    """
    return DATASETS.named(name, "dataset").load(clients=clients, partition=partition, data_dir=data_dir, **options)
