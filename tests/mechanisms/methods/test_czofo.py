"""VFL-CZOFO against a slow reference written from paper 003 (algorithm 1, eq. 2), and against autograd."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from mechanisms.core.channel import SERVER
from mechanisms.core.config import active_clients
from mechanisms.core.streams import Directions
from mechanisms.methods.czofo import CZOFOConfig

from ...helpers.built_in import train
from ..conftest import Parties, agree, start_run, steps, training_data

LEVEL = 1e-4
"""False-alarm rate of every statistical test here."""

SMALL = {
    "batch_size": 5,
    "epochs": 4,
    "embedding": 2,
    "hidden": 4,
    "directions": 3,
    "dtype": "float64",
    "client_rate": 0.1,
    "server_rate": 0.3,
    "smoothing": 1e-2,
}
DP = {"dp_clip": 0.1, "dp_sigma": 0.05}
VARIANTS = {
    "a batch, gaussian": {},
    "a batch, unit sphere": {"direction": "unit-sphere"},
    "a batch, sphere": {"direction": "sphere"},
    "a record, gaussian": {"scalars": "record"},
    "a record, unit sphere": {"scalars": "record", "direction": "unit-sphere"},
    "a record, sphere": {"scalars": "record", "direction": "sphere"},
    "q = 1": {"directions": 1},
    "momentum": {"momentum": 0.9, "server_momentum": 0.8},
    "no top model": {"top_model": False},
    "no top model, a record": {"top_model": False, "scalars": "record", "direction": "unit-sphere"},
    "uniform, by the clock": {"sampler": "uniform", "compute_times": (1.0, 2.0, 3.5)},
    "random activation": {"activation": "random", "activation_probabilities": (0.2, 0.3, 0.5)},
    "forward 4 bits": {"forward_bits": 4},
    "backward 2 bits": {"backward_bits": 2, "directions": 7},
    "both 8 bits, a record": {"forward_bits": 8, "backward_bits": 8, "scalars": "record"},
    "embedding": {"dp": "embedding", **DP},
    "embedding, forward 8 bits": {"dp": "embedding", "forward_bits": 8, **DP},
    "embedding-batch": {"dp": "embedding-batch", **DP},
    "fresh, embedding, forward 8 bits": {"embeddings": "fresh", "dp": "embedding", "forward_bits": 8, **DP},
}


def quantised(values, bits):
    """Numbers of one message as they are read, level by level."""
    if bits is None:
        return values
    numbers = values.flatten().tolist()
    low, high = min(numbers), max(numbers)
    step = (high - low) / (2**bits - 1)
    read = [low if step == 0 else low + step * round((x - low) / step) for x in numbers]
    return torch.tensor(read, dtype=torch.float64).view(values.shape)


class Reference:
    """Algorithm 1 for one replica: directions are its own, one row for each record of the batch."""

    def __init__(self, parties, config, *, seed, replica):
        self.parties, self.config = parties, config
        self.width = config.embedding if config.top_model else parties.data.classes
        size = config.directions * config.batch_size * self.width
        self.draws = {
            m: Directions("gaussian", size, seed=seed, party=m, replicas=(replica,), dtype=torch.float64)
            for m in parties.m
        }
        parties.fill_table()
        for m in {sender for sender, _ in parties.table}:
            keys = [(m, i) for i in range(len(parties.data.labels))]
            told = quantised(torch.stack([parties.table[key] for key in keys]), config.forward_bits)
            parties.table.update(zip(keys, told, strict=True))

    def directions(self, m):
        rows = self.draws[m].at(self.parties.rounds[m])[0].view(self.config.directions, self.config.batch_size, -1)
        if self.config.direction == "gaussian":
            return rows
        radius = 1.0 if self.config.direction == "unit-sphere" else math.sqrt(self.width)
        return torch.stack([torch.stack([radius * u / u.norm() for u in row]) for row in rows])

    def run_round(self, m):
        parties, config = self.parties, self.config
        q, mu = config.directions, config.smoothing
        ids = parties.draw(m)
        clipped = parties.clipped({i: parties.embed(m, i) for i in ids})
        noisy = parties.sent(clipped)
        up = quantised(torch.stack([noisy[i] for i in ids]), config.forward_bits)
        for place, i in enumerate(ids):
            parties.table[m, i] = up[place]
        for other, sent in parties.renewed(m, ids):
            read = quantised(torch.stack(list(sent.values())), config.forward_bits)
            parties.table.update({(other, i): h for i, h in zip(sent, read, strict=True)})
        rows = parties.rows(ids)
        u = self.directions(m)
        # Both losses before the server steps.
        delta = torch.zeros(q, len(ids), dtype=torch.float64)
        with torch.no_grad():
            for j in range(q):
                for place, i in enumerate(ids):
                    moved = list(rows[i])
                    moved[m - 1] = moved[m - 1] + mu * u[j, place]
                    delta[j, place] = parties.loss(moved, i) - parties.loss(rows[i], i)
        told = delta if config.scalars == "record" else delta.mean(1)
        told = quantised(told, config.backward_bits)
        if parties.modules[0] is not None:
            parties.step(0, parties.gradient(parties.mean_loss(rows), 0))
        phi = self.width if config.direction == "unit-sphere" else 1
        chained = 0.0
        for place, i in enumerate(ids):
            estimate = torch.zeros(self.width, dtype=torch.float64)
            for j in range(q):
                # Of a mean over the batch a record's gradient is 1/B of its own.
                s = told[j, place] / len(ids) if config.scalars == "record" else told[j]
                estimate += phi / (q * mu) * s * u[j, place]
            chained = chained + (clipped[i] * estimate).sum()
        parties.step(m, parties.gradient(chained, m))
        parties.rounds[m] += 1
        return ids, up, told


@pytest.mark.parametrize("name", VARIANTS)
def test_rounds_are_those_of_the_paper(name):
    config = CZOFOConfig(**{**SMALL, **VARIANTS[name]})
    run, log = start_run(config, seed=3, replicas=(1, 2), records=16)
    reference = Reference(Parties(run.federation.data, config, seed=3, replica=2), config, seed=3, replica=2)
    agree(run, 1, reference.parties)
    active = active_clients(config, 3, 3)
    for round_ in range(9):
        steps(run, 1)
        m = next(active)
        ids, up, told = reference.run_round(m)
        sent, *anew, answer = [message for message in log.messages if message.round == round_]
        fresh = config.embeddings == "fresh"
        assert [other.sender for other in anew] == [k for k in (1, 2, 3) if fresh and k != m]
        if fresh:
            reference.parties.table.clear()
        assert (sent.sender, sent.receiver, answer.sender, answer.receiver) == (m, SERVER, SERVER, m)
        assert sent.ids[1].tolist() == answer.ids[1].tolist() == ids
        assert torch.allclose(sent.payload[1], up, rtol=0, atol=1e-10)
        assert answer.payload[1].shape == told.shape
        assert torch.allclose(answer.payload[1], told, rtol=0, atol=1e-10)
        agree(run, 1, reference.parties, atol=1e-8)


def test_both_losses_are_taken_before_the_server_steps():
    """With a server rate so large that the loss afterwards is another one, differences stay those of the old server."""
    answers = []
    for rate in (0.0, 100.0):
        run, log = start_run(CZOFOConfig(**{**SMALL, "server_rate": rate}))
        steps(run, 1)
        answers.append(log.payloads("scalar")[0])
        moved = run.federation.server_parameters.flat.clone()
    assert torch.equal(*answers)
    assert answers[0].abs().max() < 0.1
    run, _ = start_run(CZOFOConfig(**SMALL))
    assert not torch.isclose(moved, run.federation.server_parameters.flat).all()


def estimates_of(config, rounds):
    """Negated client steps at rate 1 from one and the same point, (rounds, d)."""
    run, _ = start_run(config, seed=2, records=4, clients=1, width=2)
    flat = run.federation.clients[0].parameters.flat
    start, rows = flat.clone(), []
    with torch.no_grad():
        for _ in range(rounds):
            run.step()
            rows.append((start - flat)[0].clone())
            flat.copy_(start)
    return torch.stack(rows).numpy(), run


def p_value(estimates, truth):
    """Hotelling's T^2 of `truth` being the mean of the rows: exact up to the central limit theorem.

    Inactive units leave directions in which no estimate ever points; there the truth must be 0 as well.
    """
    values, vectors = np.linalg.eigh(np.cov(estimates.T))
    varies = values > 1e-9 * values.max()
    error = vectors.T @ (estimates.mean(0) - truth)
    assert np.abs(error[~varies]).max(initial=0.0) < 1e-7
    n, d = len(estimates), int(varies.sum())
    statistic = n * (error[varies] ** 2 / values[varies]).sum()
    return stats.f.sf(statistic * (n - d) / (d * (n - 1)), d, n - d)


@pytest.mark.parametrize(
    ("direction", "scalars"),
    [
        ("gaussian", "batch"),
        ("sphere", "record"),
        pytest.param("unit-sphere", "batch", marks=pytest.mark.slow),
        pytest.param("gaussian", "record", marks=pytest.mark.slow),
        pytest.param("sphere", "batch", marks=pytest.mark.slow),
        pytest.param("unit-sphere", "record", marks=pytest.mark.slow),
    ],
)
def test_the_chained_step_is_an_unbiased_estimate_of_the_gradient(direction, scalars):
    """2,000 steps from one point on the whole data set at mu = 1e-6 and q = 2 against autograd: level 1e-4."""
    config = CZOFOConfig(
        batch_size=4,
        directions=2,
        embedding=3,
        hidden=4,
        sampler="uniform",
        dtype="float64",
        smoothing=1e-6,
        direction=direction,
        scalars=scalars,
        client_rate=1.0,
        server_rate=0.0,
    )
    estimates, run = estimates_of(config, 2000)
    reference = Parties(run.federation.data, config, seed=2, replica=0)
    truth = reference.gradient(reference.mean_loss({i: [reference.embed(1, i)] for i in range(4)}), 1).numpy()
    assert np.abs(truth).max() > 0.01
    assert p_value(estimates, truth) > LEVEL
    assert p_value(estimates, 1.5 * truth) < 1e-6, "blind to a scale that is off by half"


def test_more_directions_and_per_record_scalars_mean_less_variance():
    """Variance falls about as 1/q, and by about the batch size where every record has a difference of its own."""
    base = {**SMALL, "batch_size": 4, "sampler": "uniform", "client_rate": 1.0, "server_rate": 0.0, "smoothing": 1e-6}
    total = {}
    for q, scalars in ((1, "batch"), (16, "batch"), (1, "record")):
        config = CZOFOConfig(**{**base, "directions": q, "scalars": scalars})
        total[q, scalars] = estimates_of(config, 400)[0].var(0).sum()
    assert 10 < total[1, "batch"] / total[16, "batch"] < 25
    assert total[1, "batch"] > 2 * total[1, "record"]


def test_directions_are_noted_as_used_and_fresh():
    run, log = start_run(CZOFOConfig(**{**SMALL, "direction": "unit-sphere"}), replicas=(0, 1))
    steps(run, 6)
    assert [(party, round_, name) for party, round_, name, _ in log.notes] == [
        (1 + t % 3, t, "direction") for t in range(6)
    ]
    directions = torch.stack([value for *_, value in log.notes])
    assert directions.shape == (6, 2, 3, 5, 2)
    assert torch.allclose(directions.norm(dim=-1), torch.ones((), dtype=torch.float64), rtol=1e-12)
    assert len(directions.flatten(0, 3)[:, 0].unique()) == 6 * 2 * 3 * 5


MNIST = {"batch_size": 64, "epochs": 1, "embedding": 64, "hidden": 128}


@pytest.fixture(scope="module")
def mnist_sized():
    return training_data(records=128, clients=2, width=392, classes=10, dtype=torch.float32)


@pytest.mark.parametrize(("q", "megabytes"), [(100, 75.0), (10, 7.5), (1, 0.75)])
def test_bytes_of_003s_mnist(q, megabytes, mnist_sized):
    """Paper 003, table 4: 187,500 rounds, q differences of 4 bytes down and 64 x 64 floats up in each."""
    trained = train(mnist_sized, CZOFOConfig(**MNIST, directions=q), seed=0)
    assert trained.rounds == 2
    assert trained.ledger.bytes_down == {"scalar": 2 * 4 * q}
    assert trained.ledger.down // 2 * 187_500 == megabytes * 1e6
    assert trained.ledger.bytes_up["embeddings"] // 2 * 187_500 == 3_072_000_000


@pytest.mark.parametrize(
    ("bits", "exactly", "about"), [(8, 769.5, 770), (4, 385.5, 386), (2, 193.5, 194), (1, 97.5, 98)]
)
def test_bytes_of_quantised_uploads(bits, exactly, about, mnist_sized):
    """A 64-bit header and `bits` a value (paper 003, table 5: 769, 386, 194, 96 MB)."""
    ledger = train(mnist_sized, CZOFOConfig(**MNIST, directions=1, forward_bits=bits), seed=0).ledger
    megabytes = ledger.bytes_up["embeddings"] / 2 * 187_500 / 1e6
    assert megabytes == exactly
    assert abs(megabytes - about) <= 0.5
    assert ledger.down == 2 * 4
    # The table travels once, one message a client behind one header.
    assert ledger.bytes_up["table"] == 2 * (8 + 128 * 64 * bits // 8)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_first_table_is_quantised_too(bits):
    """What the server is told of a record before training has 2^bits levels like everything that follows."""
    run, log = start_run(
        CZOFOConfig(batch_size=5, embedding=3, hidden=4, forward_bits=bits, dtype="float64"), records=200
    )
    clear, _ = start_run(CZOFOConfig(batch_size=5, embedding=3, hidden=4, dtype="float64"), records=200)
    fed = run.federation
    for number, table in enumerate(log.payloads("table"), start=1):
        assert len(table.unique()) <= 2**bits
        step = (table.max() - table.min()) / (2**bits - 1)
        exact = clear.federation.embed_all(fed.clients[number - 1], fed.clients[number - 1].features)
        assert (table - exact).abs().max() <= step / 2 * (1 + 1e-9)
        kept = fed.table[:-1, fed.slots[number - 1]]
        assert torch.equal(kept, table[0])


@pytest.mark.parametrize(("bits", "size"), [(8, 8 + 100), (4, 8 + 50), (2, 8 + 25), (1, 8 + 13)])
def test_bytes_of_quantised_answers(bits, size, mnist_sized):
    """100 differences behind a 64-bit header, in whole bytes."""
    ledger = train(mnist_sized, CZOFOConfig(**MNIST, directions=100, backward_bits=bits), seed=0).ledger
    assert ledger.down == 2 * size


def test_a_difference_a_record_costs_as_many_more_bytes(mnist_sized):
    ledger = train(mnist_sized, CZOFOConfig(**MNIST, directions=2, scalars="record"), seed=0).ledger
    assert ledger.down == 2 * 4 * 2 * 64
