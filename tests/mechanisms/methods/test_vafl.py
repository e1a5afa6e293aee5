"""VAFL against a slow reference: plain modules, autograd, records one by one, an explicit table."""

import pytest
import torch

from mechanisms.core.channel import SERVER
from mechanisms.core.config import active_clients
from mechanisms.methods.vafl import VAFLConfig

from ...helpers.built_in import train
from ..conftest import Parties, agree, random_dataset, received, start_run, steps, training_data

SMALL = {
    "batch_size": 5,
    "epochs": 4,
    "embedding": 2,
    "hidden": 4,
    "dtype": "float64",
    "client_rate": 0.2,
    "server_rate": 0.1,
}
DP = {"dp_clip": 0.1, "dp_sigma": 0.05}
VARIANTS = {
    "plain": {},
    "momentum": {"momentum": 0.9, "server_momentum": 0.8},
    "no top model": {"top_model": False},
    "uniform, by the clock": {"sampler": "uniform", "compute_times": (1.0, 2.0, 3.5)},
    "poisson": {"sampler": "poisson"},
    "random activation": {"activation": "random", "activation_probabilities": (0.2, 0.3, 0.5)},
    "embedding": {"dp": "embedding", **DP},
    "embedding, no top model": {"dp": "embedding", "top_model": False, **DP},
    "embedding, poisson": {"dp": "embedding", "sampler": "poisson", **DP},
    "embedding-batch": {"dp": "embedding-batch", **DP},
    "embedding-batch, poisson": {"dp": "embedding-batch", "sampler": "poisson", **DP},
    "gradient": {"dp": "gradient", **DP},
    "gradient, poisson": {"dp": "gradient", "sampler": "poisson", **DP},
    "clip alone": {"dp": "gradient", "dp_clip": 0.02},
    "fresh": {"embeddings": "fresh"},
    "fresh, embedding, poisson": {"embeddings": "fresh", "dp": "embedding", "sampler": "poisson", **DP},
}


def reference_round(parties, m):
    """Refresh the rows, step the server, pull dL/dh_m back; returns ids, what went up and what came down."""
    ids = parties.draw(m)
    clipped = parties.clipped({i: parties.embed(m, i) for i in ids})
    up = parties.sent(clipped)
    parties.table.update({(m, i): h for i, h in up.items()})
    parties.table.update({(k, i): h for k, sent in parties.renewed(m, ids) for i, h in sent.items()})
    leaves = {i: h.clone().requires_grad_() for i, h in up.items()}
    loss = parties.mean_loss(parties.rows(ids, m, leaves))
    down = {i: torch.autograd.grad(loss, h, retain_graph=True)[0] for i, h in leaves.items()}
    down = parties.answered(down)
    if parties.modules[0] is not None:
        parties.step(0, parties.gradient(loss, 0))
    parties.step(m, parties.gradient(sum((clipped[i] * down[i]).sum() for i in ids), m))
    return ids, up, down


@pytest.mark.parametrize("name", VARIANTS)
def test_rounds_are_those_of_the_reference(name):
    config = VAFLConfig(**{**SMALL, **VARIANTS[name]})
    run, log = start_run(config, seed=3, replicas=(1, 2), records=16)
    reference = Parties(run.federation.data, config, seed=3, replica=2)
    reference.fill_table()
    agree(run, 1, reference)
    active = active_clients(config, 3, 3)
    for round_ in range(12):
        steps(run, 1)
        m = next(active)
        ids, up, down = reference_round(reference, m)
        sent, *anew, answer = [message for message in log.messages if message.round == round_]
        fresh = config.embeddings == "fresh"
        assert [other.sender for other in anew] == [k for k in (1, 2, 3) if fresh and k != m]
        if fresh:
            reference.table.clear()
        assert (sent.sender, sent.receiver, answer.sender, answer.receiver) == (m, SERVER, SERVER, m)
        for message, values in ((sent, up), (answer, down)):
            got = received(message, 1)
            assert list(got) == ids
            assert all(torch.allclose(got[i], values[i], rtol=0, atol=1e-10) for i in ids)
        agree(run, 1, reference)
    assert len({m.receiver for m in log.messages}) == 4


def test_padding_sends_nothing_and_moves_nothing():
    """Poisson: places without a record carry zeros both ways, though gradient noise is on every row."""
    config = VAFLConfig(**{**SMALL, "sampler": "poisson", "dp": "gradient", **DP})
    run, log = start_run(config, replicas=(0, 1), records=16)
    steps(run, 8)
    padded = 0
    for message in log.messages:
        if message.round >= 0:
            empty = message.ids < 0
            padded += int(empty.sum())
            assert (message.payload[empty] == 0).all()
            assert (message.payload[~empty] != 0).any()
    assert padded > 0
    assert (run.federation.table[-1] == 0).all()


def test_bytes_of_003s_mnist():
    """Rounds of 64 x 64 floats both ways: 187,500 of them are 6,144 MB; the table is what both halves send once."""
    dataset = random_dataset(records=128, clients=2, width=392, classes=10)
    data = training_data(dataset, dtype=torch.float32)
    config = VAFLConfig(batch_size=64, epochs=1, embedding=64, hidden=128)
    trained = train(data, config, seed=0)
    ledger = trained.ledger
    assert trained.rounds == 2
    assert ledger.bytes_up["embeddings"] // 2 * 187_500 == 3_072_000_000
    assert (ledger.bytes_up["embeddings"] + ledger.down) // 2 * 187_500 == 6_144_000_000
    assert ledger.bytes_up["table"] == 2 * 128 * 64 * 4
    assert set(ledger.bytes_up) == {"table", "embeddings"}
    assert set(ledger.bytes_down) == {"gradient"}
    assert trained.clients[0].flat.shape == (1, 25_152)
    assert trained.server.flat.shape == (1, 17_802)
