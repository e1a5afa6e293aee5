"""Clipped sums and private descent against slow references, and the sensitivity that the bound rests on."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn import functional

from dpzv_audit.base.seeds import Purpose
from mechanisms.core.context import RunContext
from mechanisms.core.logistic import GRID_BITS, ClippedSums, PrivateDescent, logits_at
from mechanisms.core.noise import GaussianNoise, Grid

CLIP = 0.1


def drawn(records=30, width=5, classes=3, stack=2, seed=0):
    generator = np.random.default_rng(seed)
    rows = torch.from_numpy(generator.standard_normal((1, records, width)))
    weights = torch.from_numpy(generator.standard_normal((stack, width, classes)))
    labels = torch.from_numpy(generator.integers(classes, size=(stack, records)))
    return rows, weights, labels


def sums_by_autograd(rows, weights, labels, clip):
    """The sum of each record's gradient by itself, clipped by hand."""
    totals = []
    for own, target in zip(weights, labels, strict=True):
        total = torch.zeros_like(own)
        for row, label in zip(rows[0], target, strict=True):
            leaf = own.clone().requires_grad_()
            functional.cross_entropy((row @ leaf)[None], label[None]).backward()
            total += leaf.grad * min(1.0, clip / float(leaf.grad.norm()))
        totals.append(total)
    return torch.stack(totals)


@pytest.mark.parametrize("clip", [CLIP, 1.0, 1e6])
@pytest.mark.parametrize("shared", [True, False])
def test_sums_are_those_of_clipped_gradients(clip, shared):
    rows, weights, labels = drawn()
    wanted = sums_by_autograd(rows, weights, labels, clip)
    kept = rows if shared else rows.expand(2, -1, -1).contiguous()
    assert torch.allclose(ClippedSums(kept, clip, None)(weights, labels), wanted, rtol=1e-9, atol=1e-12)
    grid = Grid.fit(clip, clip, bits=GRID_BITS, records=30)
    steps = ClippedSums(kept, clip, grid)(weights, labels)
    assert torch.equal(steps, steps.round())
    # Two factors are cut to 14 bits each; the clip of 1e6 leaves gradients only a few steps.
    assert torch.allclose(steps * grid.step, wanted, rtol=0, atol=30 * clip * 2.0**-12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9, float("inf"), float("nan")])
@pytest.mark.parametrize("on_grid", [True, False])
def test_no_record_moves_a_sum_by_more_than_twice_the_clip(scale, on_grid):
    """Whatever it is replaced by: features of any size, infinite ones and such as are no numbers."""
    grid = Grid.fit(CLIP, 0.5, bits=GRID_BITS, records=8) if on_grid else None
    unit = 1.0 if grid is None else grid.step
    largest = 0.0
    for seed, size in product(range(10), (0.0, 30.0)):
        rows, weights, labels = drawn(records=8, stack=1, seed=seed)
        before = ClippedSums(rows, CLIP, grid)(size * weights, labels)
        other = rows.clone()
        other[0, 0] = -rows[0, 0] * scale
        after = ClippedSums(other, CLIP, grid)(size * weights, labels)
        largest = max(largest, float((after - before).norm()) * unit)
    assert largest <= 2 * CLIP * (1 + 1e-12)
    if 1.0 <= scale < math.inf:
        assert largest > 1.99 * CLIP  # all of 2C is needed: the opposite record has the opposite gradient


def test_descent_moves_by_released_sums_alone():
    rows, weights, labels = drawn()
    context = RunContext(seed=3, replicas=(0, 1))
    shape = tuple(weights.shape[1:])
    noise = GaussianNoise(2.0, context.noise_streams(torch.float64), shape=shape, purpose=Purpose.NOISE)
    start = torch.zeros_like(weights)
    descent = PrivateDescent(ClippedSums(rows, CLIP, None), labels, noise, 4.0, 0.9, start, torch.zeros_like(start))
    velocity, moved = torch.zeros_like(start), start.clone()
    for _ in range(3):
        released = descent.noised()
        descent.move(released)
        velocity = 0.9 * velocity + released / 30
        moved = moved - 4.0 * velocity
        assert torch.allclose(descent.weights, moved)
    assert torch.allclose(logits_at(rows, moved), torch.bmm(rows.expand(2, -1, -1), moved))
