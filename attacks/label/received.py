"""Reads the labels that the server hands a client: true ones, or private ones, which are then its best guess.

Methods whose clients compute their own gradients send labels: compressed VFL as its paper has it, and one-upload with
local bottoms, of labels that were privatised. How often those are right is what a client learns of records at once.
"""

import torch
from torch.nn.functional import one_hot

from mechanisms.core.channel import View

from ..core.controls import CERTAIN
from ..core.knowledge import Knowledge
from ..core.setting import COLLUDING, AttackSetting
from ..core.spec import LABELS, AttackSpec, Goal, LabelGuesses, Needs, Positive
from .mount import mount_labels


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Guess of every record the label that the server sent."""
    (sent,) = [m.payload for m in view.received(LABELS) if m.receiver == known.client]
    everything = torch.arange(known.records, device=sent.device).expand(1, len(sent), -1)
    return LabelGuesses(sent[None], everything, one_hot(sent, known.classes)[None].double())


def labels_sent(setting: AttackSetting) -> str | None:
    """Need a server that hands clients the labels that it trains on."""
    return None if setting.config.labels_shared else "its server sends clients no labels"


def true_labels(setting: AttackSetting) -> AttackSetting:
    """Return the same attack on compressed VFL whose clients are sent true labels."""
    options = {"local_gradient": "recomputed", "epochs": 1}
    return setting.on("compressed", options, adversary="client", queries=1, trials=1)


SPEC = AttackSpec(
    name="label_received",
    summary="the labels that a server hands its clients to train on, true or privatised",
    adversaries=("client", "eavesdropper", COLLUDING),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(Positive("compressed VFL whose clients are sent true labels: must be 1", true_labels, CERTAIN)),
    needs=Needs(conditions=(labels_sent,), reads=(LABELS,)),
)
