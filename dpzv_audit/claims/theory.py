"""What theory says of a claim about one of the tool's methods: its release, accounted against the claim's adversary."""

from __future__ import annotations

from collections.abc import Sequence

from dpzv_audit.accounting import GAPS, tightest_sound, upper_bounds
from dpzv_audit.accounting.release import Composition
from dpzv_audit.claims.evidence import Theory
from dpzv_audit.claims.model import MethodClaim
from dpzv_audit.evaluation.privacy import NO_NOISE
from dpzv_audit.evidence import UpperBound, to_jsonable
from mechanisms import MethodSpec, TrainingConfig
from mechanisms.context import Deployment

_NO_NOISE = Theory(
    speaks=True,
    gap=NO_NOISE,
    explanations={NO_NOISE: "no noise is added to what the server sends, so no upper bound is known"},
)


KNOWS_DIRECTIONS = ("client", "colluding-clients", "all-but-one", "malicious-client")
_KNOWN_DIRECTIONS = Theory(
    speaks=True, gap="known-directions", explanations={"known-directions": GAPS["known-directions"]}
)


def theory_of(claim: MethodClaim, method: MethodSpec, config: TrainingConfig, deployment: Deployment) -> Theory:
    """Return every accountant's bound for the method as configured, and the tightest sound one."""
    releases = method.releases(config, deployment)
    if not releases:
        measured = method.differences(config)
        hidden = measured is not None and measured.shared and claim.adversary in KNOWS_DIRECTIONS
        return _KNOWN_DIRECTIONS if hidden else _NO_NOISE
    bounds = upper_bounds(
        releases[0] if len(releases) == 1 else Composition(releases),
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


def gap_of(bounds: Sequence[UpperBound]) -> str:
    """Return the gap of the bound that comes nearest to being sound: the one with the fewest gaps."""
    gaps = [bound.gap for bound in bounds if bound.gap and "no-accountant" not in bound.gap]
    return min(gaps, key=lambda gap: (gap.count(","), "clt" in gap or "known-ids" in gap), default="no-accountant")


def _explained(bounds: Sequence[UpperBound]) -> dict[str, str]:
    names = [name.strip() for bound in bounds if bound.gap for name in bound.gap.split(",")]
    return {name: GAPS[name] for name in dict.fromkeys(names) if name in GAPS}
