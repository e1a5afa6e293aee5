import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.models import (
    MLP,
    STRIP,
    MaxPool,
    Network,
    conv_net,
    dimension,
    initial_parameters,
    layout_of,
)

from ...helpers.built_in import architectures
from ...helpers.refusals import refused

ARCHITECTURES = [
    MLP((5, 7, 3)),
    MLP((4, 2), final_relu=True),
    Network(conv_net, (*STRIP, (1, 4, 28), 60)),
    Network(conv_net, (*STRIP, (3, 16, 16), 10)),
]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layout_names_the_modules_parameters_in_order(architecture):
    layout = layout_of(architecture)
    module = architecture.module()
    assert layout == tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
    assert dimension(layout) == nn.utils.parameters_to_vector(module.parameters()).numel()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_initial_parameters_fill_torchs_default_bounds(architecture):
    """Within torch's bound and up to it: the largest |x| of n is above bound * 1e-4^(1/n), false alarm 1e-4 a tensor.

    Torch's own draws obey the same bound, which a second draw of the module checks.
    """
    layout = layout_of(architecture)
    flat = initial_parameters(layout, stream(1, Purpose.INIT, 0, 0))
    torch.manual_seed(0)
    module = architecture.module()
    assert flat.dtype == np.float64
    start, bound = 0, 0.0
    for name, shape in layout:
        size = math.prod(shape)
        values = np.abs(flat[start : start + size])
        owner = module.get_submodule(name.rpartition(".")[0])
        fan_in = owner.weight[0].numel()
        bound = 1 / math.sqrt(fan_in)
        assert values.max() <= bound
        assert values.max() >= bound * 1e-4 ** (1 / size)
        theirs = module.get_parameter(name).detach().abs().max().item()
        assert bound * 1e-4 ** (1 / size) <= theirs <= bound * (1 + 1e-6)
        start += size
    assert start == len(flat)


def test_initial_parameters_follow_the_generator():
    layout = layout_of(MLP((5, 7, 3)))
    first, again, other = (initial_parameters(layout, stream(0, Purpose.INIT, 0, k)) for k in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.isin(first, other).any()
    assert len(np.unique(first)) == len(first)


def test_a_model_without_parameters_is_empty():
    assert initial_parameters((), stream(0, Purpose.INIT)).shape == (0,)
    assert dimension(()) == 0


def test_mlp_has_relu_where_it_says():
    inputs = torch.randn(6, 2, 2)
    assert (MLP((4, 5), final_relu=True).module()(inputs) >= 0).all()
    assert not (MLP((4, 50)).module()(inputs) >= 0).all()
    assert [type(layer) for layer in MLP((4, 5, 3)).module()] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]


def test_strip_cnn_is_two_convolutions_and_a_linear_layer():
    module = conv_net(*STRIP, (1, 4, 28), 60)
    assert [type(m).__name__ for m in module if list(m.parameters())] == ["Conv2d", "Conv2d", "Linear"]
    assert module(torch.zeros(5, 1, 4, 28)).shape == (5, 60)


@pytest.mark.parametrize("shape", [(1, 4, 28), (3, 16, 17), (2, 7, 5)])
def test_pooling_is_torchs_with_and_without_gradients(shape):
    """Only the pass without gradients has its own way; ReLU leaves ties of zeros, odd sizes a row and a column."""
    images = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1)).relu()
    for layout in (torch.contiguous_format, torch.channels_last):
        rows = images.contiguous(memory_format=layout)
        expected = functional.max_pool2d(rows, 2)
        with torch.no_grad():
            assert torch.equal(MaxPool()(rows), expected)
        assert torch.equal(MaxPool()(rows), expected)


@pytest.mark.parametrize(("height", "width"), [(3, 28), (28, 3)])
def test_a_strip_too_small_is_one_clear_line(height, width):
    with refused(rf"{height} x {width}.*at least 4 x 4"):
        conv_net(*STRIP, (1, height, width), 10)


def test_default_architectures_with_and_without_a_top_model():
    shapes = ((16,), (16,), (1, 4, 28))
    clients, server = architectures(shapes, 10, embedding=8, hidden=32, top_model=True)
    assert clients == (
        MLP((16, 8), final_relu=True),
        MLP((16, 8), final_relu=True),
        Network(conv_net, (*STRIP, (1, 4, 28), 8)),
    )
    assert server == MLP((24, 32, 10))
    clients, server = architectures(shapes, 10, embedding=8, hidden=32, top_model=False)
    assert clients == (MLP((16, 10)), MLP((16, 10)), Network(conv_net, (*STRIP, (1, 4, 28), 10)))
    assert server is None
