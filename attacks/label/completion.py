"""Label inference by model completion (Fu et al., USENIX Security 2022): a head on the adversary's own bottom model.

The client freezes the bottom model that it trained with everybody, and trains a head on it from a few labels. Success
mostly reflects how well features align with labels, so it stands beside the same head on the client's raw features,
and on a bottom model that was never trained.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attacks.core.contract import AttackSetting, AttackSpec, FewLabels, Knowledge, LabelGuesses, OwnParty, Positive
from attacks.core.planted import labels_in_own_features
from attacks.label.completion_head import train_head
from attacks.label.mount import mount_labels
from dpzv_audit.errors import InputError
from mechanisms.parameters import ParameterStack
from mechanisms.replicas import embeddings_of
from mechanisms.views import View

UNTRAINED, RAW = "the same on an untrained bottom model", "the same on raw features"


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Probabilities of every record without a label, and of held-out records, from the trained bottom model."""
    own, few = _granted(known)
    return _complete(embedded(own, own.trained, own.features), embedded(own, own.trained, own.held_out), few, known)


def without_training(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Baselines with the same labels: an untrained bottom model, and the client's raw features."""
    own, few = _granted(known)
    untrained = _complete(
        embedded(own, own.initial, own.features), embedded(own, own.initial, own.held_out), few, known
    )
    if not own.features.is_floating_point():
        return {UNTRAINED: untrained}  # token ids are no features to put a linear layer on
    count, dtype = len(known.replicas), own.trained.flat.dtype
    raw, held_out = (
        block.flatten(1).to(dtype).unsqueeze(0).expand(count, -1, -1) for block in (own.features, own.held_out)
    )
    return {UNTRAINED: untrained, RAW: _complete(raw, held_out, few, known)}


@torch.no_grad()
def embedded(own: OwnParty, parameters: ParameterStack, features: Tensor) -> Tensor:
    """Embeddings (K, n, width) of `features` (n, ...) under `parameters`."""
    return embeddings_of(own.evaluator, parameters, features)


def _granted(known: Knowledge) -> tuple[OwnParty, FewLabels]:
    if known.own is None or known.few is None:
        raise InputError("label_completion needs a client's own model and a few labels, which this adversary has not")
    return known.own, known.few


def _complete(embeddings: Tensor, held_out: Tensor, few: FewLabels, known: Knowledge) -> LabelGuesses:
    head = train_head(
        embeddings,
        few.ids,
        few.labels,
        classes=known.classes,
        steps=known.options["steps"],
        seed=known.seed,
        replicas=known.replicas,
    )
    free = _others(few.ids, embeddings.shape[1])
    scores = head.probabilities(embeddings)
    scores = scores.gather(1, free.unsqueeze(2).expand(-1, -1, known.classes)).unsqueeze(0)
    return LabelGuesses(scores.argmax(3), free.unsqueeze(0), scores, head.probabilities(held_out))


def _others(ids: Tensor, records: int) -> Tensor:
    """Ids (K, records - n) of all records but `ids` (K, n), in order."""
    free = torch.ones(len(ids), records, dtype=torch.bool, device=ids.device).scatter_(1, ids, False)
    return free.nonzero()[:, 1].view(len(ids), -1)


def planted(setting: AttackSetting) -> AttackSetting:
    """Labels that stand in the client's own features, under split learning, and a head that is trained to the end."""
    # As few labels as the setting's own: a class may have no more.
    own = {"labels_per_class": SPEC.own_options(setting)["labels_per_class"]}
    dataset, options = labels_in_own_features(setting.dataset), {"batch_size": setting.config.batch_size, "epochs": 4}
    return setting.on("split", options, dataset=dataset, adversary="client", trials=1, queries=1, options=own)


SPEC = AttackSpec(
    name="label_completion",
    summary="labels by a head on the client's own bottom model, trained from few labels (Fu et al. 2022, passive)",
    adversaries=("client",),
    infer=infer,
    mounted_by=mount_labels,
    positive=Positive("labels planted in the client's own features: must be 0.95 at least", planted, 0.95),
    suggests={"epochs": 20},
    options={"labels_per_class": 10, "steps": 2000},
    few_labels=True,
    reads=(),
    baselines=without_training,
)
