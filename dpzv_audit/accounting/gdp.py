"""Gaussian-DP accountants: paper 001's theorem 5.1, the central-limit approximation, and the exact known-ids bound."""

from __future__ import annotations

import math
from dataclasses import replace

from scipy.special import ndtr

from dpzv_audit.accounting.bounds import Number, Question, Refusal, accountant
from dpzv_audit.accounting.formulas import DELTA, counted, n, noise, noises, reading
from dpzv_audit.accounting.gaussian import LARGEST_MU, epsilon_from_mu, exactly
from dpzv_audit.accounting.mixture import Participation, participations_epsilon
from dpzv_audit.accounting.release import REPLACES, Release
from dpzv_audit.errors import InputError
from dpzv_audit.findings import UpperBound


def paper_mu(release: Release) -> float:
    """Return mu = 2 C sqrt(T) / (D sigma), what theorem 5.1 of paper 001 claims of the scalar channel."""
    scalars = release.rounds * release.directions
    return 2.0 * release.clip * math.sqrt(scalars) / (release.records * release.sigma)


def _paper_formula(asked: Question, bound: UpperBound) -> list[str]:
    lines = []
    for part in asked.parts:
        scalars = part.rounds * part.directions
        given = f"2 x {n(part.clip)} x sqrt({scalars}) / ({n(part.records)} x {n(part.sigma)})"
        lines.append(f"mu = 2 C sqrt(T) / (D sigma) = {given} = {n(paper_mu(part))}")
    return lines + reading(bound, bound.mu or 0.0)


@accountant(
    "gdp-paper",
    summary="theorem 5.1 of the DPZV paper as claimed: mu = 2C sqrt(T)/(D sigma); not sound unless B = D",
    source="DPZV paper (001), theorem 5.1",
    formula=_paper_formula,
)
def gdp_paper(asked: Question) -> Number | Refusal:
    """Theorem 5.1 of paper 001 as claimed: mu = 2 C sqrt(T) / (D sigma). Not sound unless B = D.

    Its proof scales the noise by the sampling rate (theorem C.2), which no adversary who knows the batch ids
    grants, and which for secret ids is the central-limit approximation with z large. Where every batch holds all
    records and B, which scalars are divided by, is D, that factor is 1, and the theorem is the exact sqrt(T)/z of a
    record replaced. A public rate of 1 alone does not make B the D that the theorem divides by.
    """
    parts = asked.parts
    whole = all(part.rate == 1.0 and part.batch_size == part.records for part in parts)
    if any(part.channel != "scalar" for part in parts):
        return Refusal("theorem 5.1 speaks of the scalar channel alone")
    if whole and any(part.certain_mu(asked.neighbours) or part.server_noise_multiplier is not None for part in parts):
        return Refusal("theorem 5.1 counts the scalars of batches, not what the server's own updates release")
    mu = math.hypot(*(paper_mu(part) for part in parts))
    found = Number(epsilon=exactly(epsilon_from_mu(mu, asked.delta)), mu=mu, note="theorem 5.1 as claimed")
    if whole:
        return replace(found, reason="every batch holds all records: no sampling to count on")
    return replace(
        found,
        own_gaps=("known-ids",) if asked.knows_ids else ("clt",),
        reason="takes mu down by the sampling rate, which needs secret ids and holds only approximately",
    )


def log_clt_mu(rate: float, rounds: int, z: float, *, uniform: bool) -> float:
    """Return ln mu of the central-limit approximation, finite wherever ln mu is (e^(1/z^2) overflows at z < 0.04).

    Poisson: mu = r sqrt(T (e^(1/z^2) - 1)). Uniform, without replacement: mu = sqrt(2) r sqrt(T (e^(1/z^2)
    Phi(3/(2z)) + 3 Phi(-1/(2z)) - 2)). Bu, Dong, Long and Su (2020), theorems 4 and 5; Dong, Roth and Su (2022),
    corollary 4 for C_p.
    """
    power = 1.0 / z**2 if z > 1e-100 else math.inf
    log_excess = math.log(math.expm1(power)) if power < 1.0 else power + math.log1p(-math.exp(-power))
    if uniform:
        log_excess = math.log(2.0) + _log_uniform_excess(z, power)
    return math.log(rate) + 0.5 * (math.log(rounds) + log_excess)


def _log_uniform_excess(z: float, power: float) -> float:
    """Return ln(e^u Phi(3h) + 3 Phi(-h) - 2), u = 1/z^2 and h = 1/(2z), without its cancellation at large z."""
    half = 0.5 / z if z > 1e-100 else math.inf
    if power > 50.0:  # the rest is at least -2 against e^50
        return power + math.log(float(ndtr(3.0 * half)))
    if z > 1e7:
        return math.log(power / 2.0)
    x = half / math.sqrt(2.0)
    return math.log(math.expm1(power) * float(ndtr(3.0 * half)) + 0.5 * (math.erf(3.0 * x) - 3.0 * math.erf(x)))


def _clt_mus(asked: Question) -> list[float]:
    """Return ln mu of every part."""
    uniform = asked.neighbours in REPLACES
    return [
        log_clt_mu(part.rate, part.rounds, 1.0 / part.participation_mu(asked.neighbours), uniform=uniform)
        for part in asked.parts
    ]


def _clt_formula(asked: Question, bound: UpperBound) -> list[str]:
    lines = []
    for part, log_mu in zip(asked.parts, _clt_mus(asked), strict=True):
        z = n(1.0 / part.participation_mu(asked.neighbours))
        rate = n(part.rate) if part.sample_rate else f"{part.batch_size}/{part.dataset_size}"
        root = f"sqrt({part.rounds} (e^(1/{z}^2) - 1))"
        if asked.neighbours in REPLACES:
            root = f"sqrt(2 x {part.rounds} (e^(1/{z}^2) Phi(1.5/{z}) + 3 Phi(-0.5/{z}) - 2))"
        lines += [*noise(part, asked.neighbours), f"mu = r sqrt(...) = {rate} {root} = {n(math.exp(log_mu))}"]
    return lines + reading(bound, bound.mu or 0.0)


@accountant(
    "gdp-clt",
    summary="central-limit approximation for Poisson and uniform sampling; not a bound",
    source="Bu, Dong, Long and Su (2020), Deep learning with Gaussian differential privacy",
    formula=_clt_formula,
)
def gdp_clt(asked: Question) -> Number | Refusal:
    """Central-limit approximation of many sampled rounds. Never sound.

    The Poisson form is for the relations whose pair is that of add-remove (`add-remove`, `zero-out`), the uniform form
    for the replace relations under `uniform` sampling. Source: Bu, Dong, Long and Su (2020).
    """
    wanted = "uniform" if asked.neighbours in REPLACES else "poisson"
    for part in asked.parts:
        if part.sampler != wanted or part.channel != "scalar" or part.participation_cap is not None:
            return Refusal("the forms are for Poisson sampling, add-remove or zero-out, and uniform sampling, replace")
    logs = _clt_mus(asked)
    if max(logs) > math.log(LARGEST_MU):
        return Refusal("vacuous (> 100): at so little noise the approximation has no finite value")
    mu = math.hypot(*(math.exp(log) for log in logs), *asked.certain)
    return Number(
        epsilon=exactly(epsilon_from_mu(mu, asked.delta)),
        mu=mu,
        note="central-limit approximation",
        own_gaps=("known-ids", "clt") if asked.knows_ids else ("clt",),
        reason="an approximation, not a bound",
    )


def _exact_formula(asked: Question, bound: UpperBound) -> list[str]:
    total, random = counted(asked)
    if bound.mu is not None:
        return [*noises(asked), f"{total} = {n(bound.mu)}^2", *reading(bound, bound.mu)]
    assert bound.epsilon is not None
    mean = f"E[{DELTA.split(' = ')[0]}] = {n(bound.delta)} at eps = {n(bound.epsilon.upper)}"
    return [*noises(asked), f"{total}{random}", f"{mean}, where {DELTA}"]


@accountant(
    "gdp-exact",
    summary="exact Gaussian DP for known batch ids, fixed or binomial participations",
    source="Dong, Roth and Su (2022), corollary 1, averaged over the number of participations",
    formula=_exact_formula,
)
def gdp_exact(asked: Question) -> Number | Refusal:
    """Exact for an adversary who knows the batch ids: mu = sqrt(n)/z, or its mixture over n ~ Binomial(T, r).

    Sound with secret ids too (hiding the ids is post-processing). A malicious client takes part as often as the cap
    allows. Other releases, the server's noised updates among them, add to mu^2.
    """
    if asked.neighbours == "add-remove":
        return Refusal("known ids show whether the record is there; use prv")
    if asked.refusal:
        return asked.refusal
    mus = [part.mu for part in asked.counted]
    if min(mus) == 0.0 or max(mus) > 1e50:
        raise InputError("sigma is too far from a record's contribution, must be nearer: its square is no float")
    certain_mu = math.hypot(*asked.certain)
    epsilon = participations_epsilon(asked.counted, delta=asked.delta, certain_mu=certain_mu)
    mu = None
    if all(part.fixed is not None for part in asked.counted):
        mu = math.hypot(certain_mu, *(math.sqrt(part.fixed or 0) * part.mu for part in asked.counted))
    return Number(epsilon=epsilon, mu=mu, note=" and ".join(_counted(part) for part in asked.counted))


def _counted(part: Participation) -> str:
    if part.fixed is not None:
        return f"{part.fixed} participations of a record"
    limit = "" if part.cap is None else f", at most {part.cap}"
    return f"Binomial({part.rounds}, {part.rate:.6g}) participations{limit}"
