"""How much of the true epsilon an audit of Opacus certifies: python power.py

One record's gradient is taken away or not, in whole batches (a sample rate of 1): of T steps with a noise multiplier of
z the truth is that of a Gaussian mechanism with mu = sqrt(T) / z. A training holds 400 canaries, each in a coordinate
of its own, so that their scores are as independent as those of 400 trainings.
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpzv_audit import audit_scores
from dpzv_audit.accounting.gaussian import epsilon_from_mu
from dpzv_audit.integrations.opacus import OpacusTraining

SCORES, CANARIES, DELTA = 10_000, 400, 1e-5
GAUSSIAN = ("gaussian", "sequential-gaussian")
GENERAL = ("joint", "clopper-pearson", "one-run")


def scores(noise, steps, rng):
    """Return 10,000 scores with the canary's gradient and as many without."""
    training = OpacusTraining(
        model=lambda: nn.Linear(1, CANARIES // 2),
        data=TensorDataset(torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)),
        batch_size=2 * CANARIES,
        poisson_sampling=False,
        epochs=steps,
        noise_multiplier=noise,
        max_grad_norm=1.0,
        neighbours="zero-out",
    )
    inside, outside = np.zeros(0), np.zeros(0)
    while min(len(inside), len(outside)) < SCORES:
        found = training.one_run(CANARIES, rng)
        inside, outside = np.append(inside, found.inside), np.append(outside, found.outside)
    return inside[:SCORES], outside[:SCORES]


def certified(noise, steps):
    """Return the true epsilon, and what each estimator certifies of it at 95%."""
    inside, outside = scores(noise, steps, np.random.default_rng(0))
    given = {"delta": DELTA, "exactly_gaussian": True, "built": True}
    bounds = audit_scores(inside, outside, estimators=(*GAUSSIAN, *GENERAL), **given)
    return epsilon_from_mu(steps**0.5 / noise, DELTA), {one.name: one.epsilon_lower for one in bounds}


def main(lengths):
    """Print a row for each number of steps and noise multiplier."""
    print(f"{'steps':>5}{'noise':>7}{'epsilon':>9}", *(f"{name:>20}" for name in (*GAUSSIAN, *GENERAL)))
    for steps in lengths:
        for noise in (0.5, 1.0, 2.0):
            epsilon, found = certified(noise, steps)
            cells = (f"{lower:.2f} ({lower / epsilon:.2f})" for lower in found.values())
            print(f"{steps:5}{noise:7}{epsilon:9.2f}", *(f"{cell:>20}" for cell in cells), flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1, 100])
