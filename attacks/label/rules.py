"""Rules that read labels off gradients at summed logits (Fu et al., USENIX Security 2022, direct attack)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dpzv_audit.errors import InputError, NotFinite


def argmin(gradients: torch.Tensor) -> torch.Tensor:
    """Return the class with the smallest gradient coordinate of every record.

    The gradient of cross entropy at the logits is softmax - onehot: its one negative coordinate, which is
    also its smallest, is the label. Under noise this rule weighs every coordinate, so it is the default.

    Args:
        gradients: (..., classes), true or estimated; only the order within a record matters, so any positive
            scale does.

    Returns:
        int64 labels of shape (...), in [0, classes); of equal smallest coordinates the first.

    Raises:
        InputError: fewer than two classes; `NotFinite` for a number that is not finite.
    """
    return _checked(gradients).argmin(dim=-1)


def first_negative(gradients: torch.Tensor) -> torch.Tensor:
    """Return the first class with a negative gradient coordinate, as published; shapes, errors: `argmin`.

    The published rule is stated for exact gradients, where one coordinate is negative, and says nothing of
    none. None occurs when softmax rounds to the one-hot label (coordinates 0 at the label and >= 0 elsewhere)
    and in estimates; the label is then the coordinate closest to being negative, so the answer is `argmin`'s.
    Under noise about half of all coordinates are negative, and the rule wastes most of the signal.
    """
    negative = _checked(gradients) < 0
    first = negative.to(torch.uint8).argmax(dim=-1)
    return torch.where(negative.any(dim=-1), first, gradients.argmin(dim=-1))


RULES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "argmin": argmin,
    "first-negative": first_negative,
}


def _checked(gradients: torch.Tensor) -> torch.Tensor:
    if gradients.ndim < 1 or gradients.shape[-1] < 2:
        raise InputError(f"gradients has shape {tuple(gradients.shape)}, must be (..., classes) with 2 classes or more")
    if not bool(torch.isfinite(gradients).all()):
        raise NotFinite("gradients holds a number that is not finite; every coordinate must be")
    return gradients
