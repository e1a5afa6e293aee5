"""Records of a finite block by enumeration: the record whose embedding under the client's model is nearest.

For a server that knows the client's model in every round, as white-box inversion assumes (He et al., ACSAC 2019,
section 4), and which values a variable may take.
"""

from itertools import product
from math import prod

import numpy as np
import torch

from mechanisms.core.channel import View
from mechanisms.core.replicas import ParameterStack, embeddings_of

from ..core.knowledge import ClientModels, Knowledge
from ..core.metrics import Floats
from ..core.queries import kept_of
from ..core.setting import AttackSetting
from .quality import variables
from .uploads import target_of

MOST_CANDIDATES = 100_000
# Records whose distances to all candidates are computed at once.
AT_ONCE = 256


def values_of(setting: AttackSetting) -> list[Floats]:
    """Return the values (v, columns) that each variable of the client takes in test records.

    These stand for public records. Known records add none: they have to tell how well enumeration does on others.
    """
    test = setting.dataset.test.features[target_of(setting) - 1]
    public = test.reshape(len(test), -1).astype(np.float64)
    return [np.unique(public[:, columns], axis=0) for columns in variables(public)]


def too_many(setting: AttackSetting) -> str | None:
    """Return in one line why the records of the client cannot be enumerated; None where they can."""
    count: int = prod(len(values) for values in values_of(setting))
    if count <= MOST_CANDIDATES:
        return None
    return (
        f"knows_model compares uploads with every combination of values of client {target_of(setting)}, here "
        f"{count:.3g}; use a client with at most {MOST_CANDIDATES:,}, or leave knows_model out"
    )


def candidates(setting: AttackSetting) -> Floats:
    """Return every combination (C, d) of the values of the client's variables."""
    return np.stack([np.concatenate(row) for row in product(*values_of(setting))])


def enumerated(view: View, known: Knowledge, k: int) -> Floats:
    """Return for each record of training `k` the candidate (N, d) nearest to its last upload, in that round's model.

    A record that was never sent gets the first candidate.
    """
    granted = known.granted(ClientModels)
    measured = known.method.differences(known.config)
    two_sided = measured is not None and measured.two_sided
    mail = list(view.messages)
    found = torch.full((known.records,), -1, device=mail[0].payload.device)
    for message, model in zip(reversed(mail), reversed([*granted.of_training(k)]), strict=True):
        ids = torch.arange(known.records).to(found) if message.ids is None else message.ids[k]
        new = found[ids] < 0
        if bool(new.any()):
            rows = kept_of(message.payload[k : k + 1], two_sided=two_sided)[0][new]
            stack = ParameterStack(model, granted.evaluator.layout)
            embeddings = embeddings_of(granted.evaluator, stack, granted.candidates)[0]
            nearest = [torch.cdist(piece, embeddings).argmin(1) for piece in rows.split(AT_ONCE)]
            found[ids[new]] = torch.cat(nearest)
    flat = granted.candidates.flatten(1).double()
    return flat[found.clamp(min=0)].cpu().numpy()
