"""DPZV against a slow reference written from paper 001: plain modules, loops over records, an explicit table."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpzv_audit.base.seeds import Purpose
from mechanisms.core.noise import GaussianNoise
from mechanisms.core.streams import Directions, Streams
from mechanisms.methods.dpzv import DPZVConfig

from ..conftest import Parties, agree, p_value, received, start_run, steps, vector

SMALL = {
    "batch_size": 5,
    "epochs": 3,
    "embedding": 2,
    "hidden": 4,
    "dtype": "float64",
    "sigma": 0.3,
    "smoothing": 1e-3,
    "server_smoothing": 2e-3,
    "client_rate": 0.05,
    "server_rate": 0.1,
    "clip": 0.1,
}


class Reference(Parties):
    """Algorithm 1 for one replica."""

    def __init__(self, data, config, *, seed, replica):
        super().__init__(data, config, seed=seed, replica=replica)
        own = Streams(seed=seed, replicas=(replica,), dtype=torch.float64)
        sizes = {m: len(vector(module)) for m, module in self.modules.items() if module is not None}
        self.directions = {
            m: Directions(
                config.direction, d, own, party=m, purpose=Purpose.DIRECTIONS if m else Purpose.SERVER_DIRECTIONS
            )
            for m, d in sizes.items()
        }
        self.scalar_noise = GaussianNoise(1.0, own)
        if 0 in sizes:
            shape = () if config.server_update == "dp-zo" else (sizes[0],)
            self.server_noise = GaussianNoise(1.0, own, shape=shape, purpose=Purpose.SERVER_NOISE)
        self.pending = {m: [] for m in sizes}
        self.clipped_records = 0
        self.fill_table()

    def round(self, m):
        """One round of client m; returns the ids, the uploads and the released scalar."""
        ids = self.draw(m)
        u, u_0 = self.directions[m].at(self.rounds[m])[0], None
        if 0 in self.directions:
            u_0 = self.directions[0].at(sum(self.rounds.values()))[0]
        w = vector(self.modules[m])
        with torch.no_grad():
            plus, minus = (
                self.at(m, w + step * u, lambda: {i: self.embed(m, i) for i in ids})
                for step in (self.config.smoothing, -self.config.smoothing)
            )
            self.table.update({(m, i): (plus[i] + minus[i]) / 2 for i in ids})
            above, below = (self.losses(m, moved, sign, u_0) for moved, sign in ((plus, 1), (minus, -1)))
        scalar = self.released({i: above[i] - below[i] for i in ids})
        if self.modules[0] is not None and self.config.server_update != "frozen":
            self.step_server(ids, scalar, u_0)
        self.rounds[m] += 1
        self.step_along(m, scalar * u)
        return ids, plus, minus, scalar

    def losses(self, m, moved, sign, u_0):
        """Losses of the batch at client m's moved embeddings, and in a joint update at the moved server."""
        rows = self.rows(moved, m, moved)

        def each():
            return {i: self.loss(row, i) for i, row in rows.items()}

        if self.modules[0] is None or self.config.server_update != "joint-zo":
            return each()
        return self.at(0, vector(self.modules[0]) + sign * self.config.server_smoothing * u_0, each)

    def released(self, differences):
        """The scalar: clipped differences and noise, on the grid or in floating point."""
        config = self.config
        unit = (2 if config.difference == "central" else 1) * config.smoothing
        least = -config.clip if config.clip_rule == "symmetric" else -math.inf
        noise = self.scalar_noise.next().item() * config.sigma * config.batch_size
        return self.noised_mean([d / unit for d in differences.values()], noise, least, config.clip)

    def noised_mean(self, deltas, noise, least, clip):
        """The sum of clipped numbers with noise, on the grid or in floating point, over the batch size."""
        step = clip / 2**20
        on_grid = self.config.noise == "grid"
        total = torch.zeros((), dtype=torch.float64)
        for delta in deltas:
            self.clipped_records += int(not least <= delta <= clip)
            delta = delta.clamp(least, clip)
            total = total + (round(delta.item() / step) if on_grid else delta)
        total = (total + round(noise / step)) * step if on_grid else total + noise
        return total / self.config.batch_size

    def step_along(self, party, gradient):
        """Step by the mean of as many gradients as a party collects."""
        self.pending[party].append(gradient)
        if len(self.pending[party]) == self.config.directions:
            self.step(party, torch.stack(self.pending[party]).mean(0))
            self.pending[party].clear()

    def step_server(self, ids, scalar, u_0):
        config, rows = self.config, self.rows(ids)
        if config.server_update == "joint-zo":
            self.step_along(0, scalar * (config.smoothing / config.server_smoothing) * u_0)
        elif config.server_update == "sgd":
            self.step(0, self.gradient(self.mean_loss(rows), 0))
        elif config.server_update == "zo":
            mu, w_0 = config.server_smoothing, vector(self.modules[0])
            with torch.no_grad():
                above, below = (self.at(0, w_0 + s * u_0, lambda: self.mean_loss(rows)) for s in (mu, -mu))
            self.step(0, (above - below) / (2 * mu) * u_0)
        elif config.server_update == "dp-zo":
            mu, w_0 = config.server_smoothing, vector(self.modules[0])
            with torch.no_grad():
                above, below = (
                    self.at(0, w_0 + s * u_0, lambda: {i: self.loss(row, i) for i, row in rows.items()})
                    for s in (mu, -mu)
                )
            deltas = [(above[i] - below[i]) / (2 * mu) for i in rows]
            clip = config.server_clip
            noise = self.server_noise.next().item() * config.server_noise_multiplier * clip
            self.step(0, self.noised_mean(deltas, noise, -clip, clip) * u_0)
        else:
            std, z = config.server_noise_multiplier * config.server_clip, self.server_noise.next().flatten()
            step = config.server_clip / 2**18
            total = torch.zeros_like(u_0)
            for i, row in rows.items():
                own = self.gradient(self.loss(row, i), 0)
                kept = min(1.0, config.server_clip / own.norm())
                in_steps = config.noise == "grid"
                total = total + (self.in_steps(row, own, kept / config.server_clip) * step if in_steps else own * kept)
            noise = std * z if config.noise == "float" else (std / step * z).round() * step
            self.step(0, (total + noise) / config.batch_size)

    def in_steps(self, row, gradient, factor):
        """A record's gradient in steps of 2^-18 C: layers are products, 2^9 by 2^9 steps."""
        server, value, products = self.modules[0], torch.cat(row), []
        deltas = iter(gradient.split([p.numel() for p in server.parameters()])[1::2])
        with torch.no_grad():
            for layer in server:
                if isinstance(layer, nn.Linear):
                    x = torch.cat([value, torch.ones(1, dtype=torch.float64)])
                    a = (next(deltas) * x.norm() * factor * 2**9).trunc()
                    product = torch.outer(a, (x / x.norm() * 2**9).trunc())
                    products += [product[:, :-1].flatten(), product[:, -1]]
                value = layer(value.unsqueeze(0))[0]
        return torch.cat(products)


VARIANTS = {
    "sgd": {},
    "zo": {"server_update": "zo"},
    "joint-zo": {"server_update": "joint-zo"},
    "joint-zo, float noise": {"server_update": "joint-zo", "noise": "float"},
    "frozen": {"server_update": "frozen"},
    "dp-sgd": {"server_update": "dp-sgd", "server_noise_multiplier": 0.7, "server_clip": 0.05},
    "dp-sgd, some clipped": {"server_update": "dp-sgd", "server_noise_multiplier": 0.1, "server_clip": 0.9},
    "dp-sgd, float noise": {
        "server_update": "dp-sgd",
        "server_noise_multiplier": 0.1,
        "server_clip": 0.9,
        "noise": "float",
    },
    "dp-sgd, none clipped": {"server_update": "dp-sgd", "server_noise_multiplier": 0.01, "server_clip": 9.0},
    "dp-zo": {"server_update": "dp-zo", "server_noise_multiplier": 0.7, "server_clip": 0.05},
    "dp-zo, float noise": {
        "server_update": "dp-zo",
        "server_noise_multiplier": 0.1,
        "server_clip": 0.3,
        "noise": "float",
    },
    "poisson, dp-zo": {
        "sampler": "poisson",
        "server_update": "dp-zo",
        "server_noise_multiplier": 0.7,
        "server_clip": 0.05,
    },
    "no top model": {"top_model": False},
    "paper's readings": {"difference": "paper", "clip_rule": "paper-one-sided", "clip": 0.05},
    "three directions": {"directions": 3},
    "three directions, joint-zo": {"directions": 3, "server_update": "joint-zo"},
    "gaussian": {"direction": "gaussian"},
    "rademacher, joint-zo": {"direction": "rademacher", "server_update": "joint-zo"},
    "no momentum": {"momentum": 0.0, "server_momentum": 0.0},
    "poisson": {"sampler": "poisson"},
    "poisson, joint-zo": {"sampler": "poisson", "server_update": "joint-zo"},
    "poisson, zo": {"sampler": "poisson", "server_update": "zo"},
    "poisson, dp-sgd": {
        "sampler": "poisson",
        "server_update": "dp-sgd",
        "server_noise_multiplier": 0.7,
        "server_clip": 0.05,
    },
    "uniform, by the clock": {"sampler": "uniform", "compute_times": (1.0, 2.0, 3.5)},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_rounds_are_those_of_the_paper(name):
    config = DPZVConfig(**{**SMALL, **VARIANTS[name]})
    run, log = start_run(config, seed=3, replicas=(1, 2), records=16)
    reference = Reference(run.federation.data, config, seed=3, replica=2)
    for round_, number in enumerate(run.plan.active):
        steps(run, 1)
        ids, plus, minus, scalar = reference.round(number)
        upload = [m for m in log.messages if m.round == round_ and m.kind == "embeddings"][-1]
        for side, expected in enumerate((plus, minus)):
            got = received(upload._replace(payload=upload.payload[:, side]), 1)
            assert list(got) == ids
            assert all(torch.allclose(got[i], expected[i], rtol=1e-9, atol=1e-12) for i in ids)
        # A loss difference near 1e-3 is divided by 2e-3: rounding of 1e-16 grows to about 1e-13.
        assert log.messages[-1].payload[1].item() == pytest.approx(scalar.item(), abs=1e-9)
        agree(run, 1, reference, atol=1e-8)
    assert reference.clipped_records > 0


def test_scalar_times_direction_is_an_unbiased_gradient():
    """Delta u over 3,000 rounds of a frozen run on the whole data set against autograd: Hotelling's T^2, level 1e-4."""
    config = DPZVConfig(
        batch_size=16,
        epochs=3000,
        sampler="uniform",
        embedding=1,
        hidden=3,
        dtype="float64",
        calibration="none",
        clip=1e6,
        smoothing=1e-5,
        client_rate=0.0,
        server_update="frozen",
    )
    run, log = start_run(config, records=16, clients=1, width=3)
    steps(run)
    scalars = log.scalars()
    directions = torch.stack([value for _, _, name, value in log.notes if name == "direction"])
    estimates = (scalars.unsqueeze(2) * directions)[:, 0].numpy()
    reference = Parties(run.federation.data, config, seed=0, replica=0)
    truth = reference.gradient(reference.mean_loss({i: [reference.embed(1, i)] for i in range(16)}), 1).numpy()
    assert np.abs(truth).max() > 0.01
    assert p_value(estimates, truth) > 1e-4
    assert p_value(estimates, 1.5 * truth) < 1e-6, "blind to a scale that is off by half"
