"""The contract of a data set, and what all contract tests share: rules, names and summaries, and a small data set."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..base.registry import Registered
from ..data import DataSpec
from ..data.vertical import Records, VerticalDataset


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
    require(spec.partitions, spec, "must say at least one partition")
    for path in spec.sources(data_dir):
        require(path.exists(), spec, f"sources names {path}, which is not there")
    require(spec.digest(data_dir), spec, "digest must not be empty: the cache goes by it")
    load = partial(spec.load, data_dir=data_dir)
    first = load(**options)
    same = first.fingerprint == load(**options).fingerprint
    require(same, spec, "two loads differ: reading must draw nothing at random")
    several = len(np.unique(first.train.labels)) > 1
    require(several, spec, "training labels are all of one class, must be of more")
    require(first.digests, spec, "digests of the data set must name the sources that were read")
    for name, way in spec.partitions.items():
        cut = load(partition=name, **options)
        rule = f"{name} makes {cut.clients} clients, says {way.clients}"
        require(cut.clients == way.clients, spec, rule)
        rule = f"{name} changes labels or their order: each record must become as many, in their order"
        for dealt, whole in ((cut.train, first.train), (cut.test, first.test)):
            each = max(1, len(dealt) // len(whole))
            same = np.array_equal(dealt.labels, np.repeat(whole.labels, each))
            require(same, spec, rule)
    refuses(spec, "clients 0", lambda: load(clients=0))
    refuses(spec, "an unknown partition", lambda: load(partition="no such partition"))
    refuses(spec, "an unknown option", lambda: load(no_such_option=1))


def refuses(registered: Registered, mistake: str, call: Callable[[], object]) -> None:
    """Check that a `call` with this `mistake` raises `InputError`."""
    must = f"{registered.name}: {mistake} must raise InputError"
    try:
        call()
    except InputError:
        return
    except Exception as error:
        raise AssertionError(f"{must}, raises {type(error).__name__}") from error
    raise AssertionError(f"{must}, is taken")


LONGEST_SUMMARY = 120
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def require(holds: object, registered: Registered, rule: str) -> None:
    """Raise `AssertionError` in one line that what is `registered` breaks a `rule` unless it `holds`."""
    if not holds:
        raise AssertionError(f"{registered.name}: {rule}")


def check_words(registered: Registered) -> None:
    """Check that the name can stand in a command, and the summary in a list."""
    require(NAME.fullmatch(registered.name), registered, "name must be of small letters and digits, joined by - or _")
    fits = re.fullmatch(rf"(?=.*\S).{{1,{LONGEST_SUMMARY}}}", registered.summary)
    rule = f"summary must be one line of at most {LONGEST_SUMMARY} characters, has {len(registered.summary)}"
    require(fits, registered, rule)


def small_dataset(*, seed: int, labels_moved_by: int) -> VerticalDataset:
    """Return 24 records of random labels in 3 classes, moved on by so many, and 3 clients' features in [-1, 1]."""
    generator = np.random.default_rng(seed)
    labels = np.random.default_rng(24).integers(3, size=24)

    def part(of: np.ndarray) -> Records:
        blocks = tuple(generator.uniform(-1, 1, (len(of), 3)).astype(np.float32) for _ in range(3))
        return Records(blocks, (of + labels_moved_by) % 3)

    return VerticalDataset("random", part(labels), part(labels[:8]), 3, "random blocks", {})
