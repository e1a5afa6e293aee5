"""A training with Opacus, as an audit repeats it: replace the data, the model and the settings with yours."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from torch import nn
from torch.utils.data import TensorDataset

from dpzv_audit.integrations.opacus import OpacusTraining


def subject():
    """Return one epoch of logistic regression, with a canary in one of two neighbouring data sets."""
    features, labels = load_breast_cancer(return_X_y=True)
    records = TensorDataset(torch.tensor(scale(features), dtype=torch.float32), torch.tensor(labels))
    return OpacusTraining(
        model=lambda: nn.Linear(30, 2), data=records, batch_size=64, noise_multiplier=1.0, max_grad_norm=1.0
    )
