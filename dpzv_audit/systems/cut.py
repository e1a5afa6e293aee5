"""The parts of `Recorder.cut` that need torch: questions about the pass under way, and gradients without a scaler."""

from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, is_grad_enabled
from torch.compiler import is_dynamo_compiling as is_compiling

__all__ = ["in_backward", "is_compiling", "is_grad_enabled", "stacked", "unscaled"]


def in_backward() -> bool:
    """Return whether a backward pass is under way: a forward pass then is a checkpoint's, computed again."""
    return bool(torch._C._current_graph_task_id() != -1)


def unscaled(gradient: Tensor, scale: float) -> Tensor | None:
    """Return a gradient without the factor on its loss; None where it overflowed, so that its step is skipped.

    It is divided in 32 bits at least: in 16, numbers that the factor saved from vanishing would vanish.
    """
    whole = (gradient.float() if gradient.element_size() < 4 else gradient) / scale
    return whole if bool(torch.isfinite(whole).all()) else None


def stacked(tensors: list[Tensor]) -> list[tuple[list[int], NDArray[Any]]]:
    """Return copies of tensors whose numbers are all finite: places in the list, and their numbers (n, ...) in a block.

    Those of one shape and type are copied and checked together, which costs a fraction of one at a time; where one
    of them is not finite, none of them is returned.
    """
    alike: dict[tuple[Any, ...], list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor.is_cpu and tensor.is_floating_point() and tensor.element_size() >= 4:
            alike.setdefault((tensor.shape, tensor.dtype), []).append(place)
    blocks = []
    for places in alike.values():
        with torch.no_grad():
            block = torch.stack([tensors[place] for place in places]).numpy()
        if block.size and isfinite(np.vdot(block, block)):
            blocks.append((places, block))
    return blocks
