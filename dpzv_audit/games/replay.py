"""Plays a transcript again under both worlds: the exact likelihood ratio for those who receive every scalar.

An adversary in the sense of differential privacy knows all but the canary: the other records, the starts, the batches.
Given the scalars sent so far it can compute what the server would have sent without noise in either world, m_0 and m_1,
so that each round adds ln N(x; m_1, s^2) - ln N(x; m_0, s^2) = (m_1 - m_0)(x - (m_0 + m_1)/2) / s^2 to the score.
Two rows of one stack do this while the training runs: both get the scalar of the world that is real.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.games.definition import Game
from mechanisms.context import RunContext
from mechanisms.dpzv import DPZVConfig, ScalarChannel
from mechanisms.messages import SERVER, Message


class Twins:
    """Two rows a training, one for each hypothesis; releases the real one's noised scalar to both, and scores it."""

    def __init__(
        self,
        game: Game,
        sigma: float,
        worlds: Sequence[int],
        replicas: Sequence[int],
        *,
        seed: int,
        config: DPZVConfig,
        device: str,
    ) -> None:
        self.rows = [k for k in replicas for _ in (0, 1)]
        self.worlds = [hypothesis for _ in replicas for hypothesis in (0, 1)]
        self._game = game
        self._real = torch.tensor([2 * place + world for place, world in enumerate(worlds)], device=device)
        self._noise = ScalarChannel(config, sigma, RunContext(seed=seed, replicas=replicas, device=device)).noise
        self._terms: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._held: list[Tensor] = []

    def __call__(self, sums: Tensor) -> Tensor:
        """Map both hypotheses' sums without noise (2n,) to the real one with noise, for both (`RunContext.noised`).

        On the grid the noise is a rounded Gaussian of thousands of steps and more: the ratio is that before rounding.
        """
        sent = sums[self._real] + self._noise.next()
        out, inside = sums.double().view(-1, 2).unbind(1)
        apart = (inside - out) / self._noise.std
        self._terms.append(apart * (sent.double() - 0.5 * (inside + out)) / self._noise.std)
        self._squares.append(apart.square())
        return sent.repeat_interleave(2)

    def on_message(self, message: Message) -> None:
        """Note which rounds held the canary."""
        if message.sender == SERVER and message.kind == "scalar" and message.ids is not None:
            self._held.append((message.ids[::2] == self._game.record).any(1))

    def on_note(self, party: int, round_: int, name: str, value: object) -> None:
        """Notes do not matter here."""

    def scores(self) -> dict[str, np.ndarray]:
        """Log-likelihood ratio of each training, its information (sum of ((m_1 - m_0)/s)^2), rounds with the canary.

        A `state` canary is scored on the rounds that do not hold it alone.
        """
        held = torch.stack(self._held)
        counted = ~held if self._game.canary == "state" else torch.ones_like(held)
        score = (torch.stack(self._terms) * counted).sum(0)
        information = (torch.stack(self._squares) * counted).sum(0)
        return {
            "scores": score.cpu().numpy(),
            "information": information.cpu().numpy(),
            "counts": held.sum(0).cpu().numpy(),
        }
