"""How a bound comes about (formula, source, assumptions), and the page of what bounds can rest on, as Markdown."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import product
from typing import Any

from dpzv_audit.accounting.accountants import ACCOUNTANTS, upper_bounds
from dpzv_audit.accounting.bounds import Question, Refusal
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
    """How a bound comes about."""

    formula: tuple[str, ...]
    """Formulas with the numbers put in, one per line; empty where there is no number."""
    source: str
    assumes: tuple[str, ...]


def explain(release: AnyRelease, bound: UpperBound) -> Explanation:
    """Return the explanation of `bound`, an answer of one of the accountants for `release`."""
    asked = Question(release, bound.adversary, bound.neighbours, bound.delta, fast=True)
    accountant, assumes = ACCOUNTANTS[bound.accountant], _assumptions(asked.parts, bound)
    if bound.epsilon is None or isinstance(answer := accountant.answer(asked), Refusal):
        return Explanation(formula=(), source=accountant.source, assumes=(bound.note, *assumes))
    return Explanation(formula=tuple(answer.formula(bound.epsilon)), source=accountant.source, assumes=assumes)


SERVER_ASSUMPTIONS: dict[ServerUpdate, str] = {
    "none": "the server has no parameters that move",
    "frozen": "the server's parameters do not move",
    "joint-zo": "the server's parameters move by the released scalars alone",
    "dp-sgd": "the server's parameters move by noised sums of clipped gradients alone",
}


def _assumptions(parts: tuple[Release, ...], bound: UpperBound) -> tuple[str, ...]:
    found = ["T counts the rounds of all clients together"]
    if any(part.sample_rate is not None for part in parts):
        found.append("the sampling rate and the number of rounds are constants, whatever the records are")
    if any(part.channel != "zo-gradient" for part in parts):
        known = any(part.seeded_noise for part in parts)
        found.append(f"each noise draw is {'Gaussian and fresh' if known else 'Gaussian, fresh and secret'}")
    if any(part.noise == "grid" for part in parts):
        found.append("the Gaussian is rounded to a grid that each record is rounded to first, and added in whole steps")
    if any(part.channel == "scalar" for part in parts):
        found.append("each record's part is clipped on its own, and the sum divided by B whatever the batch's size")
    if bound.adversary != "server":
        updates = dict.fromkeys(part.server_update for part in parts)
        found += [SERVER_ASSUMPTIONS[update] for update in updates if update in SERVER_ASSUMPTIONS]
    if any(part.sampler == "shuffled" and part.participations is None for part in parts):
        turns = "clients take turns, and each goes" if any(part.clients > 1 for part in parts) else "the client goes"
        found.append(f"{turns} through all records, D // B batches a pass, before it begins again")
    secret = bound.accountant == "prv" or "sampling" in bound.note.split(";")[0]
    if secret and any(part.sampler == "poisson" for part in parts):
        found.append(
            "the adversary does not learn which or how many records are in a batch, and each is drawn independently"
        )
    if secret and any(part.sampler == "uniform" for part in parts):
        found.append("the adversary does not learn which records are in a batch, drawn anew each round")
    if secret and any(part.sampler != "shuffled" and not part.secret_batches for part in parts):
        found.append(
            "a round depends on earlier batches through what is released alone, and a record's number does not depend "
            "on who else is in its batch"
        )
    if bound.neighbours == "replace-record" and bound.adversary != "server":
        found.append("the adversary's own block of the record is the same, and other clients' embeddings are not seen")
    if bound.adversary == "eavesdropper" and any(part.ids == "secret" for part in parts):
        found.append("uploads are encrypted, or batch ids follow from a shared seed")
    if any(part.participation_cap is not None for part in parts):
        found.append("the server enforces the cap on participations, over all clients' rounds together")
    if not any(part.data_dependent_side for part in parts):
        found.append("nothing else depends on the data: no fitted scaler, stopping, chosen checkpoint or log")
    found += [f"NOT met, {name}: {GAPS[name]}" for name in (bound.gap or "").split(",") if name]
    return tuple(found)


_SMALL = Release(
    batch_size=10,
    dataset_size=100,
    rounds=50,
    clip=1.0,
    sigma=1.0,
    sampler="shuffled",
    server_update="sgd",
)
"""Which accountants are sound does not depend on the numbers: any will do."""


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


def _sound(configurations: Iterable[Mapping[str, Any]]) -> list[str]:
    rows = []
    for configuration, sampler in product(configurations, SAMPLERS):
        hidden = batches_reach_further(sampler, clients=2)
        made = replace(_SMALL, sampler=sampler, secret_batches=hidden, **configuration["settings"])
        row = [configuration["name"], sampler]
        for adversary in ADVERSARY_NAMES:
            relation = configuration["neighbours"]
            bounds = upper_bounds(made, delta=1e-5, adversaries=[adversary], neighbours=[relation], fast=True)
            sound = [f"`{bound.accountant}`" for bound in bounds if bound.sound]
            exact = next(bound for bound in bounds if bound.accountant == "gdp-exact")
            claimed = next(bound for bound in bounds if bound.accountant == "czofo-theorem")
            gap = claimed.gap if exact.gap == "no-accountant" and claimed.epsilon is not None else exact.gap
            row.append(", ".join(sound) or (gap or "").replace(",", ", "))
        rows.append(row)
    return _rows(("configuration", "sampler", *(f"`{name}`" for name in ADVERSARY_NAMES)), rows)


def table_markdown() -> str:
    """Return the page as Markdown; the same code gives the same text."""
    text = (files("dpzv_audit.accounting") / "tables" / "bounds.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    accountants = ((f"`{name}`", one.summary) for name, one in ACCOUNTANTS.items())
    parts = {
        "cells": _cells(),
        "sound": _sound(content["configuration"]),
        "accountants": _rows(("accountant", "what it does"), accountants),
        "gaps": _rows(("gap", "meaning"), ((f"`{name}`", meaning) for name, meaning in GAPS.items())),
    }
    return str(content["page"].format(**{name: "\n".join(lines) for name, lines in parts.items()}))
