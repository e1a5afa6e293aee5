"""Data sets, cut vertically: a registry of loaders, where adding one is one file and one line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpzv_audit.data.digits import load_digits
from dpzv_audit.data.mnist import load_mnist
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import unknown_name

__all__ = ["DATASETS", "DatasetSpec", "Records", "VerticalDataset", "load"]


class Loader(Protocol):
    """Reads a data set; None stands for the data set's own default."""

    def __call__(
        self, *, clients: int | None = None, partition: str | None = None, data_dir: Path | None = None
    ) -> VerticalDataset: ...


@dataclass(frozen=True)
class DatasetSpec:
    """A data set's name on the command line, one line about it, and how it is read."""

    name: str
    summary: str
    loader: Loader


DATASETS: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in (
        DatasetSpec(
            "digits",
            "8 x 8 digits embedded in scikit-learn (1,408 / 389 records, 10 classes); 4 clients of 16 pixels",
            load_digits,
        ),
        DatasetSpec(
            "mnist",
            "28 x 28 digits from the original IDX files (60,000 / 10,000, 10 classes); 7 strips of 4 rows",
            load_mnist,
        ),
    )
}


def load(
    name: str, *, clients: int | None = None, partition: str | None = None, data_dir: Path | None = None
) -> VerticalDataset:
    """Return the data set `name`, cut for `clients` in the way `partition` names; None is its own default.

    `data_dir` is where data sets that are not embedded have their files. Raises `InputError` for an unknown
    name (with the nearest known one) and for whatever the data set's loader refuses.
    """
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    return DATASETS[name].loader(clients=clients, partition=partition, data_dir=data_dir)
