"""The accountants: each a function from release, adversary and relation to an upper bound on epsilon.

Gaussian DP (paper 001's theorem 5.1, the central-limit approximation, the exact known-ids bound), PRV, and for
comparison Renyi DP, advanced composition and CZOFO's theorem 4.1 (paper 003).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from ..base.errors import AuditError, InputError, check_names
from ..base.findings import AdversaryName, NeighbourRelation, UpperBound
from .bounds import LARGEST_EPSILON, NO_NOISE, Accountant, AccountantQuestion, Number, Refusal, SampledView, accountant
from .gaps import ADVERSARY_NAMES
from .gaussian import (
    LARGEST_MU,
    Floats,
    Participation,
    binomial_counts,
    epsilon_from_mu,
    exactly,
    participations_epsilon,
)
from .prv import AGREE, prv_directions, prv_known, sampled_moments
from .release import NEIGHBOURS, REPLACES, AnyRelease, Release
from .sampled import ORDERS, PairKind, epsilon_of_moments, log_mix


@accountant("numerical composition, sampled with secret batch ids or unsampled, with certified error")
def prv(asked: AccountantQuestion) -> Number | Refusal:
    """PRV accounting of sampling with secret ids: both directions of add-remove, the replace or the fixed-size pair.

    `add-remove` and `zero-out` compose both directions and take the larger; the other pairs are symmetric. Where
    sampling hides nothing, the unsampled Gaussian rounds are composed: that is to agree with gdp-exact.

    Source: Gopi, Lee and Wutschitz (2021), theorem 5.5, on the dominating pairs of Zhu, Dong and Wang (2022).
    """
    view = asked.sampled
    if isinstance(view, Refusal):
        return _unsampled(asked, view)
    epsilon, note = prv_directions(
        view.directions,
        certain_mu=math.hypot(*view.certain),
        delta=asked.delta,
        fast=asked.fast,
        enough=asked.enough,
    )
    return Number(epsilon=epsilon, note=note, own_gaps=asked.own_gaps)


def _unsampled(asked: AccountantQuestion, unamplified: Refusal) -> Number | Refusal:
    if unamplified is NO_NOISE or asked.neighbours == "add-remove":
        return unamplified
    if any(part.fixed is None and part.cap is not None and part.cap < part.rounds for part in asked.counted):
        return Refusal("a cap makes each round depend on those before it: gdp-exact averages over the counts")
    epsilon, note = prv_known(
        _participations(asked),
        certain_mu=math.hypot(*asked.certain),
        delta=asked.delta,
        fast=asked.fast or asked.enough is not None,
    )
    return Number(epsilon=epsilon, note=note, shown="known ids")


def _participations(asked: AccountantQuestion) -> tuple[Participation, ...]:
    """Return the participations that are counted; `InputError` where the square of what one costs is no float."""
    mus = [part.mu for part in asked.counted]
    if min(mus) == 0.0 or max(mus) > 1e50:
        raise InputError("sigma is too far from a record's contribution, must be nearer: its square is no float")
    return asked.counted


def paper_mu(release: Release) -> float:
    """Return mu = 2 C sqrt(T) / (D sigma), what theorem 5.1 of paper 001 claims of the scalar channel.

    Its proof has the sampling rate r = B/D: with a public rate Q in its place mu = 2 C Q sqrt(T) / (B sigma).
    """
    scalars = release.rounds * release.directions
    return 2.0 * release.clip * math.sqrt(scalars) / (release.nominal_records * release.sigma)


@accountant("theorem 5.1 of the DPZV paper as claimed: mu = 2C sqrt(T)/(D sigma); not sound unless B = D")
def gdp_paper(asked: AccountantQuestion) -> Number | Refusal:
    """Theorem 5.1 of paper 001 as claimed: mu = 2 C sqrt(T) / (D sigma). Not sound unless batches hold all records.

    Its proof scales the noise by the sampling rate (theorem C.2), which no adversary who knows the batch ids
    grants, and which for secret ids is the central-limit approximation with z large. Where every batch holds all
    records that rate is 1, and the theorem is the exact sqrt(T)/z of a record replaced. A public rate Q takes the
    place of B/D.

    Source: DPZV paper (001), theorem 5.1.
    """
    parts = asked.parts
    whole = all(part.rate == 1.0 for part in parts)
    if any(part.channel != "scalar" for part in parts):
        return Refusal("theorem 5.1 speaks of the scalar channel alone")
    if whole and (any(asked.certain) or any(part.server_noise_multiplier is not None for part in parts)):
        return Refusal("theorem 5.1 counts the scalars of batches, not what the server's own updates release")

    mus = [paper_mu(part) for part in parts]
    mu = math.hypot(*mus)
    own_gaps: tuple[str, ...] = ()
    why = "every batch holds all records: no sampling to count on"
    if not whole:
        why = "takes mu down by the sampling rate, which needs secret ids and holds only approximately"
        own_gaps = ("known-ids",) if asked.knows_ids else ("clt",)
    return Number(
        epsilon=exactly(epsilon_from_mu(mu, asked.delta)),
        mu=mu,
        note=f"theorem 5.1 as claimed; {why}",
        own_gaps=own_gaps,
        shown=list(zip(parts, mus, strict=True)),
    )


def log_clt_mu(rate: float, rounds: int, z: float, *, uniform: bool) -> float:
    """Return ln mu of the central-limit approximation, finite wherever ln mu is (e^(1/z^2) overflows at z < 0.04).

    Poisson: mu = r sqrt(T (e^(1/z^2) - 1)). Uniform, without replacement: mu = sqrt(2) r sqrt(T (e^(1/z^2)
    Phi(3/(2z)) + 3 Phi(-1/(2z)) - 2)). Bu, Dong, Long and Su (2020), theorems 4 and 5; Dong, Roth and Su (2022),
    corollary 4 for C_p.
    """
    power = 1.0 / z**2 if z > 1e-100 else math.inf
    if power < 1.0:
        log_excess = math.log(math.expm1(power))
    else:
        log_excess = power + math.log1p(-math.exp(-power))
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


@accountant("central-limit approximation for Poisson and uniform sampling; not a bound")
def gdp_clt(asked: AccountantQuestion) -> Number | Refusal:
    """Central-limit approximation of many sampled rounds. Never sound.

    The Poisson form is for the relations whose pair is that of add-remove (`add-remove`, `zero-out`), the uniform form
    for the replace relations under `uniform` sampling.

    Source: Bu, Dong, Long and Su (2020), Deep learning with Gaussian differential privacy.
    """
    uniform = asked.neighbours in REPLACES
    wanted = "uniform" if uniform else "poisson"
    for part in asked.parts:
        if part.sampler != wanted or part.channel != "scalar" or part.participation_cap is not None:
            return Refusal("the forms are for Poisson sampling, add-remove or zero-out, and uniform sampling, replace")
    shown = []
    for part in asked.parts:
        z = 1.0 / part.participation_mu(asked.neighbours)
        log_mu = log_clt_mu(part.rate, part.rounds, z, uniform=uniform)
        if log_mu > math.log(LARGEST_MU):
            return Refusal("vacuous (> 100): at so little noise the approximation has no finite value")
        shown.append((part, z, math.exp(log_mu)))
    mu = math.hypot(*(mu for _, _, mu in shown), *asked.certain)
    return Number(
        epsilon=exactly(epsilon_from_mu(mu, asked.delta)),
        mu=mu,
        note="central-limit approximation; an approximation, not a bound",
        own_gaps=("known-ids", "clt") if asked.knows_ids else ("clt",),
        shown=shown,
    )


@accountant("exact Gaussian DP for known batch ids, fixed or binomial participations")
def gdp_exact(asked: AccountantQuestion) -> Number | Refusal:
    """Exact for an adversary who knows the batch ids: mu = sqrt(n)/z, or its mixture over n ~ Binomial(T, r).

    Sound with secret ids too (hiding the ids is post-processing). A malicious client takes part as often as the cap
    allows. Other releases, the server's noised updates among them, add to mu^2.

    Source: Dong, Roth and Su (2022), corollary 1, averaged over the number of participations.
    """
    if asked.neighbours == "add-remove":
        return Refusal("known ids show whether the record is there; use prv")
    if asked.refusal:
        return asked.refusal
    counted = _participations(asked)
    certain_mu = math.hypot(*asked.certain)
    note = " and ".join(_counted(part) for part in counted)
    fixed = [math.sqrt(part.fixed) * part.mu for part in counted if part.fixed is not None]
    return Number(
        epsilon=participations_epsilon(counted, delta=asked.delta, certain_mu=certain_mu),
        mu=math.hypot(certain_mu, *fixed) if len(fixed) == len(counted) else None,
        note=note,
    )


def _counted(part: Participation) -> str:
    if part.fixed is not None:
        return f"{part.fixed} participations of a record"
    limit = "" if part.cap is None else f", at most {part.cap}"
    return f"Binomial({part.rounds}, {part.rate:.6g}) participations{limit}"


_ORDERS = np.geomspace(1e-6, 1e8, 4000)


class _Renyi(NamedTuple):
    """An `epsilon` from ln E[e^(s L)] = `log_moment` at order s > 0; without s: the largest loss there is.

    Attributes:
        kind: Direction of sampling with secret ids; None: known ids.
    """

    epsilon: float
    order: float | None
    log_moment: float
    kind: PairKind | None


def _sampled_renyi(kind: PairKind, view: SampledView, delta: float) -> _Renyi:
    """Return one direction's answer, infinite at very low noise."""
    moments = sampled_moments(view.directions[kind], certain_mu=math.hypot(*view.certain), delta=delta)
    epsilon = math.inf if moments is None else moments.epsilon(delta)
    if moments is None or not epsilon < moments.ceiling:
        return _Renyi(epsilon, None, math.inf, kind)
    _, order = epsilon_of_moments(ORDERS, moments.up, delta - moments.outside)
    return _Renyi(epsilon, order, float(moments.log_moment(np.array([order]))[0]), kind)


def _known_moments(asked: AccountantQuestion) -> Floats:
    pair = _ORDERS * (1.0 + _ORDERS) / 2.0
    total = pair * math.hypot(*asked.certain) ** 2
    with np.errstate(over="ignore"):
        for part in asked.counted:
            cost = pair * part.mu**2
            if part.fixed is not None:
                total = total + part.fixed * cost
                continue
            sampled = part.rounds * log_mix(part.rate, cost)
            if part.cap is not None:
                sampled = np.minimum(sampled, part.cap * cost)
            total = total + sampled
    return np.asarray(total)


@accountant("Renyi DP, known batch ids or sampling with secret ones; sound, looser")
def rdp(asked: AccountantQuestion) -> Number | Refusal:
    """Renyi DP: sound, and looser than gdp-exact and prv; the smaller of its known-ids and its sampled form.

    Known ids: ln E[e^(s L)] = n s (s + 1) mu^2 / 2, averaged over random n. Sampling with secret ids: moments
    of the dominating pair by quadrature, both directions.

    Source: Mironov (2017); conversion by Canonne, Kamath and Steinke (2020), proposition 12.
    """
    if asked.refusal:
        return asked.refusal
    forms = []
    if asked.neighbours != "add-remove":
        moments = _known_moments(asked)
        epsilon, order = epsilon_of_moments(_ORDERS, moments, asked.delta)
        forms.append(_Renyi(epsilon, order, float(moments[np.searchsorted(_ORDERS, order)]), None))
    view = asked.amplified
    if isinstance(view, SampledView) and (view.rounds or not forms):
        answers = [_sampled_renyi(kind, view, asked.delta) for kind in view.directions]
        forms.append(max(answers, key=lambda answer: answer.epsilon))
    found = min(forms, key=lambda answer: answer.epsilon)
    if not found.epsilon < LARGEST_EPSILON:
        return Refusal("vacuous (> 100): at so little noise no order gives a finite value")

    how = "sampling with secret ids"
    if found.kind is None and found.order is not None:
        how = f"known ids, order {1.0 + found.order:.4g}"
    return Number(epsilon=exactly(found.epsilon), note=f"Renyi DP, {how}", shown=found)


@dataclass(frozen=True)
class Steps:
    """`count` mechanisms, each (`epsilon`, `delta`): Gaussians of `mu`, each sampled at `rate` (1: not sampled)."""

    mu: float
    count: int
    delta: float
    rate: float = 1.0

    @cached_property
    def epsilon(self) -> float:
        """Return ln(1 + r (e^epsilon_0 - 1)), with epsilon_0 that of the Gaussian at delta / r."""
        if self.rate == 1.0:
            return epsilon_from_mu(self.mu, self.delta)
        plain = epsilon_from_mu(self.mu, min(self.delta / self.rate, 0.5))
        if plain < 700.0:
            return math.log1p(self.rate * math.expm1(plain))
        return plain + math.log(self.rate)


def _known_steps(asked: AccountantQuestion) -> list[Steps]:
    """Return the steps at delta/2 in all; random counts are cut where they are exceeded with delta/4 in all."""
    random = sum(part.fixed is None for part in asked.counted)
    mus = []
    for part in asked.counted:
        count = part.fixed
        if count is None:
            count = _most(part, asked.delta / (4.0 * random))
        if count > 0:
            mus.append((part.mu, count))
    mus += [(mu, 1) for mu in asked.certain if mu > 0.0]
    share = asked.delta / (4.0 if random else 2.0) / max(1, sum(count for _, count in mus))
    return [Steps(mu, count, share) for mu, count in mus]


def _most(part: Participation, tail: float) -> int:
    """Return a count that is exceeded with probability at most `tail`."""
    counts = binomial_counts(part.rounds, part.rate, tail=tail / 2.0, cap=part.cap)
    above = np.cumsum(counts.weights[::-1])[::-1] + counts.above
    return counts.low + int(np.searchsorted(-above[1:], -tail))


def _sampled_steps(view: SampledView, delta: float) -> list[Steps]:
    """Return the steps at delta/2 in all; a certain Gaussian counts as one, unsampled."""
    certain = [mu for mu in view.certain if mu > 0.0]
    share = delta / 2.0 / (sum(count for _, count in view.rounds) + len(certain))
    steps = [Steps(mu, 1, share) for mu in certain]
    return steps + [Steps(1.0 / pair.noise, count, share, pair.rate) for pair, count in view.rounds]


def _composed(steps: Sequence[Steps], delta: float) -> float:
    if any(step.epsilon > 300.0 for step in steps):
        return math.inf
    squares = sum(step.count * step.epsilon**2 for step in steps)
    drift = sum(step.count * step.epsilon * math.expm1(step.epsilon) for step in steps)
    return math.sqrt(2.0 * math.log(2.0 / delta) * squares) + drift


@accountant("advanced composition of exact Gaussian rounds; sound, very loose")
def advanced_composition(asked: AccountantQuestion) -> Number | Refusal:
    """Advanced composition of each round's exact Gaussian (epsilon_0, delta_0): sound, and very loose.

    epsilon = sqrt(2 ln(1/delta') sum epsilon_0^2) + sum epsilon_0 (e^epsilon_0 - 1) at delta' + sum delta_0, with
    delta' = delta/2 and the rest shared equally. Dwork and Roth (2014), theorem 3.20. Under Poisson sampling with
    secret ids, add-remove and zero-out: epsilon_0 becomes ln(1 + r (e^epsilon_0 - 1)), delta_0 r delta_0 (Balle, Barthe
    and Gaboardi, 2018, theorem 8).

    Source: Dwork and Roth (2014), theorem 3.20; Balle, Barthe and Gaboardi (2018), theorem 8.
    """
    if asked.refusal:
        return asked.refusal
    forms = []
    if asked.neighbours != "add-remove":
        forms.append((_known_steps(asked), "known ids"))
    view = asked.amplified
    if isinstance(view, SampledView) and "remove" in view.directions and (view.rounds or not forms):
        forms.append((_sampled_steps(view, asked.delta), "amplified by Poisson sampling"))
    found = [(_composed(steps, asked.delta), steps, how) for steps, how in forms]
    epsilon, steps, how = min(found, key=lambda form: form[0])
    if not epsilon < LARGEST_EPSILON:
        return Refusal("vacuous (> 100): at so little noise advanced composition has no finite value")
    return Number(epsilon=exactly(epsilon), note=f"advanced composition, {how}", shown=steps)


def composed_epsilon(epsilon: float, rounds: int, slack: float) -> float:
    """Return sqrt(2 T ln(1/delta')) epsilon + T epsilon (e^epsilon - 1), delta' = `slack`: as theorem 4.1 composes.

    Infinite past the floats.
    """
    drift = rounds * epsilon * math.expm1(epsilon) if epsilon < 300.0 else math.inf
    return math.sqrt(-2.0 * rounds * math.log(slack)) * epsilon + drift


def czofo_epsilon(*, zeta: float, sigma: float, records: float, delta: float) -> float:
    """Return the epsilon of one round at `delta` as theorem 4.1 of paper 003 claims it.

    2 zeta sqrt(2 ln(1.25/delta)) / (N sigma_s), where `zeta` is the largest norm of a record's partial gradient, and
    `sigma` the estimate's standard deviation sigma_s, which its premise takes for noise.
    """
    return 2.0 * zeta * math.sqrt(2.0 * (math.log(1.25) - math.log(delta))) / (records * sigma)


@accountant("theorem 4.1 of the CZOFO paper on gradient estimates hidden by the direction alone; not sound")
def czofo_theorem(asked: AccountantQuestion) -> Number | Refusal:
    """Theorem 4.1 of paper 003 on CZOFO's gradient estimates, at delta = T (delta/(2T)) + delta/2. Never sound.

    The "noise" is the direction, which every client knows; for others the estimate is Gaussian only in the limit of
    many directions.

    Source: CZOFO paper (003), theorem 4.1.
    """
    part = asked.parts[0]
    if len(asked.parts) != 1 or part.channel != "zo-gradient":
        return Refusal("theorem 4.1 of CZOFO speaks of its gradient estimates alone")
    each = asked.delta / (2.0 * part.rounds)
    epsilon = czofo_epsilon(zeta=part.clip, sigma=part.sigma, records=part.nominal_records, delta=each)
    composed = composed_epsilon(epsilon, part.rounds, asked.delta / 2.0)
    if not composed < LARGEST_EPSILON:
        return Refusal("vacuous (> 100): the formula has no finite value")
    return Number(
        epsilon=exactly(composed),
        note=f"theorem 4.1, epsilon {epsilon:.4g} a round; takes the variance of the direction for noise, and the "
        "estimate for Gaussian",
        own_gaps=("clt",),
        shown=epsilon,
    )


ACCOUNTANTS: dict[str, Accountant] = {
    one.name: one for one in (gdp_paper, gdp_clt, gdp_exact, prv, rdp, advanced_composition, czofo_theorem)
}


def upper_bounds(
    release: AnyRelease,
    *,
    delta: float,
    adversaries: Iterable[AdversaryName] = ADVERSARY_NAMES,
    neighbours: Iterable[NeighbourRelation] = NEIGHBOURS,
    accountants: Iterable[str] = tuple(ACCOUNTANTS),
    fast: bool = False,
    enough: float | None = None,
) -> list[UpperBound]:
    """Return every accountant's answer for every adversary, for every relation (outermost).

    `fast`: certified bounds alone, nothing is composed. `enough`: a claimed epsilon; nothing is composed where a sound
    bound already lies below it, a certified lower one above, or a gap leaves the number no say. Raises `InputError` for
    an unknown accountant, `AuditError` where a sound bound lies below what another accountant certifies from below.
    """
    names = check_names("accountant", accountants, ACCOUNTANTS)
    found = []
    for relation, adversary in product(neighbours, adversaries):
        asked = AccountantQuestion(release, adversary, relation, delta, fast=fast, enough=enough)
        row: dict[str, UpperBound] = {}
        for name in sorted(names, key="prv".__eq__):  # the slow one last: it may have nothing left to decide
            if name == "prv" and enough is not None:
                never_sound = bool(asked.gaps or asked.own_gaps)
                met = any(bound.sound and bound.upper <= enough for bound in row.values())
                asked = replace(asked, fast=fast or never_sound or met)
            row[name] = ACCOUNTANTS[name].bound(asked)
        _check_agreement(asked, row)
        found += [row[name] for name in names]
    return found


def certified_lower(asked: AccountantQuestion, bound: UpperBound) -> float:
    """Return what `bound`, an answer to `asked`, certifies from below; 0 where it is from above alone.

    prv composes the pair that sampling with secret ids releases at the worst. gdp-exact, and prv where no sampling is
    counted, are exact where the adversary knows the ids, or every record is in every batch.
    """
    if not bound.sound or bound.epsilon is None:
        return 0.0
    exact = bound.accountant == "prv" and isinstance(asked.sampled, SampledView)
    if not exact and bound.accountant in ("gdp-exact", "prv"):
        known = [cell.treatment == "known-ids" for cell in asked.cells]
        exact = all(shown or part.rate == 1.0 for part, shown in zip(asked.parts, known, strict=True))
    return bound.epsilon.lower if exact else 0.0


def _check_agreement(asked: AccountantQuestion, row: Mapping[str, UpperBound]) -> None:
    """Raise `AuditError` where a sound bound of `row` lies below what another certifies from below."""
    certified = [(certified_lower(asked, bound), name) for name, bound in row.items()]
    lower, source = max(certified, default=(0.0, ""))
    allowed = lower * (1.0 - AGREE) - AGREE
    for name, answer in row.items():
        if answer.sound and answer.upper < allowed:
            raise AuditError(
                f"accountants disagree: {name} says epsilon <= {answer.upper:.6g}, {source} >= {lower:.6g} "
                f"({answer.adversary}, {answer.neighbours}, delta = {answer.delta:.3g})"
            )


def tightest_sound(bounds: Iterable[UpperBound]) -> UpperBound | None:
    """Return the sound bound with the smallest upper epsilon, None where none is sound.

    The bounds must speak of one adversary, relation and delta: bounds on different things do not compare.
    """
    candidates = list(bounds)
    about = {(bound.adversary, bound.neighbours, bound.delta) for bound in candidates}
    if len(about) > 1:
        raise ValueError("tightest_sound compares bounds for one adversary, neighbour relation and delta only")
    sound = (bound for bound in candidates if bound.sound)
    return min(sound, key=lambda bound: bound.upper, default=None)
