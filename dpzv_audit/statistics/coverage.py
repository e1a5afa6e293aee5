"""Coverage and power of the estimators, measured on mechanisms whose epsilon is known.

Coverage: in how many audits a bound exceeds the truth, beside the largest count that estimators which are exactly
valid would exceed in any cell of the table with probability 1e-3 (Bonferroni over its cells). Power: the mean bound.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc

from ..base.errors import check_count, check_names, check_probability
from ..base.seeds import Purpose, stream
from .binomial import Floats
from .estimators import ESTIMATORS, audit_scores
from .families import GAUSSIAN, LAPLACE, PURE, CurveFamily, epsilon_delta_family, sampled_epsilons, sampled_family

Draw = Callable[[np.random.Generator, int], tuple[Floats, Floats]]

FALSE_ALARM = 1e-3
"""Chance that estimators which are valid fail in any cell of one table."""


@dataclass(frozen=True, kw_only=True)
class KnownMechanism:
    """A mechanism to audit: `draw` gives (n,) scores of both worlds, `epsilon` the truth at delta.

    `family` is that of its trade-off curve; Gaussian scores have one variance.
    """

    name: str
    draw: Draw
    epsilon: Callable[[float], float]
    family: CurveFamily


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """One cell: `exceeded` of `audits` bounds above `truth`; valid: at most `allowed`, None where none is claimed."""

    mechanism: str
    estimator: str
    truth: float
    audits: int
    n: int
    exceeded: int
    allowed: int | None
    mean: float
    standard_error: float

    @property
    def passed(self) -> bool:
        """Whether the count is one that a valid estimator may have."""
        return self.allowed is None or self.exceeded <= self.allowed


def _shifted(name: str, noise: str, family: CurveFamily, shift: float) -> KnownMechanism:
    """Return `noise`, which a generator's method draws, of scale 1 around `shift` against the same around 0."""
    return KnownMechanism(
        name=f"{name}={shift:g}",
        draw=lambda rng, n: (getattr(rng, noise)(shift, 1.0, n), getattr(rng, noise)(0.0, 1.0, n)),
        epsilon=lambda delta: family.epsilon(shift, delta),
        family=family,
    )


def gaussian_mechanism(mu: float) -> KnownMechanism:
    """Return N(mu, 1) against N(0, 1), mu > 0."""
    return _shifted("gaussian mu", "normal", GAUSSIAN, mu)


def laplace_mechanism(epsilon: float) -> KnownMechanism:
    """Return Laplace noise of scale 1 on a shift of `epsilon` > 0."""
    return _shifted("laplace epsilon", "laplace", LAPLACE, epsilon)


def response_mechanism(epsilon: float) -> KnownMechanism:
    """Return randomised response at `epsilon` > 0: scores 0 and 1, nothing but ties."""
    truthful = 1.0 / (1.0 + math.exp(-epsilon))
    return KnownMechanism(
        name=f"response epsilon={epsilon:g}",
        draw=lambda rng, n: ((rng.random(n) < truthful).astype(float), (rng.random(n) >= truthful).astype(float)),
        epsilon=lambda delta: PURE.epsilon(epsilon, delta),
        family=PURE,
    )


def four_point_mechanism(epsilon: float, delta: float) -> KnownMechanism:
    """Return the tight (`epsilon`, `delta`) mechanism: with chance `delta` it tells the world, else it is a response.

    Scores are -1 and 2 where it tells, 0 and 1 else (Kairouz, Oh and Viswanath, ICML 2015, section 3).
    """
    response = response_mechanism(epsilon)

    def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        inside, outside = response.draw(rng, n)
        return np.where(rng.random(n) < delta, 2.0, inside), np.where(rng.random(n) < delta, -1.0, outside)

    def truth(at: float) -> float:
        # Below the delta with which it tells the world no epsilon holds.
        if at >= delta:
            return PURE.epsilon(epsilon, (at - delta) / (1.0 - delta))
        return math.inf

    return KnownMechanism(
        name=f"four points epsilon={epsilon:g} delta={delta:g}",
        draw=draw,
        epsilon=truth,
        family=epsilon_delta_family(delta),
    )


def sampled_mechanism(*, rate: float, noise: float, rounds: int) -> KnownMechanism:
    """Return Poisson-sampled Gaussian rounds, record present against absent, scored by their exact privacy loss."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        from ..accounting.sampled import SampledGaussian

        pair = SampledGaussian(kind="remove", rate=rate, noise=noise)
        inside = np.zeros(n)
        outside = np.zeros(n)
        for _ in range(rounds):
            inside += pair.loss((rng.random(n) < rate) + noise * rng.standard_normal(n))
            outside += pair.loss(noise * rng.standard_normal(n))
        return inside, outside

    return KnownMechanism(
        name=f"sampled r={rate:g} z={noise:g} T={rounds}",
        draw=draw,
        epsilon=lambda delta: max(e.estimate for e in sampled_epsilons("remove", rate, noise, rounds, delta)),
        family=sampled_family(rate=rate, rounds=rounds),
    )


MECHANISMS = (
    *map(gaussian_mechanism, (0.4, 1.0, 3.0)),
    laplace_mechanism(1.0),
    response_mechanism(1.0),
    sampled_mechanism(rate=0.1, noise=1.0, rounds=10),
)


def applies(estimator: str, mechanism: KnownMechanism) -> bool:
    """Return whether the bound of `estimator` is about this mechanism: it is general, or the curve is the right one."""
    if ESTIMATORS[estimator].claim_kind == "epsilon-delta" or estimator == "curve":
        return True
    if estimator == "one-run-fdp":
        return mechanism.family.blow_up is not None
    return mechanism.family is GAUSSIAN


def most_exceedances(audits: int, chance: float, false_alarm: float) -> int:
    """Return the least count that Binomial(`audits`, `chance`) passes with probability at most `false_alarm`."""
    counts = np.arange(audits + 1.0)
    return int(np.argmax(bdtrc(counts, audits, chance) <= false_alarm))


def coverage_check(
    *,
    audits: int = 1000,
    n: int = 1000,
    delta: float = 1e-5,
    confidence: float = 0.95,
    estimators: Sequence[str] | None = None,
    mechanisms: Sequence[KnownMechanism] = MECHANISMS,
    false_alarm: float = FALSE_ALARM,
    seed: int = 0,
    progress: Callable[[CheckRow], None] | None = None,
) -> tuple[CheckRow, ...]:
    """Return a row for every estimator (default: all) on every mechanism it speaks about.

    Args:
        audits: audits of each mechanism, each with `n` scores a side; at least 2.
        delta: what every bound is asked for, with `confidence`.
        confidence: as of every bound, between 0 and 1.
        estimators: names from `ESTIMATORS`.
        false_alarm: chance that valid estimators fail in any row.
        seed: audit i draws its scores and its pilot from (seed, i) alone.
        progress: called with each row when it is done.

    Raises:
        InputError: a number out of range or an unknown estimator.
    """
    names = check_names("estimator", ESTIMATORS if estimators is None else estimators, ESTIMATORS, "estimators")
    check_count("audits", audits, least=2)
    check_count("n", n)
    check_probability("delta", delta)
    check_probability("confidence", confidence)
    cells = [(mechanism, name) for mechanism in mechanisms for name in names if applies(name, mechanism)]
    claims = sum(ESTIMATORS[name].refutes for _, name in cells)
    allowed = most_exceedances(audits, 1.0 - confidence, false_alarm / max(claims, 1))
    rows = []
    for mechanism, name in cells:
        truth = mechanism.epsilon(delta)
        bounds = np.empty(audits)
        for audit in range(audits):
            (bound,) = audit_scores(
                *mechanism.draw(stream(seed, Purpose.CONTROL, audit), n),
                delta=delta,
                confidence=confidence,
                estimators=(name,),
                # Of another family nothing is taken for Gaussian.
                exactly_gaussian=True,
                built=True,
                family=mechanism.family,
                seed=seed * audits + audit,
            )
            bounds[audit] = bound.epsilon_lower
        row = CheckRow(
            mechanism=mechanism.name,
            estimator=name,
            truth=truth,
            audits=audits,
            n=n,
            exceeded=int(np.count_nonzero(bounds > truth + 1e-9)),
            allowed=allowed if ESTIMATORS[name].refutes else None,
            mean=float(bounds.mean()),
            standard_error=float(bounds.std(ddof=1) / math.sqrt(audits)),
        )
        rows.append(row)
        if progress is not None:
            progress(row)
    return tuple(rows)


def as_text(rows: Sequence[CheckRow]) -> str:
    """Return the rows as a table of plain text, a line each, with what the counts are held against above it."""
    claims = sum(row.allowed is not None for row in rows)
    lines = [
        f"exceedances: valid estimators pass 'allowed' in any of the {claims} rows with probability {FALSE_ALARM:g}",
        f"{'mechanism':<24} {'estimator':<20} {'truth':>7} {'mean bound':>16} {'exceeded':>14} {'allowed':>8}",
    ]
    for row in rows:
        share = f"{row.exceeded}/{row.audits}"
        allowed = "none" if row.allowed is None else row.allowed
        failed = "" if row.passed else "  FAILED"
        lines.append(
            f"{row.mechanism:<24} {row.estimator:<20} {row.truth:>7.3f} {row.mean:>8.3f} "
            f"+- {row.standard_error:<5.3f} {share:>14} {allowed:>8}{failed}"
        )
    return "\n".join(lines)
