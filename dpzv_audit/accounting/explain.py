"""How a bound comes about (formula, source, assumptions), and the page of what bounds can rest on, as Markdown."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..base.findings import SERVERS, AdversaryName, NeighbourRelation, UpperBound
from ..base.rounding import down, up
from .accountants import ACCOUNTANTS, upper_bounds
from .bounds import AccountantQuery, Number, SampledView
from .gaps import GAPS, LISTED, treatment
from .gaussian import epsilon_from_mu, exactly
from .release import (
    CHANNELS,
    NEIGHBOURS,
    SAMPLERS,
    AnyRelease,
    Release,
    SamplerName,
    ServerUpdate,
    batches_reach_further,
)
from .selection import SOURCE as SELECTION_SOURCE


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How a bound comes about.

    Attributes:
        formula: Formulas with the numbers put in, one per line; empty where there is no number.
    """

    formula: tuple[str, ...]
    source: str
    assumes: tuple[str, ...]


def explain(release: AnyRelease, bound: UpperBound) -> Explanation:
    """Return the explanation of `bound`, an answer of one of the accountants for `release`."""
    query = AccountantQuery(release, bound.adversary, bound.neighbours, bound.delta, fast=True)
    accountant = ACCOUNTANTS[bound.accountant]
    assumes = _assumptions(query, bound)
    if bound.epsilon is None:
        return Explanation(formula=(), source=accountant.source, assumes=(bound.note, *assumes))
    formulas = _templates().get_template("formulas.jinja").module
    macro, price = (getattr(formulas, name) for name in (accountant.answer.__name__, "selection"))
    answer = accountant.answer(query)
    selection = query.selection
    if selection is None:
        text = macro(query, answer, bound.epsilon)
        return Explanation(formula=_lines(text), source=accountant.source, assumes=assumes)
    assert isinstance(answer, Number)  # no other answer of a search has an epsilon
    assert answer.mu is not None
    trial = exactly(epsilon_from_mu(answer.mu, bound.delta / selection.mean))
    text = macro(replace(query, delta=bound.delta / selection.mean), replace(answer, epsilon=trial), trial)
    text += price(selection, selection.log_ratio(answer.mu), trial, bound.epsilon)
    return Explanation(formula=_lines(text), source=f"{accountant.source}; {SELECTION_SOURCE}", assumes=assumes)


def _lines(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.splitlines()))


@cache
def _templates() -> Environment:
    loader = PackageLoader("dpzv_audit.accounting")
    made = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.keep_trailing_newline = True
    made.filters |= {"down": down, "up": up}
    made.filters |= {"n": "{:.6g}".format, "hypot": lambda numbers: math.hypot(*numbers)}
    return made


_TABLES = Path(__file__).parent / "tables"
_WORDS = tomllib.loads((_TABLES / "assumptions.toml").read_text("utf-8"))
SERVER_ASSUMPTIONS: dict[ServerUpdate, str] = _WORDS["server"]
"""What is assumed of how the server's parameters move, where something can be."""


def _assumptions(query: AccountantQuery, bound: UpperBound) -> tuple[str, ...]:
    parts = query.parts

    def has(**fields: object) -> bool:
        return any(all(getattr(release, name) == value for name, value in fields.items()) for release in parts)

    server = bound.adversary in SERVERS
    noised = any(release.channel != "zo-gradient" for release in parts)
    passes = has(sampler="shuffled", participations=None)
    several = any(release.clients > 1 for release in parts)
    composed = bound.accountant == "prv" and isinstance(query.sampled, SampledView)
    secret = composed or "sampling" in bound.note.split(";")[0]
    holds: dict[str, bool] = {
        "rounds": True,
        "constants": any(release.sample_rate is not None for release in parts),
        "fresh": noised and has(seeded_noise=True),
        "secret": noised and not has(seeded_noise=True),
        "grid": has(noise="grid"),
        "clipped": has(channel="scalar"),
        **{release.server_update: not server for release in parts},
        "turns": passes and several,
        "passes": passes and not several,
        "poisson": secret and has(sampler="poisson"),
        "uniform": secret and has(sampler="uniform"),
        "batches": secret and any(release.sampler != "shuffled" and not release.secret_batches for release in parts),
        "block": bound.neighbours == "replace-record" and not server,
        "ids": bound.adversary == "eavesdropper" and has(ids="secret"),
        "cap": any(release.participation_cap is not None for release in parts),
        "selection": query.selection is not None,
        "nothing-else": not has(data_dependent_side=True),
    }
    words = {**_WORDS["assumption"], **SERVER_ASSUMPTIONS}
    sentences = [words[name] for name, applies in holds.items() if applies and name in words]
    sentences += [f"NOT met, {name}: {GAPS[name]}" for name in bound.gaps]
    return tuple(sentences)


def _sound(
    settings: Mapping[str, Any], sampler: SamplerName, adversary: AdversaryName, relation: NeighbourRelation
) -> str:
    """Return which accountants are sound for a release of `settings`, or the gaps why none is."""
    hidden = batches_reach_further(sampler, clients=2)
    made = Release(sampler=sampler, secret_batches=hidden, **settings)
    bounds = upper_bounds(made, delta=1e-5, adversaries=[adversary], neighbours=[relation], fast=True)
    sound = [f"`{bound.accountant}`" for bound in bounds if bound.sound]
    by_name = {bound.accountant: bound for bound in bounds}
    exact = by_name["gdp-exact"]
    claimed = by_name["czofo-theorem"]
    if exact.gap == "no-accountant" and claimed.epsilon is not None:
        exact = claimed
    return ", ".join(sound or exact.gaps)


def table_markdown() -> str:
    """Return the page as Markdown; the same code gives the same text."""
    return (
        _templates()
        .get_template("bounds.jinja")
        .render(
            tomllib.loads((_TABLES / "bounds.toml").read_text("utf-8")),
            accountants=ACCOUNTANTS,
            adversaries=LISTED,
            channels=CHANNELS,
            gaps=GAPS,
            relations=NEIGHBOURS,
            samplers=SAMPLERS,
            sound=_sound,
            treatment=treatment,
        )
    )
