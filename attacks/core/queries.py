"""A curious client's queries: it sends random dummy outputs instead of its model's (paper 002, section VI-B)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from attacks.core.contract import AttackSetting
from attacks.core.run import ADVERSARY_CLIENT
from dpzv_audit.seeds import Purpose, stream
from mechanisms.core.context import ClientBehaviour, Turn

DUMMY_STD = 0.3
"""Standard deviation of the dummy outputs c, as in the synthetic logits of the published numbers."""


class QueryingClient:
    """In its first pass over the data sends dummy outputs, then follows the protocol.

    To a server that answers the pair h(w + lambda u), h(w - lambda u) it sends c + lambda u and c - lambda u with a
    Gaussian u; where the pair is h(w), h(w + mu u) (`one_sided`) it sends c and c + mu u.

    The one table of embeddings that starts a run it fills with zeros: it has no model of its own to tell of.

    Each batch is queried `queries` times at the same c, with a fresh u each time, so that the answers are linear
    measurements of one gradient. The client keeps nothing aside: its view holds what it sent and what came back.
    """

    def __init__(
        self,
        client: int,
        *,
        queries: int,
        smoothing: float,
        steps_per_pass: int,
        seed: int,
        replicas: Sequence[int],
        one_sided: bool = False,
    ) -> None:
        self._one_sided = one_sided
        self.first_pass_repeats = queries
        self._client = client
        self._smoothing = smoothing
        self._last = queries * steps_per_pass
        self._seed = seed
        self._replicas = tuple(replicas)

    def uploads(self, turn: Turn) -> Tensor | None:
        """See `mechanisms.core.context.ClientBehaviour.uploads`."""
        if turn.own_round >= self._last:
            return None
        _, _, batch, width = turn.shape
        number, query = divmod(turn.own_round, self.first_pass_repeats)
        c, u = (
            self._draw(turn, (batch, width), number, which)
            for which in (0, 1 + query)  # one dummy output a batch, one direction a query
        )
        c, step = c * DUMMY_STD, self._smoothing * u
        return torch.stack((c, c + step) if self._one_sided else (c + step, c - step), 1)

    def _draw(self, turn: Turn, shape: tuple[int, int], number: int, which: int) -> Tensor:
        key = (self._client, number, which)
        rows = [stream(self._seed, Purpose.ATTACK, k, *key).standard_normal(shape) for k in self._replicas]
        return torch.from_numpy(np.stack(rows)).to(device=turn.device, dtype=turn.dtype)


def querying_client(setting: AttackSetting, replicas: range) -> Mapping[int, ClientBehaviour]:
    """The querying client where the adversary is a client of a method that answers queries; nobody otherwise."""
    measured = setting.method.differences(setting.config)
    if setting.adversary != "client" or measured is None or measured.shared:
        return {}
    client = QueryingClient(
        ADVERSARY_CLIENT,
        queries=setting.queries,
        smoothing=measured.smoothing,
        steps_per_pass=setting.config.steps_per_pass(len(setting.dataset.train)),
        seed=setting.seed,
        replicas=replicas,
        one_sided=not measured.two_sided,
    )
    return {ADVERSARY_CLIENT: client}
