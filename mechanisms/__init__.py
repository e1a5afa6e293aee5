"""Every training method and its parts: messages and views, replicas, schedules, zeroth-order steps, noise, models.

Adding a method is one file and one line in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from dpzv_audit.errors import unknown_name
from mechanisms import dpzv, split
from mechanisms.config import DPZVConfig, SplitConfig, TrainingConfig, build_config
from mechanisms.federation import TrainedStack

__all__ = ["METHODS", "DPZVConfig", "MethodSpec", "SplitConfig", "TrainingConfig", "method_named"]


Trainer = Callable[..., TrainedStack]
"""A training function: (data, config, *, seed, replicas, observers, device, progress, evaluate_epochs)."""


@dataclass(frozen=True)
class MethodSpec:
    """A method as users name it: its training function, its configuration, and what travels down."""

    name: str
    summary: str
    train: Trainer
    config: type[TrainingConfig]
    downlink: Literal["scalar", "gradient"]
    protects: str
    """Words on which channel the method's noise protects, for every result."""
    defaults: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def configure(self, **options: object) -> TrainingConfig:
        """The configuration with this method's defaults and the given `options`; `InputError` on a wrong one."""
        known = self.config.model_fields
        for key in options:
            if key not in known:
                raise unknown_name(f"option of method {self.name}", key, known)
        return build_config(self.config, {**self.defaults, **options})


_SCALAR_NOISE = "the scalar from the server to the client, hence labels; nothing protects the embeddings sent up"

METHODS: dict[str, MethodSpec] = {
    spec.name: spec
    for spec in (
        MethodSpec(
            "dpzv",
            "asynchronous, zeroth order; the server answers with one clipped, noised scalar (DPZV, algorithm 1)",
            dpzv.train,
            DPZVConfig,
            "scalar",
            _SCALAR_NOISE,
        ),
        MethodSpec(
            "dpzv-sound",
            "dpzv whose server steps by the same noised scalar and whose noise is calibrated against known batches",
            dpzv.train,
            DPZVConfig,
            "scalar",
            _SCALAR_NOISE + "; the server's state is a function of released scalars",
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
            "split learning: synchronous, first order, per-record gradients go down; no noise",
            split.train,
            SplitConfig,
            "gradient",
            "nothing: no noise is added anywhere",
        ),
    )
}


def method_named(name: str) -> MethodSpec:
    """The method called `name`; `InputError` suggesting the nearest known one otherwise."""
    if name not in METHODS:
        raise unknown_name("--method", name, METHODS)
    return METHODS[name]
