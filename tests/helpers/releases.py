"""What tests of accounting ask of a release."""

from dpzv_audit.accounting import Release, upper_bounds
from dpzv_audit.accounting.gaps import ADVERSARY_NAMES
from dpzv_audit.accounting.prv import prv_epsilon
from dpzv_audit.accounting.release import NEIGHBOURS


def release(**changes):
    """A release of scalars to clients, of a server that learns by the same scalars."""
    usual = {"batch_size": 50, "dataset_size": 1000, "rounds": 400, "clip": 10.0, "sigma": 0.5}
    return Release(**{**usual, "sampler": "poisson", "server_update": "joint-zo", **changes})


def row(made, adversary, relation, **options):
    """The bounds of every accountant on one cell of the table, at a delta of 1e-5."""
    return upper_bounds(made, **{"delta": 1e-5, "adversaries": [adversary], "neighbours": [relation], **options})


def every_row(made, **options):
    """The bounds of every accountant against every adversary under every relation, at a delta of 1e-5."""
    return upper_bounds(made, **{"delta": 1e-5, "adversaries": ADVERSARY_NAMES, "neighbours": NEIGHBOURS, **options})


def composed(kind, rate, noise, rounds, delta=1e-5):
    """What `prv_epsilon` answers about so many sampled rounds."""
    return prv_epsilon(kind=kind, rate=rate, noise=noise, rounds=rounds, delta=delta)
