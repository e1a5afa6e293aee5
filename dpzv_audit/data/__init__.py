"""Data sets, cut vertically: a registry of loaders, where adding one is one file and one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpzv_audit.data.adult import ADULT_SOURCE, load_adult
from dpzv_audit.data.amazon import AMAZON_SOURCE, load_amazon_polarity
from dpzv_audit.data.bank import BANK_SOURCE, load_bank
from dpzv_audit.data.breast_cancer import load_breast_cancer
from dpzv_audit.data.cifar import CIFAR_SOURCE, load_cifar10
from dpzv_audit.data.csv_file import load_csv
from dpzv_audit.data.digits import load_digits
from dpzv_audit.data.eth80 import ETH80_FILE, ETH80_SOURCE, load_eth80
from dpzv_audit.data.fashion import FASHION_SOURCE, load_fashion_mnist
from dpzv_audit.data.files import Source
from dpzv_audit.data.imdb import IMDB_SOURCE, load_imdb
from dpzv_audit.data.mfeat import MFEAT_SOURCE, load_mfeat
from dpzv_audit.data.mnist import MNIST_SOURCE, load_mnist
from dpzv_audit.data.renders import MODELNET_SOURCE, load_modelnet40, load_views
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError, unknown_name
from dpzv_audit.registry import Registry

__all__ = ["DATASETS", "DatasetSpec", "Records", "VerticalDataset", "load", "load_csv", "load_views"]

Loader = Callable[..., VerticalDataset]
"""Reads a data set: keywords `clients`, `partition` and `data_dir` (None stands for the data set's own default),
and those that its entry lists as options."""


@dataclass(frozen=True)
class DatasetSpec:
    """A data set: its name on the command line, one line about it, how it is read, and what it needs.

    `options` are the loader's further keywords. `source` says where its files go and where they come from (None:
    embedded), `files` which these are, `megabytes` their size (None where nobody publishes it); `partitions` maps
    each way of cutting it to the numbers of clients it takes, the default way and number first.
    """

    name: str
    summary: str
    loader: Loader
    partitions: Mapping[str, str]
    source: Source | None = None
    files: str = ""
    megabytes: float | None = None
    options: tuple[str, ...] = ()


_TEXT_OPTIONS = ("subset", "length", "vocabulary", "tokenizer")
_IDX_CUTS = {"strips": "7, or any divisor of 28", "runs": "2, or any divisor of 784"}
_IDX_NAMES = "{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"

DATASETS = Registry(
    "dpzv_audit.datasets",
    DatasetSpec,
    (
        DatasetSpec(
            "digits",
            "8 x 8 digits embedded in scikit-learn (1,408 / 389 records, 10 classes); 4 clients of 16 pixels",
            load_digits,
            {"columns": "4, or 1, 2, 8"},
        ),
        DatasetSpec(
            "mnist",
            "28 x 28 digits from the original IDX files (60,000 / 10,000, 10 classes); 7 strips of 4 rows",
            load_mnist,
            _IDX_CUTS,
            MNIST_SOURCE,
            _IDX_NAMES,
            11.6,
        ),
        DatasetSpec(
            "fashion-mnist",
            "28 x 28 clothes from the original IDX files (60,000 / 10,000, 10 classes); 7 strips of 4 rows",
            load_fashion_mnist,
            _IDX_CUTS,
            FASHION_SOURCE,
            _IDX_NAMES,
            30.9,
        ),
        DatasetSpec(
            "cifar10",
            "32 x 32 colour photographs, binary version (50,000 / 10,000, 10 classes); 4 patches of 16 x 16",
            load_cifar10,
            {"patches": "4, or 1, 16, 64", "halves": "2", "strips": "any divisor of 32"},
            CIFAR_SOURCE,
            "data_batch_{1,2,3,4,5}.bin, test_batch.bin, or cifar-10-binary.tar.gz as it is",
            170.1,
            ("subset",),
        ),
        DatasetSpec(
            "eth80",
            "photographs of objects from 16 sides (64 / 16 objects, 8 classes); 16 clients, a view each",
            load_eth80,
            {"views": "16, or 1, 2, 4, 8", "rotations": "4, or 1, 2, 8, 16"},
            ETH80_SOURCE,
            ETH80_FILE,
            10.7,
            ("colour", "size"),
        ),
        DatasetSpec(
            "modelnet40",
            "12 renders a shape, one folder a class (40 classes); 12 clients, a view each",
            load_modelnet40,
            {"views": "12, or any divisor of 12"},
            MODELNET_SOURCE,
            "CLASS/{train,test}/SHAPE_VIEW.png",
            None,
            ("subset", "colour", "size"),
        ),
        DatasetSpec(
            "mfeat",
            "UCI multiple features of digits (1,600 / 400, 10 classes); 6 clients, a feature set each",
            load_mfeat,
            {"views": "6, or 1, 2, 3"},
            MFEAT_SOURCE,
            "HW.mat",
            3.5,
        ),
        DatasetSpec(
            "amazon-polarity",
            "Amazon reviews as token ids (3,600,000 / 400,000, 2 classes); 3 clients, equal runs of tokens",
            load_amazon_polarity,
            {"runs": "3, or any divisor of the length (96)"},
            AMAZON_SOURCE,
            "train.ft.txt, test.ft.txt",
            1_800.0,
            _TEXT_OPTIONS,
        ),
        DatasetSpec(
            "imdb",
            "IMDb reviews as token ids (25,000 / 25,000, 2 classes); one client holds the text",
            load_imdb,
            {"runs": "1, or any divisor of the length (256)"},
            IMDB_SOURCE,
            "aclImdb_v1.tar.gz",
            84.1,
            _TEXT_OPTIONS,
        ),
        DatasetSpec(
            "adult",
            "UCI census rows, mixed columns (32,561 / 16,281, 2 classes); 4 clients, a group of columns each",
            load_adult,
            {"groups": "4", "columns": "1 to 14"},
            ADULT_SOURCE,
            "adult.data, adult.test",
            6.0,
            ("subset",),
        ),
        DatasetSpec(
            "bank",
            "UCI bank marketing without `duration` (36,160 / 9,051, 2 classes); 3 clients, a group of columns each",
            load_bank,
            {"groups": "3", "columns": "1 to 15"},
            BANK_SOURCE,
            "bank-full.csv",
            4.6,
            ("subset",),
        ),
        DatasetSpec(
            "breast-cancer",
            "30 measures of cell nuclei embedded in scikit-learn (448 / 121, 2 classes); 3 clients of 10 columns",
            load_breast_cancer,
            {"columns": "3, or any divisor of 30"},
        ),
    ),
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

    `data_dir` is where data sets that are not embedded have their files. `options` are the data set's own, as its
    entry in `DATASETS` lists them: `subset=True` (use files that are not the complete original), `colour`,
    `size`, `length`, `vocabulary`, ... Raises `InputError` for an unknown name (with the nearest known one), for
    an option the data set does not have, and for whatever its loader refuses.
    """
    spec = DATASETS.named(name, "dataset")
    for option in options:
        if option not in spec.options:
            if not spec.options:
                raise InputError(f"option {option!r} is not for {name}, which has no options")
            raise unknown_name(f"option of {name}", option, spec.options)
    return spec.loader(clients=clients, partition=partition, data_dir=data_dir, **options)
