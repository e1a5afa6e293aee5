from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load
from torch.func import functional_call

from mechanisms.core.models import MLP, STRIP, Network, conv_net, dimension, layout_of
from mechanisms.core.replicas import (
    FusedMLP,
    ParameterStack,
    evaluator_for,
    to_safetensors,
    views_of,
)
from mechanisms.core.streams import Streams

from ...helpers.built_in import evaluator_by, module_of


def stack_of(architecture, replicas, *, seed=0, party=1, dtype=torch.float64):
    return ParameterStack.initial(
        layout_of(architecture), Streams(seed=seed, replicas=replicas, dtype=dtype), party=party
    )


def by_autograd(architecture, stack, inputs, gradient):
    """Outputs, parameter gradients and input gradients of ordinary torch modules, one replica at a time."""
    outputs, flats, at_inputs = [], [], []
    for k in range(inputs.shape[0]):
        module = module_of(architecture, stack, k)
        source = inputs[k].clone().requires_grad_()
        output = module(source)
        output.backward(gradient[k])
        outputs.append(output.detach())
        flats.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
        at_inputs.append(source.grad)
    return torch.stack(outputs), torch.stack(flats), torch.stack(at_inputs)


def check(architecture, strategies, shape, *, stack=3, records=4, seed=0):
    parameters = stack_of(architecture, range(stack), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(stack, records, *shape, generator=generator, dtype=torch.float64)
    expected_shape = architecture.module()(torch.zeros(1, *shape)).shape[1]
    gradient = torch.randn(stack, records, expected_shape, generator=generator, dtype=torch.float64)
    wanted = by_autograd(architecture, parameters, inputs, gradient)
    before = parameters.flat.clone()
    for strategy in strategies:
        evaluator = evaluator_by(strategy, architecture)
        with torch.no_grad():
            plain = evaluator.forward(parameters, inputs)
            output, pullback = evaluator.vjp(parameters, inputs)
            flat, at_inputs = pullback(gradient)
        assert not output.requires_grad
        for got, want in zip((plain, output, flat, at_inputs), (wanted[0], *wanted), strict=True):
            assert got.shape == want.shape
            assert torch.allclose(got, want, rtol=1e-10, atol=1e-12), strategy
    assert torch.equal(parameters.flat, before)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    final_relu=st.booleans(),
    stack=st.integers(1, 4),
    records=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_mlp_strategies_agree_with_autograd(sizes, final_relu, stack, records, seed):
    check(
        MLP(tuple(sizes), final_relu=final_relu),
        ("fused", "vmap", "loop"),
        (sizes[0],),
        stack=stack,
        records=records,
        seed=seed,
    )


@pytest.mark.parametrize("sizes", [(7, 10), (7, 16), (5, 11, 10), (5, 16, 3), (6, 32, 16, 10)])
@pytest.mark.parametrize(("stack", "records"), [(1, 16), (3, 15), (3, 16), (2, 33)])
def test_products_taken_either_way_round_agree_with_autograd(sizes, stack, records):
    """From 16 records on, a stack takes layers whose width is no multiple of 16 the other way round."""
    check(MLP(sizes), ("fused",), (sizes[0],), stack=stack, records=records)


def test_image_inputs_of_an_mlp_are_flattened():
    check(MLP((12, 5, 2)), ("fused", "vmap", "loop"), (1, 3, 4))


@settings(derandomize=True, deadline=None, max_examples=8)
@given(st.integers(4, 9), st.integers(4, 9), st.integers(1, 3), st.integers(1, 3), st.integers(0, 100))
def test_strip_cnn_strategies_agree_with_autograd(height, width, channels, stack, seed):
    architecture = Network(conv_net, ("strip", 1, (2, 3), (channels, height, width), 3))
    check(architecture, ("vmap", "loop"), (channels, height, width), stack=stack, records=2, seed=seed)


def test_strategy_is_chosen_by_the_measured_rule():
    assert isinstance(evaluator_for(MLP((2, 2)), stack=1), FusedMLP)
    cnn = Network(conv_net, (*STRIP, (1, 4, 4), 2))
    chosen = {
        (stack, device): evaluator_for(cnn, stack=stack, device=device)._together
        for stack in (1, 16)
        for device in ("cpu", "cuda")
    }
    assert chosen == {(1, "cpu"): False, (16, "cpu"): False, (1, "cuda"): False, (16, "cuda"): True}


def test_views_share_the_flat_storage():
    layout = layout_of(MLP((2, 3)))
    flat = torch.zeros(2, dimension(layout))
    views = views_of(flat, layout)
    flat[1, 0] = 7.0
    assert views["1.weight"][1, 0, 0] == 7.0
    views["1.bias"][0, 2] = 5.0
    assert flat[0, -1] == 5.0


def test_the_start_of_a_replica_does_not_depend_on_its_stack():
    alone = stack_of(MLP((4, 3)), (5,))
    stacked = stack_of(MLP((4, 3)), (0, 5, 2))
    assert torch.equal(alone.flat[0], stacked.flat[1])
    assert not torch.equal(alone.flat[0], stack_of(MLP((4, 3)), (5,), party=2).flat[0])
    assert not torch.equal(alone.flat[0], stack_of(MLP((4, 3)), (5,), seed=1).flat[0])


def test_safetensors_hold_every_parameter_of_every_replica():
    stacks = {"client1": stack_of(MLP((4, 3)), range(2)), "server": stack_of(MLP((3, 2)), range(2))}
    loaded = load(to_safetensors(stacks))
    assert set(loaded) == {"client1/1.weight", "client1/1.bias", "server/1.weight", "server/1.bias"}
    assert torch.equal(loaded["client1/1.weight"], stacks["client1"].views["1.weight"])
    module = MLP((4, 3)).module().double()
    state = {name: loaded[f"client1/{name}"][1] for name in ("1.weight", "1.bias")}
    inputs = torch.randn(5, 4, dtype=torch.float64)
    expected = evaluator_for(MLP((4, 3)), stack=2).forward(stacks["client1"], inputs.expand(2, -1, -1))[1]
    assert torch.allclose(functional_call(module, state, (inputs,)), expected)


@pytest.mark.parametrize("free", [None, 2 * 8 * 3 * 170, 2 * 8 * 3 * 170 - 1])
def test_models_that_memory_cannot_hold_are_refused_before_they_are_drawn(monkeypatch, free):
    monkeypatch.setattr("dpzv_audit.data.files.memory_available", lambda: free)
    layout = (("0.weight", (10, 16)), ("0.bias", (10,)))

    def drawn():
        return ParameterStack.initial(layout, Streams(seed=0, replicas=(0, 1, 2), dtype=torch.float32), party=1)

    if free == 2 * 8 * 3 * 170 - 1:
        with pytest.raises(MemoryError, match="3 models of 170 parameters: 8160 bytes, of 8159 that are free"):
            drawn()
    else:
        assert drawn().flat.shape == (3, 170)


def test_parameters_that_are_given_take_their_own_memory_and_no_draw(monkeypatch):
    layout = (("0.weight", (10, 16)), ("0.bias", (10,)))
    pretrained = {"0.weight": torch.zeros(10, 16)}
    needed = 3 * (2 * 8 * 10 + 4 * 170)
    for free in (needed, needed - 1):
        monkeypatch.setattr("dpzv_audit.data.files.memory_available", lambda free=free: free)
        with nullcontext() if free == needed else pytest.raises(MemoryError):
            ParameterStack.initial(
                layout, Streams(seed=0, replicas=(0, 1, 2), dtype=torch.float32), party=1, pretrained=pretrained
            )
