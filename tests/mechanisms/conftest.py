"""Small data, a log of everything that is sent, and one thread, for the tests of the training methods."""

import hashlib

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ndtri
from torch import nn
from torch.nn import functional

from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.vertical import Records, VerticalDataset
from mechanisms.core.context import TrainingData, dtype_of
from mechanisms.core.models import default_architectures, initial_parameters, layout_of
from mechanisms.core.streams import BatchStream, Streams

from ..helpers.built_in import new_run


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class MessageLog:
    """Every message and note of a run: payloads as sent, and copies made at that moment."""

    def __init__(self):
        self.messages = []
        self.copies = []
        self.notes = []

    def on_message(self, message):
        self.messages.append(message)
        self.copies.append(message.payload.clone())

    def on_note(self, party, round_, name, value):
        self.notes.append((party, round_, name, value.clone()))

    def payloads(self, kind):
        return [m.payload for m in self.messages if m.kind == kind]

    def scalars(self, dim=0):
        return torch.stack(self.payloads("scalar"), dim)


def vector(module):
    """A module's parameters as one vector, copied."""
    return nn.utils.parameters_to_vector(module.parameters()).detach().clone()


class Parties:
    """One replica as plain modules, records one by one, and an explicit table: what slow references have in common.

    Randomness comes from the run's own streams; all arithmetic is written anew. Party 0 is the server.
    """

    def __init__(self, data, config, *, seed, replica):
        self.data, self.config, self.replica, self.seed = data, config, replica, seed
        self.m = range(1, len(data.features) + 1)
        shapes = tuple(tuple(f.shape[1:]) for f in data.features)
        models, top = default_architectures(config, shapes, data.classes)
        self.modules = {0: None if top is None else self._start(top, 0)}
        self.modules.update({m: self._start(model, m) for m, model in enumerate(models, start=1)})
        self.buffers = dict.fromkeys(self.modules, 0.0)
        self.rounds = dict.fromkeys(self.m, 0)
        self.noises = 0
        self.batches = {
            m: BatchStream(
                config.sampler,
                Streams(seed=seed, replicas=(replica,)),
                records=len(data.labels),
                batch_size=config.batch_size,
                client=m,
            )
            for m in self.m
        }
        self.table = {}

    def _start(self, model, party):
        module = model.module().double()
        flat = initial_parameters(layout_of(model), stream(self.seed, Purpose.INIT, party, self.replica))
        nn.utils.vector_to_parameters(torch.from_numpy(flat), module.parameters())
        return module

    def draw(self, m):
        """Ids of the next batch of client m, in order."""
        batch = self.batches[m].next()
        return (batch.ids[0] if batch.weights is None else batch.ids[0][batch.weights[0].bool()]).tolist()

    def embed(self, m, i):
        """h_m of record i, with its graph."""
        return self.modules[m](self.data.features[m - 1][i : i + 1])[0]

    def loss(self, embeddings, i):
        """L(w_0, h_1, ..., h_M; y_i)."""
        server = self.modules[0]
        logits = sum(embeddings) if server is None else server(torch.cat(embeddings).unsqueeze(0))[0]
        return functional.cross_entropy(logits, self.data.labels[i])

    def mean_loss(self, rows):
        """Sum over the batch's rows {i: [h_1, ..., h_M]}, over B whatever the sampler drew."""
        return sum((self.loss(row, i) for i, row in rows.items()), torch.zeros(())) / self.config.batch_size

    def rows(self, ids, m=None, given=None):
        """The table's rows of the batch, client m's embeddings replaced by `given`."""
        return {i: [given[i] if k == m else self.table[k, i] for k in self.m] for i in ids}

    def at(self, party, parameters, function):
        """`function()` with that party's module at other parameters."""
        before = vector(self.modules[party])
        nn.utils.vector_to_parameters(parameters, self.modules[party].parameters())
        value = function()
        nn.utils.vector_to_parameters(before, self.modules[party].parameters())
        return value

    def gradient(self, value, party):
        """d value / d w_party, flat, by autograd."""
        parameters = list(self.modules[party].parameters())
        if not (isinstance(value, torch.Tensor) and value.requires_grad):
            return torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
        parts = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        filled = (torch.zeros_like(p) if g is None else g for g, p in zip(parts, parameters, strict=True))
        return torch.cat([g.flatten() for g in filled])

    def step(self, party, gradient):
        """w <- w - eta (momentum buffer)."""
        config, module = self.config, self.modules[party]
        rate = config.server_rate if party == 0 else config.client_rate
        momentum = config.server_momentum if party == 0 else config.momentum
        self.buffers[party] = momentum * self.buffers[party] + gradient
        nn.utils.vector_to_parameters(vector(module) - rate * self.buffers[party], module.parameters())

    def noise(self, rows, width):
        """The next message's noise (rows, width), of standard deviation 1."""
        self.noises += 1
        drawn = stream(self.seed, Purpose.NOISE, self.replica, self.noises - 1).standard_normal((rows, width))
        return torch.from_numpy(drawn)

    def clipped(self, values):
        """Embeddings {i: h} clipped as `dp` says, with their graph."""
        config = self.config
        if config.dp == "embedding":
            return {i: h * min(1.0, config.dp_clip / h.norm()) if h.norm() > 0 else h for i, h in values.items()}
        if config.dp == "embedding-batch" and values:
            norm = torch.stack(list(values.values())).norm()
            return {i: h * min(1.0, config.dp_clip / norm) for i, h in values.items()}
        return values

    def noised(self, values):
        """{i: clipped vector} with noise: on a grid of 2^20 steps to the clip, or in floating point."""
        config = self.config
        if config.dp_sigma == 0:
            return values
        width = config.embedding if config.top_model else self.data.classes
        noise = self.noise(len(values), width)
        if config.noise == "float":
            return {i: v + config.dp_sigma * z for (i, v), z in zip(values.items(), noise, strict=True)}
        # A vector along one axis that is cut to the clip ends on a step: rounding must not take it to the one before.
        step = config.dp_clip / 2**20
        return {
            i: ((v / step * (1 + 1e-14)).trunc() + (z * config.dp_sigma / step).round()) * step
            for (i, v), z in zip(values.items(), noise, strict=True)
        }

    def sent(self, clipped):
        """What leaves a client that would send {i: clip(h_i)}."""
        values = {i: h.detach() for i, h in clipped.items()}
        return self.noised(values) if self.config.dp.startswith("embedding") else values

    def answered(self, gradients):
        """What leaves the server that would send {i: dL/dh_i}."""
        config = self.config
        if config.dp != "gradient":
            return gradients
        own = {i: g * config.batch_size for i, g in gradients.items()}
        own = self.noised({i: g * min(1.0, config.dp_clip / g.norm()) for i, g in own.items()})
        return {i: g / config.batch_size for i, g in own.items()}

    def renewed(self, m, ids):
        """What all clients but m send of a batch now, (client, {i: h}) of each; nothing where a table stands for it."""
        if self.config.embeddings == "fresh":
            with torch.no_grad():
                for other in self.m:
                    if other != m:
                        yield other, self.sent(self.clipped({i: self.embed(other, i) for i in ids}))

    def fill_table(self):
        """Every client sends every record once; none does where all send every batch anew."""
        if getattr(self.config, "embeddings", "stale") == "fresh":
            return
        with torch.no_grad():
            for m in self.m:
                values = {i: self.embed(m, i) for i in range(len(self.data.labels))}
                sent = self.sent(self.clipped(values)) if hasattr(self.config, "dp") else values
                self.table.update({(m, i): h for i, h in sent.items()})


@pytest.fixture
def message_log():
    return MessageLog()


def random_dataset(*, records=24, clients=3, width=3, classes=3, test=9, seed=0):
    """Random features in [-1, 1] and random labels, `clients` blocks of `width` features, or of that shape."""
    generator = np.random.default_rng(seed)
    shape = width if isinstance(width, tuple) else (width,)

    def part(count):
        blocks = tuple(generator.uniform(-1, 1, (count, *shape)).astype(np.float32) for _ in range(clients))
        return Records(features=blocks, labels=generator.integers(classes, size=count))

    return VerticalDataset("random", part(records), part(test), classes, "random blocks", {})


def training_data(dataset=None, *, dtype=torch.float64, labels=None, **options):
    """What methods train on: `dataset`, or random data of these options."""
    dataset = random_dataset(**options) if dataset is None else dataset
    return TrainingData.of(dataset, dtype=dtype, device="cpu", labels=labels)


def start_run(config, *, seed=0, replicas=(0,), behaviours=None, labels=None, dataset=None, noised=None, **options):
    """(run not yet stepped, its MessageLog) for a config and options of the random data."""
    data = training_data(dataset, dtype=dtype_of(config), labels=labels, **options)
    log = MessageLog()
    context = {"seed": seed, "replicas": replicas, "behaviours": behaviours or {}, "observers": (log,)}
    with torch.no_grad():
        return new_run(data, config, **context, noised=noised), log


def steps(run, count=None):
    """Run the next `count` rounds, or all that are planned."""
    with torch.no_grad():
        for _ in range(len(run.plan.active) if count is None else count):
            run.step()
    return run


def agree(run, place, reference, *, atol=1e-9):
    """Assert that place `place` of a run is where a slow reference is: models, and table if any."""
    fed = run.federation
    for m, module in reference.modules.items():
        if module is not None:
            got = fed.clients[m - 1].parameters if m else fed.server_parameters
            assert torch.allclose(got.flat[place], vector(module), rtol=0, atol=atol), f"party {m}"
    if reference.table:
        table = fed.table[:-1].view(fed.stack, fed.records, len(fed.clients), fed.width)[place]
        for (m, i), row in reference.table.items():
            assert torch.allclose(table[i, m - 1], row, rtol=0, atol=atol), "a stale or wrong row"


def received(message, place):
    """{i: row} of the members of a message's payload (K, B, n) at one place of the stack."""
    ids = message.ids[place].tolist()
    return {i: row for i, row in zip(ids, message.payload[place], strict=True) if i >= 0}


def p_value(estimates, truth):
    """Hotelling's T^2 of `truth` being the mean of the rows: exact up to the central limit theorem.

    Inactive units leave directions in which no estimate ever points; there the truth must be 0 as well.
    """
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(estimates.T)))
    varies = values > 1e-9 * values.max()
    error = vectors.T @ (estimates.mean(0) - truth)
    assert np.abs(error[~varies]).max(initial=0.0) < 1e-7
    n, d = len(estimates), int(varies.sum())
    statistic = n * (error[varies] ** 2 / values[varies]).sum()
    return stats.f.sf(statistic * (n - d) / (d * (n - 1)), d, n - d)


def secret_words(count, key, *place):
    """Bits of a key at a place of the noise's purpose, by hand."""
    name = b"".join(n.to_bytes(8, "little") for n in (Purpose.NOISE, len(place), *place))
    return np.frombuffer(hashlib.shake_256(key + b"dpzv-audit/noise/1" + name).digest(8 * count), "<u8")


def secret_normals(scale, count, key, *place):
    """Whole numbers that secret noise of a key is at a place of its purpose, by hand."""
    words = secret_words(count, key, *place)
    tails = ((words & np.uint64(2**63 - 1)).astype(np.float64) + 0.5) * 2.0**-64
    return np.rint(-scale * ndtri(tails)) * np.where(words >> np.uint64(63), -1.0, 1.0)


def same_models(one, other, *, rtol=0.0, atol=0.0):
    """Whether clients' and servers' parameters of two trainings agree; by default to the last bit."""
    pairs = zip((*one.clients, one.server), (*other.clients, other.server), strict=True)
    return all(torch.allclose(a.flat, b.flat, rtol=rtol, atol=atol) for a, b in pairs)
