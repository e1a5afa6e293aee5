"""What theory says of a training: its releases, accounted against one adversary under one neighbour relation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpzv_audit.accounting import epsilon_delta_tradeoff, gaussian_tradeoff, upper_bounds
from dpzv_audit.accounting.release import Composition, Release
from dpzv_audit.evidence.model import NO_NOISE, Theory
from dpzv_audit.findings import AdversaryName, NeighbourRelation
from mechanisms import MethodSpec, TrainingConfig
from mechanisms.core.context import Deployment

KNOWS_DIRECTIONS = ("client", "colluding-clients", "all-but-one", "malicious-client")


def theory_of(
    method: MethodSpec,
    config: TrainingConfig,
    deployment: Deployment,
    *,
    adversary: AdversaryName,
    neighbours: NeighbourRelation,
    delta: float,
    enough: float | None = None,
) -> Theory:
    """Return every accountant's bound for the method as configured; `enough` as in `upper_bounds`."""
    releases = method.releases(config, deployment)
    if not releases:
        measured = method.differences(config)
        hidden = measured is not None and measured.shared and adversary in KNOWS_DIRECTIONS
        return Theory(applies=True, unaccounted="known-directions" if hidden else NO_NOISE)
    release = releases[0] if len(releases) == 1 else Composition(releases)
    return account(release, adversary=adversary, neighbours=neighbours, delta=delta, enough=enough)


def account(
    release: Release | Composition,
    *,
    adversary: AdversaryName,
    neighbours: NeighbourRelation,
    delta: float,
    enough: float | None = None,
) -> Theory:
    """Return every accountant's bound on one release; where certified bounds lie below `enough`, no others are made."""
    bounds = upper_bounds(release, delta=delta, adversaries=[adversary], neighbours=[neighbours], enough=enough)
    return Theory(applies=True, bounds=tuple(bounds))


def recomputed_curve(alpha: Sequence[float], theory: Theory, delta: float) -> list[float] | None:
    """Return the trade-off curve at (n,) `alpha` of the tightest sound bound; None where there is none."""
    best = theory.tightest
    if best is None or best.epsilon is None:
        return None
    grid = np.asarray(alpha)
    curve = (
        epsilon_delta_tradeoff(grid, best.epsilon.upper, delta) if best.mu is None else gaussian_tradeoff(grid, best.mu)
    )
    found: list[float] = curve.tolist()
    return found
