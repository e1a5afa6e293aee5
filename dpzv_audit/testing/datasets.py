"""The contract of a data set: arrays that fit, the same every time, and errors in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpzv_audit.data import DataSpec
from dpzv_audit.errors import InputError
from dpzv_audit.testing.rules import check_words, require


def check_dataset(spec: DataSpec, *, data_dir: Path | None = None, **options: Any) -> None:
    """Check a data set against what every one keeps.

    Args:
        spec: The data set.
        data_dir: Where its files are; None for DPZV_AUDIT_DATA, and where it has none.
        options: Options of its reader.

    Raises:
        AssertionError: It breaks a rule, which is named in one line.
        InputError: Its files are not there.
    """
    check_words(spec)
    require(bool(spec.partitions), spec, "must say at least one partition")
    sources = spec.sources(data_dir)
    for path in sources:
        require(path.exists(), spec, f"says that its numbers come from {path}, which is not there")
    require(bool(spec.digest(data_dir)), spec, "digest must not be empty: the cache could not tell when it changes")
    first, again = (spec.load(data_dir=data_dir, **options) for _ in range(2))
    require(first.fingerprint == again.fingerprint, spec, "two loads differ: reading must draw nothing at random")
    require(len(np.unique(first.train.labels)) > 1, spec, "training labels are all of one class: nothing can be learnt")
    require(bool(first.digests), spec, "digests of the data set must name the sources that were read")
    for name, way in spec.partitions.items():
        cut = spec.load(data_dir=data_dir, partition=name, **options)
        require(cut.clients == way.clients, spec, f"{name} makes {cut.clients} clients, says {way.clients}")
        parts = ((cut.train, first.train), (cut.test, first.test))
        same = all(_labels_stay(one.labels, other.labels) for one, other in parts)
        rule = "a partition deals features out, of a record to as many records as of any other"
        require(same, spec, f"{name} changes labels or their order: {rule}")
    _refuses(spec, data_dir, "clients 0", clients=0)
    _refuses(spec, data_dir, "an unknown partition", partition="no such partition")
    _refuses(spec, data_dir, "an unknown option", no_such_option=1)


def _labels_stay(dealt: np.ndarray, labels: np.ndarray) -> bool:
    """Return whether `dealt` are `labels`, in their order, each as often as any other."""
    return np.array_equal(dealt, np.repeat(labels, max(1, len(dealt) // len(labels))))


def _refuses(spec: DataSpec, data_dir: Path | None, what: str, **given: Any) -> None:
    try:
        spec.load(data_dir=data_dir, **given)
    except InputError:
        return
    except Exception as error:
        raise AssertionError(f"{spec.name}: {what} must raise InputError, raises {type(error).__name__}") from error
    raise AssertionError(f"{spec.name}: {what} must raise InputError, is taken")
