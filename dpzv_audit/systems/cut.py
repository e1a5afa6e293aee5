"""What a recorder asks torch about the pass that is under way, and gradients without the factor of a scaler."""

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_dynamo_compiling as is_compiling

__all__ = ["in_backward", "is_compiling", "is_grad_enabled", "unscaled"]


def in_backward() -> bool:
    """Return whether a backward pass is under way: a forward pass then is a checkpoint's, computed again."""
    return bool(torch._C._current_graph_task_id() != -1)


def unscaled(gradient: Tensor, scale: float) -> Tensor | None:
    """Return a gradient without the factor on its loss; None where it overflowed, so that its step is skipped.

    It is divided in 32 bits at least: in 16 what the factor saved from vanishing would vanish.
    """
    whole = (gradient.float() if gradient.element_size() < 4 else gradient) / scale
    return whole if bool(torch.isfinite(whole).all()) else None
