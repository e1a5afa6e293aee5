"""Networks beyond a chain of layers: sizes, no mixing of records, and the same numbers alone and in a stack."""

import numpy as np
import pytest
import torch

from dpzv_audit.errors import InputError
from dpzv_audit.seeds import Purpose, stream
from mechanisms.models import (
    PatchCNN,
    ResNet,
    TokenModel,
    default_architectures,
    dimension,
    initial_parameters,
    layout_of,
)
from mechanisms.networks import GROUPS
from mechanisms.replicas import ParameterStack, evaluator_for, module_of

CASES = {
    "patch-cnn": (PatchCNN(16, 16, 7), lambda n: torch.randn(n, 3, 16, 16)),
    "resnet18": (ResNet(7, 3, GROUPS), lambda n: torch.randn(n, 3, 16, 16)),
    "tokens": (TokenModel(30, 7), lambda n: torch.randint(0, 30, (n, 11))),
}


def test_resnet18_has_the_published_number_of_parameters():
    """11,689,512 with a 7x7 stem (9,408) and 1,000 classes (513,000); here 3x3 stem (1,728) and 10 classes (5,130)."""
    assert dimension(layout_of(ResNet(10))) == 11_689_512 - 9_408 - 513_000 + 1_728 + 5_130


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
    stack = ParameterStack.initial(layout, seed=1, party=2, replicas=(0, 3), dtype=torch.float64, device="cpu")
    inputs = torch.stack([draw(4), draw(4)])
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    evaluator = evaluator_for(architecture, stack=2, strategy=strategy)
    outputs, pullback = evaluator.forward_with_pullback(stack, inputs)
    gradient, _ = pullback(torch.ones_like(outputs), at_inputs=False)
    for place in range(2):
        module = module_of(architecture, stack, place).double()
        alone = module(inputs[place])
        assert torch.allclose(outputs[place], alone, atol=1e-10)
        parts = torch.autograd.grad(alone.sum(), list(module.parameters()))
        assert torch.allclose(gradient[place], torch.cat([p.flatten() for p in parts]), atol=1e-9)


def test_norms_start_at_one_and_zero():
    layout = layout_of(ResNet(3, 1, GROUPS))
    flat = initial_parameters(layout, stream(0, Purpose.INIT))
    start = 0
    for name, shape in layout:
        piece = flat[start : start + int(np.prod(shape))]
        start += len(piece)
        if "norm" in name or "shortcut.1" in name or name.startswith("features.1."):
            assert np.all(piece == (1.0 if name.endswith("weight") else 0.0)), name


def test_padding_tokens_count_for_nothing():
    module = TokenModel(30, 4).module()
    ids = torch.tensor([[5, 7, 0, 0], [5, 7, 9, 0]])
    with torch.no_grad():
        module.tokens.weight[0] = 100.0
        outputs = module(ids)
        assert torch.allclose(outputs[0], module(torch.tensor([[5, 7]]))[0], atol=1e-6)
    assert not torch.allclose(outputs[0], outputs[1])


def test_client_models_fit_the_features_or_say_so():
    def kinds(shape, **options):
        clients, _ = default_architectures((shape,), 3, embedding=4, hidden=5, top_model=True, **options)
        return type(clients[0]).__name__

    assert kinds((16,)) == "MLP"
    assert kinds((1, 4, 28)) == "StripCNN"
    assert kinds((3, 16, 16)) == "PatchCNN"
    assert kinds((3, 16, 16), client_model="resnet18") == "ResNet"
    assert kinds((3, 16, 16), client_model="mlp") == "MLP"
    assert kinds((11,), vocabulary=30) == "TokenModel"
    with pytest.raises(InputError, match="client_model is 'resnet18', must be mlp"):
        kinds((16,), client_model="resnet18")
    with pytest.raises(InputError, match="the features are not token ids"):
        kinds((16,), client_model="tokens")
