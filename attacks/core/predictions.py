"""Predictions as parties are served them, by the probabilities that they stand for."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, one_hot

LEAST = 1e-30
"""Stands for a probability of 0."""


def log_probabilities(served: Tensor, real: Tensor, classes: int) -> Tensor | None:
    """Return the log-probability of each class, (..., classes), in double precision; None for what predicts no class.

    A row of `classes` scores is taken for probabilities where all rows are, and for logits otherwise. Of two classes
    one number may be served: the probability of class 1 where all lie between 0 and 1, its logit otherwise. A whole
    number is a class.

    Args:
        served: (..., width), what was served of each record.
        real: Booleans (...): which rows are of records; the others fill up batches.
        classes: Number of classes.
    """
    width = served.shape[-1]
    values = served.double()
    if width == 1 and not served.is_floating_point():
        named = served[..., 0].long()
        within = bool(((named >= 0) & (named < classes))[real].all())
        return one_hot(named.clamp(0, classes - 1), classes).double().clamp(min=LEAST).log() if within else None
    if width == 1 and classes == 2:
        if bool(((values >= 0) & (values <= 1)).all()):
            return torch.cat((1.0 - values, values), -1).clamp(min=LEAST).log()
        return logsigmoid(torch.cat((-values, values), -1))
    if width != classes:
        return None
    sums = values.sum(-1)[real]
    if bool((values >= 0).all()) and bool(((sums - 1.0).abs() < 1e-3).all()):
        return values.clamp(min=LEAST).log()
    return values.log_softmax(-1)


def log_odds(logs: Tensor) -> Tensor:
    """Return log(p / (1 - p)) of every class's probability p, of log-probabilities (..., classes)."""
    own = torch.eye(logs.shape[-1], dtype=torch.bool, device=logs.device)
    return logs - logs.unsqueeze(-2).masked_fill(own, -torch.inf).logsumexp(-1)
