"""A malicious client that holds one batch for many of its rounds, and asks about all of its records at once.

Each round it sends +a_t and -a_t, so large that the clip saturates: then s_t = (C/B) sum_i x_ti z_i + noise, with x_t
of its choice and z_i a number of record i alone that owes something to the label. Many rounds are a linear system.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.channel import View
from mechanisms.core.context import ClientTurn, dtype_of
from mechanisms.core.streams import BatchStream

from ..core.knowledge import Knowledge, granted
from ..core.metrics import Floats
from ..core.queries import SAME_REORDERED, answers_of
from ..core.setting import AttackSetting
from ..core.spec import LabelGuesses


@dataclass(frozen=True)
class HoldingClient:
    """In its first pass holds each batch for `rounds` of its rounds, and sends what it asks and the negative of that.

    `question` gives the embeddings (B, width) of own round t, for B and width. They are the same in all replicas; the
    one table of embeddings that starts a run is filled with zeros.
    """

    rounds: int
    steps_per_pass: int
    question: Callable[[int, int, int], Tensor]

    @property
    def first_pass_repeats(self) -> int:
        """Return how many rounds each batch of the first pass serves."""
        return self.rounds

    def uploads(self, turn: ClientTurn) -> Tensor | None:
        """See `mechanisms.core.context.ClientBehaviour.uploads`."""
        if turn.own_round >= self.rounds * self.steps_per_pass:
            return None
        sent = self.question(turn.own_round, *turn.shape[2:]).to(device=turn.device, dtype=turn.dtype)
        return torch.stack((sent, -sent)).expand(turn.shape)


def holding(setting: AttackSetting, per_record: int, question: Callable[[int, int, int], Tensor]) -> HoldingClient:
    """Return the client that holds a batch for `per_record` rounds for each of its records, or as many as there are."""
    plan = setting.plan()
    size = setting.config.batch_size
    own = plan.rounds_by_client[setting.client - 1] if plan else setting.rounds
    steps = setting.config.steps_per_pass(setting.records)
    return HoldingClient(max(1, min(per_record * size, own)), steps, question)


def held_batch(setting: AttackSetting) -> Tensor:
    """Return the ids (K, B) of the first batch that the client holds: its own, or client 1's where all share one."""
    config = setting.config
    streams = setting.context().streams(dtype_of(config))
    drawer = 1 if config.all_at_once else setting.client
    facts = {"records": setting.records, "batch_size": config.batch_size, "client": drawer}
    return BatchStream(config.sampler, streams, **facts).next().ids


@dataclass(frozen=True)
class Answered:
    """Scalars (batches, K, rounds) about batches held to the end, in units of what one record is worth, and their ids.

    `ids` are (batches, K, B), and `noise` is the standard deviation of a scalar's noise in the same unit.
    """

    scalars: Floats
    ids: Tensor
    noise: float

    def reordered(self, known: Knowledge) -> "Answered":
        """Return the same scalars in another order."""
        order = stream(known.seed, Purpose.ATTACK, 3).permutation(self.scalars.shape[2])
        return replace(self, scalars=self.scalars[..., order])


def answers_about(view: View, known: Knowledge) -> Answered:
    """Return what the server answered about the batches that were held to the end, or as long as there were rounds.

    A record is worth C/B with a clip of C; without one, the spread of the scalars over the root of B.
    """
    size = known.config.batch_size
    most = known.options["rounds_per_record"] * size
    answers = answers_of(view, known, most * known.batches)
    values = answers.values.cpu().numpy()
    rounds = min(most, len(values))
    whole = len(values) // rounds * rounds
    by_batch = values[:whole].reshape(-1, rounds, values.shape[1]).swapaxes(1, 2)
    ids = granted(answers.ids, "batch ids")[:whole:rounds]
    clip = known.differences.clip
    if clip is None:
        spread = by_batch.std(2, keepdims=True) + np.finfo(float).tiny
        return Answered(by_batch / spread * np.sqrt(size), ids, 0.0)
    unit = clip / size
    return Answered(by_batch / unit, ids, known.sigma / unit)


def with_reordered(guess: Callable[[Answered, Knowledge], LabelGuesses], view: View, known: Knowledge) -> LabelGuesses:
    """Return what `guess` makes of the answers in a view, and as a baseline the same with them in another order."""
    answered = answers_about(view, known)
    less = {SAME_REORDERED: guess(answered.reordered(known), known)}
    return replace(guess(answered, known), less=less)


def least_squares(design: Floats, scalars: Floats, *, noise: float, prior: float) -> Floats:
    """Return the linear estimate of least mean squared error of z (K, n) in `scalars` (K, T) = z `design`' + noise.

    Args:
        design: Weights of the unknowns in each scalar, (T, n).
        scalars: (K, T).
        noise: Standard deviation of a scalar's error, at least 0.
        prior: Variance of an unknown about 0, above 0.
    """
    gram = prior * design @ design.T
    # A sliver on the diagonal keeps noise-free systems solvable.
    gram[np.diag_indices(len(gram))] += noise**2 + 1e-9 * gram.trace() / len(gram)
    return np.asarray(prior * np.linalg.solve(gram, scalars.T).T @ design)


def held_on_dpzv(setting: AttackSetting, options: Mapping[str, object], per_record: int) -> AttackSetting:
    """Return a setting of DPZV without noise in which one batch, of 64 records at least, is held to the end."""
    # Of 32 records in ten classes a tenth to a quarter stay unknown.
    size = max(64, setting.config.batch_size)
    rounds = per_record * size * setting.dataset.clients
    epochs = -(-rounds // max(1, setting.records // size))
    return setting.on(
        "dpzv",
        {**options, "batch_size": size, "calibration": "none", "epochs": epochs},
        adversary="malicious-client",
        trials=2,
        options={**setting.options, "rounds_per_record": per_record},
    )
