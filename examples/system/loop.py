"""A two-party training as it was before it was audited: a bank and an insurer train on shared customers."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


def data():
    """Whether a digit is a zero, one label in ten, at party 0; halves of the pictures at parties 1 and 2."""
    pixels, digits = load_digits(return_X_y=True)
    halves = np.split(pixels.reshape(-1, 8, 8) / 16.0, 2, axis=2)
    return {"features": [half.reshape(len(digits), -1) for half in halves], "labels": (digits == 0).astype(int)}


def train(features, labels, seed, noise=0.0, clip=0.01, epochs=5, batch=64):
    """Train two bottom models and a top model; `noise` times `clip` is on the gradients that go down."""
    torch.manual_seed(seed)
    x, y = [torch.tensor(block, dtype=torch.float32) for block in features], torch.tensor(labels)
    bottoms = [nn.Sequential(nn.Linear(block.shape[1], 16), nn.ReLU(), nn.Linear(16, 8)) for block in x]
    top = nn.Linear(16, 2)
    optimizer = torch.optim.Adam([p for model in (*bottoms, top) for p in model.parameters()], lr=0.01)
    for _ in range(epochs):
        for ids in torch.randperm(len(y)).split(batch):
            sent = [bottom(block[ids]) for bottom, block in zip(bottoms, x, strict=True)]
            for h in sent:
                h.register_hook(lambda g: g if not noise else private(g, noise, clip))
            loss = nn.functional.cross_entropy(top(torch.cat(sent, 1)), y[ids])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return bottoms, top


def private(gradients, noise, clip):
    """Clip each record's gradient to `clip` in norm, and add Gaussian noise of `noise` times that."""
    norms = gradients.norm(dim=1, keepdim=True).clamp(min=clip)
    return gradients * (clip / norms) + noise * clip * torch.randn_like(gradients)
