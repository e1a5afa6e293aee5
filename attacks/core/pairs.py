"""Scalars that answer two embeddings of a batch, in a training whose rounds are not the toolkit's own.

A client that sends h+ and h- of a batch is answered by a number: the difference of two losses, clipped, noised, over
the smoothing, or its sign. To first order it measures the gradient along h+ - h-. The messages do not say on which
scale and under how much noise: both are fitted by marginal likelihood.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from mechanisms.core.channel import SERVER, Message, View, stacked_ids

from .metrics import Floats

ANSWERS = ("scalar", "losses")
"""Kinds of messages that answer a pair of embeddings."""
# Noise variances that are tried, over the mean variance of what is measured.
_RATIOS = np.geomspace(1e-6, 1e4, 41)


@dataclass(frozen=True)
class PairAnswers:
    """Answers to one client's pairs of embeddings, in the order of its rounds.

    Attributes:
        scalars: (T, K); of two losses the first less the second.
        moves: First embeddings of each pair less the second, (T, K, B, width); 0 where a place is padding.
        middles: Means of both, (T, K, B, width).
        ids: Records (T, K, B), -1 where a place is padding.
    """

    scalars: Tensor
    moves: Tensor
    middles: Tensor
    ids: Tensor

    @property
    def signs(self) -> bool:
        """Whether all answers but zeros are of one size: only their signs tell anything."""
        sizes = self.scalars.abs()
        return bool(((sizes == 0.0) | (sizes > 0.999999 * sizes.max())).all())

    @property
    def directions(self) -> Tensor:
        """Return moves (T, K, B, width) of which an answer measures the mean over the B places.

        Losses are means over the records of a batch, whose number may be smaller than B. What a sign measures has no
        length, so that its moves are divided by theirs.
        """
        places = self.ids.shape[2]
        moves = self.moves * (places / (self.ids >= 0).sum(2).clamp(min=1))[..., None, None]
        if self.signs:
            moves = moves / moves.flatten(2).norm(dim=2).clamp(min=1e-30)[..., None, None]
        return moves

    def descending(self, records: int) -> "PairAnswers":
        """Return the same with scalars of the sign with which they measure the gradient of the loss.

        A client steps against its scalars times its directions, whichever of a pair comes first and whichever loss is
        taken from the other. So its embeddings of the `records` go, from their first to their last round, against the
        sum of scalars times moves.
        """
        last = replace(self, middles=self.middles.flip(0), ids=self.ids.flip(0)).first_outputs(records)
        along = torch.zeros_like(pad(last, (0, 0, 0, 1)))
        for row, move, scalar in zip(self._places(records), self.moves, self.scalars, strict=True):
            along.scatter_add_(1, row, move * scalar[:, None, None])
        climbs = ((last - self.first_outputs(records)) * along[:, :-1]).sum((1, 2)) > 0.0
        return replace(self, scalars=torch.where(climbs, -self.scalars, self.scalars))

    def first_outputs(self, records: int) -> Tensor:
        """Return the first embeddings (K, N, width) of each of the `records`, 0 where there are none."""
        _, replicas, _, width = self.middles.shape
        outputs = self.middles.new_zeros(replicas, records + 1, width)
        for row, middle in zip(self._places(records).flip(0), self.middles.flip(0), strict=True):
            outputs.scatter_(1, row, middle)
        return outputs[:, :-1]

    def _places(self, records: int) -> Tensor:
        """Return the rows (T, K, B, width) of the records; padding has one behind them."""
        return torch.where(self.ids < 0, records, self.ids).unsqueeze(3).expand_as(self.moves)


def pair_answers(view: View, client: int, most: int | None = None) -> PairAnswers | None:
    """Return the first `most` answers, by default all, to pairs of embeddings of a `client`; None where there is none.

    A pair is two messages of kind `embeddings` about the same records, and its answer a number of the same round.
    """
    uploads: dict[int, list[Message]] = defaultdict(list)
    answers: dict[int, list[Message]] = defaultdict(list)
    for message in view.messages:
        if message.kind == "embeddings" and message.sender == client and message.ids is not None:
            uploads[message.round].append(message)
        elif message.kind in ANSWERS and (message.sender, message.receiver) == (SERVER, client):
            answers[message.round].append(message)
    found = [answered for number, sent in uploads.items() for answered in _answered(sent, answers[number])][:most]
    if not found:
        return None
    firsts, seconds, numbers = zip(*found, strict=True)
    ids = stacked_ids([first.ids for first in firsts])
    before, after = (_rows(messages, ids) for messages in (firsts, seconds))
    return PairAnswers(torch.stack(numbers), before - after, 0.5 * (before + after), ids)


def _answered(sent: Sequence[Message], answers: Sequence[Message]) -> Iterator[tuple[Message, Message, Tensor]]:
    """Yield the pairs of one round, each with its number (K,)."""
    base = sent[0]
    if len(sent) < 2 or not answers or not all(_alike(base, other) for other in sent):
        return
    numbers = torch.cat([answer.payload.reshape(len(answer.payload), -1) for answer in answers], 1).double().unbind(1)
    if answers[0].kind == "losses":
        if len(numbers) == len(sent):
            yield from ((base, other, numbers[0] - loss) for other, loss in zip(sent[1:], numbers[1:], strict=True))
    elif len(sent) == 2 * len(numbers):
        yield from zip(sent[::2], sent[1::2], numbers, strict=True)
    elif len(sent) == len(numbers) + 1:
        yield from ((base, other, number) for other, number in zip(sent[1:], numbers, strict=True))
    elif len(sent) == 2 and len(numbers) == base.payload.shape[1]:
        # One number for each record: their mean is what they tell of the batch.
        yield base, sent[1], torch.stack(numbers).mean(0)


def _alike(first: Message, second: Message) -> bool:
    """Return whether two messages hold as many numbers about the same records."""
    if first.ids is None or second.ids is None or first.payload.shape != second.payload.shape:
        return False
    return torch.equal(first.ids, second.ids)


def _rows(messages: Sequence[Message], ids: Tensor) -> Tensor:
    """Return payloads (T, K, B, width), 0 where `ids` (T, K, B) are those of padding."""
    places = ids.shape[2]
    rows = [message.payload.flatten(2).double() for message in messages]
    stacked = torch.stack([pad(values, (0, 0, 0, places - values.shape[1])) for values in rows])
    return stacked * (ids >= 0).unsqueeze(3)


def likeliest_weights(gram: Floats, scalars: Floats) -> tuple[float, Floats]:
    """Return the log likelihood of `scalars` (T,) up to a constant, and the weights (T,) by which they are pooled.

    They are Gaussian, of covariance a (`gram` + r 1) with the likeliest scale a and noise r; the weights are
    (`gram` + r 1)^-1 `scalars` / sqrt(a) (Rasmussen and Williams 2006, section 5.4). Columns of scalars (T, c) are
    independent, each with a scale and a noise of its own: the likelihood is that of all.
    """
    values, vectors = np.linalg.eigh(gram)
    values = values.clip(min=0.0)
    along = vectors.T @ scalars.reshape(len(scalars), -1)
    spectra = values + _RATIOS[:, None] * (values.mean() or 1.0)
    scales = (1.0 / spectra) @ np.square(along) / len(scalars)
    likelihoods = -0.5 * (len(scalars) * np.log(scales + 1e-300) + np.log(spectra).sum(1, keepdims=True))
    best = likelihoods.argmax(0)
    scale = np.take_along_axis(scales, best[None], 0)
    weights = vectors @ (along / spectra[best].T) / np.sqrt(np.where(scale > 0.0, scale, 1.0))
    return float(likelihoods.max(0).sum()), weights.reshape(scalars.shape)
