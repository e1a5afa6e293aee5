"""Defences at labels: each is privatised once, before the first round, with epsilon for all that follows.

Groups follow from features alone, from what each client can send without having seen a label, and are made before a
label is read. Draws come from the same source as the run's noise.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import repeat
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from dpzv_audit.accounting.labels import LabelRelease
from dpzv_audit.base.errors import InputError
from dpzv_audit.base.seeds import Purpose, stream

from ..core.bits import BitSource, Whole
from ..core.config import Delta, FeatureKind
from ..core.context import TrainingData
from ..core.defence import Defence, DefenceSpec, Draws
from ..core.features import fitted
from ..core.replicas import SoftTargets
from .grouping import (
    Grouping,
    by_means,
    components,
    eigenvectors_for,
    grouping_of,
    groups_at,
    side_by_side,
    spectral_rows,
)
from .private_labels import (
    Floats,
    PrivateLabels,
    Whitened,
    by_prior,
    by_regression,
    by_response,
    by_shares,
    by_votes,
    response_matrix,
)

P = TypeVar("P")
Sent = NDArray[np.float32]
Epsilon = Annotated[float, Field(gt=0, le=100)]
# Privatises labels (N,) of a replica, given what is public about its records, such as their groups (N,).
Mechanism = Callable[[Whole, P, BitSource], PrivateLabels]


class _LabelDefence(Defence):
    epsilon: Epsilon = 1.0
    """Epsilon of each label, under replace-label."""

    def releases(self) -> LabelRelease:
        """See `Defence.releases`."""
        return LabelRelease(self.epsilon)

    def _each(self, data: TrainingData, draws: Draws, mechanism: Mechanism[P], public: Iterable[P]) -> TrainingData:
        """Return the data with labels privatised by `mechanism`, given what is `public` for each replica."""
        labels = data.labels.expand(len(draws.replicas), -1).cpu().numpy().astype(np.int64)
        released = list(map(mechanism, labels, public, map(draws.bits, draws.replicas)))
        private = torch.from_numpy(np.stack([replica.labels for replica in released])).to(data.labels)
        return replace(data, labels=private, soft=_soft(released, data))


def _soft(released: list[PrivateLabels], data: TrainingData) -> SoftTargets | None:
    rows = [labels.shares if labels.likelihoods is None else labels.likelihoods for labels in released]
    held = [labels for labels in rows if labels is not None]
    if not held:
        return None
    return SoftTargets(torch.from_numpy(np.stack(held)).to(data.like), likelihoods=released[0].likelihoods is not None)


class LabelResponse(_LabelDefence):
    """Randomised response, each label for itself."""

    name: Literal["label-rr"] = "label-rr"
    correction: bool = False
    """Whether the loss knows the chances of responses (forward correction), which makes gradients smaller."""

    def releases(self) -> LabelRelease:
        """See `Defence.releases`."""
        return LabelRelease(self.epsilon, by_record=True)

    def response(self, classes: int, records: int) -> Floats:
        """See `Defence.response`."""
        return response_matrix(classes, self.epsilon)

    def on_labels(self, data: TrainingData, draws: Draws) -> TrainingData:
        """See `Defence.on_labels`."""

        def respond(labels: Whole, public: None, bits: BitSource) -> PrivateLabels:
            responses = by_response(labels, data.classes, self.epsilon, bits)
            return responses if self.correction else replace(responses, likelihoods=None)

        return self._each(data, draws, respond, repeat(None))


class _Grouped(_LabelDefence):
    groups: Annotated[int, Field(ge=1)] | None = None
    """Groups of records; by default one for 60 / epsilon records (k-means: 25), more where these would be few."""
    grouping: Literal["auto", "k-means", "spectral"] = "auto"
    """By k-means, or by the leading eigenvectors of a graph, which `auto` takes for at most 100,000 records."""
    components: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Principal components that each client sends: by default 20 of histograms of a picture's gradients, else 10."""

    def _grouping(self, records: int) -> Grouping:
        return grouping_of(records) if self.grouping == "auto" else self.grouping

    def _count(self, classes: int, records: int) -> int:
        """Return how many groups `records` are put into."""
        return self.groups or groups_at(records, classes, self.epsilon, self._grouping(records))

    def _groups(self, data: TrainingData, draws: Draws) -> Iterator[Whole]:
        """Return the groups (N,) of each replica: the same for all, unless records are selected."""
        _check_numbers(self.name, data, "group")
        grouping = self._grouping(data.records)
        count = self._count(data.classes, data.records)
        if count > data.records:
            raise InputError(f"option groups of {self.name} is {count}; use at most the {data.records} records")

        def own(number: int, block: Tensor) -> Tensor:
            return torch.from_numpy(components(block, self.components)).to(block)

        def of(sent: list[Sent]) -> Whole:
            rows = side_by_side(sent)
            if grouping == "spectral":
                rows = spectral_rows(rows, eigenvectors_for(count, data.classes))
            return by_means(rows, count, draws.seed % 2**32)

        return from_clients(data, draws, own, of)


class LabelCluster(_Grouped):
    """Groups vote on the label of their records, or release shares of the classes."""

    name: Literal["label-cluster"] = "label-cluster"
    release: Literal["vote", "shares"] = "vote"
    """What a group releases: one class, or shares of all."""

    def response(self, classes: int, records: int) -> Floats:
        """See `Defence.response`: of a group of mean size whose records are of one class, where votes err least."""
        size = records / self._count(classes, records)
        return response_matrix(classes, self.epsilon * size / 2)

    def on_labels(self, data: TrainingData, draws: Draws) -> TrainingData:
        """See `Defence.on_labels`."""
        mechanism = by_votes if self.release == "vote" else by_shares

        def release(labels: Whole, groups: Whole, bits: BitSource) -> PrivateLabels:
            return mechanism(labels, groups, data.classes, self.epsilon, bits)

        return self._each(data, draws, release, self._groups(data, draws))


class LabelResponsePrior(_Grouped):
    """Half of the records answer by randomised response, the others among what that makes likely in their group."""

    name: Literal["label-rr-prior"] = "label-rr-prior"

    def on_labels(self, data: TrainingData, draws: Draws) -> TrainingData:
        """See `Defence.on_labels`."""
        # Which half answers first is public.
        first = stream(draws.seed, Purpose.SPLIT, draws.place).permutation(data.records) % 2 == 0

        def respond(labels: Whole, groups: Whole, bits: BitSource) -> PrivateLabels:
            return by_prior(labels, groups, data.classes, self.epsilon, bits, first=first)

        return self._each(data, draws, respond, self._groups(data, draws))


class LabelOneShot(_LabelDefence):
    """A regression on statistics of the labels, with Gaussian noise, names the class of each record."""

    name: Literal["label-one-shot"] = "label-one-shot"
    epsilon: Epsilon = 1.0
    """Epsilon of each label at `delta`, under replace-label."""
    delta: Delta = 1e-5
    """Delta of the noise."""
    certain: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the records that are trained on: those whose two best classes are the farthest apart."""
    features: FeatureKind = "auto"
    """Features that each client sends: patches of images, components of all else."""
    width: Annotated[int, Field(ge=1, le=4096)] = 192
    """How many features each client sends."""

    def releases(self) -> LabelRelease:
        """See `Defence.releases`."""
        return LabelRelease(self.epsilon, self.delta)

    def on_labels(self, data: TrainingData, draws: Draws) -> TrainingData:
        """See `Defence.on_labels`."""
        _check_numbers(self.name, data, "regress")

        def name(labels: Whole, public: Whitened, bits: BitSource) -> PrivateLabels:
            return by_regression(labels, public, data.classes, self.epsilon, self.delta, bits, certain=self.certain)

        def own(number: int, block: Tensor) -> Tensor:
            rows = fitted(block, self.features, self.width, seed=draws.seed, client=number).rows(block)
            return rows[:, rows.any(0)]

        def of(sent: list[Sent]) -> Whitened:
            return Whitened.of(np.concatenate(sent, 1), data.classes)

        return self._each(data, draws, name, from_clients(data, draws, own, of))


def from_clients(
    data: TrainingData, draws: Draws, own: Callable[[int, Tensor], Tensor], of: Callable[[list[Sent]], P]
) -> Iterator[P]:
    """Return what is public for each replica, made of what all clients sent.

    Args:
        data: What is trained on.
        draws: Holds the channel that clients send on.
        own: Makes of a client's number and a block of its features (N, ...) what it sends, (N, d).
        of: Makes of the (N, d) of all clients what is public.
    """
    selection = data.selection
    sent = []
    for number, block in enumerate(data.features, start=1):
        if selection is None:
            rows = own(number, block).expand(len(draws.replicas), -1, -1)
        else:
            rows = torch.stack([own(number, block[chosen]) for chosen in selection])
        sent.append(draws.send(number, rows))

    def at(place: int) -> P:
        return of([rows[place].cpu().numpy() for rows in sent])

    return repeat(at(0)) if selection is None else map(at, range(len(selection)))


def _check_numbers(name: str, data: TrainingData, verb: str) -> None:
    if not all(block.is_floating_point() for block in data.features):
        raise InputError(f"{name} needs numbers to {verb} records by, and a client holds token ids")


RESPONSE = DefenceSpec(
    name="label-rr",
    summary="each label by randomised response, once, before training",
    source="Warner 1965; Ghazi et al., NeurIPS 2021; correction: Patrini et al., CVPR 2017",
    settings=LabelResponse,
)
RESPONSE_PRIOR = DefenceSpec(
    name="label-rr-prior",
    summary="randomised response, for half of the records among what the others make likely in groups of features",
    source="Ghazi et al., NeurIPS 2021, algorithms 2 and 3",
    settings=LabelResponsePrior,
)
CLUSTER = DefenceSpec(
    name="label-cluster",
    summary="labels by a noisy vote of records with like features, once, before training, or shares of classes",
    source="Tang et al., PoPETs 2022 (NoiseCluster); vote: McKenna and Sheldon, NeurIPS 2020",
    settings=LabelCluster,
)
ONE_SHOT = DefenceSpec(
    name="label-one-shot",
    summary="labels by a regression on their sums over features, with Gaussian noise, once, before training",
    source="Sheffet, ICML 2017; Wang, UAI 2018 (AdaSSP); noise: Balle and Wang, ICML 2018",
    settings=LabelOneShot,
)
