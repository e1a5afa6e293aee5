"""The game of labels that are privatised before training: what is released of one record under either of two labels.

Whatever follows, a training or an attack, is post-processing, so that no game on trainings shows more. The canary is a
record whose released label is as often one of its two labels as the other, which pilots show: its group's vote is
close. The auditor chooses the neighbours and may know all labels; the mechanism's own draws are its only randomness.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from mechanisms.core.context import TrainingData
from mechanisms.core.defence import Defence, Draws

from ..base.errors import InputError
from ..base.seeds import Purpose, stream
from ..data.vertical import VerticalDataset
from .arrays import Arrays
from .scores import GameScores, scores_of

_PILOTS = 32
# Numbers at once: labels of all records in so many runs.
_AT_ONCE = 2**24


@dataclass(frozen=True)
class LabelTrials:
    """Trials of a `defence` at labels of a data set (see `engine.Trials`); arrays `in_scores`, `out_scores`.

    In the world "in" the canary has another label than in "out". A score is how much more of the canary is released
    for the one than for the other: shares of classes or chances where those are released, else which label.
    """

    defence: Defence
    dataset: VerticalDataset
    seed: int

    @cached_property
    def data(self) -> TrainingData:
        """Return the records."""
        return TrainingData.of(self.dataset, dtype=torch.float32, device="cpu")

    @cached_property
    def canary(self) -> tuple[int, int, int]:
        """Return the canary's number, and its labels in the worlds "out" and "in"."""
        labels = self.data.labels.numpy()
        # Pilots draw from a seed of their own: what they show says nothing of the runs that are audited.
        seed = int(stream(self.seed, Purpose.PILOT).integers(2**62))
        released = self._released(np.tile(labels, (_PILOTS, 1)), seed, 0)
        shares = np.eye(self.data.classes)[released.argmax(2)].mean(0)
        own = np.take_along_axis(shares, labels[:, None], 1)[:, 0]
        np.put_along_axis(shares, labels[:, None], -1.0, 1)
        record = int(np.minimum(own, shares.max(1)).argmax())
        return record, int(labels[record]), int(shares[record].argmax())

    def facts(self) -> dict[str, object]:
        """See `Trials.facts`."""
        settings = self.defence.model_dump(mode="json")
        return {"trials": "labels", "defence": settings, "digests": self.dataset.digests, "seed": self.seed}

    def __call__(self, first: int, last: int) -> Arrays:
        """Play pairs `first` to `last` (exclusive)."""
        record, out, inside = self.canary
        rows = []
        step = max(1, _AT_ONCE // (2 * self.data.records * self.data.classes))
        for begin in range(first, last, step):
            pairs = min(step, last - begin)
            labels = np.tile(self.data.labels.numpy(), (2 * pairs, 1))
            labels[1::2, record] = inside
            released = self._released(labels, self.seed, 2 * begin)[:, record]
            rows.append((released[:, inside] - released[:, out]).reshape(pairs, 2))
        scores = np.concatenate(rows)
        return {"out_scores": scores[:, 0], "in_scores": scores[:, 1]}

    def scored(self, arrays: Arrays) -> GameScores:
        """See `Trials.scored`."""
        return replace(scores_of(arrays), discrete=True)

    def _released(self, labels: np.ndarray, seed: int, first: int) -> np.ndarray:
        """Return what is released of each record (runs, N, classes) for `labels` (runs, N)."""
        data = replace(self.data, labels=torch.from_numpy(labels))
        replicas = range(first, first + len(labels))
        private = self.defence.on_labels(data, Draws(seed, self.seed, replicas, 0))
        if private.soft is not None:
            return np.asarray(private.soft.rows, float)
        return np.asarray(np.eye(data.classes)[private.labels.expand(len(labels), -1).numpy()])


def private_labels(defences: tuple[Defence, ...]) -> Defence:
    """Return the one of the `defences` that promises something of labels; `InputError` where none does."""
    for defence in defences:
        if defence.releases() is not None:
            return defence
    names = ", ".join(defence.name for defence in defences)
    raise InputError("promises nothing: there is no epsilon to bound", "defence", names)
