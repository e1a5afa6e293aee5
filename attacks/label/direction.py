"""Binary labels from directions of per-record gradients at the cut layer (Li et al., ICLR 2022, direction attack).

Gradients of records of one class point one way, of the other the opposite way: one known positive or three orient
them. Directions turn as training goes on, so each pass over the data is compared with the known ones of that pass.
"""

from __future__ import annotations

import torch

from attacks.core.contract import AttackSetting, AttackSpec, Knowledge, LabelGuesses, Positive
from attacks.core.controls import CERTAIN
from attacks.label.mount import mount_binary
from attacks.label.norm import cut_layer, guesses_of, mean_by_record, unfit
from dpzv_audit.errors import InputError
from mechanisms.views import View


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Mean cosine, over passes, between a record's gradient and that of the known positives; these are not guessed."""
    if known.few is None:
        raise InputError("label_direction needs a known positive, which this adversary does not hold")
    gradients, ids = cut_layer(view, known)
    positives = known.few.ids[known.few.labels == 1].view(len(known.few.ids), -1)
    units = gradients / torch.linalg.vector_norm(gradients, dim=3, keepdim=True).clamp(min=1e-300)
    among = (ids.unsqueeze(3) == positives[None, :, None, :]).any(3)
    cosines, places = [], []
    for start in range(0, len(ids), known.batches):
        own = slice(start, start + known.batches)
        seen = among[own].unsqueeze(3)
        reference = (units[own] * seen).sum((0, 2))
        if not bool(seen.any(dim=(0, 2, 3)).all()):
            continue  # a pass cut short in which some replica met no known positive
        cosines.append((units[own] * reference[None, :, None, :]).sum(3))
        places.append(ids[own])
    if not cosines:
        few = f"‹epochs› {known.config.epochs} are too few"
        raise InputError(f"{few}: no known positive was in a batch of the view, give more")
    # `guesses_of` takes scores of the rarer class, whichever it is.
    scores = mean_by_record(torch.cat(cosines), torch.cat(places), known)
    found = guesses_of(scores if known.rarer == 1 else -scores, known)
    free = torch.ones_like(found.labels[0], dtype=torch.bool).scatter_(1, positives, False)
    rows = free.nonzero()[:, 1].view(len(free), -1)
    if found.scores is None:
        raise TypeError("guesses of binary labels have scores")
    return LabelGuesses(
        found.labels[0].gather(1, rows).unsqueeze(0),
        rows.unsqueeze(0),
        found.scores[0].gather(1, rows.unsqueeze(2).expand(-1, -1, 2)).unsqueeze(0),
    )


def on_sums(setting: AttackSetting) -> AttackSetting:
    """Split learning without a top model, where a gradient at the logits is (p - y, y - p)."""
    return setting.on("split", {"top_model": False, "epochs": 1, "batch_size": setting.config.batch_size}, trials=1)


SPEC = AttackSpec(
    name="label_direction",
    summary="binary labels from directions of per-record gradients and a few known positives (Li et al. 2022)",
    adversaries=("client",),
    infer=infer,
    mounted_by=mount_binary,
    positive=Positive("label_direction on split without a top model: must be 1", on_sums, CERTAIN),
    options={"labels_per_class": 3},
    unfit=unfit,
    few_labels=True,
)
