"""A bank with labels and an insurer train together; each is a class that knows its own data and model alone."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


def data():
    """Halves of pictures, the insurer's and the bank's, and whether a digit is a zero, which the bank alone knows."""
    pixels, digits = load_digits(return_X_y=True)
    halves = np.split(pixels.reshape(-1, 8, 8) / 16.0, 2, axis=2)
    return {"features": [half.reshape(len(digits), -1) for half in halves], "labels": (digits == 0).astype(int)}


def batches(records, seed, epochs=2, size=64):
    """Ids of the records of each round: both parties draw the same."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield from torch.randperm(records, generator=generator).split(size)


class Insurer:
    """Party 1: sends embeddings, learns from the gradients that it gets."""

    width = 8

    def __init__(self, features, seed):
        torch.manual_seed(seed + 1)
        self.x = torch.tensor(features, dtype=torch.float32)
        self.bottom = nn.Sequential(nn.Linear(self.x.shape[1], 16), nn.ReLU(), nn.Linear(16, self.width))
        self.optimizer = torch.optim.Adam(self.bottom.parameters(), lr=0.01)

    def embed(self, ids):
        """Return the embeddings (B, 8) of records."""
        self.sent = self.bottom(self.x[ids])
        return self.sent.detach()

    def learn(self, gradient):
        """Step along the gradient (B, 8) at what was sent last."""
        self.optimizer.zero_grad()
        self.sent.backward(gradient)
        self.optimizer.step()


class Bank:
    """Party 0: has labels, a top model, and features of its own, which never travel."""

    def __init__(self, features, labels, seed):
        torch.manual_seed(seed)
        self.x, self.y = torch.tensor(features, dtype=torch.float32), torch.tensor(labels)
        self.bottom = nn.Linear(self.x.shape[1], 8)
        self.top = nn.Linear(8 + Insurer.width, 2)
        self.optimizer = torch.optim.Adam([*self.bottom.parameters(), *self.top.parameters()], lr=0.01)

    def answer(self, embeddings, ids):
        """Step, and return the gradient (B, 8) at the insurer's embeddings."""
        embeddings.requires_grad_()
        scores = self.top(torch.cat([embeddings, self.bottom(self.x[ids])], 1))
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(scores, self.y[ids]).backward()
        self.optimizer.step()
        return embeddings.grad


def train(task, record, seed):
    """Train both in one process, as trials and controls do."""
    insurer, bank = Insurer(task.features[0], seed), Bank(task.features[1], task.labels, seed)
    for number, ids in enumerate(batches(len(task.labels), seed)):
        up = insurer.embed(ids)
        record.sent(number, 1, 0, "embeddings", up, ids)
        down = bank.answer(up, ids)
        record.sent(number, 0, 1, "gradient", down, ids)
        insurer.learn(down)

    def predict(blocks):
        return bank.top(torch.cat([insurer.bottom(blocks[0]), bank.bottom(blocks[1])], 1))

    return {"predict": predict, "clients": {1: insurer.bottom}}
