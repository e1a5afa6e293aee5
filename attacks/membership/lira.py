"""Membership by likelihood ratios of each record's own fits to shadow models (LiRA; Carlini et al., S&P 2022).

A record's confidence log(p / (1 - p)) is about Gaussian over models that trained on it, and over models that did not:
shadow models of the adversary's own give both fits. Online: the ratio of the two densities; offline: how far beyond
the fit of models without it. To a client what its mail says stands for the confidence (`attacks.membership.mail`).
"""

from __future__ import annotations

import numpy as np

from attacks.core.contract import AttackSetting, AttackSpec, Knowledge, Positive, unfit_sampler
from attacks.membership.loss import population_of
from attacks.membership.mount import membership_rounds, mount_membership, overfitted
from mechanisms.views import View

PSEUDO_COUNT = 8.0
"""How many shadow models the variance over all records is worth beside a record's own: few have noisy variances."""
VARIANTS = ("online", "offline")


def infer(view: View, known: Knowledge) -> np.ndarray:
    """Scores (targets, P): log-likelihood ratios (online), or standardised distances (offline)."""
    population = population_of(known)
    out_mean, out_variance = fits(population.shadows, ~population.members)
    if known.options["variant"] == "offline":
        offline: np.ndarray = (population.confidence - out_mean) / np.sqrt(out_variance)
        return offline
    in_mean, in_variance = fits(population.shadows, population.members)
    online: np.ndarray = _log_density(population.confidence, in_mean, in_variance) - _log_density(
        population.confidence, out_mean, out_variance
    )
    return online


def fits(confidence: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance (P,) of each record's confidence (S, P) over the `chosen` models, booleans (S, P).

    Variances lean on that over all records by `PSEUDO_COUNT`, and so do means where a record has no such model.
    """
    counts = chosen.sum(0)
    overall = float(confidence[chosen].mean())
    mean = np.where(counts > 0, np.where(chosen, confidence, 0.0).sum(0) / np.maximum(counts, 1), overall)
    squares = np.where(chosen, (confidence - mean) ** 2, 0.0).sum(0)
    pooled = float(squares.sum() / max(1, int(counts.sum()) - int((counts > 0).sum())))
    variance = (squares + PSEUDO_COUNT * pooled) / (np.maximum(counts - 1, 0) + PSEUDO_COUNT)
    return mean, np.maximum(variance, 1e-12)


def _log_density(values: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    density: np.ndarray = -0.5 * ((values - mean) ** 2 / variance + np.log(variance))
    return density


def unfit(setting: AttackSetting) -> str | None:
    """Why batches that a client sees cannot be read side by side."""
    return unfit_sampler(setting) if setting.adversary == "client" else None


SPEC = AttackSpec(
    name="membership_lira",
    summary="membership by likelihood ratios of shadow models' fits to each record, online or offline (LiRA)",
    adversaries=("release", "client"),
    infer=infer,
    mounted_by=mount_membership,
    rounds=membership_rounds,
    positive=Positive("membership_lira on labels learnt by heart, no noise: must be 0.65 at least", overfitted, 0.65),
    suggests={"epochs": 100},
    options={"pool": 512, "shadows": 64, "variant": "online"},
    choices={"variant": VARIANTS},
    unfit=unfit,
)
