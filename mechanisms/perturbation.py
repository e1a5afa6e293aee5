"""Two-sided perturbations of a stack of models, on copies or in place (MeZO), and the step that follows them."""

from __future__ import annotations

import torch
from torch import Tensor

from mechanisms.directions import Directions
from mechanisms.parameters import ParameterStack


class TwoSided:
    """Storage for the 2K models w_k + scale u_k and w_k - scale u_k of K models w_k, used again every round."""

    def __init__(self, parameters: ParameterStack) -> None:
        self._parameters = parameters
        self.stack = ParameterStack.empty(parameters.layout, 2 * len(parameters.flat), parameters.flat)
        self._plus, self._minus = self.stack.flat.unflatten(0, (-1, 2)).unbind(1)

    def around(self, direction: Tensor, scale: float) -> ParameterStack:
        """The 2K models around the present parameters along `direction` (K, d): plus and minus of each in turn."""
        torch.add(self._parameters.flat, direction, alpha=scale, out=self._plus)
        torch.sub(self._parameters.flat, direction, alpha=scale, out=self._minus)
        return self.stack


class OneSided:
    """Storage for the 2K models w_k and w_k + scale u_k of K models w_k, used again every round."""

    def __init__(self, parameters: ParameterStack) -> None:
        self._parameters = parameters
        self.stack = ParameterStack.empty(parameters.layout, 2 * len(parameters.flat), parameters.flat)
        self._base, self._moved = self.stack.flat.unflatten(0, (-1, 2)).unbind(1)

    def toward(self, direction: Tensor, scale: float) -> ParameterStack:
        """The 2K models at and beside the present parameters along `direction` (K, d): base and moved in turn."""
        self._base.copy_(self._parameters.flat)
        torch.add(self._parameters.flat, direction, alpha=scale, out=self._moved)
        return self.stack


def shift_in_place(parameters: ParameterStack, directions: Directions, round_: int, scale: float | Tensor) -> None:
    """Add `scale` (a number, or (K, 1)) times the direction of `round_` to the parameters, piece by piece.

    Neither the direction nor a copy of the model is ever held whole (MeZO; paper 001, section 2).
    """
    for start, stop, piece in directions.pieces(round_):
        parameters.flat[:, start:stop].add_(piece * scale)


def momentum_step(parameters: Tensor, buffer: Tensor, gradient: Tensor, rate: float, momentum: float) -> None:
    """In place, as torch's SGD: buffer <- momentum * buffer + gradient; parameters <- parameters - rate * buffer."""
    if momentum:
        gradient = buffer.mul_(momentum).add_(gradient)
    parameters.add_(gradient, alpha=-rate)


def step_along(
    parameters: Tensor, buffer: Tensor, direction: Tensor, scalar: Tensor, rate: float, momentum: float
) -> None:
    """`momentum_step` with the gradient estimate scalar * direction, of (K,) and (K, d), never formed."""
    if momentum:
        buffer.mul_(momentum).addcmul_(direction, scalar.unsqueeze(1))
        parameters.add_(buffer, alpha=-rate)
    else:
        parameters.addcmul_(direction, scalar.unsqueeze(1), value=-rate)


class AveragedSteps:
    """Steps of a stack of models along estimates scalar * direction, each of `count` successive ones averaged.

    With `count` 1 every estimate is a step. What is averaged so far is `total`, (K, d), empty where `count` is 1.
    """

    def __init__(self, parameters: Tensor, buffer: Tensor, *, count: int, rate: float, momentum: float) -> None:
        self._parameters, self._buffer = parameters, buffer
        self._count, self._rate, self._momentum = count, rate, momentum
        self.total = torch.zeros_like(parameters) if count > 1 else parameters.new_empty(0)

    def add(self, number: int, direction: Tensor, scalar: Tensor) -> None:
        """Take estimate `number`, from 0: `direction` (K, d) times `scalar` (K,); step where `count` are together."""
        if self._count == 1:
            step_along(self._parameters, self._buffer, direction, scalar, self._rate, self._momentum)
            return
        self.total.addcmul_(direction, scalar.unsqueeze(1), value=1.0 / self._count)
        if (number + 1) % self._count == 0:
            momentum_step(self._parameters, self._buffer, self.total, self._rate, self._momentum)
            self.total.zero_()
