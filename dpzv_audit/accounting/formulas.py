"""Pieces of the formulas that accountants show with the numbers put in, to be checked by hand."""

from __future__ import annotations

import math

from dpzv_audit.accounting.bounds import Question, SampledView
from dpzv_audit.accounting.mixture import Participation
from dpzv_audit.accounting.release import REPLACES, Release
from dpzv_audit.accounting.sampled import PairKind
from dpzv_audit.findings import NeighbourRelation, UpperBound

DELTA = "delta(eps; mu) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)"

_PAIRS: dict[PairKind, tuple[str, str]] = {
    "remove": ("P = (1-r) N(0, z^2) + r N(1, z^2) against Q = N(0, z^2), both ways round", "one contribution"),
    "replace": ("P = (1-r) N(0, z^2) + r N(1, z^2) against Q = (1-r) N(0, z^2) + r N(-1, z^2)", "one contribution"),
    "fixed-size": (
        "the pair of least divergence above P = (1-r) N(0, z^2) + r N(1, z^2) against Q = N(0, z^2), both ways round",
        "the 2c by which a batch with one record exchanged moves",
    ),
}


def n(value: float) -> str:
    """Return a number to six digits."""
    return f"{value:.6g}"


def noise(part: Release, relation: NeighbourRelation) -> list[str]:
    """Return the sensitivity and the noise of one release, and what a participation costs."""
    twice = part.sensitivity(relation) > 1.5 * part.contribution
    size = f"C/B = {'2 x ' if twice else ''}{n(part.clip)}/{part.batch_size}"
    if part.channel != "scalar":
        size = f"C = {'2 x ' if twice else ''}{n(part.clip)}"
    s, z = part.sensitivity(relation), part.noise_multiplier(relation)
    lines = [f"s = {'2 ' if twice else ''}{size} = {n(s)} ({relation}); z = sigma/s = {n(part.sigma)}/{n(s)} = {n(z)}"]
    mu = part.participation_mu(relation)
    if part.directions > 1 or part.server_noise_multiplier is not None:
        server = ""
        if part.server_noise_multiplier is not None:
            z_s = part.server_noise_multiplier / (2.0 if relation in REPLACES else 1.0)
            server = f" + 1/{n(z_s)}^2"
        lines.append(f"one participation: mu = sqrt({part.directions}/{n(z)}^2{server}) = {n(mu)}")
    certain = part.certain_mu(relation)
    if certain > 0.0:
        messages = [f"{part.whole_data_rounds} messages about all records"] if part.whole_data_rounds else []
        updates = ["the server's own updates"] if part.server_mu else []
        lines.append(f"besides the batches: mu_0 = {n(certain)} ({' and '.join(messages + updates)})")
    return lines


def noises(asked: Question) -> list[str]:
    """Return `noise` of every part."""
    return [line for part in asked.parts for line in noise(part, asked.neighbours)]


def reading(bound: UpperBound, mu: float) -> list[str]:
    """Return how epsilon follows from `mu`."""
    assert bound.epsilon is not None
    return [f"{DELTA}; = {n(bound.delta)} at mu = {n(mu)}, eps = {n(bound.epsilon.upper)}"]


def counted(asked: Question) -> tuple[str, str]:
    """Return mu^2 as the sum over participations and what is certain, and the laws of the counts that are random."""
    terms = [f"{'n' if part.fixed is None else part.fixed} x {n(part.mu)}^2" for part in asked.counted]
    terms += [f"{n(mu)}^2" for mu in asked.certain if mu > 0.0]
    return f"mu^2 = {' + '.join(terms)}", "".join(f", {_law(part)}" for part in asked.counted if part.fixed is None)


def _law(part: Participation) -> str:
    law = f"n ~ Binomial({part.rounds}, {n(part.rate)})"
    return law if part.cap is None else f"{law} but at most {part.cap}"


def sampled(asked: Question) -> list[str]:
    """Return the pairs that sampling with secret ids composes."""
    view = asked.sampled
    assert isinstance(view, SampledView)
    lines = noises(asked)
    for part in view.parts:
        pair, unit = _PAIRS[part.kind(view.kinds[0])]
        lines.append(f"{part.rounds} rounds of {pair}, in units of {unit}: r = {n(part.rate)}, z = {n(part.noise)}")
    certain = math.hypot(*view.certain)
    return [*lines, f"and one Gaussian of mu = {n(certain)}"] if certain > 0.0 else lines
