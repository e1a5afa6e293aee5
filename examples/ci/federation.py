"""A federation of a bank with labels and two insurers: replace `data` and the body of `train` with yours."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

CLIP, NOISE = 0.01, 2.0


def data():
    """Return features of each insurer and the bank's labels: halves of digits, and whether a digit is a zero."""
    pixels, digits = load_digits(return_X_y=True)
    halves = np.split(pixels.reshape(-1, 8, 8) / 16.0, 2, axis=2)
    return {"features": [half.reshape(len(digits), -1) for half in halves], "labels": (digits == 0).astype(int)}


def train(task, record, seed):
    """Train on the records of `task`; `record.cut` marks each place where an embedding travels to the bank."""
    torch.manual_seed(seed)
    x, y = task.torch()
    bottoms = [nn.Sequential(nn.Linear(block.shape[1], 16), nn.ReLU(), nn.Linear(16, 8)) for block in x]
    top = nn.Linear(16, 2)
    optimizer = torch.optim.Adam([p for model in (*bottoms, top) for p in model.parameters()], lr=0.01)
    for number, ids in enumerate(batch for _ in range(5) for batch in torch.randperm(len(y)).split(64)):
        sent = [record.cut(m, number, ids)(bottom(x[m - 1][ids])) for m, bottom in enumerate(bottoms, start=1)]
        for embedding in sent:
            embedding.register_hook(noised)
        optimizer.zero_grad()
        nn.functional.cross_entropy(top(torch.cat(sent, 1)), y[ids]).backward()
        optimizer.step()

    def predict(blocks):
        return top(torch.cat([bottom(block) for bottom, block in zip(bottoms, blocks, strict=True)], 1))

    return {"predict": predict, "clients": {1: bottoms[0], 2: bottoms[1]}}


def noised(gradients):
    """Clip the gradient of each record to `CLIP` in norm, and add Gaussian noise of `NOISE` times that."""
    norms = gradients.norm(dim=1, keepdim=True).clamp(min=CLIP)
    return gradients * (CLIP / norms) + NOISE * CLIP * torch.randn_like(gradients)
