"""Parameters of a stack of K models: one flat tensor with a leading replica axis, and views into it by name.

What evaluates them is in `mechanisms.core.replicas`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor, nn

from dpzv_audit.data.files import check_memory
from dpzv_audit.seeds import Purpose, stream
from mechanisms.core.models import Architecture, Layout, dimension, initial_parameters
from mechanisms.core.streams import Directions

Views = dict[str, Tensor]
_COPIES = 3
"""How often a safetensors file is in memory while it is made: its tensors, the file, and the bytes that we get."""


def views_of(flat: Tensor, layout: Layout) -> Views:
    """Name -> view of shape (S, *shape) into `flat` of shape (S, d). In-place changes of `flat` show in the views."""
    views, start = {}, 0
    for name, shape in layout:
        size = math.prod(shape)
        views[name] = flat[:, start : start + size].unflatten(1, shape)
        start += size
    return views


class ParameterStack:
    """Parameters of S models as one tensor `flat` of shape (S, d), with `views` by name into it.

    `flat` changes in place only, so views, and the `operands` that an evaluator derives from them once, stay right.
    """

    def __init__(self, flat: Tensor, layout: Layout) -> None:
        self.flat = flat
        self.layout = layout
        self.views = views_of(flat, layout)
        self.operands: tuple[tuple[Tensor, Tensor, Tensor], ...] | None = None

    @cached_property
    def gradient(self) -> ParameterStack:
        """Storage for one gradient of the same layout, overwritten by every fused backward pass."""
        return ParameterStack.empty(self.layout, len(self.flat), self.flat)

    @classmethod
    def initial(
        cls,
        layout: Layout,
        *,
        seed: int,
        party: int,
        replicas: Sequence[int],
        dtype: torch.dtype,
        device: str,
        given: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> ParameterStack:
        """Draw the start of each replica from its own stream, so that it does not depend on the stack it is in.

        Parameters that are `given` (pre-trained ones) start there in every replica instead. Raises `MemoryError` where
        this machine has not the memory to draw them in.
        """
        drawn = tuple(item for item in layout if item[0] not in given)
        each = 2 * 8 * dimension(drawn)  # in double precision, as rows and as a stack of them
        each += dtype.itemsize * dimension(layout) if given else 0
        check_memory(len(replicas) * each, f"{len(replicas)} models of {dimension(layout)} parameters")
        rows = [torch.from_numpy(initial_parameters(drawn, stream(seed, Purpose.INIT, party, k))) for k in replicas]
        flat = torch.stack(rows).to(device=device, dtype=dtype)
        if not given:
            return cls(flat, layout)
        whole, random = cls.empty(layout, len(rows), flat), views_of(flat, drawn)
        for name, view in whole.views.items():
            view.copy_(random[name] if name in random else given[name])
        return whole

    @classmethod
    def empty(cls, layout: Layout, stack: int, like: Tensor) -> ParameterStack:
        """Uninitialised storage for `stack` models, of the type and device of `like`."""
        return cls(like.new_empty(stack, dimension(layout)), layout)


def module_of(architecture: Architecture, parameters: ParameterStack, replica: int) -> nn.Module:
    """The replica at place `replica` of the stack as an ordinary torch module with its own copy of the parameters."""
    module = architecture.module().to(parameters.flat.dtype)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(parameters.views[name][replica])
    return module


def to_safetensors(stacks: dict[str, ParameterStack]) -> bytes:
    """All parameters of all replicas as a safetensors file: `party/name` of shape (K, *shape)."""
    return serialized(
        {f"{party}/{name}": view.contiguous() for party, stack in stacks.items() for name, view in stack.views.items()}
    )


def serialized(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file of `tensors`; `MemoryError` where there is no room for the copies that it takes."""
    from safetensors.torch import save

    # A library in Rust that gets no memory ends the process: whether there is enough for its copies is seen here.
    torch.empty(_COPIES * sum(tensor.nbytes for tensor in tensors.values()), dtype=torch.uint8)
    return bytes(save(dict(tensors), None if metadata is None else dict(metadata)))


class Moved:
    """Storage for 2K models, each of K models w_k moved by two multiples of u_k, used again every round."""

    def __init__(self, parameters: ParameterStack) -> None:
        self._parameters = parameters
        self.stack = ParameterStack.empty(parameters.layout, 2 * len(parameters.flat), parameters.flat)
        self._halves = self.stack.flat.unflatten(0, (-1, 2)).unbind(1)

    def along(self, direction: Tensor, first: float, second: float) -> ParameterStack:
        """The 2K models w_k + `first` u_k and w_k + `second` u_k of `direction` (K, d): the two of each in turn."""
        for half, scale in zip(self._halves, (first, second), strict=True):
            torch.add(self._parameters.flat, direction, alpha=scale, out=half)
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
