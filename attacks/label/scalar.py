"""Label inference by an honest client that pools the scalars of all its rounds (attacks.md; Gaussian processes).

Round t tells s_t = (1/B) sum_i <v_ti, g_i> + noise, with g_i the gradient at record i's summed logits and v_ti how
far the client's own perturbation moved record i's output: its Jacobian times u, which is (h+ - h-)/(2 lambda) of its
own messages. Gradients about their mean are one-hot labels, and records with like features have like labels: a
Gaussian prior of covariance (rho k(x_i, x_j) + (1 - rho) 1[i = j]) / c pools visits and neighbours; the posterior mean
is linear in the scalars.
"""

from collections.abc import Mapping

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from dpzv_audit.seeds import Purpose, stream
from mechanisms.core.channel import View

from ..core import needs
from ..core.contract import AttackSetting, AttackSpec, Knowledge, LabelGuesses, OwnParty, Positive, granted
from ..core.controls import labels_in_own_features
from ..core.queries import answers_of, directions_of, error_of
from .mount import mount_labels

# Random Fourier features (Rahimi and Recht 2007) of the Gaussian kernel on the client's own block.
FREQUENCIES = 128
# rho, the share of the prior variance that records with like features have in common.
SHARED = 0.9


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Return the posterior mean of every record's gradient given all scalars; the smallest coordinate is the label."""
    return _guesses(*measurements(view, known), known)


def with_scalars_mixed_up(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Return the baseline: the same with the scalars in another order, so that only features and priors are left."""
    scalars, moves, ids = measurements(view, known)
    order = torch.from_numpy(stream(known.seed, Purpose.ATTACK, 3).permutation(len(scalars)))
    return {"the same scalars in another order": _guesses(scalars[order], moves, ids, known)}


def measurements(view: View, known: Knowledge) -> tuple[Tensor, Tensor, Tensor]:
    """Scalars (T, K), how outputs moved (T, K, B, c), and record ids (T, K, B), of the first rounds of the client."""
    most = known.options["scalars"]
    measured = known.differences
    batch_size = known.config.batch_size
    found = answers_of(view, known, most)
    told = found.told
    ids = granted(found.ids, "batch ids")
    moves = directions_of(view, known, len(told))
    if not measured.shared:
        return found.scalars, moves, ids
    if told.dim() == 4:
        told = told.mean(3) * batch_size
    scalars = told / (batch_size // measured.records) / found.unit
    scalars, moves = (values.transpose(1, 2).flatten(0, 1)[:most] for values in (scalars, moves))
    return scalars, moves, ids.repeat_interleave(told.shape[2], 0)[:most]


def _guesses(scalars: Tensor, moves: Tensor, ids: Tensor, known: Knowledge) -> LabelGuesses:
    block = known.granted(OwnParty).features.flatten(1).double().cpu().numpy()
    features = fourier_features(block, known.seed)
    noise = error_of(known)
    seen = [part.cpu().numpy().swapaxes(0, 1) for part in (scalars, moves, ids)]
    means = [posterior_mean(s, m, i, features, noise=noise) for s, m, i in zip(*seen, strict=True)]
    scores = torch.from_numpy(-np.stack(means)).unsqueeze(0)
    records = torch.arange(scores.shape[2]).expand(1, scores.shape[1], -1)
    return LabelGuesses(scores.argmax(3), records, scores)


def fourier_features(block: np.ndarray, seed: int) -> np.ndarray:
    """Features (N, 2 FREQUENCIES) whose products are about exp(-|x - x'|^2 / (2 s^2)), s^2 the mean squared distance.

    `block` is (N, d).
    """
    variance = float(block.var(0).sum()) or 1.0
    frequencies = stream(seed, Purpose.ATTACK, 4).standard_normal((block.shape[1], FREQUENCIES))
    angles = block @ (frequencies / np.sqrt(variance))
    return np.asarray(np.concatenate((np.cos(angles), np.sin(angles)), 1) / np.sqrt(FREQUENCIES))


def posterior_mean(
    scalars: np.ndarray, moves: np.ndarray, ids: np.ndarray, features: np.ndarray, *, noise: float
) -> np.ndarray:
    """Posterior mean (N, c) of gradients about their mean.

    Args:
        scalars: (T,).
        moves: v_ti, (T, B, c).
        ids: (T, B), -1 where a place is padding, whose moves are 0.
        features: (N, f), whose products are the kernel.
        noise: Standard deviation of a scalar's error, at least 0.
    """
    rounds, batch, classes = moves.shape
    # Gradients sum to 0 over classes: what moves all logits alike tells nothing.
    centred = (moves - moves.mean(2, keepdims=True)) / batch
    shared = np.matmul(features[ids].transpose(0, 2, 1), centred).reshape(rounds, -1)
    columns = (ids[:, :, None] * classes + np.arange(classes)).reshape(-1)
    row_ends = np.arange(rounds + 1) * (batch * classes)
    own = csr_array((centred.reshape(-1), columns, row_ends), shape=(rounds, len(features) * classes))
    prior = 1.0 / classes
    gram = prior * (SHARED * shared @ shared.T + (1.0 - SHARED) * (own @ own.T).toarray())
    # A sliver on the diagonal keeps noise-free systems solvable.
    gram[np.diag_indices(rounds)] += noise**2 + 1e-9 * gram.trace() / rounds
    weights = np.linalg.solve(gram, scalars)
    common = features @ (weights @ shared).reshape(-1, classes)
    alone = (own.T @ weights).reshape(-1, classes)
    return np.asarray(prior * (SHARED * common + (1.0 - SHARED) * alone))


def planted(setting: AttackSetting) -> AttackSetting:
    """Labels that stand in the client's own features, under scalars without noise."""
    dataset = labels_in_own_features(setting.dataset)
    # Enough rounds for the client to ask about each pair of a class and a coordinate several times.
    rounds = 6 * dataset.classes**2 * dataset.clients
    epochs = -(-rounds // max(1, setting.records // setting.config.batch_size))
    options = {"top_model": False, "calibration": "none", "client_rate": 0.0, "dtype": "float64"}
    return setting.on("dpzv", {**options, "epochs": epochs}, dataset=dataset, options={}, trials=1)


SPEC = AttackSpec(
    name="label_scalar",
    summary="labels by an honest client that pools the scalars of all its rounds with its own Jacobians and features",
    adversaries=("client",),
    infer=infer,
    mounted_by=mount_labels,
    positive=Positive("labels planted in the client's own features, no noise: must be 0.95 at least", planted, 0.95),
    requires={"top_model": False},
    requires_because="the gradient is that at logits that the server only sums",
    suggests={"epochs": 40},
    options={"scalars": 1000},
    needs=(
        needs.own_protocol,
        needs.downlink(False, "its server sends gradients, not scalars: label_direct reads them"),
        needs.one_batch_size,
    ),
    baselines=with_scalars_mixed_up,
)
