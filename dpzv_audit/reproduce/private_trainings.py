"""What a search over private trainings trains: DPZV in a sound or claimed form, and the private frozen-client control.

Each is trained for a target (epsilon, delta) and says what it really guarantees against a client: the upper bound of
the exact accountant, and the largest lower bound that a simulated audit proves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpzv_audit.accounting import epsilon_from_mu, mu_from_epsilon, upper_bounds
from dpzv_audit.evaluation.auditing import simulated_outcome
from dpzv_audit.evaluation.privacy import noised
from dpzv_audit.evidence.bounding import AuditPlan
from dpzv_audit.reproduce.text import Row
from mechanisms import DPZVConfig, method_named, train
from mechanisms.controls import PrivateControlConfig, control_sigma, private_frozen_clients
from mechanisms.core.context import Deployment
from mechanisms.core.data import TrainingData
from mechanisms.methods.dpzv import scalar_release

Options = Mapping[str, Any]
"""A setting that a search tries."""

AUDIT_RUNS = 8000
"""Simulated runs in each world of the audit that gives the lower bound."""

_NEXT_TO_NOTHING = 1e-9
"""Noise of `noiseless` trainings where a method must have some."""


@dataclass(frozen=True, kw_only=True)
class FrozenClients:
    """The private control of `mechanisms.controls`; options are those of its configuration."""

    epsilon: float
    delta: float

    def train(
        self, data: TrainingData, options: Options, *, seed: int, replica: int, device: str
    ) -> tuple[np.ndarray, Row]:
        """Return which test records are right, booleans (n,), and facts about the training: plain JSON values."""
        config = self._config(options)
        correct = private_frozen_clients(data, config, seed=seed, replicas=(replica,), device=device)[0]
        return correct, {"rounds": config.steps, "participations": config.steps, "sigma": control_sigma(config)}

    def guarantee(self, options: Options, *, records: int, clients: int, seed: int) -> Row:
        """Return what these options guarantee: T Gaussian mechanisms, all seen by whoever holds the final model."""
        config = self._config(options)
        mu = 2.0 * config.clip * math.sqrt(config.steps) / control_sigma(config)
        return {"sound": True, "gap": None, "epsilon": epsilon_from_mu(mu, self.delta), "lower": None}

    def variants(self, options: Options) -> Mapping[str, Options]:
        """Return further trainings by name: none, the clients are frozen as it is."""
        return {}

    def _config(self, options: Options) -> PrivateControlConfig:
        return PrivateControlConfig(epsilon=self.epsilon, delta=self.delta, **options)


@dataclass(frozen=True, kw_only=True)
class Federated:
    """`method` with `common` settings and those tried.

    Beside the method's own options, a setting may hold `scalar_share`, with `server_update` dp-sgd: the share of mu^2
    that the scalars spend, the server's own noised gradients spending the rest; and `noiseless`.
    """

    method: str
    epsilon: float
    delta: float
    common: Mapping[str, Any] = field(default_factory=dict)

    def config(self, options: Options, *, records: int, clients: int, seed: int) -> DPZVConfig:
        """The configuration of `options` on so many records; a larger batch than there are records is all of them."""
        values: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta, **self.common, **options}
        share, noiseless = values.pop("scalar_share", None), values.pop("noiseless", False)
        values["batch_size"] = min(values["batch_size"], records)
        if share is not None:
            values |= self._budget(values, share, records=records, clients=clients, seed=seed)
        if noiseless:
            values |= {"sigma": 0.0}
            if share is not None:
                values["server_noise_multiplier"] = _NEXT_TO_NOTHING
        return noised(method_named(self.method), method_named(self.method).configure(**values))

    def _budget(
        self, values: Mapping[str, Any], share: float, *, records: int, clients: int, seed: int
    ) -> dict[str, Any]:
        """Noise of both channels: mu_scalars^2 = `share` mu^2 and mu_server^2 = (1 - `share`) mu^2."""
        method = method_named(self.method)
        config = noised(method, method.configure(**{**values, "sigma": 1.0, "server_noise_multiplier": 1.0}))
        deployment = Deployment(records=records, clients=clients, seed=seed)
        participations = method.scalar_plan(config, deployment).participations
        assert participations is not None
        # A hair below the target, so that rounding cannot leave the forward value above it.
        mu = mu_from_epsilon(self.epsilon, self.delta) * (1.0 - 1e-9)
        moved = 2.0 * math.sqrt(participations) / mu
        return {
            "sigma": moved * config.clip / (config.batch_size * math.sqrt(share)),
            "server_noise_multiplier": moved / math.sqrt(1.0 - share),
        }

    def train(
        self, data: TrainingData, options: Options, *, seed: int, replica: int, device: str
    ) -> tuple[np.ndarray, Row]:
        """Return which test records are right, booleans (n,), and facts about the training: plain JSON values."""
        method, records, clients = method_named(self.method), data.records, len(data.features)
        config = self.config(options, records=records, clients=clients, seed=seed)
        trained = train(method, data, config, seed=seed, replicas=(replica,), device=device)
        the_plan = method.scalar_plan(config, Deployment(records=records, clients=clients, seed=seed))
        return trained.correct[0], {
            "rounds": trained.rounds,
            "participations": the_plan.participations,
            "sigma": the_plan.sigma,
            "megabytes_up": trained.ledger.up / 1e6,
            "megabytes_down": trained.ledger.down / 1e6,
        }

    def guarantee(self, options: Options, *, records: int, clients: int, seed: int) -> Row:
        """Return what the training of these options guarantees: one client, a record's label replaced."""
        method = method_named(self.method)
        config = self.config(options, records=records, clients=clients, seed=seed)
        deployment = Deployment(records=records, clients=clients, seed=seed)
        the_plan = method.scalar_plan(config, deployment)
        (bound,) = upper_bounds(
            scalar_release(config, the_plan, deployment),
            delta=self.delta,
            adversaries=("client",),
            neighbours=("replace-label",),
            accountants=("gdp-exact",),
        )
        audited = simulated_outcome(
            method,
            config,
            Deployment(records=records, clients=clients, rounds=len(the_plan.active)),
            adversary="client",
            audit=AuditPlan(runs=AUDIT_RUNS, chunk=AUDIT_RUNS),
            seed=seed,
        )
        return {
            "sound": bound.sound,
            "gap": bound.gap,
            "epsilon": None if bound.epsilon is None else bound.epsilon.upper,
            "lower": audited.result.privacy.empirical_lower,
        }

    def variants(self, options: Options) -> Mapping[str, Options]:
        """Return further trainings by name: the same without noise, and with clients that do not move."""
        found: dict[str, Options] = {"noiseless": {**options, "noiseless": True}}
        if {**self.common, **options}.get("top_model", True):
            found["frozen"] = {**options, "client_rate": 0.0}
        return found
