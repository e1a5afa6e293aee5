"""The accountants: each a function from release, adversary and relation to an upper bound on epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product

from dpzv_audit.accounting.bounds import Accountant, Number, Question, Refusal, SampledView, accountant
from dpzv_audit.accounting.comparison import advanced_composition, czofo_theorem, rdp
from dpzv_audit.accounting.formulas import n, sampled
from dpzv_audit.accounting.gaps import ADVERSARY_NAMES
from dpzv_audit.accounting.gdp import gdp_clt, gdp_exact, gdp_paper
from dpzv_audit.accounting.prv import AGREE, prv_directions
from dpzv_audit.accounting.release import NEIGHBOURS, AnyRelease
from dpzv_audit.errors import AuditError, unknown_name
from dpzv_audit.findings import AdversaryName, NeighbourRelation, UpperBound


def _prv_formula(asked: Question, bound: UpperBound) -> list[str]:
    e = bound.epsilon
    assert e is not None
    how = "L = sum of ln P(x)/Q(x), x ~ P; delta(eps) = E[(1 - e^(eps - L))+]"
    last = f"{how} = {n(bound.delta)} at eps in [{n(e.lower)}, {n(e.upper)}], estimate {n(e.estimate)}"
    return [*sampled(asked), last]


@accountant(
    "prv",
    summary="numerical composition for Poisson and uniform sampling with secret batch ids, with certified error",
    source="Gopi, Lee and Wutschitz (2021), theorem 5.5, on the dominating pairs of Zhu, Dong and Wang (2022)",
    formula=_prv_formula,
)
def prv(asked: Question) -> Number | Refusal:
    """PRV accounting of sampling with secret ids: both directions of add-remove, the replace or the fixed-size pair.

    `add-remove` and `zero-out` compose both directions and take the larger; the other pairs are symmetric.
    """
    view = asked.sampled
    if isinstance(view, Refusal):
        return view
    answer = prv_directions(
        kinds=view.kinds,
        parts=view.parts,
        certain_mu=math.hypot(*view.certain),
        delta=asked.delta,
        fast=asked.fast,
        enough=asked.enough,
    )
    return Number(epsilon=answer.epsilon, note=answer.note, own_gaps=view.own_gaps)


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
    names = tuple(accountants)
    for name in names:
        if name not in ACCOUNTANTS:
            raise unknown_name("accountant", name, ACCOUNTANTS)
    found = []
    for relation, adversary in product(neighbours, tuple(adversaries)):
        asked = Question(release, adversary, relation, delta, fast=fast, enough=enough)
        row: dict[str, UpperBound] = {}
        for name in sorted(names, key="prv".__eq__):  # the slow one last: it may have nothing left to decide
            if name == "prv" and enough is not None:
                view = asked.sampled
                never_sound = bool(asked.gaps or (isinstance(view, SampledView) and view.own_gaps))
                sound = [b.epsilon.upper for b in row.values() if b.sound and b.epsilon is not None]
                asked = replace(asked, fast=fast or never_sound or min(sound, default=math.inf) <= enough)
            row[name] = ACCOUNTANTS[name].bound(asked)
        _check_agreement(asked, row)
        found += [row[name] for name in names]
    return found


def certified_lower(asked: Question, bound: UpperBound) -> float:
    """Return what `bound`, an answer to `asked`, certifies from below; 0 where it is from above alone.

    gdp-exact is exact where the adversary knows the ids, or every record is in every batch; prv composes the pair that
    sampling with secret ids releases at the worst.
    """
    if not bound.sound or bound.epsilon is None:
        return 0.0
    open_ids = all(
        part.rate == 1.0 or cell.treatment == "known-ids" for part, cell in zip(asked.parts, asked.cells, strict=True)
    )
    return bound.epsilon.lower if bound.accountant == "prv" or (bound.accountant == "gdp-exact" and open_ids) else 0.0


def _check_agreement(asked: Question, row: Mapping[str, UpperBound]) -> None:
    """Raise `AuditError` where a sound bound of `row` lies below what another certifies from below."""
    lower, source = max(((certified_lower(asked, bound), name) for name, bound in row.items()), default=(0.0, ""))
    for name, answer in row.items():
        if answer.sound and answer.epsilon is not None and answer.epsilon.upper < lower * (1.0 - AGREE) - AGREE:
            raise AuditError(
                f"accountants disagree: {name} says epsilon <= {answer.epsilon.upper:.6g}, {source} >= {lower:.6g} "
                f"({answer.adversary}, {answer.neighbours}, delta = {answer.delta:.3g})"
            )


def tightest_sound(bounds: Iterable[UpperBound]) -> UpperBound | None:
    """Return the sound bound with the smallest upper epsilon, None where none is sound.

    The bounds must speak of one adversary, relation and delta: bounds on different things do not compare.
    """
    candidates = list(bounds)
    about = {(answer.adversary, answer.neighbours, answer.delta) for answer in candidates}
    if len(about) > 1:
        raise ValueError("tightest_sound compares bounds for one adversary, neighbour relation and delta only")
    sound = [(bound.epsilon.upper, bound) for bound in candidates if bound.sound and bound.epsilon is not None]
    return min(sound, key=lambda pair: pair[0])[1] if sound else None
