import pytest
import torch
from torch import nn
from torch.nn import functional

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.models import default_architectures, initial_parameters, layout_of
from mechanisms.core.streams import BatchStream
from mechanisms.methods.compressed import SplitConfig

from ...helpers.built_in import train
from ..conftest import random_dataset, training_data

SMALL = {
    "batch_size": 6,
    "epochs": 3,
    "embedding": 2,
    "hidden": 4,
    "dtype": "float64",
    "client_rate": 0.1,
    "server_rate": 0.05,
}


def reference(data, config, *, seed, replica):
    """End-to-end back-propagation through all parties with torch's own SGD, one replica."""
    shapes = tuple(tuple(f.shape[1:]) for f in data.features)
    models, top = default_architectures(config, shapes, data.classes)

    def start(model, party):
        module = model.module().double()
        flat = initial_parameters(layout_of(model), stream(seed, Purpose.INIT, party, replica))
        nn.utils.vector_to_parameters(torch.from_numpy(flat), module.parameters())
        return module

    clients = [start(model, m) for m, model in enumerate(models, start=1)]
    server = None if top is None else start(top, 0)
    groups = [{"params": list(c.parameters()), "lr": config.client_rate, "momentum": config.momentum} for c in clients]
    if server is not None:
        own = {"lr": config.server_rate, "momentum": config.server_momentum}
        groups.append({"params": list(server.parameters()), **own})
    optimiser = torch.optim.SGD(groups)
    batches = BatchStream(
        config.sampler,
        records=len(data.labels),
        batch_size=config.batch_size,
        seed=seed,
        client=1,
        replicas=(replica,),
    )
    for _ in range(config.epochs * (len(data.labels) // config.batch_size)):
        batch = batches.next()
        ids = batch.ids[0] if batch.weights is None else batch.ids[0][batch.weights[0].bool()]
        embeddings = [c(data.features[m][ids]) for m, c in enumerate(clients)]
        logits = sum(embeddings) if server is None else server(torch.cat(embeddings, 1))
        loss = functional.cross_entropy(logits, data.labels[ids], reduction="sum") / config.batch_size
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    parties = clients if server is None else [*clients, server]
    return [nn.utils.parameters_to_vector(p.parameters()).detach() for p in parties]


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
@pytest.mark.parametrize("top_model", [True, False])
def test_split_learning_is_back_propagation_cut_in_two(sampler, top_model):
    config = SplitConfig(**SMALL, sampler=sampler, top_model=top_model)
    data = training_data()
    trained = train(data, config, seed=4, replicas=(0, 2))
    for place, replica in enumerate((0, 2)):
        expected = reference(data, config, seed=4, replica=replica)
        got = [client.flat[place] for client in trained.clients]
        if top_model:
            got.append(trained.server.flat[place])
        for mine, theirs in zip(got, expected, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sampler", ["shuffled", "uniform", "poisson"])
@pytest.mark.parametrize("top_model", [True, False])
def test_a_replica_is_the_same_run_alone(sampler, top_model):
    config = SplitConfig(**SMALL, sampler=sampler, top_model=top_model)
    data = training_data()
    stacks = {chunk: train(data, config, seed=0, replicas=chunk) for chunk in ((2,), (0, 2, 1), (3, 4, 0, 1, 2))}
    for chunk, trained in stacks.items():
        place = chunk.index(2)
        for got, want in zip(trained.clients, stacks[(2,)].clients, strict=True):
            assert torch.allclose(got.flat[place], want.flat[0], rtol=0, atol=1e-10)
        assert torch.allclose(trained.server.flat[place], stacks[(2,)].server.flat[0], rtol=0, atol=1e-10)
    flats = stacks[(0, 2, 1)].clients[0].flat
    assert not torch.isclose(flats[0], flats[1]).all()


def test_gradients_name_the_label_without_a_top_model(message_log):
    """softmax - one-hot, over B: one negative coordinate, which is the label (paper 002, section VI-B)."""
    dataset = random_dataset()
    data = training_data(dataset)
    train(data, SplitConfig(**SMALL, top_model=False), seed=0, observers=(message_log,))
    truth = torch.from_numpy(dataset.train.labels)
    gradients = [m for m in message_log.messages if m.kind == "gradient"]
    assert len(gradients) == 3 * 12
    for message in gradients:
        assert torch.equal(message.payload.argmin(2), truth[message.ids])
        assert ((message.payload < 0).sum(2) == 1).all()
        assert torch.allclose(message.payload.sum(2), torch.zeros(1, 6, dtype=torch.float64), atol=1e-12)


def test_before_the_first_gradient_nothing_depends_on_labels():
    dataset = random_dataset()
    logs = []
    for labels in (dataset.train.labels, (dataset.train.labels + 1) % 3):
        log = _Log()
        data = training_data(dataset, labels=labels)
        train(data, SplitConfig(**SMALL), seed=0, observers=(log,))
        logs.append(log.messages)
    first = next(i for i, m in enumerate(logs[0]) if m.kind == "gradient")
    assert first == 3
    for a, b in zip(logs[0][:first], logs[1][:first], strict=True):
        assert torch.equal(a.payload, b.payload)
    assert not torch.equal(logs[0][first].payload, logs[1][first].payload)


class _Log:
    def __init__(self):
        self.messages = []

    def on_message(self, message):
        self.messages.append(message)

    def on_note(self, party, round_, name, value):
        raise AssertionError("split learning notes nothing")


def test_progress_and_history():
    data = training_data()
    done = []
    trained = train(data, SplitConfig(**SMALL), seed=0, progress=done.append, evaluate_epochs=True)
    assert done == [4, 8, 12]
    assert [e for e, _, _ in trained.history] == [1, 2, 3]
    assert trained.history[-1][1] == pytest.approx(trained.accuracy.mean())
    assert trained.rounds_by_client == (12, 12, 12)
