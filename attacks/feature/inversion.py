"""A server that reconstructs a client's features from what the client sends up: embeddings, and DPZV's h+ and h-.

The decoder is ridge regression on records whose features the server knows. For DPZV it is given more: h+ - h- over
2 lambda is a Jacobian product, W-direction times features, whose inner products between two records of one batch are
<x_i, x_k> + 1 for a linear layer under a Gaussian direction. With known x_k these are linear equations in x_i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from attacks.core import needs
from attacks.core.contract import (
    ADVERSARY_CLIENT,
    AttackOutcome,
    AttackSetting,
    AttackSpec,
    Knowledge,
    Pictures,
    Positive,
    granted,
)
from attacks.core.controls import at_chance, by_bets
from attacks.core.metrics import over_trainings, t_interval
from attacks.core.run import attacked_run
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import InputError
from dpzv_audit.findings import Interval
from dpzv_audit.seeds import Purpose, stream
from mechanisms.core.channel import Message, View

# Ridge penalty a known record, on standardised inputs.
PENALTY = 1e-2


def infer(view: View, known: Knowledge) -> Reconstruction:
    """Decode every record of client 1 whose features are unknown, from the last embedding that it sent."""
    inputs = last_embeddings(view, known)
    measured = known.method.differences(known.config)
    if measured is not None and measured.pairs:
        inputs = torch.cat((inputs, from_jacobians(view, known)), 2)
    known_part = granted(known.some, "some records' features")
    some, features = known_part.ids, known_part.features.flatten(1).double()
    mean, deviation = inputs[:, some].mean(1, keepdim=True), inputs[:, some].std(1, keepdim=True) + 1e-9
    rows = (inputs - mean) / deviation
    seen = rows[:, some]
    gram = seen.mT @ seen + PENALTY * len(some) * torch.eye(seen.shape[2], dtype=seen.dtype, device=seen.device)
    weights = torch.linalg.solve(gram, seen.mT @ (features - features.mean(0)))
    free = torch.ones(known.records, dtype=torch.bool, device=some.device)
    free[some] = False
    return Reconstruction(rows[:, free] @ weights + features.mean(0), free.nonzero().squeeze(1).cpu())


def last_embeddings(view: View, known: Knowledge) -> Tensor:
    """The latest embedding of each record at client 1, (K, N, width); of a pair of uploads the mean."""
    latest: Tensor | None = None
    for message in _mail(view, known):
        payload = message.payload.double()
        if message.kind == "table":
            latest = payload.clone()
            continue
        if latest is None:
            latest = payload.new_zeros(len(payload), known.records, payload.shape[-1])
        if message.ids is not None:
            sent = payload.mean(1) if payload.dim() == 4 else payload
            latest.scatter_(1, message.ids.unsqueeze(2).expand(-1, -1, latest.shape[2]), sent)
    if latest is None:
        raise InputError("the view holds no embedding of client 1")
    return latest


def from_jacobians(view: View, known: Knowledge) -> Tensor:
    """Features (K, N, d) from inner products of Jacobian products with those of known records of the same batch.

    A known record is estimated from the others, so that a decoder may learn from it. Records that never met a known
    one get zeros.
    """
    measured = known.method.differences(known.config)
    if known.some is None or measured is None or not measured.two_sided:
        raise InputError("Jacobian products are those of DPZV's pairs of uploads, by a server that knows some features")
    features = known.some.features.flatten(1).double()
    place = torch.full((known.records,), -1, device=features.device)
    place[known.some.ids] = torch.arange(len(features), device=features.device)
    pairs = [m for m in _mail(view, known) if m.kind == "embeddings"]
    found = features.new_zeros(len(pairs[0].payload), known.records, features.shape[1])
    at_once = max(1, _GRAM_BYTES // (8 * features.shape[1] ** 2))
    for k in range(len(found)):
        for start in range(0, known.records, at_once):
            block = range(start, min(start + at_once, known.records))
            found[k, block.start : block.stop] = _block_from_jacobians(
                pairs, k, block, place, features, measured.smoothing
            )
    return found


# Memory for the normal equations of as many records as are solved for at once.
_GRAM_BYTES = 2**27


def _block_from_jacobians(
    pairs: Sequence[Message], k: int, block: range, place: Tensor, features: Tensor, smoothing: float
) -> Tensor:
    """Features (len(block), d) of the records in `block` in replica `k`; `place` (N,) is where one is in `features`."""
    d = features.shape[1]
    gram = features.new_zeros(len(block), d, d)
    right = features.new_zeros(len(block), d)
    for message in pairs:
        if message.ids is None:
            continue
        ids = message.ids[k]
        inside = (place[ids] >= 0).nonzero().squeeze(1)
        rows = ((ids >= block.start) & (ids < block.stop)).nonzero().squeeze(1)
        if not len(inside) or not len(rows):
            continue
        moves = (message.payload[k, 0] - message.payload[k, 1]).double() / (2.0 * smoothing)
        x = features[place[ids[inside]]]
        # Units at rest under ReLU do not move: only those that move for both tell of both.
        active = (moves != 0).double()
        shared = active[rows] @ active[inside].T
        products = moves[rows] @ moves[inside].T / shared.clamp(min=1.0) - 1.0
        others = (ids[rows, None] != ids[inside][None]).double() * (shared > 0)
        gram.index_add_(0, ids[rows] - block.start, torch.einsum("bi,ip,iq->bpq", others, x, x))
        right.index_add_(0, ids[rows] - block.start, (others * products) @ x)
    met = (gram.diagonal(dim1=1, dim2=2).sum(1) > 0).nonzero().squeeze(1)
    solved = torch.zeros_like(right)
    ridge = torch.eye(d, dtype=gram.dtype, device=gram.device)
    solved[met] = torch.linalg.solve(gram[met] + ridge, right[met].unsqueeze(2)).squeeze(2)
    return solved


def _mail(view: View, known: Knowledge) -> list[Message]:
    return [m for m in view.messages if m.sender == ADVERSARY_CLIENT and m.kind in ("table", "embeddings")]


def mount_features(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, reconstruct, and compare; the control permutes the client's records before training."""
    run = attacked_run(spec, setting)
    truth = torch.from_numpy(setting.dataset.train.features[0]).flatten(1).double()
    found: Reconstruction = spec.infer(run.view, run.known)
    # An order of its own for each method: controls of several methods that shared one would share its luck.
    order = stream(setting.seed, Purpose.CONTROL, 0, crc32(setting.method.name.encode())).permutation(len(truth))
    dataset, train = setting.dataset, setting.dataset.train
    block: np.ndarray = np.ascontiguousarray(train.features[0][order])
    permuted = replace(dataset, train=replace(train, features=(block, *train.features[1:])))
    moved = replace(setting, dataset=permuted)
    control_run = attacked_run(spec, moved, first_replica=setting.trials, at_once=run.at_once)
    of_moved: Reconstruction = spec.infer(control_run.view, control_run.known)
    shares, _ = _shares(of_moved, truth)
    controls = {
        "other_records": at_chance(
            _correlation(of_moved, truth, setting.confidence),
            what="trained on the client's records in another order, compared with the true ones: must be 0",
            expected=0.0,
            test=by_bets(shares.mean(0), 0.0, least=-1.0, what="groups of records"),
        )
    }
    found_quality = quality(found, truth, setting.confidence)
    return AttackOutcome(
        success=_correlation(found, truth, setting.confidence),
        baselines={"the mean record": 0.0},
        controls=controls,
        trained=run.trained,
        plan=run.plan,
        metric="correlation of reconstructed with true features, about the mean record",
        chance=0.0,
        measures={name: measured for name, (measured, _) in found_quality.items()},
        curves={
            "quality of reconstructed features": [
                {"what": what, **{name: both[place].value for name, both in found_quality.items()}}
                for place, what in enumerate((RECONSTRUCTED, MEAN))
            ]
        },
        pictures=pictures(setting.dataset, found, found_quality),
        at_once=control_run.at_once,
    )


def _correlation(found: Reconstruction, truth: Tensor, confidence: float) -> Interval:
    """Correlation over all coordinates about the mean record.

    By records the interval is Student's over groups of records, means over trials: each group has many.
    """
    shares, n = _shares(found, truth)
    by_group = t_interval(shares.mean(0).clip(-1.0, 1.0), n, confidence)
    value, low, high = (float(np.clip(v, -1.0, 1.0)) for v in (by_group.value, by_group.low, by_group.high))
    over = over_trainings(shares.mean(1), confidence, least=-1.0)
    return replace(by_group, value=value, low=low, high=high, over_trainings=over)


def _shares(found: Reconstruction, truth: Tensor) -> tuple[np.ndarray, int]:
    """The share (K, groups) of each group of records in the correlation, scaled to it, and the number of records."""
    real = (truth - truth.mean(0))[found.ids]
    guess = found.features.cpu() - truth.mean(0)
    norms = torch.linalg.vector_norm(guess.flatten(1), dim=1) * torch.linalg.vector_norm(real)
    products = (guess * real).sum(2) / norms.clamp(min=1e-300).unsqueeze(1)
    # Records are what varies: twenty groups of them, each with its share of the one correlation.
    groups = min(GROUPS, products.shape[1])
    n = products.shape[1] // groups * groups
    shares = products[:, :n].unflatten(1, (groups, -1)).sum(2) * groups * (products.shape[1] / n)
    return shares.numpy(), n


def features_to_fit(setting: AttackSetting) -> str | None:
    """Need features to compare, and records to fit a decoder on."""
    if setting.dataset.train.features[0].dtype != np.float32:
        return "client 1 holds token ids, no features to compare"
    records = len(setting.dataset.train)
    known = min(SPEC.own_options(setting)["known_records"], records // 2)
    if known < 2:
        return f"of {records} training records the server knows {known}, must be 2 at least to fit a decoder"
    return None


def wide(setting: AttackSetting) -> AttackSetting:
    """Split learning whose embeddings are four times as wide as the features, in the clear.

    Of one training in fifty the decoder is a bad one (0.5 where others read 0.94): four share that luck,
    and read 0.57 or more in 1,600 seeds on digits.
    """
    d = int(np.prod(setting.dataset.shapes[0]))
    options = {"batch_size": setting.config.batch_size, "epochs": 1, "embedding": 4 * d}
    # Enough records to fit so wide a decoder.
    return setting.on("split", options, trials=4, options={"known_records": max(200, 16 * d)})


SPEC = AttackSpec(
    name="feature_inversion",
    summary="a client's features by the server: a decoder on embeddings, and DPZV's Jacobian products from h+ and h-",
    adversaries=("server",),
    infer=infer,
    mounted_by=mount_features,
    positive=Positive("embeddings four times as wide as the features: must be 0.4 at least", wide, 0.4),
    options={"known_records": 200},
    needs=(features_to_fit, needs.one_batch_size),
    least_success=-1.0,
)


@dataclass(frozen=True)
class Reconstruction:
    """Features (K, n, d) of the records `ids` (n,) that the server did not know; ids in the machine's memory."""

    features: Tensor
    ids: Tensor


RECONSTRUCTED, MEAN = "reconstructed", "the mean record"
PSNR, SSIM = "PSNR, dB", "SSIM"
# Records in a picture: the first that the server did not know, whatever became of them.
SHOWN = 8
# Groups of records over which intervals are taken: records are what varies.
GROUPS = 20


def quality(found: Reconstruction, truth: Tensor, confidence: float) -> dict[str, tuple[Interval, Interval]]:
    """PSNR in dB (the peak is the features' range) and SSIM (one window a record), each beside the mean record's.

    A group of records has the PSNR of its mean squared error; intervals are over groups, means over trials.
    """
    real = truth[found.ids].numpy()
    peak = float(np.ptp(truth.numpy())) or 1.0
    mean = np.broadcast_to(truth.mean(0).numpy(), real.shape)[None]
    guesses = found.features.cpu().numpy()
    psnr, similar = [], []
    for guess in (guesses, mean):
        errors = ((guess - real) ** 2).mean(2)
        decibels = 10.0 * np.log10(peak**2 / np.maximum(_groups(errors), 1e-300))
        psnr.append(t_interval(decibels.mean(0), len(real), confidence))
        likeness = np.stack([ssim(one, real, peak) for one in guess])
        similar.append(t_interval(_groups(likeness).mean(0), len(real), confidence))
    return {PSNR: (psnr[0], psnr[1]), SSIM: (similar[0], similar[1])}


def _groups(values: np.ndarray) -> np.ndarray:
    """Means (K, groups) of values (K, n) over groups of records; the last group takes what is left over."""
    parts = np.array_split(values, min(GROUPS, values.shape[1]), axis=1)
    means: np.ndarray = np.stack([part.mean(1) for part in parts], 1)
    return means


def pictures(
    dataset: VerticalDataset, found: Reconstruction, measured: Mapping[str, tuple[Interval, Interval]]
) -> Pictures | None:
    """Some records of the first trial, what was made of them, and the mean record; None where they are no pictures."""
    shape = dataset.picture(ADVERSARY_CLIENT - 1)
    if shape is None:
        return None
    block = dataset.train.features[ADVERSARY_CLIENT - 1].astype(np.float64)
    low, range_ = float(block.min()), float(np.ptp(block)) or 1.0

    def greys(records: np.ndarray) -> np.ndarray:
        planes = records.reshape(len(records), -1, shape[0] * shape[1]).mean(1)
        within: np.ndarray = np.clip((planes - low) / range_, 0.0, 1.0)
        return within

    ids = found.ids[:SHOWN].numpy()
    words = [
        f"{what}: PSNR {measured[PSNR][place].value:.1f} dB, SSIM {measured[SSIM][place].value:.2f}"
        for place, what in enumerate((RECONSTRUCTED, MEAN))
    ]
    return Pictures(
        shape,
        {
            "original": greys(block[ids]),
            words[0]: greys(found.features[0, :SHOWN].cpu().numpy()),
            words[1]: greys(np.broadcast_to(block.mean(0), (len(ids), *block.shape[1:]))),
        },
    )


def ssim(guess: np.ndarray, real: np.ndarray, peak: float) -> np.ndarray:
    """Structural similarity (n,) of records (n, d), each as one window (Wang et al., 2004, eq. 13)."""
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    mean_g, mean_r = guess.mean(1), real.mean(1)
    covariance = ((guess - mean_g[:, None]) * (real - mean_r[:, None])).mean(1)
    above = (2 * mean_g * mean_r + c1) * (2 * covariance + c2)
    below = (mean_g**2 + mean_r**2 + c1) * (guess.var(1) + real.var(1) + c2)
    similarity: np.ndarray = above / below
    return similarity
