"""What `dpzv-audit account` shows: the table adversary x accountant, explanations, and the lines of its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from dpzv_audit.findings import AdversaryName, NeighbourRelation, UpperBound
from reports.text import upper_bound

if TYPE_CHECKING:
    from rich.table import Table

    from dpzv_audit.accounting import Release
    from dpzv_audit.accounting.release import AnyRelease

V = TypeVar("V")

FIGURE_POINTS = 9
"""Numbers of rounds at which a figure's lines are computed."""

CURVE_POINTS = 12
"""Deltas whose bounds make up a trade-off curve that no mu describes."""


def describe(release: Release, *, delta: float, claim_epsilon: float | None = None) -> str:
    """Return a line that names the release: sizes, noise, sampling and how the server moves."""
    origin = f" (theorem 5.1 at epsilon {claim_epsilon:g})" if claim_epsilon is not None else ""
    clients = f" of {release.clients} clients" if release.clients > 1 else ""
    what = {"scalar": "scalars", "gradient": "gradients", "embedding": "embeddings", "zo-gradient": "estimates"}
    each = f", {release.directions} a round" if release.directions > 1 else ""
    batches = f"B = {release.batch_size} of D = {release.dataset_size} ({release.sampler})"
    if release.sample_rate is not None:
        known = "" if release.dataset_size is None else f" of D = {release.dataset_size}"
        batches = f"public rate {release.sample_rate:.6g}{known} (poisson), divisor B = {release.batch_size}"
    return (
        f"Release: {release.rounds} {what[release.channel]}{clients}{each}, {batches}, "
        f"C = {release.clip:g} ({release.clip_rule}), sigma = {release.sigma:.6g}{origin}, "
        f"server update {release.server_update}, batch ids {release.ids}, delta = {delta:g}"
    )


def tables(bounds: Sequence[UpperBound]) -> list[Table | str]:
    """Return the table accountant by adversary of bounds for ONE neighbour relation, and lines on what is not in it.

    A cell is the upper epsilon with `sound`, the number in brackets with its gaps, or a dash with why there is none; a
    star marks the tightest sound number of its column. Adversaries with equal columns share one; adversaries and
    accountants without any number have a line below instead.
    """
    from rich.table import Table

    from dpzv_audit.accounting import tightest_sound

    numbered = [bound for bound in bounds if bound.epsilon is not None]
    accountants = list(dict.fromkeys(bound.accountant for bound in numbered))
    title = f"epsilon, neighbours {bounds[0].neighbours}"
    columns: dict[tuple[str, ...], list[str]] = {}
    for adversary in dict.fromkeys(bound.adversary for bound in numbered):
        column = [bound for bound in bounds if bound.adversary == adversary]
        best = tightest_sound(column)
        cells = tuple(_cell(bound, bound is best) for bound in column if bound.accountant in accountants)
        columns.setdefault(cells, []).append(adversary)
    shown: list[Table | str] = [title]
    if columns:
        result = Table(
            title=title, title_justify="left", show_lines=any("\n" in cell for key in columns for cell in key)
        )
        result.add_column("accountant", no_wrap=True)
        for adversaries in columns.values():
            result.add_column("\n".join(adversaries))
        for number, name in enumerate(accountants):
            result.add_row(name, *(cells[number] for cells in columns))
        shown = [result]
    absent = [bound for bound in bounds if bound.adversary not in {b.adversary for b in numbered}]
    shown += _reasons(absent, lambda bound: bound.adversary)
    present = [bound for bound in bounds if bound not in absent and bound.accountant not in accountants]
    return shown + _reasons(present, lambda bound: bound.accountant)


def _cell(bound: UpperBound, best: bool) -> str:
    gaps = ",\n".join((bound.gap or "").split(","))
    if bound.epsilon is None:
        return f"- {gaps}"
    number = _up(bound.epsilon.upper)
    return f"{number} sound{' *' if best else ''}" if bound.sound else f"({number}) {gaps}"


def tightest(bounds: Sequence[UpperBound]) -> list[str]:
    """Return the tightest sound bound against each adversary as a line, alike ones once, or that there is none."""
    from dpzv_audit.accounting import tightest_sound

    alike: dict[tuple[str, str], list[str]] = {}
    for relation, adversary in dict.fromkeys((bound.neighbours, bound.adversary) for bound in bounds):
        best = tightest_sound(b for b in bounds if (b.neighbours, b.adversary) == (relation, adversary))
        number = best.epsilon if best else None
        says = f"epsilon <= {_up(number.upper)} ({best.accountant})" if best and number else "no sound bound on epsilon"
        alike.setdefault((relation, says), []).append(adversary)
    return [f"{relation}, against {', '.join(whom)}: {says}" for (relation, says), whom in alike.items()]


def _reasons(bounds: Sequence[UpperBound], subject: Callable[[UpperBound], str]) -> list[str]:
    """Return lines such as `server: - unprotected-channel`, subjects with the same gaps together."""
    gaps: dict[str, list[str]] = {}
    for bound in bounds:
        found = gaps.setdefault(subject(bound), [])
        found += [name for name in (bound.gap or "").split(",") if name not in found]
    alike: dict[str, list[str]] = {}
    for name, names in gaps.items():
        alike.setdefault(", ".join(names), []).append(name)
    return [f"{', '.join(names)}: - {gap}" for gap, names in alike.items()]


def _up(value: float) -> str:
    """Return an upper bound at four significant digits, rounded up but for a trillionth of it, which is rounding."""
    return upper_bound(value * (1.0 - 1e-12))


def legend(release: AnyRelease, bounds: Sequence[UpperBound]) -> list[str]:
    """Return the legend, what sound bounds lean on at the server, and one line for each gap among `bounds`."""
    from dpzv_audit.accounting.bounds import meanings
    from dpzv_audit.accounting.explain import SERVER_ASSUMPTIONS
    from dpzv_audit.accounting.release import parts_of

    lines = ["* tightest sound bound; (number): what it would be without the gap beside it; -: no number."]
    updates = dict.fromkeys(part.server_update for part in parts_of(release))
    given = [SERVER_ASSUMPTIONS[update] for update in updates if update in SERVER_ASSUMPTIONS]
    if given and any(bound.sound for bound in bounds):
        lines.append(f"sound: given that {' and '.join(given)}; --explain lists what else it leans on.")
    return lines + [f"{name}: {meaning}." for name, meaning in meanings(bounds).items()]


def explained(release: AnyRelease, bounds: Sequence[UpperBound]) -> list[str]:
    """Return each number's formula with the numbers put in, its source and its assumptions; alike ones once.

    Where there is no number, the legend says why.
    """
    from dpzv_audit.accounting.explain import explain

    seen: dict[tuple[str, ...], list[UpperBound]] = {}
    for bound in bounds:
        if bound.epsilon is None:
            continue
        found = explain(release, bound)
        body = (
            *(f"    {line}" for line in found.formula),
            f"    source: {found.source}",
            *(f"    assumes: {line}" for line in found.assumes),
        )
        seen.setdefault((bound.accountant, bound.neighbours, *body), []).append(bound)
    lines = []
    for (accountant, relation, *rest), alike in seen.items():
        whom = ", ".join(bound.adversary for bound in alike)
        epsilon = max(bound.epsilon.upper for bound in alike if bound.epsilon is not None)
        lines += [f"{accountant}, {relation}, against {whom}: epsilon <= {_up(epsilon)}", *rest]
    return lines


def rounds_lines(
    release: Release,
    *,
    delta: float,
    adversaries: Sequence[AdversaryName],
    relation: NeighbourRelation,
    fast: bool = False,
) -> dict[str, list[tuple[int, float]]]:
    """Return the tightest sound epsilon against rounds for each adversary, alike ones once, and theorem 5.1's.

    A realised count of participations holds for fewer rounds too, and so do the passes begun.
    """
    from dpzv_audit.accounting import gdp_paper, tightest_sound, upper_bounds

    grid = sorted({max(1, round(release.rounds ** (i / (FIGURE_POINTS - 1)))) for i in range(FIGURE_POINTS)})
    found: dict[str, list[tuple[int, float]]] = {}
    for rounds in grid:
        made = replace(release, rounds=rounds, participations=None)
        if release.participations is not None:
            made = replace(made, participations=min(release.participations, made.passes_begun))
        paper = gdp_paper(made, adversaries[0], relation, delta)
        if paper.epsilon is not None:
            found.setdefault("theorem 5.1, as claimed", []).append((rounds, paper.epsilon.upper))
        for adversary in adversaries:
            bounds = upper_bounds(made, delta=delta, adversaries=[adversary], neighbours=[relation], fast=fast)
            best = tightest_sound(bounds)
            if best is not None and best.epsilon is not None:
                found.setdefault(adversary, []).append((rounds, best.epsilon.upper))
    return merged(found)


def curves(
    release: AnyRelease,
    bounds: Sequence[UpperBound],
    alpha: Sequence[float],
    *,
    relation: NeighbourRelation,
    fast: bool = False,
) -> dict[str, list[float]]:
    """Return the trade-off curve of each adversary's tightest sound bound, and of theorem 5.1, over `alpha`.

    A Gaussian curve where the bound has a mu, else the highest that the bounds at several deltas together leave.
    """
    from dpzv_audit.accounting import gaussian_tradeoff, tightest_sound

    found: dict[str, list[float]] = {}
    about = [bound for bound in bounds if bound.neighbours == relation]
    for bound in about:
        if bound.accountant == "gdp-paper" and bound.mu is not None:
            found.setdefault("theorem 5.1, as claimed", gaussian_tradeoff(alpha, bound.mu).tolist())
    for adversary in dict.fromkeys(bound.adversary for bound in about):
        best = tightest_sound(bound for bound in about if bound.adversary == adversary)
        if best is None:
            continue
        if best.mu is not None:
            found[adversary] = gaussian_tradeoff(alpha, best.mu).tolist()
        else:
            found[adversary] = _envelope(release, best, alpha, fast=fast)
    return merged(found)


def _envelope(release: AnyRelease, bound: UpperBound, alpha: Sequence[float], *, fast: bool) -> list[float]:
    """Return the trade-off curve that `bound`'s accountant certifies: each (epsilon, delta) is a pair of lines."""
    import numpy as np

    from dpzv_audit.accounting import epsilon_delta_tradeoff, upper_bounds

    deltas = np.geomspace(bound.delta, max(0.5, bound.delta), CURVE_POINTS)
    curve = np.zeros(len(alpha))
    for delta in deltas:
        (at,) = upper_bounds(
            release,
            delta=float(delta),
            adversaries=[bound.adversary],
            neighbours=[bound.neighbours],
            accountants=[bound.accountant],
            fast=fast,
        )
        if at.epsilon is not None:
            curve = np.maximum(curve, epsilon_delta_tradeoff(alpha, at.epsilon.upper, float(delta)))
    return [float(value) for value in curve]


def merged(lines: dict[str, V]) -> dict[str, V]:
    """Return `lines` with names of equal values joined."""
    names: dict[str, list[str]] = {}
    values: dict[str, V] = {}
    for name, value in lines.items():
        key = repr(value)
        names.setdefault(key, []).append(name)
        values[key] = value
    return {", ".join(names[key]): value for key, value in values.items()}
