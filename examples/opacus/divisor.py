"""One step of Opacus on three records against four: dpzv-audit audit mechanism divisor:subject"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpzv_audit.integrations.opacus import OpacusTraining


def subject(others=3, batch_size=2):
    """A training whose released gradients are as large as the divisor makes them, which follows from the records."""
    return OpacusTraining(
        model=lambda: nn.Linear(50, 2),
        data=TensorDataset(torch.zeros(others, 50), torch.zeros(others, dtype=torch.long)),
        batch_size=batch_size,
        noise_multiplier=10.0,
        max_grad_norm=1.0,
        score="size",
    )


def same_divisor():
    """The same where both worlds have one divisor: 19, of 38 records and of 39."""
    return subject(others=38, batch_size=20)
