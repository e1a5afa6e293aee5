"""Accountants for comparison: Renyi DP, advanced composition, and CZOFO's theorem 4.1 (paper 003)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpzv_audit.accounting.bounds import LARGEST_EPSILON, Number, Question, Refusal, SampledView, accountant
from dpzv_audit.accounting.formulas import DELTA, counted, n, noises, sampled
from dpzv_audit.accounting.gaussian import FloatArray, epsilon_from_mu, exactly
from dpzv_audit.accounting.mixture import Participation, binomial_counts
from dpzv_audit.accounting.moments import ORDERS, epsilon_of_moments
from dpzv_audit.accounting.prv import sampled_moments
from dpzv_audit.accounting.release import Release
from dpzv_audit.accounting.sampled import PairKind
from dpzv_audit.errors import check_count, check_positive, check_probability
from dpzv_audit.findings import UpperBound

_ORDERS = np.geomspace(1e-6, 1e8, 4000)


@dataclass(frozen=True, kw_only=True)
class RenyiAnswer:
    """An `epsilon` from ln E[e^(s L)] = `log_moment` at order s > 0; infinite s: the largest loss there is."""

    epsilon: float
    order: float
    log_moment: float
    kind: PairKind | None
    """Direction of sampling with secret ids; None: known ids."""


def renyi(asked: Question) -> RenyiAnswer | None:
    """Return the smaller of the known-ids and the sampled form; None where neither has a number."""
    found = []
    if asked.neighbours != "add-remove":
        moments = _known_moments(asked)
        epsilon, order = epsilon_of_moments(_ORDERS, moments, asked.delta)
        log_moment = float(moments[np.searchsorted(_ORDERS, order)])
        found.append(RenyiAnswer(epsilon=epsilon, order=order, log_moment=log_moment, kind=None))
    view = asked.amplified
    if isinstance(view, SampledView) and (view.parts or not found):
        answers = [_sampled_renyi(kind, view, asked.delta) for kind in view.kinds]
        worst = max(answers, key=lambda answer: math.inf if answer is None else answer.epsilon)
        found += [worst] if worst is not None else []
    return min(found, key=lambda answer: answer.epsilon, default=None)


def _sampled_renyi(kind: PairKind, view: SampledView, delta: float) -> RenyiAnswer | None:
    """Return one direction's epsilon; None at very low noise."""
    moments = sampled_moments(kind, view.parts, certain_mu=math.hypot(*view.certain), delta=delta)
    if moments is None:
        return None
    epsilon = moments.epsilon(delta)
    if not epsilon < moments.ceiling:
        return RenyiAnswer(epsilon=epsilon, order=math.inf, log_moment=math.inf, kind=kind)
    _, order = epsilon_of_moments(ORDERS, moments.up, delta - moments.outside)
    return RenyiAnswer(
        epsilon=epsilon, order=order, log_moment=float(moments.log_moment(np.array([order]))[0]), kind=kind
    )


def _known_moments(asked: Question) -> FloatArray:
    s = _ORDERS
    pair = s * (1.0 + s) / 2.0
    total = pair * math.hypot(*asked.certain) ** 2
    with np.errstate(over="ignore"):
        for part in asked.counted:
            cost = pair * part.mu**2
            if part.fixed is not None:
                total = total + part.fixed * cost
                continue
            small = np.log1p(part.rate * np.expm1(np.minimum(cost, 30.0)))
            large = np.logaddexp(math.log1p(-part.rate), math.log(part.rate) + cost)
            sampled = part.rounds * np.where(cost > 30.0, large, small)
            total = total + (sampled if part.cap is None else np.minimum(sampled, part.cap * cost))
    return np.asarray(total, dtype=np.float64)


def _renyi_formula(asked: Question, bound: UpperBound) -> list[str]:
    found = renyi(asked)
    assert found is not None
    if found.kind is None:
        lines = [*noises(asked), f"{''.join(counted(asked))}; ln E[e^(s L)] = ln E_n[e^(s (s + 1)/2 mu^2)]"]
    else:
        lines = [*sampled(asked), f"L = sum of ln P(x)/Q(x), x ~ P ({found.kind})"]
    if math.isinf(found.order):
        return [*lines, f"eps = {n(found.epsilon)}, the largest loss of all rounds but for {n(bound.delta)} of P"]
    lines.append(f"ln E[e^(s L)] = {n(found.log_moment)} at s = {n(found.order)}, the best of many orders")
    form = "(ln E[e^(s L)] + s ln s - (1 + s) ln(1 + s) - ln delta)/s"
    return [*lines, f"eps = {form} = {n(found.epsilon)} at delta = {n(bound.delta)}"]


@accountant(
    "rdp",
    summary="Renyi DP, known batch ids or sampling with secret ones; sound, looser",
    source="Mironov (2017); conversion by Canonne, Kamath and Steinke (2020), proposition 12",
    formula=_renyi_formula,
)
def rdp(asked: Question) -> Number | Refusal:
    """Renyi DP: sound, and looser than gdp-exact and prv; the smaller of its known-ids and its sampled form.

    Known ids: ln E[e^(s L)] = n s (s + 1) mu^2 / 2, averaged over random n. Sampling with secret ids: moments
    of the dominating pair by quadrature, both directions. Source: Mironov (2017); conversion: Canonne, Kamath and
    Steinke (2020), proposition 12.
    """
    if asked.refusal:
        return asked.refusal
    found = renyi(asked)
    if found is None or not found.epsilon < LARGEST_EPSILON:
        return Refusal("vacuous (> 100): at so little noise no order gives a finite value")
    how = f"known ids, order {1.0 + found.order:.4g}" if found.kind is None else "sampling with secret ids"
    return Number(epsilon=exactly(found.epsilon), note=f"Renyi DP, {how}")


@dataclass(frozen=True, kw_only=True)
class Steps:
    """`count` mechanisms, each (`epsilon`, `delta`): Gaussians of `mu`, each sampled at `rate` (1: not sampled)."""

    epsilon: float
    delta: float
    count: int
    mu: float
    rate: float = 1.0


def advanced(asked: Question) -> tuple[float, list[Steps], str]:
    """Return the smaller epsilon of the known-ids and the amplified form, its steps, and which it is."""
    forms: list[tuple[list[Steps], str]] = []
    if asked.neighbours != "add-remove":
        forms.append((_known_steps(asked), "known ids"))
    view = asked.amplified
    if isinstance(view, SampledView) and "remove" in view.kinds and (view.parts or not forms):
        forms.append((_sampled_steps(view, asked.delta), "amplified by Poisson sampling"))
    found = [(_composed(steps, asked.delta), steps, how) for steps, how in forms]
    return min(found, key=lambda form: form[0])


def _known_steps(asked: Question) -> list[Steps]:
    """Return the steps at delta/2 in all; random counts are cut where they are exceeded with delta/4 in all."""
    random = sum(part.fixed is None for part in asked.counted)
    counts = [p.fixed if p.fixed is not None else _most(p, asked.delta / (4.0 * random)) for p in asked.counted]
    mus = [(part.mu, count) for part, count in zip(asked.counted, counts, strict=True) if count > 0]
    mus += [(mu, 1) for mu in asked.certain if mu > 0.0]
    share = asked.delta / (4.0 if random else 2.0) / max(1, sum(count for _, count in mus))
    return [Steps(epsilon=epsilon_from_mu(mu, share), delta=share, count=count, mu=mu) for mu, count in mus]


def _most(part: Participation, tail: float) -> int:
    """Return a count that is exceeded with probability at most `tail`."""
    counts = binomial_counts(part.rounds, part.rate, tail=tail / 2.0, cap=part.cap)
    above = np.cumsum(counts.weights[::-1])[::-1] + counts.above
    return counts.low + int(np.searchsorted(-above[1:], -tail)) if len(above) > 1 else counts.low


def _sampled_steps(view: SampledView, delta: float) -> list[Steps]:
    """Return the steps at delta/2 in all; a certain Gaussian counts as one, unsampled."""
    certain = [mu for mu in view.certain if mu > 0.0]
    share = delta / 2.0 / (sum(part.rounds for part in view.parts) + len(certain))
    steps = [Steps(epsilon=epsilon_from_mu(mu, share), delta=share, count=1, mu=mu) for mu in certain]
    for part in view.parts:
        mu = 1.0 / part.noise
        plain = epsilon_from_mu(mu, min(share / part.rate, 0.5))
        amplified = math.log1p(part.rate * math.expm1(plain)) if plain < 700.0 else plain + math.log(part.rate)
        steps.append(Steps(epsilon=amplified, delta=share, count=part.rounds, mu=mu, rate=part.rate))
    return steps


def _composed(steps: Sequence[Steps], delta: float) -> float:
    if any(step.epsilon > 300.0 for step in steps):
        return math.inf
    squares = sum(step.count * step.epsilon**2 for step in steps)
    drift = sum(step.count * step.epsilon * math.expm1(step.epsilon) for step in steps)
    return math.sqrt(2.0 * math.log(2.0 / delta) * squares) + drift


def _advanced_formula(asked: Question, bound: UpperBound) -> list[str]:
    epsilon, steps, _ = advanced(asked)
    lines = [*noises(asked), f"each round (eps_0, delta_0) by {DELTA}"]
    for step in steps:
        at = f"delta_0 = {n(step.delta)}, mu = {n(step.mu)}"
        if step.rate < 1.0:
            at += f": ln(1 + r (e^eps_1 - 1)), eps_1 at delta_0/r, r = {n(step.rate)}"
        lines.append(f"n = {step.count} of eps_0 = {n(step.epsilon)} at {at}")
    form = "eps = sqrt(2 ln(1/delta') sum n eps_0^2) + sum n eps_0 (e^eps_0 - 1)"
    spent = sum(step.count * step.delta for step in steps)
    rest = bound.delta / 2.0 - spent
    chance = f", {n(rest)} for a count above n" if rest > 1e-6 * bound.delta else ""
    return [*lines, f"{form} = {n(epsilon)}; delta' = {n(bound.delta / 2.0)}, {n(spent)} for the rounds{chance}"]


@accountant(
    "advanced-composition",
    summary="advanced composition of exact Gaussian rounds; sound, very loose",
    source="Dwork and Roth (2014), theorem 3.20; Balle, Barthe and Gaboardi (2018), theorem 8",
    formula=_advanced_formula,
)
def advanced_composition(asked: Question) -> Number | Refusal:
    """Advanced composition of each round's exact Gaussian (epsilon_0, delta_0): sound, and very loose.

    epsilon = sqrt(2 ln(1/delta') sum epsilon_0^2) + sum epsilon_0 (e^epsilon_0 - 1) at delta' + sum delta_0, with
    delta' = delta/2 and the rest shared equally. Dwork and Roth (2014), theorem 3.20. Under Poisson sampling with
    secret ids, add-remove and zero-out: epsilon_0 becomes ln(1 + r (e^epsilon_0 - 1)), delta_0 r delta_0 (Balle, Barthe
    and Gaboardi, 2018, theorem 8).
    """
    if asked.refusal:
        return asked.refusal
    epsilon, _, how = advanced(asked)
    if not epsilon < LARGEST_EPSILON:
        return Refusal("vacuous (> 100): at so little noise advanced composition has no finite value")
    return Number(epsilon=exactly(epsilon), note=f"advanced composition, {how}")


@dataclass(frozen=True, kw_only=True)
class CzofoGuarantee:
    """What theorem 4.1 of paper 003 claims: (`epsilon`, delta) a round, (`epsilon_bar`, `delta_bar`) in all."""

    epsilon: float
    epsilon_bar: float
    delta_bar: float


def composed_epsilon(epsilon: float, rounds: int, slack: float) -> float:
    """Return sqrt(2 T ln(1/delta')) epsilon + T epsilon (e^epsilon - 1), delta' = `slack`: as theorem 4.1 composes.

    Infinite past the floats.
    """
    drift = rounds * epsilon * math.expm1(epsilon) if epsilon < 300.0 else math.inf
    return math.sqrt(2.0 * rounds * math.log(1.0 / slack)) * epsilon + drift


def czofo_guarantee(
    *, zeta: float, sigma: float, records: int, rounds: int, delta: float, delta_prime: float
) -> CzofoGuarantee:
    """Return what theorem 4.1 of paper 003 claims; its premise is that the estimate's variance is noise.

    epsilon = 2 zeta sqrt(2 ln(1.25/delta)) / (N sigma_s); epsilon_bar = sqrt(2 T ln(1/delta')) epsilon +
    T epsilon (e^epsilon - 1); delta_bar = T delta + delta'. `zeta`: largest norm of a record's partial gradient;
    `sigma`: standard deviation sigma_s of the estimate. `epsilon_bar` is infinite past the floats.
    """
    check_positive("zeta", zeta)
    check_positive("sigma", sigma)
    check_count("records", records)
    check_count("rounds", rounds)
    check_probability("delta", delta)
    check_probability("delta_prime", delta_prime)
    epsilon = 2.0 * zeta * math.sqrt(2.0 * math.log(1.25 / delta)) / (records * sigma)
    return CzofoGuarantee(
        epsilon=epsilon,
        epsilon_bar=composed_epsilon(epsilon, rounds, delta_prime),
        delta_bar=rounds * delta + delta_prime,
    )


def _czofo_of(part: Release, delta: float) -> CzofoGuarantee:
    """Return the claim about `part` at `delta`: half of it for the rounds, half for their composition."""
    return czofo_guarantee(
        zeta=part.clip,
        sigma=part.sigma,
        records=int(part.records),
        rounds=part.rounds,
        delta=delta / (2.0 * part.rounds),
        delta_prime=delta / 2.0,
    )


def _czofo_formula(asked: Question, bound: UpperBound) -> list[str]:
    part, found = asked.parts[0], _czofo_of(asked.parts[0], bound.delta)
    delta, prime = n(bound.delta / (2.0 * part.rounds)), n(bound.delta / 2.0)
    given = f"2 x {n(part.clip)} sqrt(2 ln(1.25/{delta})) / ({n(part.records)} x {n(part.sigma)})"
    whole = f"sqrt(2 x {part.rounds} ln(1/{prime})) eps + {part.rounds} eps (e^eps - 1)"
    return [
        f"eps = 2 zeta sqrt(2 ln(1.25/delta_0)) / (N sigma_s) = {given} = {n(found.epsilon)} a round",
        f"epsbar = sqrt(2 T ln(1/delta')) eps + T eps (e^eps - 1) = {whole} = {n(found.epsilon_bar)}",
        f"deltabar = T delta_0 + delta' = {part.rounds} x {delta} + {prime} = {n(found.delta_bar)}",
    ]


@accountant(
    "czofo-theorem",
    summary="theorem 4.1 of the CZOFO paper on gradient estimates hidden by the direction alone; not sound",
    source="CZOFO paper (003), theorem 4.1",
    formula=_czofo_formula,
)
def czofo_theorem(asked: Question) -> Number | Refusal:
    """Theorem 4.1 of paper 003 on CZOFO's gradient estimates, at delta = T (delta/(2T)) + delta/2. Never sound.

    The "noise" is the direction, which every client knows; for others the estimate is Gaussian only in the limit of
    many directions.
    """
    if len(asked.parts) != 1 or asked.parts[0].channel != "zo-gradient":
        return Refusal("theorem 4.1 of CZOFO speaks of its gradient estimates alone")
    if asked.parts[0].dataset_size is None:
        return Refusal("theorem 4.1 of CZOFO needs the number of records")
    found = _czofo_of(asked.parts[0], asked.delta)
    if not found.epsilon_bar < LARGEST_EPSILON:
        return Refusal("vacuous (> 100): the formula has no finite value")
    return Number(
        epsilon=exactly(found.epsilon_bar),
        note=f"theorem 4.1, epsilon {found.epsilon:.4g} a round",
        own_gaps=("clt",),
        reason="takes the variance of the direction for noise, and the estimate for Gaussian",
    )
