"""VFL-CZOFO against a slow reference written from paper 003 (algorithm 1, eq. 2), and against autograd."""

import math

import numpy as np
import pytest
import torch

from mechanisms.core.channel import SERVER
from mechanisms.core.config import active_clients
from mechanisms.core.streams import Directions, Streams
from mechanisms.methods.czofo import CZOFOConfig

from ...helpers.built_in import train
from ..conftest import Parties, agree, p_value, start_run, steps, training_data

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
            m: Directions("gaussian", size, Streams(seed=seed, replicas=(replica,), dtype=torch.float64), party=m)
            for m in parties.m
        }
        parties.fill_table()
        for m in {sender for sender, _ in parties.table}:
            keys = [(m, i) for i in range(len(parties.data.labels))]
            answer = quantised(torch.stack([parties.table[key] for key in keys]), config.forward_bits)
            parties.table.update(zip(keys, answer, strict=True))

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
        answer = delta if config.scalars == "record" else delta.mean(1)
        answer = quantised(answer, config.backward_bits)
        if parties.modules[0] is not None:
            parties.step(0, parties.gradient(parties.mean_loss(rows), 0))
        phi = self.width if config.direction == "unit-sphere" else 1
        chained = 0.0
        for place, i in enumerate(ids):
            estimate = torch.zeros(self.width, dtype=torch.float64)
            for j in range(q):
                # Of a mean over the batch a record's gradient is 1/B of its own.
                s = answer[j, place] / len(ids) if config.scalars == "record" else answer[j]
                estimate += phi / (q * mu) * s * u[j, place]
            chained = chained + (clipped[i] * estimate).sum()
        parties.step(m, parties.gradient(chained, m))
        parties.rounds[m] += 1
        return ids, up, answer


@pytest.mark.parametrize(
    ("options", "down", "up"),
    [
        *(({"directions": q}, 4 * q, 64 * 64 * 4) for q in (1, 10, 100)),
        *(({"directions": 1, "forward_bits": bits}, 4, 8 + 64 * 64 * bits // 8) for bits in (1, 2, 4, 8)),
        *(
            ({"directions": 100, "backward_bits": bits}, 8 + size, 64 * 64 * 4)
            for bits, size in ((8, 100), (4, 50), (2, 25), (1, 13))
        ),
        ({"directions": 2, "scalars": "record"}, 4 * 2 * 64, 64 * 64 * 4),
    ],
    ids=str,
)
def test_bytes_of_003s_mnist(options, down, up):
    """Paper 003, tables 4 and 5: q differences of 4 bytes down and 64 x 64 floats up; in `bits`, behind a header."""
    data = training_data(records=128, clients=2, width=392, classes=10, dtype=torch.float32)
    trained = train(data, CZOFOConfig(**MNIST, **options), seed=0)
    assert trained.rounds == 2
    assert trained.ledger.bytes_down == {"scalar": 2 * down}
    # The table travels once, one message a client behind one header.
    bits = options.get("forward_bits")
    assert trained.ledger.bytes_up == {
        "embeddings": 2 * up,
        "table": 2 * (128 * 64 * 4 if bits is None else 8 + 128 * 64 * bits // 8),
    }


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
        ids, up, differences = reference.run_round(m)
        sent, *anew, answer = [message for message in log.messages if message.round == round_]
        fresh = config.embeddings == "fresh"
        assert [other.sender for other in anew] == [k for k in (1, 2, 3) if fresh and k != m]
        if fresh:
            reference.parties.table.clear()
        assert (sent.sender, sent.receiver, answer.sender, answer.receiver) == (m, SERVER, SERVER, m)
        assert sent.ids[1].tolist() == answer.ids[1].tolist() == ids
        assert torch.allclose(sent.payload[1], up, rtol=0, atol=1e-10)
        assert answer.payload[1].shape == differences.shape
        assert torch.allclose(answer.payload[1], differences, rtol=0, atol=1e-10)
        agree(run, 1, reference.parties, atol=1e-8)


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
