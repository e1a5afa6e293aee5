"""Binary labels from norms of per-record gradients at the cut layer (Li et al., ICLR 2022, norm attack).

Where classes are imbalanced a model is sure of the commoner one, so records of the rarer have the larger gradients.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attacks.core.contract import AttackSetting, AttackSpec, Knowledge, LabelGuesses, Positive, unfit_sampler
from attacks.label.mount import mount_binary
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError
from mechanisms.views import View


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Mean norm of a record's gradients over all its rounds: the larger, the likelier the rarer class."""
    gradients, ids = cut_layer(view, known)
    return guesses_of(mean_by_record(torch.linalg.vector_norm(gradients, dim=3), ids, known), known)


def cut_layer(view: View, known: Knowledge) -> tuple[Tensor, Tensor]:
    """Per-record gradients (rounds, K, B, width) that one client received, and the record ids (rounds, K, B)."""
    mail = [m for m in view.received("gradient") if m.receiver == known.client and m.ids is not None]
    if not mail:
        raise InputError("the view holds no gradient from the server")
    return torch.stack([m.payload for m in mail]).double(), torch.stack([m.ids for m in mail if m.ids is not None])


def mean_by_record(values: Tensor, ids: Tensor, known: Knowledge) -> Tensor:
    """Mean over rounds of `values` (rounds, K, B), by record: (K, N); records never seen get the mean of the others."""
    replicas = values.shape[1]
    flat_values, flat_ids = (v.transpose(0, 1).flatten(1) for v in (values, ids))
    total = values.new_zeros(replicas, known.records).scatter_add_(1, flat_ids, flat_values)
    count = values.new_zeros(replicas, known.records).scatter_add_(1, flat_ids, torch.ones_like(flat_values))
    mean = total / count.clamp(min=1)
    return torch.where(count > 0, mean, total.sum(1, keepdim=True) / count.sum(1, keepdim=True))


def guesses_of(rarer: Tensor, known: Knowledge) -> LabelGuesses:
    """Guesses from scores (K, N) that are larger for the rarer class; as many are called it as its public share."""
    scores = rarer if known.rarer == 1 else -rarer
    ordered = scores.sort(1, descending=True).values
    ones = max(1, round(known.share_of_ones * scores.shape[1]))
    labels = (scores >= ordered[:, ones - 1 : ones]).long()
    both = torch.stack((-scores, scores), 2).unsqueeze(0)
    ids = torch.arange(scores.shape[1], device=scores.device).expand(1, *scores.shape)
    return LabelGuesses(labels.unsqueeze(0), ids, both)


def unfit(setting: AttackSetting) -> str | None:
    """Why there are no binary labels to read off gradients."""
    return unfit_data(setting) or unfit_channel(setting)


def unfit_data(setting: AttackSetting) -> str | None:
    """Why the data are none for an attack on binary labels."""
    if setting.dataset.classes != 2:
        return f"{setting.dataset.name} has {setting.dataset.classes} classes, must have 2"
    return None


def unfit_channel(setting: AttackSetting) -> str | None:
    """Why the channel carries no gradient of a record."""
    if setting.method.downlink != "gradient":
        return "its server sends no gradient of a record"
    return unfit_sampler(setting)


def base_rate_alone(setting: AttackSetting) -> AttackSetting:
    """One record in ten of class 1, features that say nothing: what is learnt is the base rate, and norms show it."""

    def bare(records: Records, count: int) -> Records:
        blocks = tuple(np.zeros((count, *f.shape[1:]), dtype=np.float32) for f in records.features)
        return Records(features=blocks, labels=(np.arange(count) % 10 == 0).astype(np.int64))

    data = setting.dataset
    planted = VerticalDataset("base rate alone", bare(data.train, 400), bare(data.test, 40), 2, data.partition, {})
    options = {"top_model": False, "batch_size": 20, "epochs": 20, "client_rate": 0.1}
    return setting.on("split", options, dataset=planted, trials=2)


SPEC = AttackSpec(
    name="label_norm",
    summary="binary labels from norms of per-record gradients at the cut layer (Li et al. 2022)",
    adversaries=("client",),
    infer=infer,
    mounted_by=mount_binary,
    positive=Positive("one label in ten, uninformative features, summed logits: must be 0.95", base_rate_alone, 0.95),
    unfit=unfit,
)
