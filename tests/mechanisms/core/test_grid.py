"""On the grid every record is a bounded number of whole steps, sums are exact, and noise is never less than stated."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mechanisms.core.noise import (
    Grid,
    _shortened,
    nearest_steps,
    outer_steps,
    summed_products,
    truncated_steps,
    unit_steps,
)
from mechanisms.methods.dpzv import DPZVConfig

from ...helpers.refusals import refused
from ..conftest import start_run

repeatable = settings(derandomize=True, deadline=None)
dtypes = st.sampled_from([torch.float32, torch.float64])
floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
clips = st.floats(1e-6, 1e6)


@repeatable
@given(st.lists(floats, min_size=1, max_size=70), floats, floats, clips, st.floats(1e-3, 1e6), dtypes)
def test_one_record_moves_a_sum_by_at_most_twice_the_clip(others, first, second, clip, scale, dtype):
    """Whatever its label or features make of its difference: 2^(bits + 1) steps, exactly, as whole numbers."""
    grid = Grid.fit(clip, 0.5 * clip, bits=20)
    rows = torch.tensor([[*others, first], [*others, second]], dtype=dtype)
    steps = nearest_steps(rows, scale, grid)
    assert torch.equal(steps, steps.round())
    sums = steps.sum(1, dtype=torch.float64)
    exact = [sum(map(int, row)) for row in steps.tolist()]
    assert sums.tolist() == exact
    assert abs(exact[0] - exact[1]) <= 2 ** (grid.bits + 1)


@repeatable
@given(st.floats(-20, 20), st.sampled_from([0.1, 1.0, 10.0]), dtypes)
@example(0.1, 10.0, torch.float32)
def test_a_record_is_the_nearest_step_to_its_clipped_difference(delta, clip, dtype):
    """C = 10 and a difference of 0.1 are 10,486 steps: small differences survive."""
    grid = Grid.fit(clip, clip, bits=20)
    nearest = nearest_steps(torch.tensor([delta], dtype=dtype), 1.0, grid).item()
    exact = Fraction(max(-clip, min(clip, delta))) / Fraction(grid.step)
    # float32 holds 24 bits of a difference, of which the grid has 20.
    assert abs(nearest - exact) <= 0.5 + (0.07 if dtype == torch.float32 else 1e-9)


def test_the_one_sided_clip_is_open_below_and_nan_is_0():
    grid = Grid.fit(2.0, 1.0, bits=20)
    values = [float("nan"), float("inf"), float("-inf"), -3.0, 3.0]
    symmetric = nearest_steps(torch.tensor(values), 1.0, grid).tolist()
    one_sided = nearest_steps(torch.tensor(values), 1.0, grid, "paper-one-sided").tolist()
    assert symmetric == [0, 2**20, -(2**20), -(2**20), 2**20]
    assert one_sided == [0, 2**20, torch.finfo(torch.float32).min, -1.5 * 2**20, 2**20]


vectors = st.lists(st.one_of(floats, st.floats(-1, 1)), min_size=1, max_size=40)


@repeatable
@given(vectors, vectors, clips, st.integers(4, 24), dtypes)
@example([1.0], [1.0], 1.0, 20, torch.float32)
@example([3e38, 3e38], [1.0], 1.0, 20, torch.float32)
def test_no_vector_is_longer_than_the_clip(first, second, clip, bits, dtype):
    """Its squared norm in whole steps, in exact arithmetic, is at most (C/g)^2; no coordinate is rounded outwards."""
    grid = Grid(clip, bits)
    width = max(len(first), len(second))
    rows = torch.tensor([v + [0.0] * (width - len(v)) for v in (first, second)], dtype=dtype)
    steps = truncated_steps(rows, grid, (1,))
    for row, whole in zip(rows.tolist(), steps.tolist(), strict=True):
        assert all(n == int(n) for n in whole)
        assert sum(int(n) ** 2 for n in whole) <= 4**bits
        if all(map(math.isfinite, row)):
            # Each coordinate lies between 0 and what it was, but for the rounding of a quotient.
            wide = 1 + Fraction(1, 2**40)
            assert all(abs(n * Fraction(grid.step)) <= abs(Fraction(x)) * wide for n, x in zip(whole, row, strict=True))
        else:
            assert not any(whole)
    together = truncated_steps(rows.unsqueeze(0), grid, (1, 2)).flatten().tolist()
    assert sum(int(n) ** 2 for n in together) <= 4**bits


extreme = st.one_of(
    floats, st.sampled_from([0.0, -0.0, 1e-30, 1e-23, 1.0, 3e18, -2e19, 3e38]), st.floats(-3, 3, width=32)
)


@repeatable
@given(st.data(), st.integers(1, 5), st.integers(1, 9), st.integers(1, 3), clips, st.integers(4, 28), dtypes)
def test_factors_of_an_outer_product_stay_within_the_clip_whatever_they_are_made_from(
    data, records, width, out, clip, bits, dtype
):
    """In exact arithmetic, layer by layer and summed over records: nothing rests on how norms were rounded."""
    grid = Grid(clip, bits)

    def drawn(*shape):
        size = math.prod(shape)
        return torch.tensor(data.draw(st.lists(extreme, min_size=size, max_size=size)), dtype=dtype).reshape(shape)

    values = [drawn(1, records, width), drawn(1, records, out)]
    deltas = [drawn(1, records, out), drawn(1, records, 2)]
    units, norms = zip(*(unit_steps(value, grid, bias=True) for value in values), strict=True)
    steps = outer_steps(deltas, norms, grid)
    squared = [0] * records
    for value, unit, own in zip(values, units, steps, strict=True):
        assert unit.dtype == own.dtype == (torch.float32 if bits <= 18 else torch.float64)
        assert unit.shape[2] == value.shape[2] + 1
        a, b = own[0].tolist(), unit[0].tolist()
        assert all(n == int(n) for row in a + b for n in row)
        for i in range(records):
            squared[i] += sum(int(n) ** 2 for n in a[i]) * sum(int(n) ** 2 for n in b[i])
        product = summed_products(own, unit)[0].tolist()
        for j, row in enumerate(product):
            assert row == [sum(int(a[i][j]) * int(b[i][c]) for i in range(records)) for c in range(len(row))]
    assert all(n <= 4**bits for n in squared)


@pytest.mark.parametrize("records", [64, 65, 200])
def test_products_in_single_precision_are_exact_for_any_number_of_records(records):
    """All entries near 2^9, the signs of some changing: from 65 records on single precision alone would round."""
    signs = (-1.0) ** torch.arange(records)
    left = torch.stack([torch.full((records,), 511.0), torch.full((records,), 512.0), signs * 509], 1)[None]
    right = torch.stack([torch.full((records,), 511.0), signs * 507], 1)[None]
    odd = records % 2
    assert summed_products(left, right)[0].tolist() == [
        [511 * 511 * records, 511 * 507 * odd],
        [512 * 511 * records, 512 * 507 * odd],
        [509 * 511 * odd, 509 * 507 * records],
    ]


def test_factors_of_an_outer_product_are_the_whole_numbers_below():
    """Whole numbers as they are to be: (3, 4, 12) and the 1 of a bias have the norm sqrt(170)."""
    units, norms = unit_steps(torch.tensor([[[3.0, 4.0, 12.0]]]), Grid(1.0, 28), bias=True)
    assert units.tolist() == [[[942.0, 1256.0, 3769.0, 314.0]]]
    assert norms.item() == pytest.approx(170**0.5)
    (steps,) = outer_steps([torch.tensor([[[0.03, -0.04]]])], [norms], Grid(1.0, 28))
    assert steps.tolist() == [[[25634.0, -34179.0]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_small_coordinates_stay_within_the_clip(dtype):
    """10,000 coordinates of 0.01 (norm 1) at g = 2^-6: to the nearest step their norm would be 1.5625."""
    values = torch.full((1, 10_000), 0.01, dtype=dtype)
    grid = Grid(1.0, 6)
    nearest = (values / grid.step).round() * grid.step
    assert nearest.norm().item() == pytest.approx(1.5625)
    assert truncated_steps(values, grid, (1,)).square().sum().item() <= 4**6


def test_a_vector_that_floating_point_leaves_too_long_is_shrunk(monkeypatch):
    """A norm that comes out 1% too short would leave vectors 1% too long: the check on whole numbers takes it back."""
    norm = torch.linalg.vector_norm

    def short(values, **options):
        return norm(values, **options) * (1.0 if torch.equal(values, values.round()) else 0.99)

    monkeypatch.setattr(torch.linalg, "vector_norm", short)
    rows = torch.randn(200, 30)
    steps = truncated_steps(rows, Grid(0.5, 20), (1,))
    squared = np.array([sum(int(n) ** 2 for n in row) for row in steps.tolist()], dtype=object)
    assert (squared <= 4**20).all()
    assert (squared > 0.999 * 4**20).all()


@pytest.mark.parametrize(
    ("radius", "dtype"), [(2.0**20, torch.float64), (2.0**24, torch.float64), (512, torch.float32)]
)
def test_no_vector_is_left_a_step_too_long(radius, dtype):
    """Few coordinates, up to two steps too long: what rounding towards zero takes off would hide a slip in many."""
    drawn = np.random.default_rng(2).standard_normal((4000, 4))
    drawn[::2, 2:] = 0.0
    lengths = radius + np.linspace(-1.0, 2.0, len(drawn))
    rows = np.rint(drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * lengths[:, None])
    edges = [[radius, 0, 0, 0], [radius, 1, 0, 0], [radius + 1, 0, 0, 0], [0, -radius - 1, 1, 0]]
    steps = torch.tensor(np.concatenate([rows, edges]), dtype=dtype)
    shortened = _shortened(steps.clone(), radius, (1,))
    most = int(radius) ** 2
    for before, after in zip(steps.tolist(), shortened.tolist(), strict=True):
        assert sum(int(n) ** 2 for n in after) <= most
        if sum(int(n) ** 2 for n in before) <= most:
            assert after == before
        else:
            assert all(abs(b) - 3 <= abs(a) <= abs(b) for a, b in zip(after, before, strict=True))


def test_a_grid_whose_squares_are_not_exact_is_refused():
    with pytest.raises(ValueError, match="use at most"):
        truncated_steps(torch.ones(1, 2), Grid(1.0, 25), (1,))


@repeatable
@given(st.floats(1e-9, 1e9), clips, st.integers(4, 28))
def test_noise_in_steps_is_never_less_than_stated(std, clip, bits):
    grid = Grid(clip, bits)
    exact = Fraction(std) * 2**bits / Fraction(clip)
    assert exact <= Fraction(grid.steps(std)) <= exact * (1 + Fraction(1, 2**51))


@repeatable
@given(st.integers(1, 10**9), st.sampled_from([20, 28]))
@example(2**24, 28)
@example(2**24 + 1, 28)
@example(10**9, 28)
def test_the_sum_of_a_batch_stays_exact_in_float64(records, bits):
    """Twice the batch, each record at the clip, and one step more: still a whole number of its own."""
    grid = Grid.fit(1.0, 1.0, bits=bits, records=records)
    assert records * 2**grid.bits <= 2**52
    assert grid.bits == bits or records * 2 ** (grid.bits + 1) > 2**52
    most = 2 * records * 2**grid.bits
    assert float(most - 1) != float(most)


def test_a_dp_sgd_server_takes_a_grid_for_its_batch(monkeypatch):
    """As if float64 held 2^20 alone: a batch of 16 leaves 2^16 steps to the clip."""
    fitted = []
    fit = Grid.fit
    monkeypatch.setattr("mechanisms.core.noise._LARGEST_SUM", 20)
    monkeypatch.setattr(
        Grid, "fit", lambda *arguments, **options: fitted.append(fit(*arguments, **options)) or fitted[-1]
    )
    start_run(DPZVConfig(batch_size=16, server_update="dp-sgd", server_noise_multiplier=1.0, sigma=1.0))
    assert 16 in [grid.bits for grid in fitted]


@repeatable
@given(st.floats(1e-9, 1e15), clips, st.sampled_from([20, 28]))
def test_the_grid_is_as_fine_as_the_noise_allows(ratio, clip, bits):
    std = ratio * clip
    if ratio > 2.0**32:
        with refused(r"^noise is 'grid' with a standard deviation of"):
            Grid.fit(clip, std, bits=bits)
        return
    grid = Grid.fit(clip, std, bits=bits)
    assert grid.bits <= bits
    assert grid.steps(std) <= 2.0**36 * (1 + 1e-12)
    assert grid.bits == bits or grid.steps(std) > 2.0**35 * (1 - 1e-12)
    assert grid.step * grid.radius == clip
