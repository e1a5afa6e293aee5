"""What all contract tests share: rules, names and summaries, and a small data set."""

from __future__ import annotations

import re

import numpy as np

from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.registry import Registered

LONGEST_SUMMARY = 120
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def require(holds: bool, what: Registered, rule: str) -> None:
    """Raise `AssertionError` in one line that `what` breaks a `rule` unless it `holds`."""
    if not holds:
        raise AssertionError(f"{what.name}: {rule}")


def check_words(what: Registered) -> None:
    """Check that the name can stand in a command, and the summary in a list."""
    require(bool(NAME.fullmatch(what.name)), what, "name must be of small letters and digits, joined by - or _")
    summary = what.summary
    fits = bool(summary.strip()) and "\n" not in summary and len(summary) <= LONGEST_SUMMARY
    require(fits, what, f"summary must be one line of at most {LONGEST_SUMMARY} characters, has {len(summary)}")


def small_dataset(
    *, records: int = 24, clients: int = 3, classes: int = 3, seed: int = 0, labels_moved_by: int = 0
) -> VerticalDataset:
    """Return a data set of random features in [-1, 1], 3 per client, and random labels, moved on by so many classes."""
    generator = np.random.default_rng(seed)
    labels = np.random.default_rng(records).integers(classes, size=records)

    def part(of: np.ndarray) -> Records:
        blocks = tuple(generator.uniform(-1, 1, (len(of), 3)).astype(np.float32) for _ in range(clients))
        return Records(features=blocks, labels=(of + labels_moved_by) % classes)

    return VerticalDataset("random", part(labels), part(labels[: records // 3]), classes, "random blocks", {})
