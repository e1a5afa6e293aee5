"""Data-free features: known values, their shapes, and that a record's are of nothing but that record."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from mechanisms.core.fixed import FEATURES, FeatureMap, Padded, cells_of, fixed_map, gabor_filters, map_for, overlapping

from ...helpers.refusals import refused

SHAPES = {"histograms": (3, 8, 9), "gabor": (1, 8, 8), "columns": (5,), "random": (5,)}


def rows_of(name, block, width=64, seed=0):
    made = fixed_map(name, tuple(block.shape[1:]), width, np.random.default_rng(seed)).double()
    with torch.no_grad():
        return made(block)


def pictures(count=6, shape=(1, 8, 8), seed=0):
    return torch.from_numpy(np.random.default_rng(seed).uniform(size=(count, *shape)))


@pytest.mark.parametrize("name", SHAPES)
def test_a_records_features_are_of_that_record_alone(name):
    block = pictures(shape=SHAPES[name])
    together = rows_of(name, block)
    assert together.shape == (6, 64)
    other = block.clone()
    other[1:] = 1.0 - other[1:]
    assert torch.allclose(rows_of(name, other)[0], together[0], rtol=0, atol=1e-12)
    assert torch.allclose(rows_of(name, block[:1])[0], together[0], rtol=0, atol=1e-12)
    assert together.isfinite().all()


@pytest.mark.parametrize("name", SHAPES)
def test_features_have_a_mean_square_of_about_one_at_most(name):
    """Rows are then of a norm of about 1, by a public number, whatever the records are."""
    block = pictures(200, SHAPES[name])
    made = fixed_map(name, SHAPES[name], 64)
    for records in (block, torch.zeros_like(block), (block > 0.5).double()):
        assert float(rows_of(name, records)[:, : made.count].square().mean(1).max()) <= 2.0
    assert float(rows_of(name, block)[:, made.count :].abs().sum()) == 0.0


def test_a_ramp_has_one_direction():
    """Of a picture that rises to the right all gradients point there; an eighth of a turn lies between orientations."""
    ramp = torch.linspace(0.0, 1.0, 8, dtype=torch.float64).expand(1, 1, 8, 8)
    histogram = rows_of("histograms", ramp, 8)[0]
    assert int(histogram.argmax()) == 4  # directions begin at half a turn
    assert float(histogram[4]) > 2.0
    others = histogram[torch.arange(8) != 4]
    assert float(others.max() - others.min()) < 1e-5
    assert int(rows_of("histograms", ramp.transpose(2, 3), 8)[0].argmax()) == 6


def test_a_direction_between_two_is_shared():
    down, right = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    angle = math.pi / 8  # halfway from the first orientation to the next
    slope = (right * math.cos(angle) + down * math.sin(angle)).double()[None, None] / 20
    # Away from the edges, where the picture is repeated.
    made = fixed_map("histograms", (1, 8, 8), 8).made.double()
    inner = made.maps(slope)[0, :, 2:-2, 2:-2].mean((1, 2))
    assert float(inner[4]) == pytest.approx(float(inner[5]), rel=1e-5)
    assert float(inner.sum()) == pytest.approx(1 / 20, rel=1e-5)


def test_blank_pictures_are_close_to_nothing():
    assert float(rows_of("histograms", torch.ones(1, 1, 8, 8, dtype=torch.float64)).abs().max()) < 1e-6


def test_gabor_filters_have_no_mean_and_see_their_own_wave():
    filters = gabor_filters()
    assert filters.shape == (32, 1, 7, 7)
    assert np.abs(filters.sum((1, 2, 3))).max() < 1e-12
    waves = torch.from_numpy(np.stack([filters[2 * k, 0] for k in range(16)]))[:, None]
    parts = functional.conv2d(waves, torch.from_numpy(filters))[..., 0, 0]
    moduli = torch.hypot(parts[:, ::2], parts[:, 1::2]) / waves.flatten(1).norm(dim=1)
    assert moduli.argmax(1).tolist() == list(range(16))


def test_columns_and_random_features_are_what_they_say():
    block = torch.tensor([[0.0, 0.25, 1.0]], dtype=torch.float64)
    assert rows_of("columns", block, 5)[0].tolist() == [-1.0, -0.5, 1.0, 0.0, 0.0]
    many = pictures(40, (4,))
    features = rows_of("random", many, 20_000)
    kernel = features @ features.T / 20_000
    distances = torch.cdist(many, many).square() * 9 / 4
    # A mean of 20,000 products of at most 2: 5 standard errors of sqrt(2) / sqrt(20,000), 800 pairs at 6e-7 each.
    assert float((kernel - torch.exp(-distances / 2)).abs().max()) < 0.05


@pytest.mark.parametrize(("pixels", "cells"), [(4, 1), (4, 3), (28, 5), (9, 4)])
def test_cells_overlap_by_half_and_cover_every_pixel(pixels, cells):
    weights = overlapping(pixels, cells)
    assert weights.shape == (cells, pixels)
    assert weights.sum(1) == pytest.approx(1.0)
    assert (weights.sum(0) > 0).all()


@pytest.mark.parametrize("shape", [(1, 4, 28), (3, 16, 16), (1, 2, 2), (1, 28, 28)])
@pytest.mark.parametrize("most", [1, 3, 16, 100])
def test_there_are_no_more_cells_than_there_is_room(shape, most):
    high, wide = cells_of(shape, most)
    assert 1 <= high * wide <= most
    assert high < shape[1]
    assert wide < shape[2]


def test_the_shape_alone_says_which_map():
    assert map_for("auto", (1, 4, 28), 128) == "histograms"
    assert map_for("auto", (5,), 128) == map_for("auto", (1, 1, 5), 128) == "columns"
    assert map_for("auto", (500,), 128) == "random"
    assert map_for("gabor", (5,), 128) == "gabor"


@pytest.mark.parametrize(
    ("name", "shape", "width", "words"),
    [
        ("gabor", (10,), 64, r"features is 'gabor'; use columns or random: records of shape \(10,\) are no pictures"),
        ("histograms", (1, 1, 9), 64, "features is 'histograms'; use columns or random"),
        ("histograms", (1, 4, 9), 7, "embedding is 7; use at least 8 for pictures of 4 x 9"),
        ("columns", (9,), 8, "embedding is 8; use at least 9 for features columns, or features random"),
        ("gradients", (9,), 8, "features is 'gradients'"),
    ],
)
def test_what_does_not_fit_is_one_line(name, shape, width, words):
    with refused(words):
        fixed_map(name, shape, width)


def test_a_map_of_ones_own_is_one_function(monkeypatch):
    """As an entry point of the group `dpzv_audit.features` would bring it."""

    class Sums(torch.nn.Module):
        def forward(self, block):
            return block.flatten(1).sum(1, keepdim=True)

    sums = FeatureMap(name="sums", summary="sums of a record", module=lambda shape, most, generator: Sums())
    monkeypatch.setitem(FEATURES._built_in, "sums", sums)
    assert rows_of("sums", torch.ones(2, 3), 2).tolist() == [[3.0, 0.0], [3.0, 0.0]]
    with refused("embedding is 0; use at least 1, as many as features sums makes"):
        Padded("sums", Sums(), (3,), 0)
