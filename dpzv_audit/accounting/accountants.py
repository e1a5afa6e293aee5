"""The accountants: each a function from release, adversary and relation to an upper bound on epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dpzv_audit.accounting.gaps import ADVERSARY_NAMES, GAPS, NO_NUMBER, gaps_of, treatment
from dpzv_audit.accounting.gaussian import epsilon_from_mu
from dpzv_audit.accounting.mixture import known_ids_epsilon
from dpzv_audit.accounting.prv import prv_epsilon
from dpzv_audit.accounting.release import NEIGHBOURS, Release
from dpzv_audit.errors import check_probability
from dpzv_audit.evidence import AdversaryName, EpsilonRange, NeighbourRelation, UpperBound

Accountant = Callable[[Release, AdversaryName, NeighbourRelation, float], UpperBound]

_LARGEST_MU = 1e75
"""Past it epsilon is about mu^2/2 and means nothing; mu^2 must not overflow."""


@dataclass(frozen=True, kw_only=True)
class _Number:
    """What an accountant computes once it is known that there is something to compute."""

    epsilon: EpsilonRange
    note: str
    mu: float | None = None


def _exactly(epsilon: float) -> EpsilonRange:
    return EpsilonRange(lower=epsilon, estimate=epsilon, upper=epsilon)


def _bound(
    name: str,
    release: Release,
    adversary: AdversaryName,
    neighbours: NeighbourRelation,
    delta: float,
    *,
    own_gaps: Sequence[str],
    reason: str,
    compute: Callable[[], _Number],
) -> UpperBound:
    """Join the release's gaps with the accountant's own; compute a number unless a gap leaves none."""
    check_probability("delta", delta)
    cell = treatment(adversary, neighbours, release.sampler, ids=release.ids)
    gaps = gaps_of(release, adversary, neighbours)
    if not NO_NUMBER.intersection(gaps):
        gaps = (*own_gaps, *gaps)
    if blocking := [gap for gap in gaps if gap in NO_NUMBER]:
        first = blocking[0]
        number = None
        note = reason if first == "no-accountant" else GAPS[first]
        if cell.treatment in ("undefined", "no bound"):
            note = cell.reason
        gaps = tuple(blocking)
    else:
        number = compute()
        note = "; ".join(part for part in (number.note, reason, cell.reason) if part)
    return UpperBound(
        accountant=name,
        adversary=adversary,
        neighbours=neighbours,
        delta=delta,
        epsilon=None if number is None else number.epsilon,
        sound=not gaps,
        gap=",".join(gaps) or None,
        note=note,
        mu=None if number is None else number.mu,
    )


def _knows_ids(release: Release, adversary: AdversaryName, neighbours: NeighbourRelation) -> bool:
    return treatment(adversary, neighbours, release.sampler, ids=release.ids).treatment == "known-ids"


def gdp_paper(release: Release, adversary: AdversaryName, neighbours: NeighbourRelation, delta: float) -> UpperBound:
    """Theorem 5.1 of paper 001 as claimed: mu = 2 C sqrt(T) / (D sigma). Never sound.

    Its proof scales the noise by the sampling rate (theorem C.2), which no adversary who knows the batch ids
    grants, and which for secret ids is the central-limit approximation with z large.
    """

    def compute() -> _Number:
        mu = 2.0 * release.clip * math.sqrt(release.rounds) / (release.dataset_size * release.sigma)
        return _Number(epsilon=_exactly(epsilon_from_mu(mu, delta)), mu=mu, note="theorem 5.1 as claimed")

    known = _knows_ids(release, adversary, neighbours)
    return _bound(
        "gdp-paper",
        release,
        adversary,
        neighbours,
        delta,
        own_gaps=("known-ids",) if known else ("clt",),
        reason="takes mu down by the sampling rate, which needs secret ids and holds only approximately",
        compute=compute,
    )


def gdp_clt(release: Release, adversary: AdversaryName, neighbours: NeighbourRelation, delta: float) -> UpperBound:
    """Central-limit approximation for Poisson sampling: mu = r sqrt(T (e^(1/z^2) - 1)). Never sound.

    For the relations whose pair is that of add-remove (`add-remove`, `zero-out`).
    Source: Bu, Dong, Long and Su (2020).
    """
    z = release.noise_multiplier(neighbours)
    # In logs, because e^(1/z^2) overflows at z below 0.04.
    log_mu = math.inf if z == 0.0 else _log_clt_mu(release.rate, release.rounds, z)
    own: tuple[str, ...] = ("clt",)
    reason = "an approximation, not a bound"
    if release.sampler != "poisson" or neighbours not in ("add-remove", "zero-out"):
        own, reason = ("no-accountant",), "the formula is for Poisson sampling, add-remove or zero-out"
    elif release.server_mu is not None:
        own, reason = ("no-accountant",), "does not compose the server's own noised updates"
    elif log_mu > math.log(_LARGEST_MU):
        own, reason = (
            ("no-accountant",),
            "vacuous (> 100): at so little noise the approximation has no finite value",
        )
    elif _knows_ids(release, adversary, neighbours):
        own = ("known-ids", "clt")

    def compute() -> _Number:
        mu = math.exp(log_mu)
        return _Number(epsilon=_exactly(epsilon_from_mu(mu, delta)), mu=mu, note="central-limit approximation")

    return _bound("gdp-clt", release, adversary, neighbours, delta, own_gaps=own, reason=reason, compute=compute)


def _log_clt_mu(rate: float, rounds: int, z: float) -> float:
    power = 1.0 / z**2 if z > 1e-100 else math.inf
    log_excess = math.log(math.expm1(power)) if power < 1.0 else power + math.log1p(-math.exp(-power))
    return math.log(rate) + 0.5 * (math.log(rounds) + log_excess)


def gdp_exact(release: Release, adversary: AdversaryName, neighbours: NeighbourRelation, delta: float) -> UpperBound:
    """Exact for an adversary who knows the batch ids: mu = sqrt(n)/z, or its mixture over n ~ Binomial(T, r).

    Sound with secret ids too (hiding the ids is post-processing). A malicious client takes part as often as
    the cap allows. The server's own noised updates compose as mu = sqrt(n/z^2 + server_mu^2).
    """
    fixed = release.fixed_participations
    if adversary == "malicious-client" and release.participation_cap is not None:
        fixed = min(release.participation_cap, release.rounds)
    own: tuple[str, ...] = ()
    reason = ""
    if neighbours == "add-remove":
        own, reason = ("no-accountant",), "known ids show whether the record is there; use prv"

    def compute() -> _Number:
        z = release.noise_multiplier(neighbours)
        cap = release.participation_cap
        extra = release.server_mu or 0.0
        epsilon = known_ids_epsilon(
            noise_multiplier=z,
            delta=delta,
            rounds=release.rounds,
            rate=release.rate,
            fixed=fixed,
            cap=cap,
            server_mu=release.server_mu,
        )
        if fixed is not None:
            mu = math.hypot(math.sqrt(fixed) / z, extra)
            return _Number(epsilon=epsilon, mu=mu, note=f"{fixed} participations of a record")
        limit = "" if cap is None else f", at most {cap}"
        return _Number(epsilon=epsilon, note=f"Binomial({release.rounds}, {release.rate:.6g}) participations{limit}")

    return _bound("gdp-exact", release, adversary, neighbours, delta, own_gaps=own, reason=reason, compute=compute)


def prv(release: Release, adversary: AdversaryName, neighbours: NeighbourRelation, delta: float) -> UpperBound:
    """PRV accounting of Poisson sampling with secret ids: both directions of add-remove, or the replace pair.

    `add-remove` and `zero-out` compose both directions and take the larger; the replace pair is symmetric.
    """
    own: tuple[str, ...] = ()
    reason = ""
    capped = release.participation_cap is not None and release.participation_cap < release.rounds
    if release.sampler != "poisson":
        own, reason = (
            ("no-accountant",),
            f"no trusted accountant for secret ids with the {release.sampler} sampler",
        )
    elif release.server_mu is not None:
        own, reason = ("no-accountant",), "does not compose the server's own noised updates; use gdp-exact"
    elif capped:
        own, reason = ("no-accountant",), "a participation cap makes the sampling no longer Poisson"
    elif adversary == "malicious-client":
        own, reason = ("no-accountant",), "a malicious client does not sample as it is told"
    elif _knows_ids(release, adversary, neighbours):
        own = ("known-ids",)

    def compute() -> _Number:
        noise = release.noise_multiplier("zero-out")
        kinds = ("replace",) if neighbours.startswith("replace") else ("remove", "add")
        answers = [
            prv_epsilon(kind=kind, rate=release.rate, noise=noise, rounds=release.rounds, delta=delta) for kind in kinds
        ]
        worst = max(answers, key=lambda answer: answer.epsilon.upper)
        epsilon = EpsilonRange(
            lower=max(answer.epsilon.lower for answer in answers),
            estimate=max(answer.epsilon.estimate for answer in answers),
            upper=worst.epsilon.upper,
        )
        return _Number(epsilon=epsilon, note=worst.note)

    return _bound("prv", release, adversary, neighbours, delta, own_gaps=own, reason=reason, compute=compute)


@dataclass(frozen=True, kw_only=True)
class AccountantEntry:
    """A registered accountant and what it does, in one line."""

    function: Accountant
    summary: str


ACCOUNTANTS: dict[str, AccountantEntry] = {
    "gdp-paper": AccountantEntry(
        function=gdp_paper,
        summary="theorem 5.1 of the DPZV paper as claimed: mu = 2C sqrt(T)/(D sigma); not sound",
    ),
    "gdp-clt": AccountantEntry(
        function=gdp_clt, summary="central-limit approximation for Poisson sampling; not a bound"
    ),
    "gdp-exact": AccountantEntry(
        function=gdp_exact, summary="exact Gaussian DP for known batch ids, fixed or binomial participations"
    ),
    "prv": AccountantEntry(
        function=prv,
        summary="numerical composition for Poisson sampling with secret batch ids, with certified error",
    ),
}


def upper_bounds(
    release: Release,
    *,
    delta: float,
    adversaries: Iterable[AdversaryName] = ADVERSARY_NAMES,
    neighbours: Iterable[NeighbourRelation] = NEIGHBOURS,
    accountants: Iterable[str] = tuple(ACCOUNTANTS),
) -> list[UpperBound]:
    """Return every accountant's answer for every adversary, for every relation (outermost)."""
    relations, names = tuple(neighbours), tuple(accountants)
    return [
        ACCOUNTANTS[name].function(release, adversary, relation, delta)
        for relation in relations
        for adversary in adversaries
        for name in names
    ]


def tightest_sound(bounds: Iterable[UpperBound]) -> UpperBound | None:
    """Return the sound bound with the smallest upper epsilon, None where none is sound.

    The bounds must speak of one adversary, relation and delta: bounds on different things do not compare.
    """
    candidates = list(bounds)
    about = {(bound.adversary, bound.neighbours, bound.delta) for bound in candidates}
    if len(about) > 1:
        raise ValueError("tightest_sound compares bounds for one adversary, neighbour relation and delta only")
    sound = [(bound.epsilon.upper, bound) for bound in candidates if bound.sound and bound.epsilon is not None]
    return min(sound, key=lambda pair: pair[0])[1] if sound else None
