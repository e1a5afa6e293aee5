"""Every training method and its parts: messages and views, replicas, schedules, zeroth-order steps, noise, models.

Adding a method is one file and one line in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from dpzv_audit.errors import unknown_name
from mechanisms.config import (
    CompressedConfig,
    CZOFOConfig,
    DPZVConfig,
    ProtectedConfig,
    SplitConfig,
    TrainingConfig,
    VAFLConfig,
    ZerothOrderConfig,
    build_config,
)
from mechanisms.protection import PROTECTS
from mechanisms.training import train

__all__ = [
    "METHODS",
    "DPZVConfig",
    "MethodSpec",
    "ProtectedConfig",
    "SplitConfig",
    "TrainingConfig",
    "method_named",
    "train",
]

Downlink = Literal["scalar", "losses", "gradient"]


@dataclass(frozen=True)
class MethodSpec:
    """A method as users name it: its configuration, which decides how it trains, and what travels down."""

    name: str
    summary: str
    config: type[TrainingConfig]
    downlink: Downlink
    defaults: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def configure(self, **options: object) -> TrainingConfig:
        """The configuration with this method's defaults and the given `options`; `InputError` on a wrong one."""
        known = self.config.model_fields
        for key in options:
            if key not in known:
                raise unknown_name(f"option of method {self.name}", key, known)
        return build_config(self.config, {**self.defaults, **options})

    def protects(self, config: TrainingConfig) -> str:
        """Words on which channel the noise of `config` protects, for every result."""
        if isinstance(config, DPZVConfig):
            sound = "; the server's state is a function of released scalars"
            return _SCALAR_NOISE + (sound if config.server_update == "joint-zo" else "")
        return PROTECTS[config.dp if isinstance(config, ProtectedConfig) and config.protected else "none"]


_SCALAR_NOISE = "the scalar from the server to the client, hence labels; nothing protects the embeddings sent up"

METHODS: dict[str, MethodSpec] = {
    spec.name: spec
    for spec in (
        MethodSpec(
            "dpzv",
            "asynchronous, zeroth order; the server answers with one clipped, noised scalar (DPZV, algorithm 1)",
            DPZVConfig,
            "scalar",
        ),
        MethodSpec(
            "dpzv-sound",
            "dpzv whose server steps by the same noised scalar and whose noise is calibrated against known batches",
            DPZVConfig,
            "scalar",
            MappingProxyType(
                {
                    "server_update": "joint-zo",
                    "calibration": "sound",
                    "clip": 1.0,
                    "client_rate": 1e-3,
                    "server_rate": 1e-3,
                    "momentum": 0.0,
                    "server_momentum": 0.0,
                }
            ),
        ),
        MethodSpec(
            "split",
            "split learning: synchronous, first order, per-record gradients go down",
            SplitConfig,
            "gradient",
        ),
        MethodSpec(
            "compressed",
            "compressed VFL: split learning with quantised embeddings and Q local steps",
            CompressedConfig,
            "gradient",
            MappingProxyType({"forward_bits": 8}),
        ),
        MethodSpec(
            "vafl",
            "asynchronous, first order: one client a round, per-record gradients go down",
            VAFLConfig,
            "gradient",
        ),
        MethodSpec(
            "zoo-vfl",
            "asynchronous, zeroth order at clients and server: two losses go down",
            ZerothOrderConfig,
            "losses",
        ),
        MethodSpec(
            "syn-zoo-vfl",
            "zoo-vfl with all clients in every round",
            ZerothOrderConfig,
            "losses",
            MappingProxyType({"synchronous": True}),
        ),
        MethodSpec(
            "cascaded",
            "VFL-Cascaded: zoo-vfl whose server steps by its exact gradient",
            ZerothOrderConfig,
            "losses",
            MappingProxyType({"server_first_order": True, "server_rate": 0.05}),
        ),
        MethodSpec(
            "czofo",
            "VFL-CZOFO: zeroth order at the embedding along q directions, first order at the client",
            CZOFOConfig,
            "scalar",
        ),
    )
}


def method_named(name: str) -> MethodSpec:
    """The method called `name`; `InputError` suggesting the nearest known one otherwise."""
    if name not in METHODS:
        raise unknown_name("--method", name, METHODS)
    return METHODS[name]
