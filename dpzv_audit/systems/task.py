"""The data that a training of the user's own gets: features by client, labels, and a test part."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..data.vertical import (
    TASKS,
    FeatureArray,
    FloatArray,
    LabelArray,
    Records,
    VerticalDataset,
    array_digest,
    check_array,
    distinct_numbers,
    split_records,
)

if TYPE_CHECKING:
    from torch import Tensor

Part = Literal["train", "test"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """One training's data: N records that all parties name by the same ids, 0 to N - 1.

    Labels are those of the data, or what a game or a control deals in their place (permuted, or by coins): a system
    must learn from these and from no others.

    Attributes:
        features: One array (N, ...) for each client 1 to M, in order.
        labels: Labels (N,) in 0 .. `classes` - 1, which the server (party 0) holds; float32 where they
            are numbers.
        test_features: The same clients' blocks of the test records.
        test_labels: Labels of the test records.
        classes: Number of classes; 0 where the target is a number.
    """

    features: tuple[FeatureArray, ...]
    labels: LabelArray | FloatArray
    test_features: tuple[FeatureArray, ...]
    test_labels: LabelArray | FloatArray
    classes: int

    @classmethod
    def of(cls, dataset: VerticalDataset) -> "Task":
        """Return the task of a data set, whose arrays it shares."""
        train, test = dataset.train, dataset.test
        return cls.valued(train.features, train.labels, test.features, test.labels, dataset.classes, dataset.values)

    @classmethod
    def valued(
        cls,
        features: tuple[FeatureArray, ...],
        labels: LabelArray,
        test_features: tuple[FeatureArray, ...],
        test_labels: LabelArray,
        classes: int,
        values: FloatArray | None,
    ) -> "Task":
        """Return the task of labels that stand for `values` (classes,) where the target is a number; see `Task`."""
        target = (labels, test_labels) if values is None else (values[labels], values[test_labels])
        return cls(
            features=features,
            labels=target[0],
            test_features=test_features,
            test_labels=target[1],
            classes=classes if values is None else 0,
        )

    def relabelled(self, changed: NDArray[np.bool_]) -> "Task":
        """Return the task with another label of each record that is `changed` (N,): another class, or another number.

        A number becomes the one half of all numbers further, in a ring.
        """
        known = np.arange(self.classes) if self.classes else np.unique(self.labels)
        step = 1 if self.classes else len(known) // 2
        other = known[(np.searchsorted(known, self.labels) + step) % len(known)]
        return replace(self, labels=np.where(changed, other, self.labels))

    @property
    def records(self) -> int:
        """Number N of training records."""
        return len(self.labels)

    @property
    def clients(self) -> int:
        """Number M of clients with features."""
        return len(self.features)

    def torch(self, part: Part = "train", device: str = "cpu") -> "tuple[list[Tensor], Tensor]":
        """Return the features, a tensor for each client, and the labels of a `part` as copies on `device`."""
        import torch

        features = self.features if part == "train" else self.test_features
        labels = self.labels if part == "train" else self.test_labels
        blocks = [torch.tensor(np.asarray(block), device=device) for block in features]
        return blocks, torch.tensor(np.asarray(labels), device=device)


KEYS = ("features", "labels", "test_features", "test_labels", "classes", "task")
"""Keys of a dictionary of arrays; the test part may be left out, the classes, and the task."""


def dataset_of(answer: object, name: str) -> VerticalDataset:
    """Return the data set in a dictionary of arrays, as a function of the user's gives it.

    `features` is a list of arrays (N, ...), one for each client, and `labels` (N,) whole numbers from 0. The test part,
    `test_features` and `test_labels`, is a fifth of the records where it is left out, and `classes` one more than the
    largest label. Where `task` is "regression", labels are numbers: targets that are ordered or continuous. Labels that
    are not whole need no `task`.

    Raises:
        InputError: A key is missing or unknown, or an array is wrong.
    """
    if not isinstance(answer, Mapping) or not {"features", "labels"} <= set(answer) <= set(KEYS):
        shown = ", ".join(map(str, answer)) if isinstance(answer, Mapping) else type(answer).__name__
        also = ", ".join(KEYS[2:])
        raise InputError(f"{name} gives {shown}; return a dictionary of features, labels and at most {also}")
    try:
        labels, test_labels = answer["labels"], answer.get("test_labels", ())
        values = _values(answer.get("task"), labels, test_labels)
        if values is not None:
            if "classes" in answer:
                raise InputError("leave classes out: the target is a number")
            labels, test_labels = (
                np.searchsorted(values, np.asarray(some, np.float32)) for some in (labels, test_labels)
            )
        whole = _records(answer["features"], labels)
        if "test_features" in answer:
            train, test = whole, _records(answer["test_features"], test_labels)
        else:
            train, test = split_records(whole, seed=0)
        most = int(max(train.labels.max(), test.labels.max()))
        if values is None and "classes" not in answer and whole.labels.min() > 0:
            raise InputError(
                f"labels start at {whole.labels.min()}; count from 0; where class 0 has no record, give classes"
            )
        digests = {"labels": array_digest(whole.labels)}
        digests |= {f"features of client {m}": array_digest(block) for m, block in enumerate(whole.features, start=1)}
        blocks = f"{len(whole.features)} blocks of the system's own"
        classes = int(answer.get("classes", max(2, most + 1))) if values is None else len(values)
        return VerticalDataset(name, train, test, classes, blocks, digests, values=values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from error
    except InputError as error:
        raise error.placed(f"{name}: ") from error


def _values(task: object, *labels: Any) -> FloatArray | None:
    """Return the different numbers that labels are, in order; None where they are classes. Errors as `dataset_of`."""
    if task is not None and task not in TASKS:
        raise InputError(f"task is {task!r}; use {' or '.join(TASKS)}")
    numbers = np.concatenate([np.asarray(some).ravel() for some in labels if len(some)] or [np.zeros(0, int)])
    whole = numbers.dtype.kind in "iub"
    if task == "classification" or (task is None and (whole or numbers.dtype.kind != "f")):
        return None
    if task is None and (numbers == np.round(numbers)).all():
        rule = 'use whole numbers of an integer type for classes, or add "task": "regression"'
        raise InputError(f"labels are {numbers.dtype}; {rule}")
    return distinct_numbers(numbers)


def _records(features: Any, labels: Any) -> Records:
    if isinstance(features, Mapping | str) or getattr(features, "ndim", 3) < 3:
        kind = type(features).__name__
        raise InputError(f"features is a {kind}; use a list of arrays, one for each client")
    blocks = tuple(np.ascontiguousarray(np.asarray(block), np.float32) for block in features)
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] > 1:
        n, t = labels.shape
        rule = f"{n * t} labels, a row of features for each, and ids record * {t} + position"
        raise InputError(f"labels has shape {labels.shape}; make each position a record of its own: {rule}")
    if labels.dtype.kind not in "iub":
        check_array("labels", labels, np.int64)
    return Records(blocks, np.ascontiguousarray(labels, np.int64))
