"""Networks beyond a chain of layers: sizes, no mixing of records, and the same numbers alone and in a stack."""

import numpy as np
import pytest
import torch

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms import METHODS
from mechanisms.core.models import (
    GROUPS,
    MLP,
    PATCH,
    STRIP,
    Network,
    TokenBag,
    conv_net,
    dimension,
    initial_parameters,
    layout_of,
    resnet,
    resnet_rest,
    resnet_stem,
)
from mechanisms.core.replicas import ParameterStack
from mechanisms.core.streams import Streams

from ...helpers.built_in import architectures, evaluator_by, module_of, train
from ...helpers.refusals import refused
from ..conftest import training_data

CASES = {
    "patch-cnn": (Network(conv_net, (*PATCH, (3, 16, 16), 7)), lambda n: torch.randn(n, 3, 16, 16)),
    "resnet18": (Network(resnet, (3, 7, GROUPS)), lambda n: torch.randn(n, 3, 16, 16)),
    "resnet18-stem": (Network(resnet_stem, (3, GROUPS)), lambda n: torch.randn(n, 3, 8, 4)),
    "resnet18-rest": (Network(resnet_rest, (2, GROUPS, 8, 4, 5)), lambda n: torch.randn(n, 2 * GROUPS * 32)),
    "tokens": (Network(TokenBag, (30, 7)), lambda n: torch.randint(0, 30, (n, 11))),
}


def test_resnet18_has_the_published_number_of_parameters():
    """11,689,512 with a 7x7 stem (9,408) and 1,000 classes (513,000); here 3x3 stem (1,728) and 10 classes (5,130)."""
    assert dimension(layout_of(Network(resnet, (3, 10)))) == 11_689_512 - 9_408 - 513_000 + 1_728 + 5_130


def test_002s_split_resnet_is_resnet18_cut_after_its_first_convolution():
    """Two clients of half an image hold 1,728 parameters each, the server the rest: 11,172,234 for 10 classes."""
    common = {"hidden": 1, "top_model": True, "client_model": "resnet18-stem"}
    clients, server = architectures(((3, 32, 16),) * 2, 10, embedding=64 * 32 * 16, **common)
    assert [dimension(layout_of(c)) for c in clients] == [1_728, 1_728]
    assert dimension(layout_of(server)) == dimension(layout_of(Network(resnet, (3, 10)))) - 1_728 == 11_172_234
    # With the whole image at one client the two parts are the network itself.
    (client,), server = architectures(((3, 16, 16),), 7, embedding=GROUPS * 256, **common)
    whole = resnet(3, 7, GROUPS)
    parts = client.module(), server.module()
    first, *others = whole.parameters()
    for module, values in zip(parts, ([first], others), strict=True):
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.data.copy_(value)
    images = torch.randn(5, 3, 16, 16)
    assert torch.allclose(parts[1](parts[0](images)), whole(images), atol=1e-5)


def test_maps_lie_side_by_side_in_002s_split_resnet():
    """Each client's pixels keep their place: the server sees the halves' maps as one of the whole width."""
    module = architectures(
        ((1, 4, 2),) * 2, 3, embedding=GROUPS * 8, hidden=1, top_model=True, client_model="resnet18-stem"
    )[1].module()
    seen = []
    module.features.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    left, right = torch.randn(2, GROUPS, 4, 2), torch.randn(2, GROUPS, 4, 2)
    module(torch.cat((left.flatten(1), right.flatten(1)), 1))
    assert torch.equal(seen[0], torch.cat((left, right), 3))


@pytest.mark.parametrize(
    ("shapes", "options", "words"),
    [
        (((3, 8, 4),) * 2, {"embedding": 60}, "embedding is 60; use channels x height x width .*2048 for 64"),
        (((3, 8, 4),) * 2, {"embedding": 4 * 32}, "a multiple of 8"),
        (((3, 8, 4),) * 2, {"embedding": 256, "top_model": False}, "without a top model"),
        (((3, 8, 4), (3, 4, 8)), {"embedding": 256}, "differ in size"),
        (((12,),) * 2, {"embedding": 256}, "are no images"),
    ],
)
def test_a_split_resnet_that_does_not_fit_is_one_line(shapes, options, words):
    with refused(words):
        architectures(shapes, 10, **{"hidden": 4, "top_model": True, "client_model": "resnet18-stem", **options})


@pytest.mark.parametrize("method", ["vafl", "cascaded", "zoo-vfl", "split", "dpzv"])
def test_002s_split_resnet_trains(method):
    options = {"batch_size": 4, "epochs": 2, "client_model": "resnet18-stem", "embedding": GROUPS * 16}
    data = training_data(records=12, clients=2, width=(3, 4, 4), dtype=torch.float32)
    trained, frozen = (
        train(data, METHODS[method].configure(**{**options, **rates}), seed=0)
        for rates in ({}, {"client_rate": 0.0, "server_rate": 0.0})
    )
    for moved, still in zip((*trained.clients, trained.server), (*frozen.clients, frozen.server), strict=True):
        assert moved.flat.isfinite().all()
        assert not torch.equal(moved.flat, still.flat)


def test_parameter_counts_of_the_convolutions():
    """MNIST strips (4 x 28, to 60) and CIFAR-10 patches (3 x 16 x 16, to 60), layer by layer."""
    strips = (9 * 8 + 8) + (9 * 8 * 16 + 16) + (16 * 1 * 7 * 60 + 60)
    assert dimension(layout_of(Network(conv_net, (*STRIP, (1, 4, 28), 60)))) == strips == 8_028
    convolutions = (27 * 16 + 16) + (9 * 16 * 16 + 16) + (9 * 16 * 32 + 32) + (9 * 32 * 32 + 32)
    assert (
        dimension(layout_of(Network(conv_net, (*PATCH, (3, 16, 16), 60))))
        == convolutions + 32 * 4 * 4 * 60 + 60
        == 47_436
    )
    module = conv_net(*PATCH, (3, 16, 16), 60)
    assert [type(m).__name__ for m in module if list(m.parameters())] == ["Conv2d"] * 4 + ["Linear"]


@pytest.mark.parametrize("name", CASES)
def test_a_record_does_not_depend_on_its_batch(name):
    architecture, draw = CASES[name]
    module, inputs = architecture.module(), draw(5)
    with torch.no_grad():
        assert torch.allclose(module(inputs)[2], module(inputs[2:3])[0], atol=1e-5)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("name", CASES)
def test_a_stack_is_its_replicas(name, strategy):
    architecture, draw = CASES[name]
    layout = layout_of(architecture)
    stack = ParameterStack.initial(layout, Streams(seed=1, replicas=(0, 3), dtype=torch.float64), party=2)
    inputs = torch.stack([draw(4), draw(4)])
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    evaluator = evaluator_by(strategy, architecture)
    outputs, pullback = evaluator.vjp(stack, inputs)
    gradient, _ = pullback(torch.ones_like(outputs), at_inputs=False)
    for place in range(2):
        module = module_of(architecture, stack, place).double()
        alone = module(inputs[place])
        assert torch.allclose(outputs[place], alone, atol=1e-10)
        parts = torch.autograd.grad(alone.sum(), list(module.parameters()))
        assert torch.allclose(gradient[place], torch.cat([p.flatten() for p in parts]), atol=1e-9)


def test_norms_start_at_one_and_zero():
    layout = layout_of(Network(resnet, (1, 3, GROUPS)))
    flat = initial_parameters(layout, stream(0, Purpose.INIT))
    start = 0
    for name, shape in layout:
        piece = flat[start : start + int(np.prod(shape))]
        start += len(piece)
        if "norm" in name or "shortcut.1" in name or name.startswith("features.1."):
            assert np.all(piece == (1.0 if name.endswith("weight") else 0.0)), name


def test_padding_tokens_count_for_nothing():
    module = TokenBag(30, 4)
    ids = torch.tensor([[5, 7, 0, 0], [5, 7, 9, 0]])
    with torch.no_grad():
        module.tokens.weight[0] = 100.0
        outputs = module(ids)
        assert torch.allclose(outputs[0], module(torch.tensor([[5, 7]]))[0], atol=1e-6)
    assert not torch.allclose(outputs[0], outputs[1])


def test_client_models_fit_the_features_or_say_so():
    def kinds(shape, **options):
        clients, _ = architectures((shape,), 3, embedding=4, hidden=5, top_model=True, **options)
        return clients[0]

    assert isinstance(kinds((16,)), MLP)
    assert kinds((1, 4, 28)) == Network(conv_net, (*STRIP, (1, 4, 28), 4))
    assert kinds((3, 16, 16)) == Network(conv_net, (*PATCH, (3, 16, 16), 4))
    assert kinds((3, 16, 16), client_model="resnet18") == Network(resnet, (3, 4))
    assert isinstance(kinds((3, 16, 16), client_model="mlp"), MLP)
    assert kinds((11,), vocabulary=30) == Network(TokenBag, (30, 4))
    with refused("client_model is 'resnet18'; use mlp"):
        kinds((16,), client_model="resnet18")
    with refused("the features are not token ids"):
        kinds((16,), client_model="tokens")
