"""Small data, a log of everything that is sent, and one thread, for the tests of the training methods."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dpzv_audit.data.vertical import Records, VerticalDataset
from mechanisms.config import DPZVConfig
from mechanisms.dpzv import DPZVRun
from mechanisms.federation import TrainingData, dtype_of
from mechanisms.plan import plan


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

    def __init__(self) -> None:
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


@pytest.fixture
def message_log():
    return MessageLog()


@pytest.fixture(scope="session")
def make_dataset() -> Callable[..., VerticalDataset]:
    """A function: random features in [-1, 1] and random labels, `clients` blocks of `width` features."""

    def make(*, records=24, clients=3, width=3, classes=3, test=9, seed=0):
        generator = np.random.default_rng(seed)

        def part(count):
            blocks = tuple(generator.uniform(-1, 1, (count, width)).astype(np.float32) for _ in range(clients))
            return Records(features=blocks, labels=generator.integers(classes, size=count))

        return VerticalDataset("random", part(records), part(test), classes, "random blocks", {})

    return make


@pytest.fixture(scope="session")
def make_run(make_dataset):
    """A function: (DPZVRun not yet stepped, its MessageLog) for a config and options of the random data."""

    def make(config: DPZVConfig, *, seed=0, replicas=(0,), behaviours=None, labels=None, dataset=None, **options):
        dataset = dataset or make_dataset(**options)
        data = TrainingData.of(dataset, dtype=dtype_of(config), device="cpu", labels=labels)
        the_plan = plan(config, records=len(dataset.train), clients=dataset.clients, seed=seed, behaviours=behaviours)
        log = MessageLog()
        with torch.no_grad():
            run = DPZVRun(data, config, the_plan, seed=seed, replicas=replicas, behaviours=behaviours, observers=(log,))
        return run, log

    return make


@pytest.fixture(scope="session")
def steps():
    """A function that runs the next `count` rounds of a run, or all that are planned."""

    def step(run, count=None):
        with torch.no_grad():
            for _ in range(len(run.plan.active) if count is None else count):
                run.step()
        return run

    return step
