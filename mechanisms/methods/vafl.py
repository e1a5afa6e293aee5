"""VAFL: asynchronous first-order vertical federated learning (papers 001, 003), with noise on a channel where asked.

The active client sends its embeddings; the server refreshes its table, steps, and answers with dL/dh_m of every record.
"""

from __future__ import annotations

from mechanisms.core.config import BaselineConfig
from mechanisms.core.method import MethodSpec
from mechanisms.core.protection import channel_games, channel_protection, channel_releases
from mechanisms.core.rounds import FirstOrderRun


class VAFLConfig(BaselineConfig):
    """VAFL."""


SPEC = MethodSpec(
    name="vafl",
    summary="asynchronous, first order: one client a round, per-record gradients go down",
    config=VAFLConfig,
    run=FirstOrderRun,
    released=channel_releases,
    protection=channel_protection,
    games=channel_games,
    downlink="gradient",
    deviation="own_gradient",
)
