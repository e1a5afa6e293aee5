"""Mechanisms that are wrong on purpose, and right ones: what an audit is worth is that it tells them apart."""

from __future__ import annotations

from dpzv_audit.errors import unknown_name
from dpzv_audit.games.planted import channel, sampling, trained, views
from dpzv_audit.games.planted.cases import REGISTERED, Planted

_ORDER = """
noise-over-b sensitivity-halved noise-reused noise-shared clip-after-average one-sided-clip noise-once actual-divisor
own-rounds repeated-record losses-released best-checkpoint noise-by-label uniform-noise sign-correlation early-stop
shuffled-as-poisson theorem-5-1 server-state joint-zo-state dpzv-sound sound sound-view paper-secret-ids
"""
MODULES = (channel, sampling, trained, views)
"""Where mechanisms are; each is entered where it is defined."""
PLANTED: dict[str, Planted] = {name: REGISTERED[name] for name in _ORDER.split()}


def planted_named(name: str, *, what: str = "mechanism planted:NAME", also: tuple[str, ...] = ()) -> Planted:
    """Return the planted mechanism called `name`; `InputError` suggesting the nearest known one otherwise.

    `what` is how the user said it, a key or a flag, and `also` what else it may be.
    """
    if name not in PLANTED:
        raise unknown_name(what, name, (*also, *PLANTED))
    return PLANTED[name]
