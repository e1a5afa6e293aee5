"""Membership by pairwise likelihood ratios (RMIA, offline; Zarifzadeh, Liu and Shokri, ICML 2024).

A record x is likelier a member the more records z of the population it beats: (p(x | target) / p(x)) /
(p(z | target) / p(z)) >= gamma, where p(.) is the mean over shadow models; offline these did not train on x, and
p(x) = ((1 + a) p_out(x) + (1 - a)) / 2 stands for the mean over models with and without it.
"""

from __future__ import annotations

import numpy as np

from attacks.core.contract import AttackSpec, Knowledge, Positive
from attacks.membership.loss import population_of
from attacks.membership.mount import membership_rounds, mount_membership, overfitted
from mechanisms.views import View


def infer(view: View, known: Knowledge) -> np.ndarray:
    """Scores (targets, P): the share of population records that each record beats by gamma."""
    population = population_of(known)
    without = ~population.members
    counts = np.maximum(without.sum(0), 1)
    out = np.where(without, _probability(population.shadows), 0.0).sum(0) / counts
    a = known.options["a"]
    of_record = _probability(population.confidence) / np.maximum(0.5 * ((1.0 + a) * out + (1.0 - a)), 1e-12)
    outside = _probability(population.outside) / np.maximum(_probability(population.shadows_outside).mean(0), 1e-12)
    return np.stack([shares_beaten(r, z, known.options["gamma"]) for r, z in zip(of_record, outside, strict=True)])


def shares_beaten(ratios: np.ndarray, population: np.ndarray, gamma: float) -> np.ndarray:
    """Share of `population` (n,) that each of `ratios` (P,) is at least `gamma` times as large as."""
    ordered = np.sort(population * gamma)
    shares: np.ndarray = np.searchsorted(ordered, ratios, side="right") / len(ordered)
    return shares


def _probability(confidence: np.ndarray) -> np.ndarray:
    probability: np.ndarray = np.exp(-np.logaddexp(0.0, -confidence))
    return probability


SPEC = AttackSpec(
    name="membership_rmia",
    summary="membership by pairwise likelihood ratios against a population, with offline shadow models (RMIA)",
    adversaries=("release",),
    infer=infer,
    mounted_by=mount_membership,
    rounds=membership_rounds,
    positive=Positive("membership_rmia on labels learnt by heart, no noise: must be 0.8 at least", overfitted, 0.8),
    suggests={"epochs": 100},
    options={"pool": 512, "shadows": 64, "a": 0.3, "gamma": 2.0},
)
