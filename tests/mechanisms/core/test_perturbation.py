import pytest
import torch

from mechanisms.core.models import MLP, layout_of
from mechanisms.core.replicas import (
    MomentumSGD,
    ParameterStack,
    shift_in_place,
)
from mechanisms.core.streams import Directions, Streams


@pytest.fixture
def parameters():
    return ParameterStack.initial(
        layout_of(MLP((3, 2))), Streams(seed=0, replicas=(0, 1), dtype=torch.float64), party=1
    )


def test_three_shifts_in_place_come_back(parameters):
    directions = Directions("sphere", 8, Streams(seed=0, replicas=(0, 1), dtype=torch.float64), party=1)
    before = parameters.flat.clone()
    shift_in_place(parameters, directions, 5, 0.1)
    assert torch.allclose(parameters.flat, before + 0.1 * directions.at(5), rtol=1e-14)
    shift_in_place(parameters, directions, 5, -0.2)
    assert torch.allclose(parameters.flat, before - 0.1 * directions.at(5), rtol=1e-14)
    shift_in_place(parameters, directions, 5, 0.1)
    assert torch.allclose(parameters.flat, before, rtol=0, atol=1e-15)
    shift_in_place(parameters, directions, 2, torch.tensor([[1.0], [0.0]], dtype=torch.float64))
    assert torch.allclose(parameters.flat[0], before[0] + directions.at(2)[0])
    assert torch.allclose(parameters.flat[1], before[1], atol=1e-15)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_torchs_sgd(momentum):
    start = torch.randn(2, 4, dtype=torch.float64)
    theirs = start.clone().requires_grad_()
    optimiser = torch.optim.SGD([theirs], lr=0.1, momentum=momentum)
    mine, along = (MomentumSGD(ParameterStack(start.clone(), (("w", (4,)),)), 0.1, momentum) for _ in range(2))
    for _ in range(4):
        direction, scalar = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
        gradient = scalar.unsqueeze(1) * direction
        kept = gradient.clone(), direction.clone(), scalar.clone()
        theirs.grad = gradient.clone()
        optimiser.step()
        mine.step(gradient)
        along.step_along(direction, scalar)
        assert all(torch.equal(a, b) for a, b in zip(kept, (gradient, direction, scalar), strict=True))
        assert torch.allclose(mine.parameters.flat, theirs, rtol=1e-13, atol=1e-15)
        assert torch.allclose(along.parameters.flat, theirs, rtol=1e-13, atol=1e-15)
