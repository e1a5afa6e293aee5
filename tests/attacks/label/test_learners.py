"""What reads labels off rows: each learner where it must win, and the choice among them by labelled records alone."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import one_hot

from attacks.core.knowledge import FewLabels
from attacks.label import learners
from attacks.label.learners import LEARNERS, best, by_head, folds


def known_of(replicas=1, classes=2, steps=30):
    return SimpleNamespace(replicas=tuple(range(replicas)), classes=classes, seed=0, options={"steps": steps})


def rings(generator):
    """Records (400, 2) on two circles, one within the other, by class: no line parts them, but they are two chains."""
    truth = np.arange(400) % 2
    angle = generator.uniform(0, 2 * np.pi, 400)
    radius = 1.0 + truth + 0.05 * generator.standard_normal(400)
    return np.stack((radius * np.cos(angle), radius * np.sin(angle)), 1), truth


def halves(generator):
    """Records (400, 30) of noise whose class is the side of a plane: neighbours say little, a line nearly all."""
    rows = generator.standard_normal((400, 30))
    return rows, (rows[:, :10].sum(1) > 0).astype(int)


@pytest.mark.parametrize(
    ("planted", "labelled", "winner", "least"), [(rings, 40, "spreading", 0.99), (halves, 120, "regression", 0.85)]
)
@pytest.mark.parametrize("graph", [1000, 300])
def test_the_learner_that_suits_the_rows_is_chosen_and_finds_the_labels(
    planted, labelled, winner, least, graph, monkeypatch
):
    """Of 400 records, all in the graph of neighbours or 300 of them."""
    monkeypatch.setattr(learners, "GRAPH", graph)
    rows, truth = planted(np.random.default_rng(0))
    few_of = np.concatenate([np.flatnonzero(truth == c)[: labelled // 2] for c in (0, 1)])
    few = FewLabels(torch.from_numpy(few_of)[None], torch.from_numpy(truth[few_of])[None])
    inside = torch.from_numpy(rows)[None]
    scores, beyond = best(inside, inside[:, :50], few, known_of())
    rates = {}
    for name, learn in LEARNERS.items():
        ((each, _),) = learn(inside, inside[:, :0], [few], known_of())
        assert torch.allclose(each.sum(2), torch.ones(1, 400).double())
        rates[name] = (each.argmax(2)[0].numpy() == truth).mean()
        assert torch.allclose(scores, each) is (name == winner)
    assert max(rates, key=rates.get) == winner
    assert rates[winner] > least
    assert (beyond.argmax(2)[0].numpy() == truth[:50]).mean() > least - 0.1


def test_the_choice_goes_by_records_left_out_and_by_nothing_else(monkeypatch):
    """Planted: `honest` names labelled records that it was not given, `lucky` every other one and none of those.

    In the second of two trainings they change places, and each takes its own.
    """
    truth = torch.arange(60) % 3
    few = FewLabels(torch.arange(12).expand(2, -1), truth[:12].expand(2, -1))
    kept_ids = []

    def fake(helped):
        def learn(rows, outside, kept, known):
            kept_ids.append(kept.ids)
            names = (truth + 1) % 3
            classes = names.expand(2, -1).clone()
            classes[helped, :12] = truth[:12]
            classes[1 - helped, 12:] = truth[12:]
            return torch.eye(3)[classes], torch.full((2, outside.shape[1], 3), float(helped))

        return learn

    monkeypatch.setattr(learners, "LEARNERS", {"first": learners.each(fake(0)), "second": learners.each(fake(1))})
    scores, beyond = best(torch.zeros(2, 60, 4), torch.zeros(2, 5, 4), few, known_of(2, classes=3))
    assert (scores.argmax(2)[:, :12] == truth[:12]).all()
    assert not (scores.argmax(2)[:, 12:] == truth[12:]).any()
    assert beyond[:, 0, 0].tolist() == [0.0, 1.0]
    for kept, left in folds(few, 3):
        assert not set(kept.ids[0].tolist()) & set(left.ids[0].tolist())
        assert sorted([*kept.ids[0].tolist(), *left.ids[0].tolist()]) == list(range(12))
        assert any(torch.equal(kept.ids, ids) for ids in kept_ids)


def test_of_single_labels_none_can_be_left_out_and_the_authors_head_is_taken():
    rows, truth = rings(np.random.default_rng(0))
    few = FewLabels(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    assert list(folds(few, 2)) == []
    inside = torch.from_numpy(rows)[None]
    scores, _ = best(inside, inside[:, :0], few, known_of())
    ((head, _),) = by_head(inside, inside[:, :0], [few], known_of())
    assert torch.equal(scores, head)
    assert truth[:2].tolist() == [0, 1]


def restated_head(rows, truth, labelled, seed, *, steps):
    """Batch norm, ReLU and a linear layer as modules (Fu et al., section 4), by MixMatch (section 3.2 to 3.5).

    One training by itself; statistics are those of batches while it is trained, and an average of them then.
    """
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    rows, truth = torch.from_numpy(rows).float(), torch.from_numpy(truth)
    net, average = (
        nn.Sequential(nn.BatchNorm1d(rows.shape[1]), nn.ReLU(), nn.Linear(rows.shape[1], 10)) for _ in range(2)
    )
    average.load_state_dict(net.state_dict())
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(steps):
        known, unknown = generator.choice(labelled, 16), generator.integers(len(rows), size=16)
        with torch.no_grad():
            guessed = net(rows[unknown]).softmax(1) ** (1 / 0.8)
        wanted = torch.cat((one_hot(truth[known], 10), guessed / guessed.sum(1, keepdim=True)))
        inputs = torch.cat((rows[known], rows[unknown]))
        share, order = generator.beta(0.75, 0.75), generator.permutation(32)
        share = max(share, 1 - share)
        out = net(share * inputs + (1 - share) * inputs[order])
        wanted = share * wanted + (1 - share) * wanted[order]
        entropy = -(wanted[:16] * out[:16].log_softmax(1)).sum(1).mean()
        square = ((out[16:].softmax(1) - wanted[16:]) ** 2).mean()
        optimiser.zero_grad()
        (entropy + 50 * (step + 1) / steps * square).backward()
        optimiser.step()
        for kept, now in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
            if kept.is_floating_point():
                kept.mul_(0.999).add_(now.detach(), alpha=0.001)
    with torch.no_grad():
        return average.eval()(rows).argmax(1).numpy()


def restated_spreading(rows, truth, labelled):
    """(I - alpha S)^-1 Y, with S of a symmetric graph of nearest neighbours (Zhou et al. 2003, section 2)."""
    distances = ((rows[:, None] - rows) ** 2).sum(2)
    near = np.zeros_like(distances)
    np.put_along_axis(near, distances.argsort(1)[:, :8], 1.0, 1)
    np.fill_diagonal(near, 0.0)
    near = np.maximum(near, near.T)
    degrees = near.sum(1)
    known = np.zeros((len(rows), 10))
    known[labelled, truth[labelled]] = 1
    return np.linalg.solve(np.eye(len(rows)) - 0.9 * near / np.sqrt(np.outer(degrees, degrees)), known).argmax(1)


def restated_regression(rows, truth, labelled):
    """The largest penalised likelihood: the sum of log p at C = 0.1, less half of the squared weights."""
    rows = np.concatenate((rows / rows.std(0).mean(), np.ones((len(rows), 1))), 1)
    inputs, wanted = rows[labelled], np.eye(10)[truth[labelled]]
    weighed = np.repeat([1.0, 0.0], [rows.shape[1] - 1, 1])[:, None]  # all but the intercepts

    def loss(flat):
        weights = flat.reshape(-1, 10)
        odds = np.exp(inputs @ weights)
        probabilities = odds / odds.sum(1, keepdims=True)
        likelihood = np.log((probabilities * wanted).sum(1)).sum()
        gradient = 0.1 * inputs.T @ (probabilities - wanted) + weighed * weights
        return (weighed * weights**2).sum() / 2 - 0.1 * likelihood, gradient.ravel()

    return (rows @ minimize(loss, np.zeros(rows.shape[1] * 10), jac=True).x.reshape(-1, 10)).argmax(1)


@pytest.mark.slow
def test_each_learner_finds_as_much_as_its_formulas_restated():
    """Right halves of digits, ten labels a class, three draws of those: within 0.02 of the mean by plain loops."""
    digits = load_digits()
    rows, truth = digits.images[:1500, :, 4:].reshape(1500, -1) / 16, digits.target[:1500]
    generator = np.random.default_rng(0)
    by_class = [np.flatnonzero(truth == c) for c in range(10)]
    labelled = np.stack([np.concatenate([generator.choice(ids, 10, replace=False) for ids in by_class]) for _ in "abc"])
    inside = torch.from_numpy(rows).expand(3, -1, -1)
    few = FewLabels(torch.from_numpy(labelled), torch.from_numpy(truth[labelled]))
    restated = {
        "head": [restated_head(rows, truth, ids, seed, steps=2000) for seed, ids in enumerate(labelled)],
        "spreading": [restated_spreading(rows, truth, ids) for ids in labelled],
        "regression": [restated_regression(rows, truth, ids) for ids in labelled],
    }
    for name, learn in LEARNERS.items():
        ((scores, _),) = learn(inside, inside[:, :0], [few], known_of(3, classes=10, steps=2000))
        ours = (scores.argmax(2).numpy() == truth).mean()
        assert abs(ours - (np.stack(restated[name]) == truth).mean()) <= 0.02 + 1e-9
        assert ours > 0.7
