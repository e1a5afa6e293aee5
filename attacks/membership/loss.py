"""Membership by a global threshold on the loss (Yeom et al., CSF 2018): members are fitted better.

A client has no released model; what its mail tells of a record stands for the loss (`attacks.membership.mail`).
"""

from __future__ import annotations

import numpy as np

from attacks.core.contract import AttackSetting, AttackSpec, Knowledge, Population, Positive, unfit_sampler
from attacks.membership.mount import membership_rounds, mount_membership, overfitted
from dpzv_audit.errors import InputError
from mechanisms.views import View


def population_of(known: Knowledge) -> Population:
    """What the adversary knows of the data; `InputError` where it knows nothing."""
    if known.population is None:
        raise InputError("membership needs records to ask a released model about, which this adversary does not hold")
    return known.population


def infer(view: View, known: Knowledge) -> np.ndarray:
    """Scores (targets, P): minus the loss of each record, log p, under the released model; a client's confidence."""
    if view.adversary.kind == "client":
        return population_of(known).confidence
    scores: np.ndarray = -np.logaddexp(0.0, -population_of(known).confidence)
    return scores


def unfit(setting: AttackSetting) -> str | None:
    """Why a client's mail, or that of batches of several sizes, says nothing by one threshold for all records."""
    if setting.adversary != "client":
        return None
    if setting.method.downlink != "gradient":
        return "a client's mail holds no gradient of a record, so both candidates get one score: see membership_lira"
    return unfit_sampler(setting)


SPEC = AttackSpec(
    name="membership_loss",
    summary="membership by a global threshold on the released model's loss, or on a client's mail (Yeom et al. 2018)",
    adversaries=("release", "client"),
    infer=infer,
    mounted_by=mount_membership,
    rounds=membership_rounds,
    positive=Positive("membership_loss on labels learnt by heart, no noise: must be 0.6 at least", overfitted, 0.6),
    suggests={"epochs": 100},
    options={"pool": 512, "shadows": 2},
    unfit=unfit,
)
