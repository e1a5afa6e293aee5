"""How a bound comes about (formula, source, assumptions), and the page of what bounds can rest on, as Markdown."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpzv_audit.accounting.accountants import ACCOUNTANTS, upper_bounds
from dpzv_audit.accounting.bounds import Question
from dpzv_audit.accounting.gaps import ADVERSARY_NAMES, GAPS, treatment
from dpzv_audit.accounting.release import (
    CHANNELS,
    NEIGHBOURS,
    SAMPLERS,
    AnyRelease,
    Release,
    ServerUpdate,
    batches_reach_further,
)
from dpzv_audit.findings import UpperBound


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
    asked = Question(release, bound.adversary, bound.neighbours, bound.delta, fast=True)
    accountant, assumes = ACCOUNTANTS[bound.accountant], _assumptions(asked.parts, bound)
    if bound.epsilon is None:
        return Explanation(formula=(), source=accountant.source, assumes=(bound.note, *assumes))
    text = getattr(_formulas(), accountant.answer.__name__)(asked, accountant.answer(asked), bound.epsilon)
    formula = tuple(line for line in text.splitlines() if line)
    return Explanation(formula=formula, source=accountant.source, assumes=assumes)


@cache
def _formulas() -> Any:
    """Return the macros of `templates/formulas.jinja`."""
    loader = PackageLoader("dpzv_audit.accounting")
    made = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"n": "{:.6g}".format, "hypot": lambda numbers: math.hypot(*numbers)}
    return made.get_template("formulas.jinja").module


_TABLES = Path(__file__).parent / "tables"
_WORDS = tomllib.loads((_TABLES / "assumptions.toml").read_text("utf-8"))
SERVER_ASSUMPTIONS: dict[ServerUpdate, str] = _WORDS["server"]
"""What is assumed of how the server's parameters move, where something can be."""


def _assumptions(parts: tuple[Release, ...], bound: UpperBound) -> tuple[str, ...]:
    def has(**fields: object) -> bool:
        return any(all(getattr(part, name) == value for name, value in fields.items()) for part in parts)

    server = bound.adversary == "server"
    noised = any(part.channel != "zo-gradient" for part in parts)
    passes = has(sampler="shuffled", participations=None)
    several = any(part.clients > 1 for part in parts)
    secret = bound.accountant == "prv" or "sampling" in bound.note.split(";")[0]
    holds: dict[str, bool] = {
        "rounds": True,
        "constants": any(part.sample_rate is not None for part in parts),
        "fresh": noised and has(seeded_noise=True),
        "secret": noised and not has(seeded_noise=True),
        "grid": has(noise="grid"),
        "clipped": has(channel="scalar"),
        **{
            update: not server and has(server_update=update) for update in dict.fromkeys(p.server_update for p in parts)
        },
        "turns": passes and several,
        "passes": passes and not several,
        "poisson": secret and has(sampler="poisson"),
        "uniform": secret and has(sampler="uniform"),
        "batches": secret and any(part.sampler != "shuffled" and not part.secret_batches for part in parts),
        "block": bound.neighbours == "replace-record" and not server,
        "ids": bound.adversary == "eavesdropper" and has(ids="secret"),
        "cap": any(part.participation_cap is not None for part in parts),
        "nothing-else": not has(data_dependent_side=True),
    }
    words = {**_WORDS["assumption"], **SERVER_ASSUMPTIONS}
    found = [words[name] for name, applies in holds.items() if applies and name in words]
    found += [f"NOT met, {name}: {GAPS[name]}" for name in (bound.gap or "").split(",") if name]
    return tuple(found)


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _cells() -> list[str]:
    lines: list[str] = []
    reasons: dict[str, int] = {}
    for channel, what in CHANNELS.items():
        rows = []
        for adversary in ADVERSARY_NAMES:
            for relation in NEIGHBOURS:
                cells = [treatment(adversary, relation, sampler, channel=channel) for sampler in SAMPLERS]
                cells.append(treatment(adversary, relation, "poisson", channel=channel, public_rate=True))
                notes = [reasons.setdefault(cell.reason, len(reasons) + 1) for cell in cells]
                words = [f"{cell.treatment} [{note}]" for cell, note in zip(cells, notes, strict=True)]
                rows.append((f"`{adversary}`", f"`{relation}`", *words))
        lines += ["", f"### Channel `{channel}`", "", f"{what[0].upper()}{what[1:]}.", ""]
        lines += _rows(("adversary", "relation", *SAMPLERS, "poisson, public rate"), rows)
    lines += ["", "### Reasons", ""]
    return lines + [f"{number}. {reason[0].upper()}{reason[1:]}." for reason, number in reasons.items()]


def _sound(content: Mapping[str, Any]) -> list[str]:
    rows = []
    for configuration, sampler in product(content["configuration"], SAMPLERS):
        hidden = batches_reach_further(sampler, clients=2)
        settings = {**content["release"], **configuration["settings"]}
        made = Release(sampler=sampler, secret_batches=hidden, **settings)
        row = [configuration["name"], sampler]
        for adversary in ADVERSARY_NAMES:
            relation = configuration["neighbours"]
            bounds = upper_bounds(made, delta=1e-5, adversaries=[adversary], neighbours=[relation], fast=True)
            sound = [f"`{bound.accountant}`" for bound in bounds if bound.sound]
            by_name = {bound.accountant: bound for bound in bounds}
            exact, claimed = by_name["gdp-exact"], by_name["czofo-theorem"]
            gap = claimed.gap if exact.gap == "no-accountant" and claimed.epsilon is not None else exact.gap
            row.append(", ".join(sound) or (gap or "").replace(",", ", "))
        rows.append(row)
    return _rows(("configuration", "sampler", *(f"`{name}`" for name in ADVERSARY_NAMES)), rows)


def table_markdown() -> str:
    """Return the page as Markdown; the same code gives the same text."""
    content = tomllib.loads((_TABLES / "bounds.toml").read_text("utf-8"))
    accountants = ((f"`{name}`", one.summary) for name, one in ACCOUNTANTS.items())
    parts = {
        "cells": _cells(),
        "sound": _sound(content),
        "accountants": _rows(("accountant", "what it does"), accountants),
        "gaps": _rows(("gap", "meaning"), ((f"`{name}`", meaning) for name, meaning in GAPS.items())),
    }
    return str(content["page"].format(**{name: "\n".join(lines) for name, lines in parts.items()}))
