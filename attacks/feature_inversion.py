"""A server that reconstructs a client's features from what the client sends up: embeddings, and DPZV's h+ and h-.

The decoder is ridge regression on records whose features the server knows. For DPZV it is given more: h+ - h- over
2 lambda is a Jacobian product, W-direction times features, whose inner products between two records of one batch are
<x_i, x_k> + 1 for a linear layer under a Gaussian direction. With known x_k these are linear equations in x_i.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from attacks.contract import AttackOutcome, AttackSetting, AttackSpec, Knowledge, Positive, control, unfit_sampler
from attacks.metrics import cosine_interval
from attacks.mount_labels import positive_control
from attacks.run import ADVERSARY_CLIENT, attacked_run
from dpzv_audit.errors import InputError
from dpzv_audit.evidence import Interval
from dpzv_audit.seeds import Purpose, stream
from mechanisms import METHODS
from mechanisms.config import DPZVConfig
from mechanisms.messages import Message
from mechanisms.views import View

PENALTY = 1e-2
"""Ridge penalty a known record, on standardised inputs."""


@dataclass(frozen=True)
class Reconstruction:
    """Features (K, n, d) of the records `ids` (n,) that the server did not know."""

    features: Tensor
    ids: Tensor


def infer(view: View, known: Knowledge) -> Reconstruction:
    """Decode every record of client 1 whose features are unknown, from the last embedding that it sent."""
    if known.some is None:
        raise InputError("feature_inversion needs some records' features for a decoder, which this adversary has not")
    inputs = last_embeddings(view, known)
    if isinstance(known.config, DPZVConfig) and known.config.perturbation == "functional":
        inputs = torch.cat((inputs, from_jacobians(view, known)), 2)
    some, features = known.some.ids, known.some.features.flatten(1).double()
    mean, deviation = inputs[:, some].mean(1, keepdim=True), inputs[:, some].std(1, keepdim=True) + 1e-9
    rows = (inputs - mean) / deviation
    seen = rows[:, some]
    gram = seen.mT @ seen + PENALTY * len(some) * torch.eye(seen.shape[2], dtype=seen.dtype, device=seen.device)
    weights = torch.linalg.solve(gram, seen.mT @ (features - features.mean(0)))
    free = torch.ones(known.records, dtype=torch.bool)
    free[some] = False
    return Reconstruction(rows[:, free] @ weights + features.mean(0), free.nonzero().squeeze(1))


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
    if known.some is None or not isinstance(known.config, DPZVConfig):
        raise InputError("Jacobian products are those of DPZV's pairs of uploads, by a server that knows some features")
    features = known.some.features.flatten(1).double()
    count, d = features.shape
    place = torch.full((known.records,), -1)
    place[known.some.ids] = torch.arange(count)
    pairs = [m for m in _mail(view, known) if m.kind == "embeddings"]
    replicas = len(pairs[0].payload)
    gram = features.new_zeros(replicas, known.records, d, d)
    right = features.new_zeros(replicas, known.records, d)
    for message in pairs:
        if message.ids is None:
            continue
        moves = (message.payload[:, 0] - message.payload[:, 1]).double() / (2.0 * known.config.smoothing)
        for k in range(replicas):
            ids = message.ids[k]
            inside = (place[ids] >= 0).nonzero().squeeze(1)
            x = features[place[ids[inside]]]
            # Units at rest under ReLU do not move: only those that move for both tell of both.
            active = (moves[k] != 0).double()
            shared = (active @ active[inside].T).clamp(min=1.0)
            products = moves[k] @ moves[k][inside].T / shared - 1.0
            others = (ids[:, None] != ids[inside][None]).double() * (active @ active[inside].T > 0)
            gram[k].index_add_(0, ids, torch.einsum("bi,ip,iq->bpq", others, x, x))
            right[k].index_add_(0, ids, (others * products) @ x)
    eye = torch.eye(d, dtype=gram.dtype)
    found: Tensor = torch.linalg.solve(gram + eye, right.unsqueeze(3)).squeeze(3)
    return found


def _mail(view: View, known: Knowledge) -> list[Message]:
    return [m for m in view.messages if m.sender == ADVERSARY_CLIENT and m.kind in ("table", "embeddings")]


def mount_features(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, reconstruct, and compare; the control permutes the client's records before training."""
    run = attacked_run(spec, setting)
    truth = torch.from_numpy(setting.dataset.train.features[0]).flatten(1).double()
    found: Reconstruction = spec.infer(run.view, run.known)
    # An order of its own for each method: controls of several methods that shared one would share its luck.
    order = stream(setting.seed, Purpose.CONTROL, 0, crc32(setting.method.name.encode())).permutation(len(truth))
    moved = _with_first_block(setting, setting.dataset.train.features[0][order])
    control_run = attacked_run(spec, moved, first_replica=setting.trials)
    of_moved: Reconstruction = spec.infer(control_run.view, control_run.known)
    controls = {
        "other_records": control(
            _correlation(of_moved, truth, setting.confidence),
            what="trained on the client's records in another order, compared with the true ones: must be 0",
            kind="negative",
            expected=0.0,
        )
    }
    if setting.with_positive:
        controls["positive"] = positive_control(spec, setting)
    return AttackOutcome(
        success=_correlation(found, truth, setting.confidence),
        baselines={"the mean record": 0.0},
        controls=controls,
        trained=run.trained,
        plan=run.plan,
        metric="correlation of reconstructed with true features, about the mean record",
        chance=0.0,
        curves={"quality of reconstructed features": quality(found, truth)},
    )


def quality(found: Reconstruction, truth: Tensor) -> list[dict[str, float | str]]:
    """Rows of PSNR in dB (the peak is the features' range) and SSIM (one window a record), beside the mean record."""
    real = truth[found.ids].numpy()
    peak = float(np.ptp(truth.numpy())) or 1.0
    mean = np.broadcast_to(truth.mean(0).numpy(), real.shape)
    rows: list[dict[str, float | str]] = []
    for name, guesses in (("reconstructed", found.features.cpu().numpy()), ("the mean record", mean[None])):
        errors = ((guesses - real) ** 2).mean((1, 2))
        similar = [float(ssim(guess, real, peak).mean()) for guess in guesses]
        decibels = float(np.mean(10.0 * np.log10(peak**2 / np.maximum(errors, 1e-300))))
        rows.append({"what": name, "PSNR, dB": decibels, "SSIM": float(np.mean(similar))})
    return rows


def ssim(guess: np.ndarray, real: np.ndarray, peak: float) -> np.ndarray:
    """Structural similarity (n,) of records (n, d), each as one window (Wang et al., 2004, eq. 13)."""
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    mean_g, mean_r = guess.mean(1), real.mean(1)
    covariance = ((guess - mean_g[:, None]) * (real - mean_r[:, None])).mean(1)
    above = (2 * mean_g * mean_r + c1) * (2 * covariance + c2)
    below = (mean_g**2 + mean_r**2 + c1) * (guess.var(1) + real.var(1) + c2)
    similarity: np.ndarray = above / below
    return similarity


def _correlation(found: Reconstruction, truth: Tensor, confidence: float) -> Interval:
    """Correlation over all coordinates about the mean record; interval over blocks of records and trials."""
    real = (truth - truth.mean(0))[found.ids]
    guess = found.features.cpu() - truth.mean(0)
    norms = torch.linalg.vector_norm(guess.flatten(1), dim=1) * torch.linalg.vector_norm(real)
    # Records are what varies: twenty groups of them, each with its share of the one correlation, mean over trials.
    groups = 20
    products = (guess * real).sum(2) / norms.clamp(min=1e-300).unsqueeze(1)
    n = products.shape[1] // groups * groups
    shares = products[:, :n].mean(0).view(groups, -1).sum(1) * groups * (products.shape[1] / n)
    return cosine_interval(shares.clamp(-1.0, 1.0).numpy(), n, confidence)


def _with_first_block(setting: AttackSetting, block: np.ndarray) -> AttackSetting:
    train = setting.dataset.train
    moved = replace(train, features=(np.ascontiguousarray(block), *train.features[1:]))
    return replace(setting, dataset=replace(setting.dataset, train=moved))


def unfit(setting: AttackSetting) -> str | None:
    """Why features cannot be decoded."""
    if setting.dataset.train.features[0].dtype != np.float32:
        return "client 1 holds token ids, no features to compare"
    return unfit_sampler(setting)


def wide(setting: AttackSetting) -> AttackSetting:
    """Split learning whose embeddings are four times as wide as the features, in the clear."""
    method = METHODS["split"]
    d = int(np.prod(setting.dataset.shapes[0]))
    config = method.configure(batch_size=setting.config.batch_size, epochs=1, embedding=4 * d)
    return replace(setting, method=method, config=config, trials=1, options={})


SPEC = AttackSpec(
    name="feature_inversion",
    summary="a client's features by the server: a decoder on embeddings, and DPZV's Jacobian products from h+ and h-",
    adversaries=("server",),
    infer=infer,
    mounted_by=mount_features,
    positive=Positive("embeddings four times as wide as the features: must be 0.9 at least", wide, 0.9),
    options={"known_records": 200},
    unfit=unfit,
)
