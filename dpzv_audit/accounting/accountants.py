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
from .bounds import LARGEST_EPSILON, NO_NOISE, Accountant, AccountantQuery, Number, Refusal, SampledView, accountant
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
from .release import REPLACES, AnyRelease, Release
from .sampled import ORDERS, PairKind, epsilon_of_moments, log_mix


@accountant("numerical composition, sampled with secret batch ids or unsampled, with certified error")
def prv(query: AccountantQuery) -> Number | Refusal:
    """PRV accounting of sampling with secret ids: both directions of add-remove, the replace or the fixed-size pair.

    `add-remove` and `zero-out` compose both directions and take the larger; the other pairs are symmetric. Where
    sampling hides nothing, the unsampled Gaussian rounds are composed: that is to agree with gdp-exact.

    Source: Gopi, Lee and Wutschitz (2021), theorem 5.5, on the dominating pairs of Zhu, Dong and Wang (2022).
    """
    view = query.sampled
    if isinstance(view, Refusal):
        return _unsampled(query, view)
    epsilon, note = prv_directions(
        view.directions,
        certain_mu=math.hypot(*view.certain),
        delta=query.delta,
        fast=query.fast,
        enough=query.enough,
    )
    return Number(epsilon=epsilon, note=note, own_gaps=query.own_gaps)


def _unsampled(query: AccountantQuery, unamplified: Refusal) -> Number | Refusal:
    if unamplified is NO_NOISE or query.neighbours == "add-remove":
        return unamplified
    if any(
        participation.fixed is None and participation.cap is not None and participation.cap < participation.rounds
        for participation in query.counted
    ):
        return Refusal("a cap makes each round depend on those before it: gdp-exact averages over the counts")
    epsilon, note = prv_known(
        _participations(query),
        certain_mu=math.hypot(*query.certain),
        delta=query.delta,
        fast=query.fast or query.enough is not None,
    )
    return Number(epsilon=epsilon, note=note, shown="known ids")


def _participations(query: AccountantQuery) -> tuple[Participation, ...]:
    """Return the participations that are counted; `InputError` where the square of what one costs is no float."""
    mus = [participation.mu for participation in query.counted]
    if min(mus) == 0.0 or max(mus) > 1e50:
        raise InputError("sigma is too far from a record's contribution; use a nearer one, whose square is a float")
    return query.counted


def paper_mu(release: Release) -> float:
    """Return mu = 2 C sqrt(T) / (D sigma), what theorem 5.1 of paper 001 claims of the scalar channel.

    Its proof has the sampling rate r = B/D: with a public rate Q in its place mu = 2 C Q sqrt(T) / (B sigma).
    """
    scalars = release.rounds * release.directions
    return 2.0 * release.clip * math.sqrt(scalars) / (release.nominal_records * release.sigma)


@accountant("theorem 5.1 of the DPZV paper as claimed: mu = 2C sqrt(T)/(D sigma); not sound unless B = D")
def gdp_paper(query: AccountantQuery) -> Number | Refusal:
    """Theorem 5.1 of paper 001 as claimed: mu = 2 C sqrt(T) / (D sigma). Not sound unless batches hold all records.

    Its proof scales the noise by the sampling rate (theorem C.2), which no adversary who knows the batch ids
    grants, and which for secret ids is the central-limit approximation with z large. Where every batch holds all
    records that rate is 1, and the theorem is the exact sqrt(T)/z of a record replaced. A public rate Q takes the
    place of B/D.

    Source: DPZV paper (001), theorem 5.1.
    """
    parts = query.parts
    whole = all(release.rate == 1.0 for release in parts)
    if any(release.channel != "scalar" for release in parts):
        return Refusal("theorem 5.1 speaks of the scalar channel alone")
    if whole and (any(query.certain) or any(release.server_noise_multiplier is not None for release in parts)):
        return Refusal("theorem 5.1 counts the scalars of batches, not what the server's own updates release")

    mus = [paper_mu(release) for release in parts]
    mu = math.hypot(*mus)
    own_gaps: tuple[str, ...] = ()
    why = "every batch holds all records: no sampling to count on"
    if not whole:
        why = "takes mu down by the sampling rate, which needs secret ids and holds only approximately"
        own_gaps = ("known-ids",) if query.knows_ids else ("clt",)
    return Number(
        epsilon=exactly(epsilon_from_mu(mu, query.delta)),
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
def gdp_clt(query: AccountantQuery) -> Number | Refusal:
    """Central-limit approximation of many sampled rounds. Never sound.

    The Poisson form is for the relations whose pair is that of add-remove (`add-remove`, `zero-out`), the uniform form
    for the replace relations under `uniform` sampling.

    Source: Bu, Dong, Long and Su (2020), Deep learning with Gaussian differential privacy.
    """
    uniform = query.neighbours in REPLACES
    wanted = "uniform" if uniform else "poisson"
    for release in query.parts:
        if release.sampler != wanted or release.channel != "scalar" or release.participation_cap is not None:
            return Refusal("the forms are for Poisson sampling, add-remove or zero-out, and uniform sampling, replace")
    shown = []
    for release in query.parts:
        z = 1.0 / release.participation_mu(query.neighbours)
        log_mu = log_clt_mu(release.rate, release.rounds, z, uniform=uniform)
        if log_mu > math.log(LARGEST_MU):
            return Refusal("vacuous (> 100): at so little noise the approximation has no finite value")
        shown.append((release, z, math.exp(log_mu)))
    mu = math.hypot(*(mu for _, _, mu in shown), *query.certain)
    return Number(
        epsilon=exactly(epsilon_from_mu(mu, query.delta)),
        mu=mu,
        note="central-limit approximation; an approximation, not a bound",
        own_gaps=("known-ids", "clt") if query.knows_ids else ("clt",),
        shown=shown,
    )


@accountant("exact Gaussian DP for known batch ids, fixed or binomial participations")
def gdp_exact(query: AccountantQuery) -> Number | Refusal:
    """Exact for an adversary who knows the batch ids: mu = sqrt(n)/z, or its mixture over n ~ Binomial(T, r).

    Sound with secret ids too (hiding the ids is post-processing). A malicious client takes part as often as the cap
    allows. Other releases, the server's noised updates among them, add to mu^2.

    Source: Dong, Roth and Su (2022), corollary 1, averaged over the number of participations.
    """
    if query.neighbours == "add-remove":
        return Refusal("known ids show whether the record is there; use prv")
    if query.refusal:
        return query.refusal
    counted = _participations(query)
    certain_mu = math.hypot(*query.certain)
    note = " and ".join(_counted(participation) for participation in counted)
    fixed = [
        math.sqrt(participation.fixed) * participation.mu
        for participation in counted
        if participation.fixed is not None
    ]
    return Number(
        epsilon=participations_epsilon(counted, delta=query.delta, certain_mu=certain_mu),
        mu=math.hypot(certain_mu, *fixed) if len(fixed) == len(counted) else None,
        note=note,
    )


def _counted(participation: Participation) -> str:
    if participation.fixed is not None:
        return f"{participation.fixed} participations of a record"
    limit = "" if participation.cap is None else f", at most {participation.cap}"
    return f"Binomial({participation.rounds}, {participation.rate:.6g}) participations{limit}"


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


def _known_moments(query: AccountantQuery) -> Floats:
    pair = _ORDERS * (1.0 + _ORDERS) / 2.0
    total = pair * math.hypot(*query.certain) ** 2
    with np.errstate(over="ignore"):
        for participation in query.counted:
            cost = pair * participation.mu**2
            if participation.fixed is not None:
                total = total + participation.fixed * cost
                continue
            sampled = participation.rounds * log_mix(participation.rate, cost)
            if participation.cap is not None:
                sampled = np.minimum(sampled, participation.cap * cost)
            total = total + sampled
    return np.asarray(total)


@accountant("Renyi DP, known batch ids or sampling with secret ones; sound, looser")
def rdp(query: AccountantQuery) -> Number | Refusal:
    """Renyi DP: sound, and looser than gdp-exact and prv; the smaller of its known-ids and its sampled form.

    Known ids: ln E[e^(s L)] = n s (s + 1) mu^2 / 2, averaged over random n. Sampling with secret ids: moments
    of the dominating pair by quadrature, both directions.

    Source: Mironov (2017); conversion by Canonne, Kamath and Steinke (2020), proposition 12.
    """
    if query.refusal:
        return query.refusal
    forms = []
    if query.neighbours != "add-remove":
        moments = _known_moments(query)
        epsilon, order = epsilon_of_moments(_ORDERS, moments, query.delta)
        forms.append(_Renyi(epsilon, order, float(moments[np.searchsorted(_ORDERS, order)]), None))
    view = query.amplified
    if isinstance(view, SampledView) and (view.rounds or not forms):
        answers = [_sampled_renyi(kind, view, query.delta) for kind in view.directions]
        forms.append(max(answers, key=lambda answer: answer.epsilon))
    best = min(forms, key=lambda answer: answer.epsilon)
    if not best.epsilon < LARGEST_EPSILON:
        return Refusal("vacuous (> 100): at so little noise no order gives a finite value")

    how = "sampling with secret ids"
    if best.kind is None and best.order is not None:
        how = f"known ids, order {1.0 + best.order:.4g}"
    return Number(epsilon=exactly(best.epsilon), note=f"Renyi DP, {how}", shown=best)


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


def _known_steps(query: AccountantQuery) -> list[Steps]:
    """Return the steps at delta/2 in all; random counts are cut where they are exceeded with delta/4 in all."""
    random = sum(participation.fixed is None for participation in query.counted)
    mus = []
    for participation in query.counted:
        count = participation.fixed
        if count is None:
            count = _most(participation, query.delta / (4.0 * random))
        if count > 0:
            mus.append((participation.mu, count))
    mus += [(mu, 1) for mu in query.certain if mu > 0.0]
    share = query.delta / (4.0 if random else 2.0) / max(1, sum(count for _, count in mus))
    return [Steps(mu, count, share) for mu, count in mus]


def _most(participation: Participation, tail: float) -> int:
    """Return a count that is exceeded with probability at most `tail`."""
    counts = binomial_counts(participation.rounds, participation.rate, tail=tail / 2.0, cap=participation.cap)
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
def advanced_composition(query: AccountantQuery) -> Number | Refusal:
    """Advanced composition of each round's exact Gaussian (epsilon_0, delta_0): sound, and very loose.

    epsilon = sqrt(2 ln(1/delta') sum epsilon_0^2) + sum epsilon_0 (e^epsilon_0 - 1) at delta' + sum delta_0, with
    delta' = delta/2 and the rest shared equally. Dwork and Roth (2014), theorem 3.20. Under Poisson sampling with
    secret ids, add-remove and zero-out: epsilon_0 becomes ln(1 + r (e^epsilon_0 - 1)), delta_0 r delta_0 (Balle, Barthe
    and Gaboardi, 2018, theorem 8).

    Source: Dwork and Roth (2014), theorem 3.20; Balle, Barthe and Gaboardi (2018), theorem 8.
    """
    if query.refusal:
        return query.refusal
    forms = []
    if query.neighbours != "add-remove":
        forms.append((_known_steps(query), "known ids"))
    view = query.amplified
    if isinstance(view, SampledView) and "remove" in view.directions and (view.rounds or not forms):
        forms.append((_sampled_steps(view, query.delta), "amplified by Poisson sampling"))
    composed = [(_composed(steps, query.delta), steps, how) for steps, how in forms]
    epsilon, steps, how = min(composed, key=lambda form: form[0])
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
def czofo_theorem(query: AccountantQuery) -> Number | Refusal:
    """Theorem 4.1 of paper 003 on CZOFO's gradient estimates, at delta = T (delta/(2T)) + delta/2. Never sound.

    The "noise" is the direction, which every client knows; for others the estimate is Gaussian only in the limit of
    many directions.

    Source: CZOFO paper (003), theorem 4.1.
    """
    release = query.parts[0]
    if len(query.parts) != 1 or release.channel != "zo-gradient":
        return Refusal("theorem 4.1 of CZOFO speaks of its gradient estimates alone")
    each = query.delta / (2.0 * release.rounds)
    epsilon = czofo_epsilon(zeta=release.clip, sigma=release.sigma, records=release.nominal_records, delta=each)
    composed = composed_epsilon(epsilon, release.rounds, query.delta / 2.0)
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
    adversaries: Iterable[AdversaryName] = ("client",),
    neighbours: Iterable[NeighbourRelation] = ("replace-label",),
    accountants: Iterable[str] = tuple(ACCOUNTANTS),
    fast: bool = False,
    enough: float | None = None,
) -> list[UpperBound]:
    """Return every accountant's answer for every adversary, for every relation (outermost).

    Example: `tightest_sound(upper_bounds(release, delta=1e-5))` is the best sound bound against one curious client when
    one record has another label.

    Args:
        release: What the noisy channel releases, or a `Composition` of several.
        delta: Delta of every bound, strictly between 0 and 1.
        adversaries: Against whom; by default one honest-but-curious client.
        neighbours: How neighbouring data sets differ; by default one record has another label.
        accountants: Names of accountants; by default all.
        fast: Return certified bounds alone; nothing is composed.
        enough: A claimed epsilon. Nothing is composed where a sound bound already lies below it, a certified lower one
            above, or a gap leaves the number no say.

    Raises:
        InputError: An accountant or delta is wrong.
        AuditError: A sound bound lies below what another accountant certifies from below.
    """
    names = check_names("accountant", accountants, ACCOUNTANTS, "accountants")
    bounds = []
    for relation, adversary in product(neighbours, adversaries):
        query = AccountantQuery(release, adversary, relation, delta, fast=fast, enough=enough)
        row: dict[str, UpperBound] = {}
        for name in sorted(names, key="prv".__eq__):  # the slow one last: it may have nothing left to decide
            if name == "prv" and enough is not None:
                never_sound = bool(query.gaps or query.own_gaps)
                met = any(bound.sound and bound.upper <= enough for bound in row.values())
                query = replace(query, fast=fast or never_sound or met)
            row[name] = ACCOUNTANTS[name].bound(query)
        _check_agreement(query, row)
        bounds += [row[name] for name in names]
    return bounds


def certified_lower(query: AccountantQuery, bound: UpperBound) -> float:
    """Return what `bound`, an answer to `query`, certifies from below; 0 where it is from above alone.

    prv composes the pair that sampling with secret ids releases at the worst. gdp-exact, and prv where no sampling is
    counted, are exact where the adversary knows the ids, or every record is in every batch.
    """
    if not bound.sound or bound.epsilon is None or query.selection is not None:
        return 0.0
    exact = bound.accountant == "prv" and isinstance(query.sampled, SampledView)
    if not exact and bound.accountant in ("gdp-exact", "prv"):
        known = [cell.treatment == "known-ids" for cell in query.cells]
        exact = all(shown or release.rate == 1.0 for release, shown in zip(query.parts, known, strict=True))
    return bound.epsilon.lower if exact else 0.0


def _check_agreement(query: AccountantQuery, row: Mapping[str, UpperBound]) -> None:
    """Raise `AuditError` where a sound bound of `row` lies below what another certifies from below."""
    certified = [(certified_lower(query, bound), name) for name, bound in row.items()]
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

    Example:
        >>> release = Release(batch_size=64, dataset_size=1408, rounds=176, clip=10.0, sigma=0.7, sampler="shuffled",
        ...                   server_update="none", clients=4, participations=8)
        >>> round(tightest_sound(upper_bounds(release, delta=1e-5)).upper, 2)
        5.75

    Args:
        bounds: Answers of accountants about one adversary, neighbour relation and delta, as `upper_bounds` gives them
            for its defaults.

    Raises:
        ValueError: The bounds are about several adversaries, relations or deltas, which do not compare.
    """
    candidates = list(bounds)
    about = {(bound.adversary, bound.neighbours, bound.delta) for bound in candidates}
    if len(about) > 1:
        raise ValueError(
            "tightest_sound compares bounds for one adversary, neighbour relation and delta only; "
            "give upper_bounds one of each, such as adversaries=['client'], neighbours=['replace-label']"
        )
    sound = (bound for bound in candidates if bound.sound)
    return min(sound, key=lambda bound: bound.upper, default=None)
