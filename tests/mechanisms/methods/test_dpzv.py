"""DPZV against a slow reference written from paper 001: plain modules, loops over records, an explicit table."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.models import default_architectures, initial_parameters, layout_of
from mechanisms.core.noise import GaussianNoise
from mechanisms.core.streams import BatchStream, Directions
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.built_in import train
from ..conftest import random_dataset, start_run, steps, training_data

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


def vector(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach().clone()


class Reference:
    """Algorithm 1 for one replica. Randomness comes from the run's own streams; all arithmetic is written anew."""

    def __init__(self, data, config, *, seed, replica):
        self.data, self.config = data, config
        self.labels = data.labels
        clients, records = len(data.features), len(data.labels)
        shapes = tuple(tuple(f.shape[1:]) for f in data.features)
        models, top = default_architectures(config, shapes, data.classes)

        def start(model, party):
            module = model.module().double()
            flat = initial_parameters(layout_of(model), stream(seed, Purpose.INIT, party, replica))
            nn.utils.vector_to_parameters(torch.from_numpy(flat), module.parameters())
            return module

        self.clients = [start(model, m) for m, model in enumerate(models, start=1)]
        self.server = None if top is None else start(top, 0)
        own = {"seed": seed, "replicas": (replica,), "dtype": torch.float64}
        self.directions = [Directions("sphere", len(vector(c)), party=m, **own) for m, c in enumerate(self.clients, 1)]
        if self.server is not None:
            self.server_directions = Directions(
                "sphere", len(vector(self.server)), party=0, purpose=Purpose.SERVER_DIRECTIONS, **own
            )
            self.server_noise = GaussianNoise(
                1.0,
                shape=(len(vector(self.server)),),
                purpose=Purpose.SERVER_NOISE,
                **own,
            )
        self.noise = GaussianNoise(1.0, **own)
        self.batches = [
            BatchStream(
                config.sampler,
                records=records,
                batch_size=config.batch_size,
                seed=seed,
                client=m,
                replicas=(replica,),
            )
            for m in range(1, clients + 1)
        ]
        self.rounds = [0] * clients
        self.buffers = [torch.zeros_like(vector(c)) for c in self.clients]
        self.server_buffer = None if self.server is None else torch.zeros_like(vector(self.server))
        self.pending = [[] for _ in self.clients]
        self.server_pending = []
        with torch.no_grad():
            self.table = {
                (m, i): client(data.features[m][i : i + 1])[0]
                for m, client in enumerate(self.clients)
                for i in range(records)
            }

    def loss(self, embeddings, i):
        """L(w_0, h_1, ..., h_M; y_i)."""
        joined = torch.cat(embeddings) if self.server is not None else sum(embeddings)
        logits = self.server(joined.unsqueeze(0))[0] if self.server is not None else joined
        return functional.cross_entropy(logits, self.labels[i])

    def row(self, i, m=None, embedding=None):
        return [embedding if k == m else self.table[k, i] for k in range(len(self.clients))]

    def at(self, module, parameters, function):
        """`function()` with `module` at other parameters."""
        before = vector(module)
        nn.utils.vector_to_parameters(parameters, module.parameters())
        value = function()
        nn.utils.vector_to_parameters(before, module.parameters())
        return value

    def round(self, m):
        """One round of client number m (from 0); returns the uploads and the released scalar."""
        config, smoothing = self.config, self.config.smoothing
        batch = self.batches[m].next()
        ids = batch.ids[0] if batch.weights is None else batch.ids[0][batch.weights[0].bool()]
        u = self.directions[m].at(self.rounds[m])[0]
        w = vector(self.clients[m])

        def embed(i):
            return self.clients[m](self.data.features[m][i : i + 1])[0]

        with torch.no_grad():
            plus = {int(i): self.at(self.clients[m], w + smoothing * u, lambda i=i: embed(i)) for i in ids}
            minus = {int(i): self.at(self.clients[m], w - smoothing * u, lambda i=i: embed(i)) for i in ids}
        for i in plus:
            self.table[m, i] = (plus[i] + minus[i]) / 2
        z = self.noise.next().item()
        step = config.clip / 2**20
        divisor = (2 if config.difference == "central" else 1) * smoothing
        joint = self.server is not None and config.server_update == "joint-zo"
        if self.server is not None:
            u_0 = self.server_directions.at(sum(self.rounds))[0]
            w_0 = vector(self.server)
        total = torch.zeros((), dtype=torch.float64)
        with torch.no_grad():
            for i in plus:
                losses = []
                for sign, h in ((1, plus[i]), (-1, minus[i])):
                    row = self.row(i, m, h)
                    if joint:
                        moved = w_0 + sign * config.server_smoothing * u_0
                        losses.append(self.at(self.server, moved, lambda row=row, i=i: self.loss(row, i)))
                    else:
                        losses.append(self.loss(row, i))
                delta = (losses[0] - losses[1]) / divisor
                delta = delta.clamp(max=config.clip)
                if config.clip_rule == "symmetric":
                    delta = delta.clamp(min=-config.clip)
                total = total + (round(delta.item() / step) if config.noise == "grid" else delta)
        if config.noise == "grid":
            total = (total + round(z * config.sigma * config.batch_size / step)) * step
        else:
            total = total + z * config.sigma * config.batch_size
        scalar = total / config.batch_size
        if self.server is not None and config.server_update != "frozen":
            self.step_server(plus, scalar, u_0, w_0)
        self.rounds[m] += 1
        self.pending[m].append(scalar * u)
        if len(self.pending[m]) == config.directions:
            self.buffers[m] = config.momentum * self.buffers[m] + torch.stack(self.pending[m]).mean(0)
            self.pending[m].clear()
            nn.utils.vector_to_parameters(w - config.client_rate * self.buffers[m], self.clients[m].parameters())
        return ids, plus, minus, scalar

    def step_server(self, ids, scalar, u_0, w_0):
        config = self.config

        def mean_loss():
            return sum(self.loss(self.row(i), i) for i in ids) / config.batch_size

        def gradient(loss):
            self.server.zero_grad()
            if isinstance(loss, torch.Tensor):
                loss.backward()
            return torch.cat(
                [
                    torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
                    for p in self.server.parameters()
                ]
            )

        if config.server_update == "sgd":
            g = gradient(mean_loss())
        elif config.server_update == "joint-zo":
            self.server_pending.append(scalar * (config.smoothing / config.server_smoothing) * u_0)
            if len(self.server_pending) < config.directions:
                return
            g = torch.stack(self.server_pending).mean(0)
            self.server_pending.clear()
        elif config.server_update == "zo":
            mu = config.server_smoothing
            with torch.no_grad():
                both = [self.at(self.server, w_0 + sign * mu * u_0, mean_loss) for sign in (1, -1)]
            g = (both[0] - both[1]) / (2 * mu) * u_0
        else:
            std, z = config.server_noise_multiplier * config.server_clip, self.server_noise.next().flatten()
            step = config.server_clip / 2**18
            g = torch.zeros_like(w_0)
            for i in ids:
                own = gradient(self.loss(self.row(i), i))
                kept = min(1.0, config.server_clip / own.norm())
                g = g + (own * kept if config.noise == "float" else self.steps_of(i, kept / config.server_clip) * step)
            g = (g + (std * z if config.noise == "float" else (std / step * z).round() * step)) / config.batch_size
        self.server_buffer = config.server_momentum * self.server_buffer + g
        nn.utils.vector_to_parameters(w_0 - config.server_rate * self.server_buffer, self.server.parameters())

    def steps_of(self, i, factor):
        """The gradient just taken at record i in steps of 2^-18 C: layers are products, 2^9 by 2^9 steps."""
        value, parts = torch.cat(self.row(i)), []
        with torch.no_grad():
            for layer in self.server:
                if isinstance(layer, nn.Linear):
                    x = torch.cat([value, torch.ones(1, dtype=torch.float64)])
                    a = (layer.bias.grad * x.norm() * factor * 2**9).trunc()
                    product = torch.outer(a, (x / x.norm() * 2**9).trunc())
                    parts += [product[:, :-1].flatten(), product[:, -1]]
                value = layer(value.unsqueeze(0))[0]
        return torch.cat(parts)


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
    "no top model": {"top_model": False},
    "paper's readings": {"difference": "paper", "clip_rule": "paper-one-sided", "clip": 0.05},
    "three directions": {"directions": 3},
    "three directions, joint-zo": {"directions": 3, "server_update": "joint-zo"},
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
    fed, data, place = run.federation, run.federation.data, 1
    reference = Reference(data, config, seed=3, replica=2)
    clipped = 0
    for round_, number in enumerate(run.plan.active):
        steps(run, 1)
        ids, plus, minus, scalar = reference.round(number - 1)
        upload = [m for m in log.messages if m.round == round_ and m.kind == "embeddings"][-1]
        order = {int(i): place for place, i in reversed(list(enumerate(upload.ids[place])))}
        for i in plus:
            assert torch.allclose(upload.payload[place, 0, order[i]], plus[i], rtol=1e-9, atol=1e-12)
            assert torch.allclose(upload.payload[place, 1, order[i]], minus[i], rtol=1e-9, atol=1e-12)
        # A loss difference near 1e-3 is divided by 2e-3: rounding of 1e-16 grows to about 1e-13.
        assert log.messages[-1].payload[place].item() == pytest.approx(scalar.item(), abs=1e-9)
        table = fed.table[:-1].view(2, fed.records, len(fed.clients), fed.width)[place]
        for (m, i), row in reference.table.items():
            assert torch.allclose(table[i, m], row, rtol=1e-8, atol=1e-9), "a stale or wrong row"
        for m, client in enumerate(reference.clients):
            assert torch.allclose(fed.clients[m].parameters.flat[place], vector(client), rtol=1e-8, atol=1e-9)
        if reference.server is not None:
            got = fed.server_parameters.flat[place]
            assert torch.allclose(got, vector(reference.server), rtol=1e-8, atol=1e-9)
        clipped += len(ids)
    assert clipped > 0


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
    scalars = torch.stack(log.payloads("scalar"))
    directions = torch.stack([value for _, _, name, value in log.notes if name == "direction"])
    estimates = (scalars.unsqueeze(2) * directions)[:, 0].numpy()
    reference = Reference(run.federation.data, config.model_copy(update={"sigma": 0.0}), seed=0, replica=0)
    client = reference.clients[0]
    rows = client(run.federation.data.features[0])
    functional.cross_entropy(reference.server(rows), run.federation.data.labels).backward()
    truth = torch.cat([p.grad.flatten() for p in client.parameters()]).numpy()
    n, d = estimates.shape
    assert np.abs(truth).max() > 0.01
    error = estimates.mean(0) - truth
    statistic = n * error @ np.linalg.solve(np.cov(estimates.T), error)
    assert stats.f.sf(statistic * (n - d) / (d * (n - 1)), d, n - d) > 1e-4
    # It could have seen a scale that is off by half.
    power = n * (0.5 * truth) @ np.linalg.solve(np.cov(estimates.T), 0.5 * truth)
    assert stats.f.sf(power * (n - d) / (d * (n - 1)), d, n - d) < 1e-6


def test_train_is_the_run_of_its_plan():
    config = DPZVConfig(**SMALL)
    dataset = random_dataset()
    data = training_data(dataset)
    done = []
    trained = train(data, config, seed=5, replicas=(0, 3), progress=done.append, evaluate_epochs=True)
    run, _ = start_run(config, seed=5, replicas=(0, 3), dataset=dataset)
    steps(run)
    for got, want in zip(trained.clients, run.federation.clients, strict=True):
        assert torch.equal(got.flat, want.parameters.flat)
    assert torch.equal(trained.server.flat, run.federation.server_parameters.flat)
    per_epoch = len(dataset.train) // config.batch_size
    assert trained.rounds == 3 * per_epoch == sum(trained.rounds_by_client)
    assert done == [per_epoch, 2 * per_epoch, 3 * per_epoch]
    assert [epoch for epoch, _, _ in trained.history] == [1, 2, 3]
    assert trained.history[-1][1] == pytest.approx(trained.accuracy.mean())
