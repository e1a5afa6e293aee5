"""What reads labels off rows: each learner where it must win, and the choice among them by labelled records alone."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attacks.core.contract import FewLabels
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
    found, beyond = best(inside, inside[:, :50], few, known_of())
    rates = {}
    for name, learn in LEARNERS.items():
        each, _ = learn(inside, inside[:, :0], few, known_of())
        assert torch.allclose(each.sum(2), torch.ones(1, 400).double())
        rates[name] = (each.argmax(2)[0].numpy() == truth).mean()
        assert torch.allclose(found, each) is (name == winner)
    assert max(rates, key=rates.get) == winner
    assert rates[winner] > least
    assert (beyond.argmax(2)[0].numpy() == truth[:50]).mean() > least - 0.1


def test_the_choice_goes_by_records_left_out_and_by_nothing_else(monkeypatch):
    """Planted: `honest` names labelled records that it was not given, `lucky` every other one and none of those.

    In the second of two trainings they change places, and each takes its own.
    """
    truth = torch.arange(60) % 3
    few = FewLabels(torch.arange(12).expand(2, -1), truth[:12].expand(2, -1))
    given = []

    def fake(helped):
        def learn(rows, outside, kept, known):
            given.append(kept.ids)
            names = (truth + 1) % 3
            found = names.expand(2, -1).clone()
            found[helped, :12] = truth[:12]
            found[1 - helped, 12:] = truth[12:]
            return torch.eye(3)[found], torch.full((2, outside.shape[1], 3), float(helped))

        return learn

    monkeypatch.setattr(learners, "LEARNERS", {"first": fake(0), "second": fake(1)})
    found, beyond = best(torch.zeros(2, 60, 4), torch.zeros(2, 5, 4), few, known_of(2, classes=3))
    assert (found.argmax(2)[:, :12] == truth[:12]).all()
    assert not (found.argmax(2)[:, 12:] == truth[12:]).any()
    assert beyond[:, 0, 0].tolist() == [0.0, 1.0]
    for kept, left in folds(few, 3):
        assert not set(kept.ids[0].tolist()) & set(left.ids[0].tolist())
        assert sorted([*kept.ids[0].tolist(), *left.ids[0].tolist()]) == list(range(12))
        assert any(torch.equal(kept.ids, one) for one in given)


def test_of_single_labels_none_can_be_left_out_and_the_authors_head_is_taken():
    rows, truth = rings(np.random.default_rng(0))
    few = FewLabels(torch.tensor([[0, 1]]), torch.tensor([[0, 1]]))
    assert list(folds(few, 2)) == []
    inside = torch.from_numpy(rows)[None]
    found, _ = best(inside, inside[:, :0], few, known_of())
    head, _ = by_head(inside, inside[:, :0], few, known_of())
    assert torch.equal(found, head)
    assert truth[:2].tolist() == [0, 1]
