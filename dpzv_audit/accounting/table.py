"""The documentation page of what a bound can rest on: adversary x relation x sampler, gaps, sound accountants."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import product
from typing import Any

from dpzv_audit.accounting.accountants import ACCOUNTANTS, upper_bounds
from dpzv_audit.accounting.gaps import ADVERSARY_NAMES, GAPS, treatment
from dpzv_audit.accounting.release import CHANNELS, NEIGHBOURS, SAMPLERS, Release, batches_reach_further

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
