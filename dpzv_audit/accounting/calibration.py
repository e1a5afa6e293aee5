"""Noise for a target (epsilon, delta): paper 001's formula (theorem 5.1) and the sound one for known ids."""

from __future__ import annotations

import math

from dpzv_audit.accounting.gaussian import epsilon_from_mu, mu_from_epsilon
from dpzv_audit.accounting.release import NEIGHBOURS
from dpzv_audit.errors import AuditError, InputError, check_count, check_positive
from dpzv_audit.evidence import NeighbourRelation


def sigma_from_paper(epsilon: float, delta: float, *, clip: float, dataset_size: int, rounds: int) -> float:
    """Return sigma = 2 C sqrt(T) / (D mu), what theorem 5.1 claims to give (`epsilon`, `delta`); it does not.

    `epsilon` > 0, 0 < `delta` < 1; raises `InputError` otherwise.
    """
    check_positive("clip", clip)
    check_count("dataset_size", dataset_size)
    check_count("rounds", rounds)
    mu = mu_from_epsilon(check_positive("epsilon", epsilon), delta)
    return 2.0 * clip * math.sqrt(rounds) / (dataset_size * mu)


def sigma_sound(
    epsilon: float,
    delta: float,
    *,
    clip: float,
    batch_size: int,
    participations: int,
    neighbours: NeighbourRelation = "replace-label",
) -> float:
    """Return the least sigma = s sqrt(n) / mu that gives (`epsilon`, `delta`) where the ids are known.

    n = `participations` counts all clients' rounds; s = 2C/B (`zero-out`: C/B).
    The answer is checked forward: its epsilon is at most `epsilon`. Raises `InputError` for `add-remove`,
    which is undefined for known ids, and for numbers outside their range.
    """
    check_positive("clip", clip)
    check_count("batch_size", batch_size)
    check_count("participations", participations)
    if neighbours not in NEIGHBOURS or neighbours == "add-remove":
        allowed = ", ".join(name for name in NEIGHBOURS if name != "add-remove")
        raise InputError(f"neighbours is {neighbours!r}, must be one of {allowed}: known ids show who is there")
    mu = mu_from_epsilon(check_positive("epsilon", epsilon), delta)
    sensitivity = (1.0 if neighbours == "zero-out" else 2.0) * clip / batch_size
    sigma = sensitivity * math.sqrt(participations) / mu
    for step in range(60):
        # Rounding may leave the forward value an ulp above the target; grow sigma until it is not.
        if epsilon_from_mu(math.sqrt(participations) * sensitivity / sigma, delta) <= epsilon:
            return sigma
        sigma *= 1.0 + 2.0 ** (step - 52)
    raise AuditError(f"no sigma found for epsilon = {epsilon}, delta = {delta}")
