"""Scalar feedback: a curious client's queries, and what answers measure of the gradient (paper 002, section VI-B).

A client that chose its uploads knows the direction u by which the two of a pair differ, one of a method that shares
its directions is told them, and an eavesdropper knows none. An answer s = <g, u> + error is a scalar, or two losses
whose difference over the smoothing it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.channel import Message, View, stacked_ids
from mechanisms.core.context import ClientBehaviour, ClientTurn

from ..gradient.estimates import forward_difference_error, label_prior_std, ridge
from .knowledge import Knowledge
from .metrics import Floats
from .setting import AttackSetting

# Makes gradients (batches, B, c) of directions and scalars.
Estimator = Callable[[Tensor, Tensor], Tensor]
# Standard deviation of the dummy outputs c, as in the synthetic logits of the published numbers.
DUMMY_STD = 0.3
SAME_REORDERED = "the same scalars in another order"
"""The baseline of attacks on scalars: what features and priors find, with the scalars about other records."""


@dataclass(frozen=True)
class QueryingClient:
    """In its first pass over the data sends dummy outputs, then follows the protocol.

    To a server that answers the pair h(w + lambda u), h(w - lambda u) it sends c + lambda u and c - lambda u with a
    Gaussian u; where the pair is h(w), h(w + mu u) (`one_sided`) it sends c and c + mu u.

    The one table of embeddings that starts a run it fills with zeros: it has no model of its own to tell of.

    Each batch is queried `queries` times at the same c, with a fresh u each time, so that the answers are linear
    measurements of one gradient. The client keeps nothing aside: its view holds what it sent and what came back.
    """

    queries: int
    smoothing: float
    steps_per_pass: int
    seed: int
    replicas: Sequence[int]
    one_sided: bool = False

    @property
    def first_pass_repeats(self) -> int:
        """Return how many rounds each batch of the first pass serves."""
        return self.queries

    def uploads(self, turn: ClientTurn) -> Tensor | None:
        """See `mechanisms.core.context.ClientBehaviour.uploads`."""
        if turn.own_round >= self.queries * self.steps_per_pass:
            return None
        number, query = divmod(turn.own_round, self.queries)
        # One dummy output per batch, one direction per query.
        c = DUMMY_STD * self._drawn(turn, number, 0)
        step = self.smoothing * self._drawn(turn, number, 1 + query)
        return torch.stack((c, c + step) if self.one_sided else (c + step, c - step), 1)

    def _drawn(self, turn: ClientTurn, number: int, which: int) -> Tensor:
        key = (turn.client, number, which)
        rows = _normals(self.seed, tuple(self.replicas), key, tuple(turn.shape[2:]))
        return torch.from_numpy(rows).to(device=turn.device, dtype=turn.dtype)


@lru_cache(maxsize=8)  # a batch's dummy output is asked for with every query about it
def _normals(seed: int, replicas: tuple[int, ...], key: tuple[int, ...], shape: tuple[int, ...]) -> Floats:
    return np.stack([stream(seed, Purpose.ATTACK, k, *key).standard_normal(shape) for k in replicas])


def querying_client(setting: AttackSetting) -> Mapping[int, ClientBehaviour]:
    """Return the querying client where the adversary is a client of a method that answers queries; nobody otherwise."""
    measured = setting.method.differences(setting.config)
    if setting.adversary != "client" or measured is None or measured.shared:
        return {}
    client = QueryingClient(
        queries=setting.queries,
        smoothing=measured.smoothing,
        steps_per_pass=setting.config.steps_per_pass(setting.records),
        seed=setting.seed,
        replicas=setting.replicas,
        one_sided=not measured.two_sided,
    )
    return {setting.client: client}


@dataclass(frozen=True)
class Answers:
    """Answers of a server in the order they came.

    Attributes:
        values: (T, K), or (T, K, q) or (T, K, q, B) of q directions that the server shares; of two losses the second
            less the first.
        unit: Divisor by which `values` become measurements of the gradient.
        ids: Records (T, K, B) that the answers are about; None for who does not know.
    """

    values: Tensor
    unit: float
    ids: Tensor | None

    @property
    def scalars(self) -> Tensor:
        """Return the measurements <g, u> + error, in the shape of `values`."""
        return self.values / self.unit


def stacked(mail: Sequence[Message]) -> tuple[Tensor, Tensor | None]:
    """Return payloads (T, K, ...) and record ids (T, K, B), None for who does not know them; `InputError` for none.

    Where batches differ in size (a system's short last one), rows of zeros with ids of -1 fill them up.
    """
    if not mail:
        raise InputError("the view holds no answer from the server")
    ids = [m.ids for m in mail if m.ids is not None]
    payloads = [m.payload for m in mail]
    if len({rows.shape[-1] for rows in payloads if rows.dim() == 3}) > 1:
        widths = sorted({rows.shape[-1] for rows in payloads})
        raise InputError(f"what client {mail[0].receiver} got is {widths} numbers wide; keep one width")
    if payloads[0].dim() == 3:
        most = max(rows.shape[1] for rows in payloads)
        payloads = [pad(rows, (0, 0, 0, most - rows.shape[1])) for rows in payloads]
    return torch.stack(payloads).double(), stacked_ids(ids) if ids else None


def kept_of(payload: Tensor, *, two_sided: bool) -> Tensor:
    """Return what a server keeps in its table of an upload (K, B, c), or of a pair (K, 2, B, c) of them.

    A two-sided pair lies around the client's output, a one-sided one starts at it.
    """
    if payload.dim() < 4:
        return payload
    return payload.mean(1) if two_sided else payload[:, 0]


def answers_of(view: View, known: Knowledge, most: int) -> Answers:
    """Return the first `most` answers that the view holds; `InputError` where it holds none."""
    received = _answering(view, most)
    values, ids = stacked(received)
    losses = received[0].kind == "losses"
    measured = known.method.differences(known.config)
    if losses:
        values = values[..., 1] - values[..., 0]
    # A method that does not say how its answers measure a gradient has them read as they are.
    unit = measured.smoothing if measured and (losses or measured.shared) else 1.0
    return Answers(values, unit, ids)


def _answering(view: View, most: int) -> list[Message]:
    return (view.received("scalar") or view.received("losses"))[:most]


def directions_of(view: View, known: Knowledge, count: int) -> Tensor:
    """Return the directions (T, K, B, c) behind the first `count` answers; of shared ones (T, K, q, B, c)."""
    measured = known.differences
    if measured.shared:
        # Each client's answers and directions are in the order of its rounds.
        noted = {m: iter(view.noted(m, "direction")) for m in view.adversary.clients}
        return torch.stack([next(noted[answer.receiver]) for answer in _answering(view, count)]).double()
    pairs = torch.stack([m.payload for m in view.sent("embeddings")[:count]]).double()
    first, second = pairs.unbind(2)
    # Of two losses one is at the point itself.
    if view.received("losses"):
        return (second - first) / measured.smoothing
    return (first - second) / (2.0 * measured.smoothing)


def first_pass(view: View, known: Knowledge) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the measurements about the first batches, those about one batch together.

    Scalars are (batches, K, q) or (batches, K, q, B), directions (batches, K, q, B, c), None for who knows none, and
    ids (batches, K, B), None for who does not know them.

    Raises:
        InputError: The view does not hold all answers about one batch.
    """
    outside = view.adversary.kind == "eavesdropper"
    shared = known.differences.shared
    # An outsider does not know which answers are about one batch.
    q = 1 if shared or outside else known.queries
    answers = answers_of(view, known, q * known.batches)
    batches = len(answers.values) // q
    if batches == 0:
        raise InputError(
            f"the view holds {len(answers.values)} answers, fewer than the {q} queries of one batch; use more "
            f"‹epochs›, a smaller ‹batch_size› or fewer ‹queries›"
        )
    directions = None if outside else directions_of(view, known, batches * q)
    if shared:
        return answers.scalars, directions, answers.ids

    def by_batch(values: Tensor) -> Tensor:
        return values[: batches * q].view(batches, q, *values.shape[1:]).transpose(1, 2)

    ids = None if answers.ids is None else answers.ids[: batches * q : q]
    along = None if directions is None else by_batch(directions)
    return by_batch(answers.scalars), along, ids


def error_of(known: Knowledge) -> float:
    """Return the standard deviation of an answer's error: the noise, or that of a forward difference.

    A central difference has no error of first order in lambda: noise is all there is.
    """
    measured = known.differences
    if measured.two_sided:
        return known.sigma
    return forward_difference_error(measured.smoothing, known.classes, records=measured.records)


def best_ridge(known: Knowledge) -> Estimator:
    """Return ridge for who knows the size of the error, and of gradients near uniform predictions."""
    return partial(ridge, noise_std=error_of(known), prior_std=label_prior_std(known.classes))
