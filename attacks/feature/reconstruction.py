"""What a server made of a client's records: how close they came, and some of them as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from attacks.core.contract import Pictures
from attacks.core.intervals import t_interval
from attacks.core.run import ADVERSARY_CLIENT
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.findings import Interval


@dataclass(frozen=True)
class Reconstruction:
    """Features (K, n, d) of the records `ids` (n,) that the server did not know; ids in the machine's memory."""

    features: Tensor
    ids: Tensor


RECONSTRUCTED, MEAN = "reconstructed", "the mean record"
PSNR, SSIM = "PSNR, dB", "SSIM"
SHOWN = 8
"""Records in a picture: the first that the server did not know, whatever became of them."""
GROUPS = 20
"""Groups of records over which intervals are taken: records are what varies."""


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
        psnr.append(_over_groups(10.0 * np.log10(peak**2 / np.maximum(_groups(errors), 1e-300)), len(real), confidence))
        likeness = np.stack([ssim(one, real, peak) for one in guess])
        similar.append(_over_groups(_groups(likeness), len(real), confidence))
    return {PSNR: (psnr[0], psnr[1]), SSIM: (similar[0], similar[1])}


def _groups(values: np.ndarray) -> np.ndarray:
    """Means (K, groups) of values (K, n) over groups of records; the last group takes what is left over."""
    parts = np.array_split(values, min(GROUPS, values.shape[1]), axis=1)
    means: np.ndarray = np.stack([part.mean(1) for part in parts], 1)
    return means


def _over_groups(values: np.ndarray, n: int, confidence: float) -> Interval:
    """Mean of values (K, groups) with Student's t interval over groups, means over trials."""
    return t_interval(values.mean(0), n, confidence)


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
