"""A training with Opacus as it was before it was audited."""

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

features, labels = load_breast_cancer(return_X_y=True)
DATA = TensorDataset(torch.tensor(scale(features), dtype=torch.float32), torch.tensor(labels))


def model():
    """Logistic regression of two classes."""
    return nn.Linear(30, 2)


def train():
    """Train for an epoch; return the epsilon that Opacus says this took."""
    network = model()
    engine = PrivacyEngine()
    network, optimizer, loader = engine.make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        data_loader=DataLoader(DATA, batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return engine.get_epsilon(1e-5)
