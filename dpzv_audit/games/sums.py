"""Plays the game of a record on noised sums of clipped gradients: real trainings, scored by one who sees every sum.

An adversary in the sense of differential privacy knows all but the canary. Given the sums released so far it computes
what would have been released without noise in either world, m_0 and m_1, so that a step adds
ln N(x; m_1, s^2 I) - ln N(x; m_0, s^2 I) = <m_1 - m_0, x - (m_0 + m_1) / 2> / s^2 to its score. Two rows of one stack
do this while the training runs: both get the sum of the world that is real.

The canary is the first record, with either of two labels: a label is part of a record, so that a lower bound here is
one for a replaced record too. Run k of the world "out" is replica 2k, of the world "in" replica 2k + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mechanisms.core.context import RunContext, TrainingData, dtype_of
from mechanisms.core.method import federation_of
from mechanisms.core.noise import GaussianNoise
from mechanisms.methods.fixed_features import noise_of

from ..base.registry import package_digest
from .arrays import Arrays
from .game import CANARY
from .scores import GameScores, GaussianGiven, scores_of, side_pair
from .trained import TrainedTrials

_SAME = 1e-3
"""Relative spread of the information up to which scores are Gaussian: each step tells as much in every run."""


@dataclass(frozen=True)
class SumTrials(TrainedTrials):
    """Trials of sums that are released at each step.

    Arrays: `in_scores`, `out_scores`, and `in_information`, `out_information`: the sum of |m_1 - m_0|^2 / s^2, which is
    mu^2 at most.
    """

    @property
    def labels(self) -> tuple[int, int]:
        """Return the canary's labels in the worlds "out" and "in": its own, and the next class."""
        own = int(self.dataset.train.labels[CANARY])
        return own, (own + 1) % self.dataset.classes

    def facts(self) -> dict[str, object]:
        """See `Trials.facts`."""
        installed = package_digest("dpzv_audit.features", self.config.features)
        return self.facts_of("sums", **({"code": installed} if installed else {}))

    def scored(self, arrays: Arrays) -> GameScores:
        """See `Trials.scored`: Gaussian where every run tells as much, as where the clip holds at each step."""
        scores = scores_of(arrays, "replay")
        information = np.concatenate(side_pair(arrays, "information"))
        alike = bool(np.ptp(information) <= _SAME * information.max())
        return replace(scores, given=GaussianGiven()) if alike and information.max() > 0.0 else scores

    @torch.no_grad()
    def __call__(self, first: int, last: int) -> Arrays:
        """Train pairs `first` to `last` and score every run."""
        replicas = range(2 * first, 2 * last)
        both = self._play(replicas)
        sides = [{name: rows[world::2] for name, rows in both.items()} for world in (0, 1)]
        named = zip(("out", "in"), sides, strict=True)
        return {f"{side}_{name}": rows for side, arrays in named for name, rows in arrays.items()}

    def _play(self, replicas: Sequence[int]) -> Arrays:
        """Train `replicas`, each in its world, and score them."""
        twins = SumTwins(self, replicas)
        labels = np.tile(self.dataset.train.labels, (len(twins.rows), 1))
        labels[:, CANARY] = np.tile(self.labels, len(replicas))
        data = TrainingData.of(self.dataset, dtype=dtype_of(self.config), device=self.device, labels=labels)
        context = RunContext(seed=self.seed, replicas=twins.rows, device=self.device, noised=twins)
        run = self.method.start(data, self.config, context)
        for _ in range(self.config.epochs * federation_of(run).steps_per_pass):
            run.step()
        return twins.scores()


class SumTwins:
    """Two rows a training, one for each label; releases the real one's noised sum to both, and scores it."""

    def __init__(self, trials: SumTrials, replicas: Sequence[int]) -> None:
        self.rows = [k for k in replicas for _ in (0, 1)]
        real = [2 * place + replica % 2 for place, replica in enumerate(replicas)]
        self._real = torch.tensor(real, device=trials.device)
        self._trials = trials
        self._context = RunContext(seed=trials.seed, replicas=replicas, device=trials.device)
        self._score = torch.zeros(len(replicas), dtype=torch.float64, device=trials.device)
        self._information = torch.zeros_like(self._score)
        self._shape: tuple[int, ...] = ()

    @cached_property
    def _noise(self) -> GaussianNoise:
        trials = self._trials
        return noise_of(trials.config, self._shape, len(trials.dataset.train), self._context)

    def __call__(self, sums: Tensor) -> Tensor:
        """Map both labels' sums without noise (2n, d, classes) to the real one with noise, for both."""
        self._shape = tuple(sums.shape[1:])
        sent = sums[self._real] + self._noise.next()
        out, inside = (side.flatten(1) for side in sums.unflatten(0, (-1, 2)).unbind(1))
        apart = (inside - out) / self._noise.std
        self._score += (apart * (sent.flatten(1) - 0.5 * (inside + out)) / self._noise.std).sum(1)
        self._information += apart.square().sum(1)
        return sent.repeat_interleave(2, 0)

    def scores(self) -> Arrays:
        """Return the log-likelihood ratio of each training, and its information."""
        return {"scores": self._score.cpu().numpy(), "information": self._information.cpu().numpy()}
