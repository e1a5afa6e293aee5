"""The data that a training of the user's own gets: features by client, labels, and a test part."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..base.errors import InputError
from ..data.vertical import (
    FeatureArray,
    LabelArray,
    Records,
    VerticalDataset,
    array_digest,
    check_array,
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
        labels: Labels (N,) in 0 .. `classes` - 1, which the server (party 0) holds.
        test_features: The same clients' blocks of the test records.
        test_labels: Labels of the test records.
        classes: Number of classes.
    """

    features: tuple[FeatureArray, ...]
    labels: LabelArray
    test_features: tuple[FeatureArray, ...]
    test_labels: LabelArray
    classes: int

    @classmethod
    def of(cls, dataset: VerticalDataset) -> "Task":
        """Return the task of a data set, whose arrays it shares."""
        return cls(
            features=dataset.train.features,
            labels=dataset.train.labels,
            test_features=dataset.test.features,
            test_labels=dataset.test.labels,
            classes=dataset.classes,
        )

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


KEYS = ("features", "labels", "test_features", "test_labels", "classes")
"""Keys of a dictionary of arrays; the test part may be left out, and the classes."""


def dataset_of(answer: object, name: str) -> VerticalDataset:
    """Return the data set in a dictionary of arrays, as a function of the user's gives it.

    `features` is a list of arrays (N, ...), one for each client, and `labels` (N,) whole numbers from 0. The test part,
    `test_features` and `test_labels`, is a fifth of the records where it is left out, and `classes` one more than the
    largest label.

    Raises:
        InputError: A key is missing or unknown, or an array is wrong.
    """
    if not isinstance(answer, Mapping) or not {"features", "labels"} <= set(answer) <= set(KEYS):
        shown = ", ".join(map(str, answer)) if isinstance(answer, Mapping) else type(answer).__name__
        also = ", ".join(KEYS[2:])
        raise InputError(f"{name} gives {shown}; return a dictionary of features, labels and at most {also}")
    try:
        whole = _records(answer["features"], answer["labels"])
        if "test_features" in answer:
            train, test = whole, _records(answer["test_features"], answer.get("test_labels", ()))
        else:
            train, test = split_records(whole, seed=0)
        most = int(max(train.labels.max(), test.labels.max()))
        if "classes" not in answer and whole.labels.min() > 0:
            raise InputError(
                f"labels start at {whole.labels.min()}; count from 0; where class 0 has no record, give classes"
            )
        digests = {"labels": array_digest(whole.labels)}
        digests |= {f"features of client {m}": array_digest(block) for m, block in enumerate(whole.features, start=1)}
        blocks = f"{len(whole.features)} blocks of the system's own"
        return VerticalDataset(name, train, test, int(answer.get("classes", max(2, most + 1))), blocks, digests)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from error
    except InputError as error:
        raise error.placed(f"{name}: ") from error


def _records(features: Any, labels: Any) -> Records:
    if isinstance(features, Mapping | str) or getattr(features, "ndim", 3) < 3:
        kind = type(features).__name__
        raise InputError(f"features is a {kind}; use a list of arrays, one for each client")
    blocks = tuple(np.ascontiguousarray(np.asarray(block), np.float32) for block in features)
    labels = np.asarray(labels)
    if labels.dtype.kind not in "iub":
        check_array("labels", labels, np.int64)
    return Records(blocks, np.ascontiguousarray(labels, np.int64))
