import pytest
import torch

from mechanisms.methods.compressed import SplitConfig

from ...helpers.built_in import train
from ..conftest import Parties, random_dataset, training_data, vector

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
    parties = Parties(data, config, seed=seed, replica=replica)
    modules = [module for module in parties.modules.values() if module is not None]
    rates = {"lr": config.client_rate, "momentum": config.momentum}
    groups = [{"params": list(parties.modules[m].parameters()), **rates} for m in parties.m]
    if config.top_model:
        rates = {"lr": config.server_rate, "momentum": config.server_momentum}
        groups.append({"params": list(parties.modules[0].parameters()), **rates})
    optimiser = torch.optim.SGD(groups)
    for _ in range(config.epochs * (len(data.labels) // config.batch_size)):
        loss = parties.mean_loss({i: [parties.embed(m, i) for m in parties.m] for i in parties.draw(1)})
        optimiser.zero_grad()
        if loss.requires_grad:
            loss.backward()
        optimiser.step()
    return [vector(module) for module in modules]


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
            got.insert(0, trained.server.flat[place])
        for mine, theirs in zip(got, expected, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_gradients_name_the_label_without_a_top_model(message_log):
    """softmax - one-hot, over B: one negative coordinate, which is the label (paper 002, section VI-B)."""
    dataset = random_dataset()
    data = training_data(dataset)
    train(data, SplitConfig(**SMALL, top_model=False), seed=0, observers=(message_log,))
    truth = torch.from_numpy(dataset.train.labels)
    gradients = [m for m in message_log.messages if m.kind == "gradient"]
    assert len(gradients) == 3 * 12
    assert not message_log.notes
    for message in gradients:
        assert torch.equal(message.payload.argmin(2), truth[message.ids])
        assert ((message.payload < 0).sum(2) == 1).all()
        assert torch.allclose(message.payload.sum(2), torch.zeros(1, 6, dtype=torch.float64), atol=1e-12)
