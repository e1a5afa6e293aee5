"""Compressed VFL and split learning as its case without compression, against a slow reference and autograd."""

import pytest
import torch

from mechanisms import METHODS
from mechanisms.core.channel import SERVER
from mechanisms.methods.compressed import CompressedConfig

from ...helpers.built_in import train
from ...helpers.refusals import refused
from ..conftest import Parties, agree, random_dataset, received, same_models, start_run, steps, training_data

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
    "8 bits": {"forward_bits": 8},
    "1 bit": {"forward_bits": 1},
    "three local steps": {"local_steps": 3},
    "three local steps, 2 bits, momentum": {
        "local_steps": 3,
        "forward_bits": 2,
        "momentum": 0.9,
        "server_momentum": 0.8,
    },
    "uniform": {"sampler": "uniform", "forward_bits": 4},
    "poisson, two local steps": {"sampler": "poisson", "local_steps": 2},
    "no top model": {"top_model": False, "local_steps": 2},
    "embedding, two local steps": {"dp": "embedding", "local_steps": 2, "forward_bits": 8, **DP},
    "embedding-batch, poisson": {"dp": "embedding-batch", "sampler": "poisson", **DP},
    "gradient": {"dp": "gradient", **DP},
    "gradient, poisson": {"dp": "gradient", "sampler": "poisson", **DP},
}


RECOMPUTED = {
    "plain": {},
    "three local steps, 2 bits, momentum": {
        "local_steps": 3,
        "forward_bits": 2,
        "momentum": 0.9,
        "server_momentum": 0.8,
    },
    "poisson, two local steps": {"sampler": "poisson", "local_steps": 2},
    "no top model, 4 bits": {"top_model": False, "local_steps": 2, "forward_bits": 4},
}


def quantised(values, bits):
    """{i: h} of one message as the server reads them, level by level."""
    if bits is None:
        return values
    low, high = (pick(x for h in values.values() for x in h.tolist()) for pick in (min, max))
    step = (high - low) / (2**bits - 1)
    return {
        i: torch.tensor([low + step * round((x - low) / step) for x in h.tolist()], dtype=torch.float64)
        for i, h in values.items()
    }


def reference_round(parties):
    """All clients on one batch; a client's Q steps pull the one gradient that it was sent through its present model."""
    config = parties.config
    ids = parties.draw(1)
    up = {}
    for m in parties.m:
        up[m] = quantised(parties.sent(parties.clipped({i: parties.embed(m, i) for i in ids})), config.forward_bits)
    leaves = {m: {i: h.clone().requires_grad_() for i, h in values.items()} for m, values in up.items()}
    loss = parties.mean_loss({i: [leaves[m][i] for m in parties.m] for i in ids})
    down = {}
    for m in parties.m:
        own = {i: torch.autograd.grad(loss, h, retain_graph=True)[0] for i, h in leaves[m].items()}
        down[m] = parties.answered(own)
    if parties.modules[0] is not None:
        parties.step(0, parties.gradient(loss, 0))
    for m in parties.m:
        for _ in range(config.local_steps):
            now = parties.clipped({i: parties.embed(m, i) for i in ids})
            parties.step(m, parties.gradient(sum((now[i] * down[m][i]).sum() for i in ids), m))
    return ids, up, down


@pytest.mark.parametrize("name", VARIANTS)
def test_rounds_are_those_of_the_reference(name):
    config = CompressedConfig(**{**SMALL, **VARIANTS[name]})
    run, log = start_run(config, seed=3, replicas=(1, 2), records=16)
    reference = Parties(run.federation.data, config, seed=3, replica=2)
    for round_ in range(6):
        steps(run, 1)
        ids, up, down = reference_round(reference)
        new = [m for m in log.messages if m.round == round_]
        assert [(m.sender, m.receiver) for m in new] == [(m, SERVER) for m in (1, 2, 3)] + [
            (SERVER, m) for m in (1, 2, 3)
        ]
        for message in new:
            values = down[message.receiver] if message.sender == SERVER else up[message.sender]
            got = received(message, 1)
            assert list(got) == ids
            assert all(torch.allclose(got[i], values[i], rtol=0, atol=1e-10) for i in ids)
        agree(run, 1, reference)


def as_sent(message, place, width):
    """{i: h} of one client's part of a message that passes on what others sent."""
    rows = message.payload[place].split(width, 1)
    ids = message.ids[place].tolist()
    return [{i: row for i, row in zip(ids, part, strict=True) if i >= 0} for part in rows]


def reference_recomputed_round(parties):
    """Castiglia et al., algorithm 1: every party takes Q steps, its own part as it is now, all else as it was sent."""
    config = parties.config
    ids = parties.draw(1)
    up = {}
    for m in parties.m:
        values = {i: parties.embed(m, i).detach() for i in ids}
        up[m] = quantised(values, config.forward_bits)
    model = None
    if parties.modules[0] is not None:
        flat = torch.nn.utils.parameters_to_vector(parties.modules[0].parameters()).detach().clone()
        model = quantised({0: flat}, config.forward_bits)[0]
    for m in parties.m:
        for _ in range(config.local_steps):

            def gradient(m=m):
                rows = {i: [parties.embed(m, i) if k == m else up[k][i] for k in parties.m] for i in ids}
                return parties.gradient(parties.mean_loss(rows), m)

            parties.step(m, gradient() if model is None else parties.at(0, model, gradient))
    for _ in range(config.local_steps if model is not None else 0):
        parties.step(0, parties.gradient(parties.mean_loss({i: [up[m][i] for m in parties.m] for i in ids}), 0))
    return ids, up, model


@pytest.mark.parametrize("name", RECOMPUTED)
def test_recomputed_rounds_are_those_of_the_reference(name):
    config = CompressedConfig(**{**SMALL, **RECOMPUTED[name]}, local_gradient="recomputed")
    run, log = start_run(config, seed=3, replicas=(1, 2), records=16)
    labels = run.federation.data.labels
    labels_sent = [m for m in log.messages if m.round < 0]
    assert [(m.sender, m.receiver, m.kind) for m in labels_sent] == [(SERVER, m, "labels") for m in (1, 2, 3)]
    assert all(torch.equal(m.payload[1], labels) for m in labels_sent)
    reference = Parties(run.federation.data, config, seed=3, replica=2)
    for round_ in range(6):
        steps(run, 1)
        ids, up, model = reference_recomputed_round(reference)
        new = [m for m in log.messages if m.round == round_]
        down = [m for m in new if m.sender == SERVER]
        kinds = ["embeddings"] if model is None else ["embeddings", "model"]
        assert [(m.receiver, m.kind) for m in down] == [(m, kind) for m in (1, 2, 3) for kind in kinds]
        for message in new:
            if message.kind == "model":
                assert torch.allclose(message.payload[1], model, rtol=0, atol=1e-10)
                continue
            about = [message.sender] if message.sender else [m for m in (1, 2, 3) if m != message.receiver]
            width = message.payload.shape[2] // len(about)
            for m, got in zip(about, as_sent(message, 1, width), strict=True):
                assert list(got) == ids
                assert all(torch.allclose(got[i], up[m][i], rtol=0, atol=1e-10) for i in ids)
        agree(run, 1, reference)


def test_one_recomputed_step_without_compression_is_split_learning():
    data = training_data()
    received, recomputed = (
        train(data, CompressedConfig(**SMALL, local_gradient=kind), seed=0) for kind in ("received", "recomputed")
    )
    assert same_models(received, recomputed, atol=1e-10)


def test_recomputed_gradients_cost_embeddings_the_model_and_once_the_labels():
    """Down to each of 2 clients: 48 labels once; in a round 16 x 8 values of the other and the weights in 4 bits."""
    data = training_data(records=48, clients=2, width=3, dtype=torch.float32)
    sizes = {"batch_size": 16, "epochs": 1, "embedding": 8, "hidden": 4, "local_steps": 5}
    trained = train(data, CompressedConfig(**sizes, forward_bits=4, local_gradient="recomputed"), seed=0)
    weights = trained.server.flat.shape[1]
    ledger = trained.ledger
    assert ledger.bytes_up == {"embeddings": 3 * 2 * (8 + 16 * 8 // 2)}
    assert ledger.bytes_down == {
        "labels": 2 * 48 * 4,
        "embeddings": 3 * 2 * (8 + 16 * 8 // 2),
        "model": 3 * 2 * -(-(64 + 4 * weights) // 8),
    }


def test_noise_does_not_go_with_recomputed_gradients():
    for dp in ("embedding", "gradient"):
        with refused("use dp none with local_gradient recomputed"):
            METHODS["compressed"].configure(dp=dp, local_gradient="recomputed")


def test_split_learning_is_compressed_vfl_without_compression():
    data = training_data()
    same = {**SMALL, "momentum": 0.9, "server_momentum": 0.9}
    split, compressed = (
        train(data, METHODS[name].configure(**same, **options), seed=0)
        for name, options in (("split", {}), ("compressed", {"forward_bits": None}))
    )
    assert same_models(split, compressed)
    assert METHODS["compressed"].configure().forward_bits == 8
    assert METHODS["split"].configure().forward_bits is None


@pytest.mark.parametrize("bits", [1, 2, 4, 8, None])
def test_bytes_of_003s_mnist(bits):
    """64 x 64 values of each of two clients: a 64-bit header and `bits` a value up, floats down, no table."""
    dataset = random_dataset(records=64, clients=2, width=392, classes=10)
    data = training_data(dataset, dtype=torch.float32)
    config = CompressedConfig(batch_size=64, epochs=1, embedding=64, hidden=128, forward_bits=bits)
    ledger = train(data, config, seed=0, replicas=(0, 1)).ledger
    assert ledger.bytes_up == {"embeddings": 2 * (16_384 if bits is None else 8 + 512 * bits)}
    assert ledger.bytes_down == {"gradient": 2 * 16_384}
