"""The layer that stands where a message travels: it passes values on as they are, and tells of what passes back."""

from collections.abc import Callable

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

__all__ = ["in_backward", "is_compiling", "is_grad_enabled", "passed", "unscaled"]


def passed(values: Tensor, received: Callable[[tuple[Tensor | None, ...]], None]) -> Tensor:
    """Return a copy of `values`, which what follows may change in place; `received` gets the gradient of each pass.

    As a hook of the copy's node it runs after all hooks on the copy, whenever they are registered, and before any on
    `values`.
    """
    copy = values.clone()
    if copy.grad_fn is None:
        raise RuntimeError("the copy of values that need a gradient has no node of the graph")
    copy.grad_fn.register_prehook(received)
    return copy


def in_backward() -> bool:
    """Return whether a backward pass is under way: a forward pass then is a checkpoint's, computed again."""
    return bool(torch._C._current_graph_task_id() != -1)


def unscaled(gradient: Tensor, scale: float) -> Tensor | None:
    """Return a gradient without the factor on its loss; None where it overflowed, so that its step is skipped.

    It is divided in 32 bits at least: in 16 what the factor saved from vanishing would vanish.
    """
    whole = (gradient.float() if gradient.element_size() < 4 else gradient) / scale
    return whole if bool(torch.isfinite(whole).all()) else None
