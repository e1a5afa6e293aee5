"""What recording a training costs: the same loop with the recorder and without, in turn, on the halves of MNIST.

The loop is one that a user writes: two bottom models, a top model, Adam, batches of 64. Pictures are read from
DPZV_AUDIT_DATA; without it random images of their shape take their place, which are as much work. The ratio is the
median over many short trainings in pairs, in processor time, so that other work on the machine moves it little; what
is recorded is checked and read within the time. Where tensors go to disk each of these trainings fills the stated
memory several times.

Run: OMP_NUM_THREADS=1 python benchmarks/run.py recording
"""

from functools import partial
from statistics import median

import numpy as np
import torch
from measuring import least
from ratios import Row, milliseconds
from torch import nn

from dpzv_audit.base.errors import InputError
from dpzv_audit.data import load
from dpzv_audit.systems import Recorder

BATCH = 64
TENTH, SECONDS = 0.1, 80e-6
"""Recording costs at most a tenth of a training or so much a batch, whichever is more."""
EPOCHS = 2
MEMORIES = {"in memory": (1 << 30, True), "on disk past 4 MB": (4 << 20, True), "on disk past 1 MB": (1 << 20, False)}
"""Where tensors are kept, by what memory of a recorder; and whether the promise is about it. Within 1 MB fewer messages
wait to be checked together than the recorder would gather."""
BOTTOMS = {
    "two convolutions, 64 numbers a record": (
        lambda: nn.Sequential(
            *(nn.Unflatten(1, (1, 28, 14)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 7 * 3, 64)),
        ),
        64,
    ),
    "layers of 128 and 64, 64 numbers a record": (
        lambda: nn.Sequential(nn.Linear(392, 128), nn.ReLU(), nn.Linear(128, 64)),
        64,
    ),
    "one layer, 8 numbers a record": (lambda: nn.Linear(392, 8), 8),
}
"""Bottom models of a half, 392 pixels, and how much travels of a record; of the last there is hardly anything to do."""


def rows(*, quick=False):
    """The time of a training with the recorder over that without, by bottom model and by where tensors are kept."""
    for words, (bottom, width) in BOTTOMS.items():
        heavy = words.startswith("two conv")
        features, labels = halves(1024 if quick else 4096)
        for place, (memory, stated) in MEMORIES.items():
            plain = partial(train, features, labels, bottom, width)
            recorded = partial(plain, memory=memory)
            count = 3 if quick else 6 if heavy else 41
            pairs = [least([(recorded, 1), (plain, 1)], turns=1) for _ in range(count)]
            ours, beside = map(min, zip(*pairs, strict=True))
            batches = EPOCHS * -(-len(labels) // BATCH)
            yield Row(
                what=f"{words}, kept {place}",
                ours=f"{milliseconds(ours / batches)} a batch, recorded",
                beside=f"{milliseconds(beside / batches)} not recorded",
                ratio=median(ours / beside for ours, beside in pairs),
                promised=1.0 + max(TENTH, SECONDS * batches / beside) if stated else None,
            )


def halves(count):
    """Left and right halves (count, 392) of pictures, and their labels; random ones where there are none."""
    try:
        pictures = load("mnist", clients=2).train
        features, labels = pictures.features, pictures.labels
    except InputError:
        generator = np.random.default_rng(0)
        features = tuple(generator.random((count, 14 * 28), dtype=np.float32) for _ in range(2))
        labels = generator.integers(10, size=count)
    blocks = [torch.tensor(np.asarray(block[:count])).reshape(count, -1) for block in features]
    return blocks, torch.tensor(np.asarray(labels[:count]))


def train(x, y, bottom, width, memory=None):
    """Train for two epochs; `memory` is the recorder's, None for a training without one."""
    torch.manual_seed(0)
    record = None if memory is None else Recorder(len(y), len(x), memory)
    bottoms = [bottom() for _ in x]
    top = nn.Sequential(nn.Linear(width * len(x), 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam([p for model in (*bottoms, top) for p in model.parameters()])
    batches = [ids for _ in range(EPOCHS) for ids in torch.randperm(len(y)).split(BATCH)]
    for number, ids in enumerate(batches):
        sent = [model(block[ids]) for model, block in zip(bottoms, x, strict=True)]
        if record is not None:
            sent = [record.cut(m, number, ids)(h) for m, h in enumerate(sent, start=1)]
        loss = nn.functional.cross_entropy(top(torch.cat(sent, 1)), y[ids])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if record is not None:
        assert len(record.messages) == 4 * len(batches)
