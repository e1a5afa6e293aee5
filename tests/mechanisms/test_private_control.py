import pytest
import torch

from dpzv_audit.accounting import epsilon_from_mu
from mechanisms.controls import (
    PrivateControlConfig,
    control_sigma,
    private_frozen_clients,
)
from mechanisms.core.context import RunContext
from mechanisms.core.logistic import ClippedSums
from mechanisms.core.noise import GaussianNoise, Grid

from .conftest import training_data


@pytest.fixture
def data():
    return training_data(records=40, test=60, dtype=torch.float32)


def config(**options):
    return PrivateControlConfig(**{"epsilon": 1.0, "delta": 1e-5, "embedding": 4, "steps": 5, **options})


def steps_of(rows, labels, weights, grid):
    return ClippedSums(rows[None], grid.clip, grid)(weights[None], labels[None])[0]


@pytest.mark.parametrize("clip", [0.2, 1.0, 1e6])
def test_the_sum_is_that_of_records_clipped_one_by_one(clip):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (12,), generator=generator)
    weights = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    expected = torch.zeros_like(weights)
    for row, label in zip(rows, labels, strict=True):
        leaf = weights.clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy((row @ leaf).unsqueeze(0), label.unsqueeze(0))
        (gradient,) = torch.autograd.grad(loss, leaf)
        expected += gradient * min(1.0, clip / float(gradient.norm()))
    grid = Grid(clip, 28)
    steps = steps_of(rows, labels, weights, grid)
    assert torch.equal(steps, steps.round())
    # Twelve records, each towards zero: a direction of 5 entries by at most a step of 2^12 each, a length by 2^-16 C.
    largest = min(clip, 20.0)
    assert torch.allclose(steps * grid.step, expected, rtol=0, atol=12 * (largest / 2**12 + clip / 2**16))


@pytest.mark.parametrize("bits", [4, 12, 18])
def test_the_sum_is_exact_on_a_coarse_grid_too(bits):
    # Far beyond 2^24 in all: single precision would round.
    rows, labels = torch.ones(40_000, 2), torch.zeros(40_000, dtype=torch.int64)
    weights, grid = torch.zeros(2, 2), Grid(0.1, bits)
    steps, alone = steps_of(rows, labels, weights, grid), steps_of(rows[:1], labels[:1], weights, grid)
    assert steps.dtype == torch.float64
    assert torch.equal(steps, 40_000 * alone)


def test_noise_that_takes_a_coarse_grid_is_drawn(data):
    assert private_frozen_clients(data, config(epsilon=1e-6), RunContext(seed=0)).shape[:2] == (1, 60)


def test_a_replaced_record_moves_the_sum_by_the_sensitivity_that_the_noise_is_for():
    generator = torch.Generator().manual_seed(1)
    rows = 9 * torch.randn(6, 4, generator=generator, dtype=torch.float64)
    labels, weights = torch.tensor([0, 1, 2, 0, 1, 2]), torch.zeros(4, 3, dtype=torch.float64)
    opposite = rows.clone()
    opposite[3] = -rows[3]
    grid = Grid(0.5, 28)
    moved = steps_of(rows, labels, weights, grid) - steps_of(opposite, labels, weights, grid)
    assert sum(int(n) ** 2 for n in moved.flatten().tolist()) <= (2 * 2**28) ** 2
    assert float(moved.norm() * grid.step) == pytest.approx(2 * 0.5, rel=1e-3)


@pytest.mark.parametrize(("steps", "clip"), [(1, 1.0), (100, 0.3)])
def test_all_steps_together_meet_the_target(steps, clip):
    sigma = control_sigma(config(steps=steps, clip=clip))
    assert epsilon_from_mu(2 * clip * steps**0.5 / sigma, 1e-5) == pytest.approx(1.0, rel=1e-9)


def test_the_noise_that_is_drawn_is_the_calibrated_one_once_a_step(data, monkeypatch):
    drawn = []
    real = GaussianNoise.next

    def watched(self):
        drawn.append(self.std)
        return real(self)

    monkeypatch.setattr(GaussianNoise, "next", watched)
    private_frozen_clients(data, config(), RunContext(seed=0))
    assert drawn == [Grid(config().clip, 28).steps(control_sigma(config()))] * 5


def test_a_replica_is_the_same_in_any_stack_and_other_replicas_differ(data):
    stack = private_frozen_clients(data, config(), RunContext(seed=3, replicas=(0, 1, 2)))
    alone = private_frozen_clients(data, config(), RunContext(seed=3, replicas=(1,)))
    assert stack.shape == (3, 60, data.classes)
    assert torch.equal(stack[1], alone[0])
    assert not torch.equal(stack[0], stack[1])


def test_it_learns_where_epsilon_is_large_and_not_where_it_is_tiny():
    from dpzv_audit.data import load

    digits = training_data(load("digits", clients=4), dtype=torch.float32)
    accuracy = {}
    for epsilon in (100.0, 1e-3):
        settings = config(epsilon=epsilon, embedding=32, steps=60, feature_scale=1.0)
        logits = private_frozen_clients(digits, settings, RunContext(seed=0))
        accuracy[epsilon] = (logits.argmax(2) == digits.test_labels).double().mean()
    assert accuracy[100.0] > 0.8
    assert accuracy[1e-3] < 0.4
