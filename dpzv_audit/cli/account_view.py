"""The view of `dpzv-audit account`: the table adversary x accountant, explanations, and its figures."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
from rich.table import Table

from ..accounting import Release, epsilon_delta_tradeoff, gaussian_tradeoff, tightest_sound, upper_bounds
from ..accounting.bounds import meanings
from ..accounting.explain import SERVER_ASSUMPTIONS, explain
from ..accounting.release import AnyRelease
from ..base.findings import AdversaryName, UpperBound
from ..base.rounding import ACCOUNTANT_DIGITS, up
from ..results import AccountFigures
from .output import table_of

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Ask = Callable[..., Sequence[UpperBound]]
"""Gives the bounds of a release under one relation."""
CLAIMED = "theorem 5.1, as claimed"
FIGURE_POINTS = 9
"""Numbers of rounds at which a figure's lines are computed."""

NO_ACCOUNTANT = "no-accountant"
CURVE_POINTS = 12
"""Deltas whose bounds make up a trade-off curve that no mu describes."""


def tables(bounds: Sequence[UpperBound]) -> list[Table | str]:
    """Return the table accountant by adversary of bounds for ONE neighbour relation, and lines on what is not in it.

    A cell is the upper epsilon with `sound`, the number in brackets with its gaps, or a dash with why there is none; a
    star marks the tightest sound number of its column. Adversaries with equal columns share one; adversaries and
    accountants without any number have a line below instead.
    """
    accountants = list(dict.fromkeys(bound.accountant for bound in bounds if bound.epsilon))
    columns: dict[tuple[str, ...], list[str]] = {}
    without = []
    unnumbered = []
    for adversary, column in _by_adversary(bounds).items():
        if any(bound.epsilon for bound in column):
            best = tightest_sound(column)
            cells = tuple(_cell(bound, bound is best) for bound in column if bound.accountant in accountants)
            columns.setdefault(cells, []).append(adversary)
            unnumbered += [(bound.accountant, bound) for bound in column if bound.accountant not in accountants]
        else:
            without += [(adversary, bound) for bound in column]
    title = f"epsilon, neighbours {bounds[0].neighbours}"
    reasons = [*_reasons(without), *_reasons(unnumbered)]
    if not columns:
        return [title, *reasons]
    kinds = {"accountant": "name"} | {"\n".join(names): "text" for names in columns.values()}
    table = table_of(kinds, title, show_lines=any("\n" in cell for cells in columns for cell in cells))
    for row in zip(accountants, *columns, strict=True):
        table.add_row(*row)
    return [table, *reasons]


def _grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in their order."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _by_adversary(bounds: Iterable[UpperBound]) -> dict[AdversaryName, list[UpperBound]]:
    return _grouped((bound.adversary, bound) for bound in bounds)


def _cell(bound: UpperBound, best: bool) -> str:
    gaps = ",\n".join(bound.gaps)
    if bound.epsilon is None:
        return f"- {gaps}"
    number = up(bound.upper, ACCOUNTANT_DIGITS)
    if not bound.sound:
        return f"({number}) {gaps}"
    return f"{number} sound *" if best else f"{number} sound"


def tightest(bounds: Sequence[UpperBound], claimed: float | None = None) -> list[str]:
    """Return the tightest sound bound against each adversary as a line, alike ones once, or that there is none.

    A bound keeps the digits that show on which side of what is `claimed` it lies.
    """
    everybody = list(_by_adversary(bounds))
    limits: dict[str, list[tuple[str, str]]] = {}
    for relation, alike in _grouped((bound.neighbours, bound) for bound in bounds).items():
        whom = _grouped((_limit(column, claimed), adversary) for adversary, column in _by_adversary(alike).items())
        limits[relation] = [(limit, _names(names, everybody)) for limit, names in whom.items()]
    relations = _grouped((tuple(lines), relation) for relation, lines in limits.items())
    return [
        f"{', '.join(alike)}, against {whom}: {limit}" for lines, alike in relations.items() for limit, whom in lines
    ]


def _limit(column: Sequence[UpperBound], claimed: float | None) -> str:
    """Return the tightest sound bound of one adversary in words, or that there is none, and which gaps stand in it."""
    best = tightest_sound(column)
    if best is not None:
        return f"epsilon <= {up(best.upper, ACCOUNTANT_DIGITS, beside=claimed)} ({best.accountant})"
    gaps = dict.fromkeys(gap for bound in column for gap in bound.gaps if gap != NO_ACCOUNTANT)
    return f"no sound bound on epsilon ({', '.join(gaps) or NO_ACCOUNTANT})"


def _names(names: Sequence[str], everybody: Sequence[str]) -> str:
    return "every adversary" if len(names) == len(everybody) > 1 else ", ".join(names)


def _reasons(bounds: Iterable[tuple[str, UpperBound]]) -> list[str]:
    """Return lines such as `server: - unprotected-channel`, subjects with the same gaps together."""
    gaps = _grouped((subject, gap) for subject, bound in bounds for gap in bound.gaps)
    alike = _grouped((", ".join(dict.fromkeys(names)), subject) for subject, names in gaps.items())
    return [f"{', '.join(names)}: - {gap}" for gap, names in alike.items()]


def legend(parts: Sequence[Release], bounds: Sequence[UpperBound], *, tables: bool) -> list[str]:
    """Return what sound bounds lean on at the server, and one line for each gap among `bounds`.

    The legend of `tables` comes first, where they are printed; elsewhere gaps are those of adversaries without a bound.
    """
    lines = ["* tightest sound bound; (number): what it would be without the gap beside it; -: no number."]
    if not tables:
        columns = _grouped(((bound.neighbours, bound.adversary), bound) for bound in bounds)
        unproven = [column for column in columns.values() if tightest_sound(column) is None]
        shown = [bound for column in unproven for bound in column]
        lines = ["--verbose prints the bound of every accountant."]
        return _leaning(parts, bounds) + [f"{name}: {meaning}." for name, meaning in meanings(shown).items()] + lines
    return lines + _leaning(parts, bounds) + [f"{name}: {meaning}." for name, meaning in meanings(bounds).items()]


def _leaning(parts: Sequence[Release], bounds: Sequence[UpperBound]) -> list[str]:
    updates = dict.fromkeys(release.server_update for release in parts)
    assumed = " and ".join(SERVER_ASSUMPTIONS[update] for update in updates if update in SERVER_ASSUMPTIONS)
    if not assumed or not any(bound.sound for bound in bounds):
        return []
    return [f"sound: given that {assumed}; --explain lists what else it leans on."]


def explained(release: AnyRelease, bounds: Sequence[UpperBound]) -> list[str]:
    """Return each number's formula with the numbers put in, its source and its assumptions; alike ones once.

    Where there is no number, the legend says why.
    """
    alike: dict[tuple[str, ...], list[UpperBound]] = {}
    for bound in bounds:
        if bound.epsilon is not None:
            explanation = explain(release, bound)
            lines = [f"    {line}" for line in explanation.formula]
            lines.append(f"    source: {explanation.source}")
            lines += [f"    assumes: {line}" for line in explanation.assumes]
            alike.setdefault((bound.accountant, bound.neighbours, *lines), []).append(bound)
    explanations = []
    for (accountant, relation, *lines), same in alike.items():
        whom = ", ".join(bound.adversary for bound in same)
        epsilon = max(bound.upper for bound in same)
        explanations += [
            f"{accountant}, {relation}, against {whom}: epsilon <= {up(epsilon, ACCOUNTANT_DIGITS)}",
            *lines,
        ]
    return explanations


def figures(whole: AnyRelease, bounds: Sequence[UpperBound], *, fast: bool) -> AccountFigures:
    """Return the numbers of the figures on the first relation: epsilon by rounds, and trade-off curves."""
    relation = bounds[0].neighbours
    ask = partial(upper_bounds, delta=bounds[0].delta, neighbours=[relation], fast=fast)
    shown = [bound for bound in bounds if bound.neighbours == relation]
    alpha = [i / 200.0 for i in range(201)]
    lines = _rounds_lines(whole, list(_by_adversary(bounds)), ask) if isinstance(whole, Release) else {}
    return AccountFigures(rounds=lines, tradeoff={"alpha": alpha, **_curves(whole, shown, alpha, ask)})


def _rounds_lines(
    release: Release, adversaries: Sequence[AdversaryName], ask: Ask
) -> dict[str, list[tuple[int, float]]]:
    """Return the tightest sound epsilon against rounds for each adversary, alike ones once, and theorem 5.1's.

    A realised count of participations holds for fewer rounds too, and so do the passes begun.
    """
    last = FIGURE_POINTS - 1
    grid = {max(1, round(release.rounds ** (i / last))) for i in range(last + 1)}
    points = []
    for rounds in sorted(grid):
        made = replace(release, rounds=rounds, participations=None)
        if release.participations is not None:
            made = replace(made, participations=min(release.participations, made.passes_begun))
        (claimed,) = ask(made, adversaries=adversaries[:1], accountants=["gdp-paper"])
        tightest = [(name, tightest_sound(ask(made, adversaries=[name]))) for name in adversaries]
        for name, bound in ((CLAIMED, claimed), *tightest):
            if bound is not None and bound.epsilon is not None:
                points.append((name, (rounds, bound.upper)))
    return _merged(_grouped(points))


def _curves(
    release: AnyRelease, bounds: Sequence[UpperBound], alpha: Sequence[float], ask: Ask
) -> dict[str, list[float]]:
    """Return the trade-off curve of each adversary's tightest sound bound, and of theorem 5.1, over `alpha`.

    A Gaussian curve where the bound has a mu, else the highest that the bounds at several deltas together leave.
    """
    claimed = next((b for b in bounds if b.accountant == "gdp-paper" and b.mu is not None), None)
    tightest = [(adversary, tightest_sound(alike)) for adversary, alike in _by_adversary(bounds).items()]
    curves = {}
    for name, bound in ((CLAIMED, claimed), *tightest):
        if bound is not None and bound.mu is not None:
            curves[name] = gaussian_tradeoff(alpha, bound.mu).tolist()
        elif bound is not None:
            curves[name] = _envelope(release, bound, alpha, ask)
    return _merged(curves)


def _envelope(release: AnyRelease, bound: UpperBound, alpha: Sequence[float], ask: Ask) -> list[float]:
    """Return the trade-off curve that `bound`'s accountant certifies: each (epsilon, delta) is a pair of lines."""
    curve = np.zeros(len(alpha))
    deltas = np.geomspace(bound.delta, max(0.5, bound.delta), CURVE_POINTS)
    for delta in deltas.tolist():
        (at,) = ask(release, delta=delta, adversaries=[bound.adversary], accountants=[bound.accountant])
        if at.epsilon is not None:
            curve = np.maximum(curve, epsilon_delta_tradeoff(alpha, at.upper, delta))
    return list(curve.tolist())


def _merged(lines: dict[str, V]) -> dict[str, V]:
    """Return `lines` with names of equal values joined."""
    alike = _grouped((repr(value), name) for name, value in lines.items())
    return {", ".join(names): lines[names[0]] for names in alike.values()}
