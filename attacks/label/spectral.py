"""Binary labels from the spectrum of a client's embeddings (Sun et al., 2022, spectral attack).

Training pulls the two classes' embeddings apart, so that their first principal component tells them; the side with
fewer records is the rarer class. Beside it: the same on an untrained bottom model, and on raw features.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attacks.core.contract import AttackSetting, AttackSpec, Knowledge, LabelGuesses, Positive
from attacks.core.planted import labels_in_own_features
from attacks.label.completion import RAW, UNTRAINED, embedded
from attacks.label.mount import mount_binary
from attacks.label.norm import guesses_of, unfit_data
from dpzv_audit.errors import InputError
from mechanisms.views import View


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Projection of each record's embedding on the first principal component, oriented by the smaller side."""
    if known.own is None:
        raise InputError("label_spectral needs a client's own model, which this adversary does not hold")
    return guesses_of(projections(embedded(known.own, known.own.trained, known.own.features)), known)


def without_training(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Baselines: an untrained bottom model, and the client's raw features."""
    own = known.own
    if own is None:
        return {}
    found = {UNTRAINED: guesses_of(projections(embedded(own, own.initial, own.features)), known)}
    if own.features.is_floating_point():
        raw = own.features.flatten(1).unsqueeze(0).expand(len(known.replicas), -1, -1)
        found[RAW] = guesses_of(projections(raw), known)
    return found


def projections(embeddings: Tensor) -> Tensor:
    """Projections (K, N) of embeddings (K, N, width) on their first principal component.

    The sign is that which puts fewer records on the positive side of the midpoint: the rarer class.
    """
    centred = embeddings.double() - embeddings.double().mean(1, keepdim=True)
    _, vectors = torch.linalg.eigh(centred.mT @ centred)
    along = (centred @ vectors[:, :, -1:]).squeeze(2)
    middle = (along.amax(1, keepdim=True) + along.amin(1, keepdim=True)) / 2.0
    fewer = (along > middle).double().mean(1, keepdim=True) <= 0.5
    return torch.where(fewer, along, -along)


def planted(setting: AttackSetting) -> AttackSetting:
    """Labels that stand in the client's own features, under split learning."""
    options = {"batch_size": setting.config.batch_size, "epochs": 10}
    return setting.on("split", options, dataset=labels_in_own_features(setting.dataset), trials=2)


SPEC = AttackSpec(
    name="label_spectral",
    summary="binary labels from the first principal component of a client's embeddings (Sun et al. 2022)",
    adversaries=("client",),
    infer=infer,
    mounted_by=mount_binary,
    positive=Positive("labels planted in the client's own features: must be 0.95 at least", planted, 0.95),
    unfit=unfit_data,
    baselines=without_training,
    unsupervised=True,
)
