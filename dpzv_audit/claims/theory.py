"""What theory says of a claim about one of the tool's methods: its release, accounted against the claim's adversary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dpzv_audit.accounting import GAPS, tightest_sound, upper_bounds
from dpzv_audit.accounting.release import Release
from dpzv_audit.claims.evidence import Theory
from dpzv_audit.claims.model import MethodClaim
from dpzv_audit.evaluation.privacy import NO_NOISE
from dpzv_audit.evidence import UpperBound, to_jsonable
from mechanisms import DPZVConfig, TrainingConfig
from mechanisms.calibration import calibrated, channel_release
from mechanisms.config import CZOFOConfig, ProtectedConfig
from mechanisms.plan import plan

_NO_NOISE = Theory(
    speaks=True,
    gap=NO_NOISE,
    explanations={NO_NOISE: "no noise is added to what the server sends, so no upper bound is known"},
)


KNOWS_DIRECTIONS = ("client", "colluding-clients", "all-but-one", "malicious-client")
_KNOWN_DIRECTIONS = Theory(
    speaks=True, gap="known-directions", explanations={"known-directions": GAPS["known-directions"]}
)


def theory_of(
    claim: MethodClaim, config: TrainingConfig, *, records: int, clients: int, seed: int, data_dependent_side: bool
) -> Theory:
    """Return every accountant's bound for the method as configured, and the tightest sound one."""
    release = release_of(config, records=records, clients=clients, seed=seed)
    if release is not None:
        release = replace(release, data_dependent_side=data_dependent_side)
    else:
        hidden = isinstance(config, CZOFOConfig) and claim.adversary in KNOWS_DIRECTIONS
        return _KNOWN_DIRECTIONS if hidden else _NO_NOISE
    bounds = upper_bounds(
        release,
        delta=claim.delta,
        adversaries=[claim.adversary],
        neighbours=[claim.neighbours],
        enough=claim.epsilon,
    )
    return theory_from(bounds)


def theory_from(bounds: Sequence[UpperBound]) -> Theory:
    """Return the answers of all accountants about one release as what theory says of a claim."""
    best = tightest_sound(bounds)
    return Theory(
        speaks=True,
        upper=best.epsilon.upper if best and best.epsilon else None,
        accountant=best.accountant if best else "",
        gap="" if best else gap_of(bounds),
        explanations=_explained(bounds),
        bounds=tuple(to_jsonable(bound) for bound in bounds),
    )


def release_of(config: TrainingConfig, *, records: int, clients: int, seed: int) -> Release | None:
    """Return the noised channel of a method as an accountant takes it; None where no noise is added."""
    if isinstance(config, DPZVConfig):
        the_plan = plan(config, records=records, clients=clients, seed=seed)
        if the_plan.sigma == 0.0:
            return None
        release = the_plan.release(config, records)
        if release.server_update == "dp-sgd":
            # The server steps on the batch of the round: said so, random participations are accounted for as well.
            release = replace(release, server_mu=None, server_noise_multiplier=config.server_noise_multiplier)
        return release
    if not isinstance(config, ProtectedConfig) or not config.protected:
        return None
    sigma = calibrated(config, records=records, clients=clients, seed=seed).dp_sigma
    return channel_release(config, sigma=sigma, records=records, clients=clients, seed=seed)


def gap_of(bounds: Sequence[UpperBound]) -> str:
    """Return the gap of the bound that comes nearest to being sound: the one with the fewest gaps."""
    gaps = [bound.gap for bound in bounds if bound.gap and "no-accountant" not in bound.gap]
    return min(gaps, key=lambda gap: (gap.count(","), "clt" in gap or "known-ids" in gap), default="no-accountant")


def _explained(bounds: Sequence[UpperBound]) -> dict[str, str]:
    names = [name.strip() for bound in bounds if bound.gap for name in bound.gap.split(",")]
    return {name: GAPS[name] for name in dict.fromkeys(names) if name in GAPS}
