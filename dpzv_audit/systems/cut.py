"""The layer that stands where a message travels: it passes values on as they are, and tells of both directions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Cut(torch.autograd.Function):
    """Identity, which calls a function with every gradient that passes back through it."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, received: Callable[[Tensor], None]) -> Tensor:
        """Return a copy of `values`, which what follows may change in place."""
        ctx.received = received
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Hand the gradient at the output to `received`, and pass it on."""
        ctx.received(gradient)
        return gradient, None


def in_backward() -> bool:
    """Return whether a backward pass is under way: a forward pass then is a checkpoint's, computed again."""
    return bool(torch._C._current_graph_task_id() != -1)
