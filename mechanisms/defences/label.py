"""Defences at labels: each is privatised once, before the first round, with epsilon for all that follows.

Groups are of features alone, by what each client can send without having seen a label, and are made before a label is
read. What is drawn comes from where the run's noise comes from.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from dpzv_audit.accounting.labels import LabelRelease
from dpzv_audit.errors import InputError
from dpzv_audit.seeds import Purpose, stream

from ..core.bits import BitSource, Whole
from ..core.context import TrainingData
from ..core.defence import Defence, DefenceSpec, Draws
from ..core.replicas import SoftTargets
from .grouping import by_means, components, grouping_of, groups_at, spectral_rows
from .private_labels import PrivateLabels, by_prior, by_response, by_shares, by_votes

Epsilon = Annotated[float, Field(gt=0, le=100)]
# Privatises labels (N,) of a replica in its groups (N,).
Mechanism = Callable[[Whole, Whole, BitSource], PrivateLabels]


class _LabelDefence(Defence):
    epsilon: Epsilon = 1.0
    """Epsilon of each label, under replace-label."""

    def releases(self) -> LabelRelease:
        """See `Defence.releases`."""
        return LabelRelease(self.epsilon)

    def _each(
        self, data: TrainingData, draws: Draws, mechanism: Mechanism, groups: Callable[[int], Whole]
    ) -> TrainingData:
        """Return the data with labels of each replica by the mechanism, in the groups of its place."""
        found = []
        labels = data.labels.expand(len(draws.replicas), -1).cpu().numpy().astype(np.int64)
        for place, replica in enumerate(draws.replicas):
            found.append(mechanism(labels[place], groups(place), draws.bits(replica)))
        private = torch.from_numpy(np.stack([one.labels for one in found])).to(data.labels)
        return replace(data, labels=private, soft=_soft(found, data))


def _soft(found: list[PrivateLabels], data: TrainingData) -> SoftTargets | None:
    rows = [one.shares if one.likelihoods is None else one.likelihoods for one in found]
    given = [one for one in rows if one is not None]
    if not given:
        return None
    # Features may be token ids: losses are in single precision then.
    like = data.features[0] if data.features[0].is_floating_point() else torch.empty(0, device=data.labels.device)
    return SoftTargets(torch.from_numpy(np.stack(given)).to(like), likelihoods=found[0].likelihoods is not None)


class LabelResponse(_LabelDefence):
    """Randomised response, each label for itself."""

    name: Literal["label-rr"] = "label-rr"
    correction: bool = False
    """A loss that knows the chances of responses (forward correction), with smaller gradients; else of the response."""

    def on_labels(self, data: TrainingData, draws: Draws) -> TrainingData:
        """See `Defence.on_labels`."""

        def respond(labels: Whole, groups: Whole, bits: BitSource) -> PrivateLabels:
            found = by_response(labels, data.classes, self.epsilon, bits)
            return found if self.correction else replace(found, likelihoods=None)

        return self._each(data, draws, respond, lambda place: np.zeros(data.records, np.int64))


class _Grouped(_LabelDefence):
    groups: Annotated[int, Field(ge=1)] | None = None
    """Groups of records; by default one for 30 / epsilon records (k-means: 25), and one a class at least."""
    grouping: Literal["auto", "k-means", "spectral"] = "auto"
    """By k-means, or that of a graph's leading eigenvectors: of at most 100,000 records by the latter."""
    components: Annotated[int, Field(ge=1, le=1000)] = 10
    """Principal components that each client sends of its features."""

    def _groups(self, data: TrainingData, draws: Draws) -> Callable[[int], Whole]:
        """Return what gives the groups (N,) of the replica at a place: of all one, but where records are selected."""
        if not all(block.is_floating_point() for block in data.features):
            raise InputError(f"{self.name} needs numbers to group records by, and a client holds token ids")
        blocks = [block.flatten(1).cpu().numpy() for block in data.features]
        grouping = grouping_of(data.records) if self.grouping == "auto" else self.grouping
        count = self.groups or groups_at(data.records, data.classes, self.epsilon, grouping)
        if count > data.records:
            raise InputError(f"option groups of {self.name} is {count}, must be at most the {data.records} records")

        def of(rows: list[np.ndarray]) -> Whole:
            sent = components(rows, self.components)
            return by_means(spectral_rows(sent) if grouping == "spectral" else sent, count, draws.seed % 2**32)

        if data.selection is None:
            found = of(blocks)
            return lambda place: found
        selection = data.selection.cpu().numpy()
        return lambda place: of([block[selection[place]] for block in blocks])


class LabelCluster(_Grouped):
    """Groups vote on the label of their records, or release shares of the classes."""

    name: Literal["label-cluster"] = "label-cluster"
    release: Literal["vote", "shares"] = "vote"
    """What a group releases: one class, or shares of all."""

    def on_labels(self, data: TrainingData, draws: Draws) -> TrainingData:
        """See `Defence.on_labels`."""
        mechanism = by_votes if self.release == "vote" else by_shares

        def release(labels: Whole, groups: Whole, bits: BitSource) -> PrivateLabels:
            return mechanism(labels, groups, data.classes, self.epsilon, bits)

        return self._each(data, draws, release, self._groups(data, draws))


class LabelResponsePrior(_Grouped):
    """Randomised response of half of the records, and of the others among what that makes likely in their group."""

    name: Literal["label-rr-prior"] = "label-rr-prior"

    def on_labels(self, data: TrainingData, draws: Draws) -> TrainingData:
        """See `Defence.on_labels`."""
        # Which half answers first is public.
        first = stream(draws.seed, Purpose.SPLIT, draws.place).permutation(data.records) % 2 == 0

        def respond(labels: Whole, groups: Whole, bits: BitSource) -> PrivateLabels:
            return by_prior(labels, groups, data.classes, self.epsilon, bits, first=first)

        return self._each(data, draws, respond, self._groups(data, draws))


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
