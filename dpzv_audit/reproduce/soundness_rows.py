"""The rows of `cost-of-soundness`: what is trained at (1, 1e-5) on MNIST, and every setting that its search tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpzv_audit.reproduce.private_trainings import Federated, FrozenClients
from dpzv_audit.reproduce.search import Searched

EPSILON, DELTA = 1.0, 1e-5
STRIPS: Mapping[str, Any] = {"name": "mnist", "clients": 7, "partition": "strips"}
WHOLE = 60_000
"""A batch of all records."""
LONGEST = 1000
"""Passes over the data of the longest training tried, all clients' rounds together."""


def _settings(names: str, *rows: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Settings as a table: `names` of the columns, a row each."""
    return tuple(dict(zip(names.split(), row, strict=True)) for row in rows)


CONTROL = Searched(
    label="private control: frozen clients",
    dataset=STRIPS,
    tags={"kind": "control"},
    trainer=FrozenClients(epsilon=EPSILON, delta=DELTA),
    tried=_settings(
        "embedding steps rate clip feature_scale",
        (64, 50, 2.0, 1.0, 10.0),
        (64, 50, 4.0, 1.0, 10.0),
        (64, 50, 8.0, 1.0, 10.0),
        (64, 50, 2.0, 1.0, 20.0),
        (64, 50, 8.0, 0.3, 10.0),
        (64, 100, 2.0, 1.0, 10.0),
        (128, 25, 4.0, 1.0, 10.0),
        (128, 50, 2.0, 1.0, 10.0),
        (128, 50, 4.0, 1.0, 10.0),
        (128, 50, 4.0, 1.0, 5.0),
        (128, 75, 3.0, 1.0, 10.0),
        (128, 50, 6.0, 1.0, 10.0),
    ),
)

SUMMING = Searched(
    label="sound, server sums logits",
    dataset=STRIPS,
    tags={"kind": "sound"},
    trainer=Federated(
        method="dpzv-sound",
        epsilon=EPSILON,
        delta=DELTA,
        common={"top_model": False, "client_model": "mlp"},
    ),
    tried=_settings(
        "batch_size epochs clip client_rate momentum directions",
        (1000, 100, 0.1, 0.5, 0.0, 1),
        (2500, 100, 0.03, 3.0, 0.0, 1),
        (2500, 100, 0.1, 1.0, 0.0, 1),
        (2500, 100, 0.3, 0.5, 0.0, 1),
        (2500, 100, 0.1, 0.1, 0.9, 1),
        (2500, 100, 0.1, 4.0, 0.0, 4),
        (WHOLE, 100, 0.1, 3.0, 0.0, 1),
        (2500, 500, 0.1, 1.0, 0.0, 1),
        (5000, 1000, 0.1, 1.0, 0.0, 1),
    ),
)

JOINT = Searched(
    label="sound, joint-zo server",
    dataset=STRIPS,
    tags={"kind": "sound"},
    trainer=Federated(
        method="dpzv-sound",
        epsilon=EPSILON,
        delta=DELTA,
        common={"server_update": "joint-zo", "client_model": "mlp", "embedding": 8, "hidden": 16},
    ),
    tried=_settings(
        "batch_size epochs clip client_rate server_rate momentum server_momentum directions",
        (1000, 100, 0.3, 0.3, 0.3, 0.0, 0.0, 1),
        (2500, 100, 0.1, 1.0, 1.0, 0.0, 0.0, 1),
        (2500, 100, 0.3, 0.5, 0.5, 0.0, 0.0, 1),
        (2500, 100, 0.3, 0.05, 0.05, 0.9, 0.9, 1),
        (2500, 100, 0.3, 1.0, 1.0, 0.0, 0.0, 4),
        (WHOLE, 100, 0.3, 0.5, 0.5, 0.0, 0.0, 1),
    ),
)

DP_SGD = Searched(
    label="sound, dp-sgd server",
    dataset=STRIPS,
    tags={"kind": "sound"},
    trainer=Federated(
        method="dpzv-sound",
        epsilon=EPSILON,
        delta=DELTA,
        common={"server_update": "dp-sgd", "client_model": "mlp", "server_clip": 1.0, "server_momentum": 0.9},
    ),
    tried=_settings(
        "batch_size epochs embedding hidden clip client_rate server_rate scalar_share",
        (WHOLE, 50, 32, 32, 0.1, 0.3, 1.0, 0.1),
        (WHOLE, 50, 32, 32, 0.1, 0.3, 3.0, 0.1),
        (WHOLE, 50, 32, 32, 0.1, 0.3, 6.0, 0.1),
        (WHOLE, 50, 32, 32, 0.1, 3.0, 3.0, 0.1),
        (WHOLE, 50, 32, 32, 0.1, 0.3, 3.0, 0.5),
        (10_000, 50, 32, 32, 0.1, 0.3, 1.0, 0.1),
        (WHOLE, 50, 64, 32, 0.1, 0.3, 3.0, 0.1),
        (WHOLE, 50, 64, 32, 0.1, 0.3, 6.0, 0.05),
    ),
)

PAPER = Searched(
    label="as claimed: theorem 5.1, sgd server",
    dataset=STRIPS,
    tags={"kind": "claimed"},
    trainer=Federated(
        method="dpzv",
        epsilon=EPSILON,
        delta=DELTA,
        common={"calibration": "paper", "embedding": 60, "hidden": 64},
    ),
    tried=_settings(
        "batch_size epochs clip client_rate server_rate momentum server_momentum",
        (256, 3, 10.0, 5e-4, 0.005, 0.9, 0.9),
        (256, 3, 10.0, 5e-4, 0.05, 0.9, 0.9),
        (256, 3, 10.0, 1e-4, 0.05, 0.9, 0.9),
        (256, 3, 1.0, 5e-4, 0.05, 0.9, 0.9),
        (256, 3, 10.0, 5e-4, 0.1, 0.9, 0.9),
        (256, 8, 10.0, 1e-4, 0.05, 0.9, 0.9),
    ),
)
