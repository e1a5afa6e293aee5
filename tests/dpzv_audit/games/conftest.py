"""What the tests of games share: a small data set, and one way to play."""

import numpy as np
import pytest
import torch

from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.games.engine import Effort, collect
from dpzv_audit.games.real import RealTrials


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def dataset():
    """A function that makes a small random data set."""

    def made(records=12, clients=2, classes=3, seed=0):
        generator = np.random.default_rng(seed)

        def part(count):
            blocks = tuple(generator.uniform(-1, 1, (count, 3)).astype(np.float32) for _ in range(clients))
            return Records(features=blocks, labels=generator.integers(classes, size=count))

        return VerticalDataset("random", part(records), part(4), classes, "random blocks", {})

    return made


@pytest.fixture(scope="session")
def play(dataset):
    """A function that plays `runs` pairs of a game, `chunk` trainings at a time, and returns their scores."""

    def played(game, data=None, *, runs, seed=0, chunk=128, progress=None):
        trials = RealTrials(game, data or dataset(), seed)
        return trials.scored(collect(trials, runs, Effort(chunk=max(1, chunk // 2), progress=progress)).arrays)

    return played


@pytest.fixture(scope="session")
def exactly_gaussian():
    """A function that says whether all scores of a game are Gaussian by construction."""
    return lambda scores: scores.gaussian is not None and scores.gaussian[1].probability == 1.0
