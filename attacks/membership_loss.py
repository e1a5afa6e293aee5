"""Membership by a global threshold on the loss (Yeom et al., CSF 2018): members are fitted better."""

from __future__ import annotations

import numpy as np

from attacks.contract import AttackSpec, Knowledge, Population, Positive
from attacks.mount_membership import mount_membership, overfitted
from dpzv_audit.errors import InputError
from mechanisms.views import View


def population_of(known: Knowledge) -> Population:
    """What the adversary knows of the data; `InputError` where it knows nothing."""
    if known.population is None:
        raise InputError("membership needs records to ask a released model about, which this adversary does not hold")
    return known.population


def infer(view: View, known: Knowledge) -> np.ndarray:
    """Scores (targets, P): minus the loss of each record, log p, under the released model."""
    scores: np.ndarray = -np.logaddexp(0.0, -population_of(known).confidence)
    return scores


SPEC = AttackSpec(
    name="membership_loss",
    summary="membership by a global threshold on the released model's loss (Yeom et al. 2018)",
    adversaries=("release",),
    infer=infer,
    mounted_by=mount_membership,
    positive=Positive("membership_loss on an overfitted run without noise: must be 0.55 at least", overfitted, 0.55),
    suggests={"epochs": 100},
    options={"pool": 512, "shadows": 2},
)
