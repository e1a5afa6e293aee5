"""A server that reconstructs a client's features from what the client sends up: embeddings, and DPZV's h+ and h-.

The decoder is ridge regression on records whose features the server knows. For DPZV it is given more: h+ - h- over
2 lambda is a Jacobian product, W-direction times features, whose inner products between two records of one batch are
<x_i, x_k> + 1 for a linear layer under a Gaussian direction. With known x_k these are linear equations in x_i.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.findings import Interval
from dpzv_audit.seeds import Purpose, stream
from mechanisms.core.channel import Message, View

from ..core import needs
from ..core.contract import (
    ATTACKER,
    AttackOutcome,
    AttackSetting,
    AttackSpec,
    Knowledge,
    Pictures,
    Positive,
    SomeFeatures,
)
from ..core.controls import at_chance, by_bets
from ..core.metrics import over_trainings, t_interval
from ..core.queries import kept_of
from ..core.run import attacked_run

# Ridge penalty a known record, on standardised inputs.
PENALTY = 1e-2
SENT = {"last": (False,), "first": (True,), "both": (False, True)}
"""Embeddings that a decoder may read, by the name of the option: whether each is the first that was sent."""


def infer(view: View, known: Knowledge) -> "Reconstruction":
    """Decode every record of client 1 whose features are unknown, from the embeddings that it sent."""
    inputs = torch.cat([sent_embeddings(view, known, first=first) for first in _read(known)], 2)
    measured = known.method.differences(known.config)
    if measured is not None and measured.pairs:
        inputs = torch.cat((inputs, from_jacobians(view, known)), 2)
    some, features = _known_features(known)
    seen = inputs[:, some]
    mean = seen.mean(1, keepdim=True)
    deviation = seen.std(1, keepdim=True) + 1e-9
    rows = (inputs - mean) / deviation
    seen = rows[:, some]
    gram = seen.mT @ seen + PENALTY * len(some) * torch.eye(seen.shape[2]).to(seen)
    centre = features.mean(0)
    weights = torch.linalg.solve(gram, seen.mT @ (features - centre))
    free = torch.ones(known.records, dtype=torch.bool, device=some.device)
    free[some] = False
    return Reconstruction(rows[:, free] @ weights + centre, free.nonzero().squeeze(1).cpu())


def _read(known: Knowledge) -> tuple[bool, ...]:
    """Return which embeddings a decoder reads: a penalty on them has hardly told yet on the first that were sent."""
    chosen: str = known.options["embeddings"]
    if chosen == "auto":
        defended = any(defence.place == "embedding" for defence in known.config.defences)
        chosen = "both" if defended else "last"
    return SENT[chosen]


def _known_features(known: Knowledge) -> tuple[Tensor, Tensor]:
    """Return ids (n,) and features (n, d) that the server is granted."""
    some = known.granted(SomeFeatures)
    return some.ids, some.features.flatten(1).double()


def sent_embeddings(view: View, known: Knowledge, *, first: bool = False) -> Tensor:
    """Return the latest embedding of each record at client 1, or the `first` that it sent, (K, N, width)."""
    measured = known.method.differences(known.config)
    latest: Tensor | None = None
    mail = _mail(view)
    for message in reversed(mail) if first else mail:
        payload = message.payload.double()
        if message.kind == "table":
            latest = payload.clone()
            continue
        if latest is None:
            latest = payload.new_zeros(len(payload), known.records, payload.shape[-1])
        if message.ids is not None:
            sent = kept_of(payload, two_sided=measured is not None and measured.two_sided)
            latest.scatter_(1, message.ids.unsqueeze(2).expand(-1, -1, latest.shape[2]), sent)
    if latest is None:
        raise InputError("the view holds no embedding of client 1")
    return latest


def from_jacobians(view: View, known: Knowledge) -> Tensor:
    """Features (K, N, d) from inner products of Jacobian products with those of known records of the same batch.

    A known record is estimated from the others, so that a decoder may learn from it. Records that never met a known
    one get zeros.
    """
    some, features = _known_features(known)
    place = torch.full((known.records,), -1, device=some.device)
    place[some] = torch.arange(len(some), device=some.device)
    pairs = [(m.payload, m.ids) for m in _mail(view) if m.kind == "embeddings" and m.ids is not None]
    step = 2.0 * known.differences.smoothing
    # The normal equations of as many records as are solved for at once take 128 MiB.
    at_once = max(1, 2**27 // (8 * features.shape[1] ** 2))
    found = []
    for k in range(len(pairs[0][0])):
        moves = [((sent[k, 0] - sent[k, 1]).double() / step, ids[k]) for sent, ids in pairs]
        for start in range(0, known.records, at_once):
            block = range(start, min(start + at_once, known.records))
            found.append(_block_from_jacobians(moves, block, place, features))
    return torch.cat(found).view(-1, known.records, features.shape[1])


def _block_from_jacobians(
    batches: Sequence[tuple[Tensor, Tensor]], block: range, place: Tensor, features: Tensor
) -> Tensor:
    """Features (len(block), d) of the records in `block`; `place` (N,) is where one is in `features`.

    `batches` are Jacobian products (B, width) and the ids (B,) that they are about.
    """
    d = features.shape[1]
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
        gram.index_add_(0, places, torch.einsum("bi,ip,iq->bpq", others, x, x))
        right.index_add_(0, places, (others * products) @ x)
    met = gram.diagonal(dim1=1, dim2=2).sum(1) > 0
    solved = torch.zeros_like(right)
    system = gram[met] + torch.eye(d).to(gram)
    solved[met] = torch.linalg.solve(system, right[met].unsqueeze(2)).squeeze(2)
    return solved


def _mail(view: View) -> list[Message]:
    return [m for m in view.messages if m.sender == ATTACKER and m.kind in ("table", "embeddings")]


def mount_features(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, reconstruct, and compare; the control permutes the client's records before training."""
    run = attacked_run(spec, setting)
    dataset = setting.dataset
    train = dataset.train
    confidence = setting.confidence
    truth = torch.from_numpy(train.features[0]).flatten(1).double()
    found: Reconstruction = spec.infer(run.view, run.known)
    success, _ = _correlation(found, truth, confidence)
    compared = quality(dataset, found, confidence)
    rows = []
    for what, measured in compared.items():
        rows.append({"what": what, **{name: one.value for name, one in measured.items()}})
    outcome = AttackOutcome(
        success=success,
        baselines={MEAN: 0.0},
        controls={},
        trained=run.trained,
        plan=run.plan,
        metric="correlation of reconstructed with true features, about the mean record",
        measures=compared.get(RECONSTRUCTED, {}),
        curves={"quality of reconstructed pictures": rows} if rows else {},
        pictures=pictures(dataset, found, compared),
        at_once=run.at_once,
    )
    if setting.pilot:
        return outcome
    # An order of its own for each method: controls of several methods that shared one would share its luck.
    own = crc32(setting.method.name.encode())
    order = stream(setting.seed, Purpose.CONTROL, 0, own).permutation(len(truth))
    block: np.ndarray = np.ascontiguousarray(train.features[0][order])
    moved = replace(dataset, train=replace(train, features=(block, *train.features[1:])))
    again = attacked_run(spec, replace(setting.of_control(run.at_once), dataset=moved))
    by_chance, shares = _correlation(spec.infer(again.view, again.known), truth, confidence)
    control = at_chance(
        by_chance,
        what="trained on the client's records in another order, compared with the true ones: must be 0",
        expected=0.0,
        test=by_bets(shares, 0.0, least=-1.0, what="groups of records"),
    )
    return replace(outcome, controls={"other_records": control}, at_once=again.at_once)


def _correlation(found: "Reconstruction", truth: Tensor, confidence: float) -> tuple[Interval, np.ndarray]:
    """Return the correlation over all coordinates about the mean record, and the share (groups,) of each group.

    By records the interval is Student's over groups of records, means over trials: each group has many.
    """
    real = (truth - truth.mean(0))[found.ids]
    guess = found.features.cpu() - truth.mean(0)
    norms = torch.linalg.vector_norm(guess.flatten(1), dim=1) * torch.linalg.vector_norm(real)
    products = (guess * real).sum(2) / norms.clamp(min=1e-300).unsqueeze(1)
    # Records are what varies: twenty groups of them, each with its share of the one correlation.
    groups = min(GROUPS, products.shape[1])
    n = products.shape[1] // groups * groups
    sums = products[:, :n].unflatten(1, (groups, -1)).sum(2).numpy()
    shares = sums * groups * (products.shape[1] / n)
    by_group = t_interval(shares.mean(0).clip(-1.0, 1.0), n, confidence)
    value, low, high = np.clip((by_group.value, by_group.low, by_group.high), -1.0, 1.0).tolist()
    over = over_trainings(shares.mean(1), confidence, least=-1.0)
    return replace(by_group, value=value, low=low, high=high, over_trainings=over), shares.mean(0)


def features_to_fit(setting: AttackSetting) -> str | None:
    """Need features to compare, and records to fit a decoder on."""
    if setting.dataset.train.features[0].dtype != np.float32:
        return "client 1 holds token ids, no features to compare"
    records = setting.records
    known = min(SPEC.count(setting, "known_records"), records // 2)
    if known < 2:
        rule = "must be 2 at least to fit a decoder"
        return f"of {records} training records the server knows {known}, {rule}"
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
    positive=Positive("embeddings four times as wide as the features: must be 0.4 at least", wide, 0.4),
    options={"known_records": 200, "embeddings": "auto"},
    choices={"embeddings": ("auto", *SENT)},
    needs=(needs.own_protocol, features_to_fit, needs.one_batch_size),
    least_success=-1.0,
    reveals="features",
)


@dataclass(frozen=True)
class Reconstruction:
    """Features (K, n, d) of the records `ids` (n,) that the server did not know; ids in the machine's memory."""

    features: Tensor
    ids: Tensor


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


def quality(dataset: VerticalDataset, found: Reconstruction, confidence: float) -> dict[str, dict[str, Interval]]:
    """Return PSNR in dB and SSIM of reconstructed pictures, and those of the mean record; nothing without pictures.

    Pixels are scaled to [0, 1] by their least and largest value. A group of records has the PSNR of its mean squared
    error; intervals are over groups, means over trials.
    """
    shape = dataset.picture(0)
    if shape is None:
        return {}
    block = dataset.train.features[0].astype(np.float64)
    low = float(block.min())
    range_ = float(np.ptp(block)) or 1.0

    def planes(records: np.ndarray) -> np.ndarray:
        return (records.reshape(len(records), -1, *shape) - low) / range_

    real = planes(block[found.ids.numpy()])
    mean = np.broadcast_to(planes(block.mean(0)[None]), real.shape)
    guesses = {RECONSTRUCTED: [planes(one) for one in found.features.cpu().numpy()], MEAN: [mean]}
    measured = {}
    for what, trials in guesses.items():
        errors = _groups(np.stack([((one - real) ** 2).mean((1, 2, 3)) for one in trials]))
        decibels = -10.0 * np.log10(np.maximum(errors, 1e-300))
        likeness = _groups(np.stack([ssim(one, real) for one in trials]))
        measured[what] = {
            name: t_interval(of.mean(0), len(real), confidence) for name, of in ((PSNR, decibels), (SSIM, likeness))
        }
    return measured


def _groups(values: np.ndarray) -> np.ndarray:
    """Means (K, groups) of values (K, n) over groups of records; the last group takes what is left over."""
    parts = np.array_split(values, min(GROUPS, values.shape[1]), axis=1)
    return np.stack([part.mean(1) for part in parts], 1)


def pictures(
    dataset: VerticalDataset, found: Reconstruction, measured: Mapping[str, Mapping[str, Interval]]
) -> Pictures | None:
    """Return some records of the first trial, their reconstructions and the mean record; None without pictures."""
    shape = dataset.picture(0)
    if shape is None:
        return None
    block = dataset.train.features[0].astype(np.float64)
    low = float(block.min())
    range_ = float(np.ptp(block)) or 1.0

    def greys(records: np.ndarray) -> np.ndarray:
        planes = records.reshape(len(records), -1, shape[0] * shape[1]).mean(1)
        return np.asarray(np.clip((planes - low) / range_, 0.0, 1.0))

    ids = found.ids[:SHOWN].numpy()
    guesses = {
        RECONSTRUCTED: found.features[0, :SHOWN].cpu().numpy(),
        MEAN: np.broadcast_to(block.mean(0), (len(ids), *block.shape[1:])),
    }
    rows = {"original": greys(block[ids])}
    for what, guess in guesses.items():
        psnr, likeness = (measured[what][name].value for name in (PSNR, SSIM))
        rows[f"{what}: PSNR {psnr:.1f} dB, SSIM {likeness:.2f}"] = greys(guess)
    return Pictures(shape, rows)


def ssim(guess: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Return the mean structural similarity (n,) of pictures (n, channels, height, width) with pixels in [0, 1].

    As in Wang et al. (IEEE TIP 2004, eq. 13 and section III-C): Gaussian windows of 11 x 11 pixels and standard
    deviation 1.5, K1 = 0.01, K2 = 0.03, averaged over the windows that lie within the picture, and over channels. Along
    a side of fewer than 11 pixels none does: there the picture is mirrored, and all windows count.
    """
    sides = guess.shape[2:]
    within = tuple(slice(RADIUS, side - RADIUS) if side > 2 * RADIUS else slice(None) for side in sides)

    def mean(values: np.ndarray) -> np.ndarray:
        from scipy.ndimage import gaussian_filter

        return np.asarray(gaussian_filter(values, (0, 0, DEVIATION, DEVIATION), radius=RADIUS)[(..., *within)])

    def one(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        mean_a, mean_b = mean(a), mean(b)
        covariance = mean(a * b) - mean_a * mean_b
        variances = mean(a * a) - mean_a**2 + mean(b * b) - mean_b**2
        above = (2 * mean_a * mean_b + C1) * (2 * covariance + C2)
        return np.asarray((above / ((mean_a**2 + mean_b**2 + C1) * (variances + C2))).mean((1, 2, 3)))

    pieces = range(0, len(real), AT_ONCE)
    return np.concatenate([one(guess[i : i + AT_ONCE], real[i : i + AT_ONCE]) for i in pieces])
