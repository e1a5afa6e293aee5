"""A server that reconstructs a client's features from what the client sends up: embeddings, and DPZV's h+ and h-.

The decoder is ridge regression on records whose features the server knows. For DPZV it is given more: h+ - h- over
2 lambda is a Jacobian product, W-direction times features, whose inner products between two records of one batch are
<x_i, x_k> + 1 for a linear layer under a Gaussian direction. With known x_k these are linear equations in x_i.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.errors import InputError
from dpzv_audit.base.findings import Interval
from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.files import check_memory
from dpzv_audit.data.vertical import VerticalDataset
from mechanisms.core.channel import Message, View
from mechanisms.core.context import TrainingData, dtype_of

from ..core import needs
from ..core.controls import at_chance, by_bets
from ..core.knowledge import Knowledge, SomeFeatures
from ..core.metrics import Floats, Ints, over_trainings, t_interval
from ..core.queries import kept_of
from ..core.run import attacked_run
from ..core.setting import ATTACKER, AttackSetting
from ..core.spec import AttackOutcome, AttackSpec, Goal, Needs, Pictures, Positive, Setup

# Ridge penalty a known record, on standardised inputs.
PENALTY = 1e-2
# Bytes of the normal equations of as many records as are summed at once, and of those that are solved at once.
EQUATIONS = 1 << 27
SOLVED = 1 << 24
# Records that are decoded at once.
ROWS = 4096
SENT = {"last": (False,), "first": (True,), "both": (False, True)}
"""Embeddings that a decoder may read, by the name of the option: whether each is the first that was sent."""


def infer(view: View, known: Knowledge) -> "Reconstruction":
    """Decode every record of client 1 whose features are unknown, from the embeddings that it sent."""
    some, features = _known_features(known)
    free = torch.ones(known.records, dtype=torch.bool, device=some.device)
    free[some] = False
    ids = free.nonzero().squeeze(1)
    centre = features.mean(0)
    measured = known.method.differences(known.config)

    def decoded(k: int) -> Tensor:
        inputs = [sent_embeddings(view, known, k, first=first) for first in _read(known)]
        if measured is not None and measured.pairs:
            inputs.append(from_jacobians(view, known, k))
        rows = inputs[0] if len(inputs) == 1 else torch.cat(inputs, 1)
        seen = rows[some]
        # In place: with many columns the rows of one training are most of what is held.
        rows.sub_(seen.mean(0)).div_(seen.std(0) + 1e-9)
        seen = rows[some]
        gram = seen.T @ seen + PENALTY * len(some) * torch.eye(seen.shape[1]).to(seen)
        weights = torch.linalg.solve(gram, seen.T @ (features - centre))
        return torch.cat([rows[piece] @ weights + centre for piece in ids.split(ROWS)])

    return Reconstruction(ids.cpu(), len(known.replicas), decoded)


def _read(known: Knowledge) -> tuple[bool, ...]:
    """Return which embeddings a decoder reads: a penalty on them has hardly told yet on the first that were sent."""
    if known.options["embeddings"] != "auto":
        return SENT[known.options["embeddings"]]
    return SENT["both" if any(defence.place == "embedding" for defence in known.config.defences) else "last"]


def _known_features(known: Knowledge) -> tuple[Tensor, Tensor]:
    """Return ids (n,) and features (n, d) that the server is granted."""
    some = known.granted(SomeFeatures)
    return some.ids, some.features.flatten(1).double()


def sent_embeddings(view: View, known: Knowledge, k: int, *, first: bool = False) -> Tensor:
    """Return the latest embedding (N, width) of each record at client 1 in training `k` of a view, or the `first`."""
    measured = known.method.differences(known.config)
    two_sided = measured is not None and measured.two_sided
    latest: Tensor | None = None
    mail = _mail(view)
    for message in reversed(mail) if first else mail:
        payload = message.payload[k : k + 1].double()
        if message.kind == "table":
            latest = payload[0].clone()
            continue
        if latest is None:
            latest = payload.new_zeros(known.records, payload.shape[-1])
        if message.ids is not None:
            sent = kept_of(payload, two_sided=two_sided)[0]
            latest.scatter_(0, message.ids[k].unsqueeze(1).expand(-1, latest.shape[1]), sent)
    if latest is None:
        raise InputError("the view holds no embedding of client 1")
    return latest


def from_jacobians(view: View, known: Knowledge, k: int) -> Tensor:
    """Return features (N, d) by inner products of Jacobian products with those of known records of the same batch.

    Of training `k` of the view. A known record is estimated from the others, so that a decoder may learn from it.
    Records that never met a known one get zeros.
    """
    some, features = _known_features(known)
    place = torch.full((known.records,), -1, device=some.device)
    place[some] = torch.arange(len(some), device=some.device)
    step = 2.0 * known.differences.smoothing
    moves = []
    for message in _mail(view):
        if message.kind == "embeddings" and message.ids is not None:
            sent, ids = message.payload[k], message.ids[k]
            moves.append(((sent[0] - sent[1]).double() / step, ids))
    at_once = max(1, EQUATIONS // (8 * features.shape[1] ** 2))
    blocks = (range(known.records)[start : start + at_once] for start in range(0, known.records, at_once))
    return torch.cat([_block_from_jacobians(moves, block, place, features) for block in blocks])


def _block_from_jacobians(
    batches: Sequence[tuple[Tensor, Tensor]], block: range, place: Tensor, features: Tensor
) -> Tensor:
    """Return features (len(block), d) of the records in `block`; `place` (N,) is where one is in `features`.

    `batches` are Jacobian products (B, width) and the ids (B,) that they are about.
    """
    d = features.shape[1]
    # A share of the block at a time where products and solutions need as much memory as the equations themselves.
    few = max(1, SOLVED // (8 * d**2))
    gram = features.new_zeros(len(block), d, d)
    right = features.new_zeros(len(block), d)
    for moves, ids in batches:
        inside = (place[ids] >= 0).nonzero().squeeze(1)
        rows = ((ids >= block.start) & (ids < block.stop)).nonzero().squeeze(1)
        if not len(inside) or not len(rows):
            continue
        x = features[place[ids[inside]]]
        # Units at rest under ReLU do not move: only those that move for both tell of both.
        active = (moves != 0).double()
        shared = active[rows] @ active[inside].T
        products = moves[rows] @ moves[inside].T / shared.clamp(min=1.0) - 1.0
        others = (ids[rows, None] != ids[inside][None]).double() * (shared > 0)
        places = ids[rows] - block.start
        for at, weights in zip(places.split(few), others.split(few), strict=True):
            gram.index_add_(0, at, torch.einsum("bi,ip,iq->bpq", weights, x, x))
        right.index_add_(0, places, (others * products) @ x)
    diagonal = gram.diagonal(dim1=1, dim2=2)
    met = diagonal.sum(1) > 0
    diagonal.add_(1.0)
    solved = torch.zeros_like(right)
    for some in met.nonzero().squeeze(1).split(few):
        solved[some] = torch.linalg.solve(gram[some], right[some].unsqueeze(2)).squeeze(2)
    return solved


def _mail(view: View) -> list[Message]:
    return [m for m in view.messages if m.sender == ATTACKER and m.kind in ("table", "embeddings")]


def mount_features(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, reconstruct, and compare; the control permutes the client's records before training."""
    check_memory(memory_needed(setting), f"{spec.name} over {setting.trials} trainings")
    run = attacked_run(spec, setting)
    dataset = setting.dataset
    train = dataset.train
    confidence = setting.confidence
    scored = score(dataset, spec.infer(run.view, run.known), confidence)
    rows = []
    for kind, marks in scored.quality.items():
        rows.append({"what": kind, **{name: interval.value for name, interval in marks.items()}})
    outcome = AttackOutcome(
        success=scored.success,
        baselines={MEAN: 0.0},
        controls={},
        trained=run.trained,
        plan=run.plan,
        metric="correlation of reconstructed with true features, about the mean record",
        measures=scored.quality.get(RECONSTRUCTED, {}),
        curves={"quality of reconstructed pictures": rows} if rows else {},
        pictures=scored.pictures,
        by_trial={"success": tuple(scored.shares.mean(1).clip(-1.0, 1.0).tolist())},
        at_once=run.at_once,
    )
    if setting.pilot:
        return outcome
    again_at_once = run.at_once
    del run  # the messages of the control's trainings take as much memory again
    # An order of its own for each method: controls of several methods that shared one would share its luck.
    own = crc32(setting.method.name.encode())
    order = stream(setting.seed, Purpose.CONTROL, 0, own).permutation(len(train))
    block: np.ndarray = np.ascontiguousarray(train.features[0][order])
    moved = replace(dataset, train=replace(train, features=(block, *train.features[1:])))
    again = attacked_run(spec, replace(setting.of_control(again_at_once), dataset=moved))
    against = score(dataset, spec.infer(again.view, again.known), confidence, pictured=False)
    control = at_chance(
        against.success,
        what="trained on the client's records in another order, compared with the true ones: must be 0",
        expected=0.0,
        test=by_bets(against.shares.mean(0), 0.0, least=-1.0, unit="groups of records"),
    )
    return replace(outcome, controls={"other_records": control}, at_once=again.at_once)


def memory_needed(setting: AttackSetting) -> int:
    """Return about how many bytes client 1's messages of all trainings take, with the decoding of one training."""
    config = setting.config
    values = torch.finfo(dtype_of(config)).bits // 8
    measured = setting.method.differences(config)
    pairs = measured is not None and measured.pairs
    # Clients that take turns share the rounds: evenly, or about so.
    rounds = setting.rounds if config.all_at_once else -(-setting.rounds // setting.dataset.clients)
    sent = rounds * config.batch_size * config.embedding * (2 if pairs else 1)
    width = int(np.prod(setting.dataset.shapes[0]))
    read = config.embedding + (width if pairs else 0)
    decoding = 8 * setting.records * (2 * read + width) + (2 * EQUATIONS if pairs else 0)
    return values * setting.trials * (sent + setting.records * config.embedding) + decoding


def some_features(data: TrainingData, setting: AttackSetting) -> tuple[SomeFeatures]:
    """Grant the features of `known_records` records of client 1, drawn by the seed: at most half of them all."""
    order = stream(setting.seed, Purpose.ATTACK, 7).permutation(data.records)
    ids = np.sort(order[: min(SPEC.count(setting, "known_records"), data.records // 2)])
    chosen = torch.from_numpy(ids).to(setting.device)
    return (SomeFeatures(chosen, data.features[setting.client - 1][chosen]),)


def features_to_fit(setting: AttackSetting) -> str | None:
    """Need features to compare, and records to fit a decoder on."""
    if setting.dataset.train.features[0].dtype != np.float32:
        return "client 1 holds token ids, no features to compare"
    records = setting.records
    known = min(SPEC.count(setting, "known_records"), records // 2)
    if known < 2:
        return f"of {records} training records the server knows {known}; use 2 at least to fit a decoder"
    return None


def wide(setting: AttackSetting) -> AttackSetting:
    """Split learning whose embeddings are four times as wide as the features, in the clear.

    Of one training in fifty the decoder is a bad one (0.5 where others read 0.94): four share that luck,
    and read 0.57 or more in 1,600 seeds on digits.
    """
    d = int(np.prod(setting.dataset.shapes[0]))
    options = {"epochs": 1, "embedding": 4 * d}
    # Enough records to fit so wide a decoder.
    return setting.on("split", options, trials=4, options={"known_records": max(200, 16 * d)})


SPEC = AttackSpec(
    name="feature_inversion",
    summary="a client's features by the server: a decoder on embeddings, and DPZV's Jacobian products from h+ and h-",
    adversaries=("server",),
    infer=infer,
    mounted_by=mount_features,
    goal=Goal(
        Positive("embeddings four times as wide as the features: must be 0.4 at least", wide, 0.4),
        least_success=-1.0,
        reveals="features",
    ),
    needs=Needs(
        conditions=(needs.own_protocol, features_to_fit, needs.one_batch_size),
        reads=("table", "embeddings"),
        reads_of=(ATTACKER,),
    ),
    setup=Setup(
        options={"known_records": 200, "embeddings": "auto"},
        choices={"embeddings": ("auto", *SENT)},
        grants=some_features,
    ),
)


@dataclass(frozen=True)
class Reconstruction:
    """Features of the records `ids` (n,) that the server did not know, in the machine's memory, by training.

    They are decoded, to (n, d), when they are asked for: those of all `trials` together would be many.
    """

    ids: Tensor
    trials: int
    decoded: Callable[[int], Tensor]

    def __iter__(self) -> Iterator[Tensor]:
        """Yield the features of each training."""
        return (self.decoded(k).cpu() for k in range(self.trials))


RECONSTRUCTED = "reconstructed"
MEAN = "the mean record"
PSNR = "PSNR, dB"
SSIM = "SSIM"
# Of structural similarity: a window's deviation and radius, its constants, and how many pictures are compared at once.
DEVIATION = 1.5
RADIUS = 5
C1 = 0.01**2
C2 = 0.03**2
AT_ONCE = 1024
# Records in a picture: the first that the server did not know, whatever became of them.
SHOWN = 8
# Groups of records over which intervals are taken: records are what varies.
GROUPS = 20


@dataclass(frozen=True)
class Scored:
    """Success of reconstructions; each group's share of it in each training (K, groups); and for pictures more.

    `quality` has PSNR in dB and SSIM of reconstructed pictures and of the mean record, nothing without pictures;
    `pictures` are some records of the first training beside their reconstructions.
    """

    success: Interval
    shares: Floats
    quality: Mapping[str, Mapping[str, Interval]]
    pictures: Pictures | None


def score(
    dataset: VerticalDataset, reconstruction: Reconstruction, confidence: float, *, pictured: bool = True
) -> Scored:
    """Compare reconstructions with the true features, one training at a time; `pictured` as pictures too."""
    ids = reconstruction.ids
    truth = torch.from_numpy(dataset.train.features[0]).flatten(1).double()
    mean = truth.mean(0)
    real = truth[ids] - mean
    album = Album.of(dataset, ids.numpy()) if pictured else None
    by_training, marks, shown = [], [], np.empty(0)
    for features in reconstruction:
        by_training.append(_shares(features - mean, real))
        if album is not None:
            marks.append(album.marks(features.numpy()))
            shown = features[:SHOWN].numpy() if len(marks) == 1 else shown
    shares = np.stack(by_training)
    success = _correlation(shares, len(ids), confidence)
    if album is None:
        return Scored(success, shares, {}, None)
    quality = {
        RECONSTRUCTED: _intervals(marks, len(ids), confidence),
        MEAN: _intervals([album.marks(album.mean)], len(ids), confidence),
    }
    return Scored(success, shares, quality, album.beside(shown, quality))


def _shares(guess: Tensor, real: Tensor) -> Floats:
    """Return each group's share (groups,) of the correlation of `guess` (n, d) with `real`, both about the mean record.

    Records are what varies: twenty groups of them; what is left over of `n` records is in none.
    """
    norms = torch.linalg.vector_norm(guess) * torch.linalg.vector_norm(real)
    products = (guess * real).sum(1) / norms.clamp(min=1e-300)
    groups = min(GROUPS, len(products))
    n = len(products) // groups * groups
    sums: Floats = products[:n].unflatten(0, (groups, -1)).sum(1).numpy()
    return sums * groups * (len(products) / n)


def _correlation(shares: Floats, records: int, confidence: float) -> Interval:
    """Return the correlation by `shares` (K, groups), means over trainings, of the groups of so many `records`.

    By records the interval is Student's over groups of records: each group has many.
    """
    groups = shares.shape[1]
    by_group = t_interval(shares.mean(0).clip(-1.0, 1.0), records // groups * groups, confidence)
    value, low, high = np.clip((by_group.value, by_group.low, by_group.high), -1.0, 1.0).tolist()
    over = over_trainings(shares.mean(1), confidence, least=-1.0)
    return replace(by_group, value=value, low=low, high=high, over_trainings=over)


Marks = tuple[Floats, Floats]
"""Mean squared errors and structural similarities of groups of pictures, (groups,) each."""


@dataclass(frozen=True)
class Album:
    """The true pictures (n, channels, height, width) of some records, whose pixels were scaled to [0, 1].

    `low` and `range_` are what scaled them, `mean` (n, d) has the mean record for each of them.
    """

    real: Floats
    mean: Floats
    low: float
    range_: float

    @classmethod
    def of(cls, dataset: VerticalDataset, ids: Ints) -> "Album | None":
        """Return the pictures of the records `ids` at client 1; None where its block is no picture."""
        shape = dataset.picture(0)
        if shape is None:
            return None
        block = dataset.train.features[0].astype(np.float64)
        low = float(block.min())
        range_ = float(np.ptp(block)) or 1.0
        real = (block[ids].reshape(len(ids), -1, *shape) - low) / range_
        flat = block.reshape(len(block), -1)
        return cls(real, np.broadcast_to(flat.mean(0), (len(ids), flat.shape[1])), low, range_)

    def planes(self, features: Floats) -> Floats:
        """Return features (n, d) as pictures, scaled as the true ones are."""
        return (features.reshape(len(features), *self.real.shape[1:]) - self.low) / self.range_

    def marks(self, features: Floats) -> Marks:
        """Return how close pictures of `features` (n, d) come to the true ones."""
        guess = self.planes(features)
        return _groups(((guess - self.real) ** 2).mean((1, 2, 3))), _groups(ssim(guess, self.real))

    def beside(self, shown: Floats, measured: Mapping[str, Mapping[str, Interval]]) -> Pictures:
        """Return the first records beside the reconstructions `shown` of them and the mean record."""

        def greys(planes: Floats) -> Floats:
            return np.asarray(np.clip(planes.mean(1).reshape(len(planes), -1), 0.0, 1.0))

        rows = {"original": greys(self.real[: len(shown)])}
        for kind, guess in ((RECONSTRUCTED, shown), (MEAN, self.mean[: len(shown)])):
            psnr, likeness = (measured[kind][name].value for name in (PSNR, SSIM))
            rows[f"{kind}: PSNR {psnr:.1f} dB, SSIM {likeness:.2f}"] = greys(self.planes(guess))
        height, width = self.real.shape[2:]
        return Pictures((height, width), rows)


def _intervals(marks: Sequence[Marks], records: int, confidence: float) -> dict[str, Interval]:
    """Return PSNR in dB and SSIM over groups of `records`, means over trainings.

    A group of records has the PSNR of its mean squared error.
    """
    errors, likeness = (np.stack(kind) for kind in zip(*marks, strict=True))
    decibels = -10.0 * np.log10(np.maximum(errors, 1e-300))
    return {name: t_interval(of.mean(0), records, confidence) for name, of in ((PSNR, decibels), (SSIM, likeness))}


def _groups(values: Floats) -> Floats:
    """Return means (groups,) of values (n,) over groups of records; the last group takes what is left over."""
    return np.array([part.mean() for part in np.array_split(values, min(GROUPS, len(values)))])


def ssim(guess: Floats, real: Floats) -> Floats:
    """Return the mean structural similarity (n,) of pictures (n, channels, height, width) with pixels in [0, 1].

    As in Wang et al. (IEEE TIP 2004, eq. 13 and section III-C): Gaussian windows of 11 x 11 pixels and standard
    deviation 1.5, K1 = 0.01, K2 = 0.03, averaged over the windows that lie within the picture, and over channels. Along
    a side of fewer than 11 pixels none does: there the picture is mirrored, and all windows count.
    """
    sides = guess.shape[2:]
    within = tuple(slice(RADIUS, side - RADIUS) if side > 2 * RADIUS else slice(None) for side in sides)

    def mean(values: Floats) -> Floats:
        from scipy.ndimage import gaussian_filter

        return np.asarray(gaussian_filter(values, (0, 0, DEVIATION, DEVIATION), radius=RADIUS)[(..., *within)])

    def one(a: Floats, b: Floats) -> Floats:
        mean_a, mean_b = mean(a), mean(b)
        covariance = mean(a * b) - mean_a * mean_b
        variances = mean(a * a) - mean_a**2 + mean(b * b) - mean_b**2
        above = (2 * mean_a * mean_b + C1) * (2 * covariance + C2)
        return np.asarray((above / ((mean_a**2 + mean_b**2 + C1) * (variances + C2))).mean((1, 2, 3)))

    pieces = range(0, len(real), AT_ONCE)
    return np.concatenate([one(guess[i : i + AT_ONCE], real[i : i + AT_ONCE]) for i in pieces])
