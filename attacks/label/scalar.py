"""Label inference by honest clients that pool the scalars of all their rounds (attacks.md; Gaussian processes).

Round t tells s_t = (1/B) sum_i <v_ti, g_i> + noise, with g_i the gradient at record i's summed logits and v_ti how
far the client's own perturbation moved record i's output: its Jacobian times u, which is (h+ - h-)/(2 lambda) of its
own messages. Gradients about their mean are one-hot labels, and records with like features have like labels: a
Gaussian prior of covariance (rho k(x_i, x_j) + (1 - rho) 1[i = j]) / c pools visits and neighbours; the posterior mean
is linear in the scalars. How near features must be is read off the scalars, by their marginal likelihood.

A system of the user's own states neither lambda nor its noise, and a sign has no scale. Its two embeddings of a round
still differ by the perturbation, and scale and noise are those under which the scalars are likeliest.

Clients that collude pool what they have. All of them together know the sum of their outputs, and so what round t would
tell of record i if its label were c, D_tic: then s_t = (1/B) sum_i D_ti,y_i + noise exactly, whatever the clip.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn.functional import pad

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.channel import View

from ..core import needs
from ..core.controls import labels_in_own_features
from ..core.knowledge import Knowledge, OwnFeatures, granted
from ..core.metrics import Floats, Ints
from ..core.pairs import PairAnswers, likeliest_weights, pair_answers
from ..core.queries import SAME_REORDERED, answers_of, directions_of, error_of, kept_of
from ..core.run import own_features
from ..core.setting import AttackSetting
from ..core.spec import AttackSpec, DoesNotApply, Goal, LabelGuesses, Needs, Positive, Setup
from .mount import mount_labels

# Random Fourier features (Rahimi and Recht 2007) of Gaussian kernels on the block, and how wide those are: variances
# over the mean squared distance.
KERNELS = ((128, 1.0), (512, 1.0), (512, 0.3))
# Scalars by whose likelihood the kernel is chosen, at most.
JUDGED = 200
# Noise variance over that of what single precision may round, from which it suffices.
COARSE = 1e-5
# rho, the share of the prior variance that records with like features have in common.
SHARED = 0.9


@dataclass(frozen=True)
class Measurements:
    """Scalars about records: each is (1/B) sum_i <v_ti, g_i> + noise.

    Attributes:
        scalars: (T, K).
        moves: v_ti, (T, K, B, c).
        ids: (T, K, B), -1 where a place is padding, whose moves are 0.
        noise: Standard deviation of a scalar's error; None: it is to be fitted, and so is the scalars' scale.
        outputs: First embeddings of all records, (K, N, width), which stand for features that are not known.
    """

    scalars: Tensor
    moves: Tensor
    ids: Tensor
    noise: float | None
    outputs: Tensor | None = None

    def reordered(self, seed: int) -> Tensor:
        """Return the same scalars (T, K) in another order of the rounds."""
        order = torch.from_numpy(stream(seed, Purpose.ATTACK, 3).permutation(len(self.scalars)))
        return self.scalars[order]


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Return the posterior mean of every record's gradient given all scalars; least against its prior is the label.

    And the baseline, the same with the scalars in another order, so that only features and priors are left.
    """
    measured = measurements_of(view, known)
    guesses, reordered = _guesses(measured, (measured.scalars, measured.reordered(known.seed)), known)
    return replace(guesses, less={SAME_REORDERED: reordered})


def measurements_of(view: View, known: Knowledge) -> Measurements:
    """Return what the scalars of the first rounds of those who look tell; exactly where that is all clients.

    Where the option `scale` is `fitted`, and of a system of the user's own, scale and noise are left to be fitted.
    """
    if not known.method.capabilities.simulated:
        return of_pairs(view, known)
    measured = _of_known_scale(view, known)
    return replace(measured, noise=None) if known.options["scale"] == "fitted" else measured


def of_pairs(view: View, known: Knowledge) -> Measurements:
    """Return what the answers to pairs of embeddings of those who look tell, in a training of the user's own.

    Raises `DoesNotApply` where there are no pairs, or embeddings have another number than one for each class.
    """
    clients = view.adversary.clients
    most = known.options["scalars"] // len(clients)
    answered = [one for client in clients if (one := pair_answers(view, client, most)) is not None]
    if not answered:
        raise DoesNotApply(needs.unpaired(known.client))
    whole = [_of_classes(one, known).descending(known.records) for one in answered]
    places = max(one.ids.shape[2] for one in whole)
    ids = [pad(one.ids, (0, places - one.ids.shape[2]), value=-1) for one in whole]
    # What a scalar measures is a mean over its own batch's places.
    moves = [pad(one.directions * (places / one.ids.shape[2]), (0, 0, 0, places - one.ids.shape[2])) for one in whole]
    outputs = torch.cat([one.first_outputs(known.records) for one in whole], 2)
    return Measurements(torch.cat([one.scalars for one in whole]), torch.cat(moves), torch.cat(ids), None, outputs)


def _of_classes(answers: PairAnswers, known: Knowledge) -> PairAnswers:
    """Return answers to logits of each class: the one logit of two classes is that of class 1."""
    width = answers.moves.shape[3]
    if width == known.classes:
        return answers
    if (width, known.classes) != (1, 2):
        raise DoesNotApply(needs.not_summed(known.client, width, known.classes))
    return replace(answers, moves=pad(answers.moves, (1, 0)), middles=pad(answers.middles, (1, 0)))


def _of_known_scale(view: View, known: Knowledge) -> Measurements:
    """Return what the scalars of a built-in method tell, whose smoothing and noise are known."""
    tables = {m.sender: m.payload for m in view.messages if m.kind == "table"}
    measured = known.differences
    if len(tables) == known.clients and not measured.shared:
        return exactly(view, known, tables)
    most = known.options["scalars"]
    batch_size = known.config.batch_size
    answers = answers_of(view, known, most)
    values = answers.values
    ids = granted(answers.ids, "batch ids")
    moves = directions_of(view, known, len(values))
    if not measured.shared:
        return Measurements(answers.scalars, moves, ids, error_of(known))
    if values.dim() == 4:
        values = values.mean(3) * batch_size
    scalars = values / (batch_size // measured.records) / answers.unit
    scalars, moves = (each.transpose(1, 2).flatten(0, 1)[:most] for each in (scalars, moves))
    return Measurements(scalars, moves, ids.repeat_interleave(values.shape[2], 0)[:most], error_of(known))


def exactly(view: View, known: Knowledge, tables: Mapping[int, Tensor]) -> Measurements:
    """Return what scalars tell those who know every client's output, `tables` (K, N, c) of which started the run."""
    measured = known.differences
    kept = {m: table.double().clone() for m, table in tables.items()}
    answers = answers_of(view, known, known.options["scalars"])
    losses = []
    for upload in view.sent("embeddings")[: len(answers.values)]:
        pair, ids, own = upload.payload.double(), granted(upload.ids, "batch ids"), kept[upload.sender]
        rows = ids.clamp(min=0).unsqueeze(2).expand(-1, -1, pair.shape[3])
        every = torch.stack([table.gather(1, rows) for table in kept.values()]).sum(0)
        logits = pair + (every - own.gather(1, rows)).unsqueeze(1)
        # The loss of each record under each label, (K, 2, B, c).
        losses.append(logits.logsumexp(3, keepdim=True) - logits)
        own.scatter_(1, rows, kept_of(pair, two_sided=measured.two_sided))
    first, second = torch.stack(losses).unbind(2)
    # A difference around the client's output spans twice the smoothing; the other way round its sign is that of a step.
    under = (first - second) / (2.0 * measured.smoothing if measured.two_sided else -measured.smoothing)
    if measured.clip is not None:
        under = under.clamp(-measured.clip, measured.clip)
    # The gradient about its mean is less a one-hot label.
    return Measurements(answers.scalars - under.mean((2, 3)), -under, granted(answers.ids, "batch ids"), known.sigma)


def _guesses(measured: Measurements, orders: Sequence[Tensor], known: Knowledge) -> list[LabelGuesses]:
    """Return guesses for each of `orders` (T, K) of the scalars that were `measured`."""
    blocks = [grant.features.flatten(1) for grant in known.grants if isinstance(grant, OwnFeatures)]
    blocks = blocks or [granted(measured.outputs, "features")[0]]
    block = torch.cat(blocks, 1).double().cpu().numpy()
    kernels = [fourier_features(block, known.seed, count, width) for count, width in KERNELS]
    scalars = torch.stack([*orders]).permute(2, 0, 1)  # (K, orders, T)
    seen = (scalars, measured.moves.transpose(0, 1), measured.ids.transpose(0, 1))
    arrays = zip(*(values.cpu().numpy() for values in seen), strict=True)
    if measured.noise is None:
        spread = _spread(known.shares)
        means = [[mean * spread for mean in fitted_means(s, m, i, kernels)] for s, m, i in arrays]
    else:
        means = [likeliest_means(s, m, i, kernels, noise=measured.noise) for s, m, i in arrays]
    # A gradient is a prediction less a one-hot label, and what a model learns first is to predict the classes' shares.
    scores = torch.from_numpy(np.asarray(known.shares) - np.stack(means, 1)).unsqueeze(1)  # (orders, 1, K, N, c)
    records = torch.arange(scores.shape[3]).expand(*scores.shape[1:3], -1)
    return [LabelGuesses.of(of_order, records) for of_order in scores]


def _spread(shares: Sequence[float]) -> float:
    """Return the root mean square of one-hot labels about their shares."""
    return float(np.sqrt(np.mean([share * (1.0 - share) for share in shares])))


def fourier_features(block: Floats, seed: int, frequencies: int, width: float = 1.0) -> Floats:
    """Return features (N, 2 `frequencies`) whose products are about exp(-|x - x'|^2 / (2 `width` s^2)).

    `block` is (N, d), and s^2 half the mean squared distance of its rows.
    """
    variance = (float(block.var(0).sum()) or 1.0) * width
    drawn = stream(seed, Purpose.ATTACK, 4).standard_normal((block.shape[1], frequencies))
    angles = block @ (drawn / np.sqrt(variance))
    return np.asarray(np.concatenate((np.cos(angles), np.sin(angles)), 1) / np.sqrt(frequencies))


def likeliest_means(
    orders: Floats, moves: Floats, ids: Ints, kernels: Sequence[Floats], *, noise: float
) -> list[Floats]:
    """Return for each of `orders` (n, T) of the scalars the posterior mean (N, c) under the likeliest of the `kernels`.

    That is the one under which its first scalars are likeliest.
    """
    judged = Design.of(moves[:JUDGED], ids[:JUDGED], len(kernels[0]), noise=noise)
    likelihoods = [
        [posterior.likelihood(scalars[:JUDGED]) for scalars in orders] for posterior in map(judged.under, kernels)
    ]
    best = np.argmax(likelihoods, 0)
    whole = Design.of(moves, ids, len(kernels[0]), noise=noise)
    means: dict[int, Floats] = {}
    for kernel in np.unique(best):  # one at a time: each is large
        posterior = whole.under(kernels[kernel])
        means |= {place: posterior.mean(orders[place]) for place in np.flatnonzero(best == kernel).tolist()}
    return [means[place] for place in range(len(orders))]


def fitted_means(orders: Floats, moves: Floats, ids: Ints, kernels: Sequence[Floats]) -> list[Floats]:
    """Return for each of `orders` (n, T) of the scalars the posterior mean (N, c), of root mean square 1.

    Kernel, scale and noise are the likeliest: the kernel for the first order, by its first scalars. Features are taken
    about their mean: a model learns the classes' shares first, and then gradients of all records together are near 0.
    """
    centred = []
    for kernel in kernels:
        about = kernel - kernel.mean(0)
        centred.append(about / (np.sqrt(np.square(about).sum(1).mean()) or 1.0))
    judged = Design.of(moves[:JUDGED], ids[:JUDGED], len(centred[0]))
    likelihoods = [likeliest_weights(judged.products(kernel)[1], orders[0][:JUDGED])[0] for kernel in centred]
    kernel = centred[int(np.argmax(likelihoods))]
    whole = Design.of(moves, ids, len(kernel))
    shared, gram = whole.products(kernel)
    means = [whole.mean(kernel, shared, likeliest_weights(gram, scalars)[1]) for scalars in orders]
    return [mean / (np.sqrt(np.square(mean).mean()) or 1.0) for mean in means]


@dataclass(frozen=True)
class Design:
    """The gradients about their mean of which each scalar is a sum, whatever the kernel.

    Attributes:
        parts: Weights of each record's gradient in each scalar, (T, B, c).
        ids: (T, B), -1 where a place is padding, whose part is 0.
        own: The same as a matrix (T, N * c).
        gram: `own` times its transpose, (T, T).
        noise: Standard deviation of a scalar's error, at least 0; None where it is not known.
    """

    parts: Floats
    ids: Ints
    own: csr_array
    gram: Floats
    noise: float | None

    @classmethod
    def of(cls, moves: Floats, ids: Ints, records: int, *, noise: float | None = None) -> "Design":
        """Return that of `moves` v_ti (T, B, c) of the records `ids` (T, B) among so many `records`."""
        rounds, batch, classes = moves.shape
        # Gradients sum to 0 over classes: what moves all logits alike tells nothing.
        parts = (moves - moves.mean(2, keepdims=True)) / batch
        columns = (ids.clip(min=0)[:, :, None] * classes + np.arange(classes)).reshape(-1)
        row_ends = np.arange(rounds + 1) * (batch * classes)
        own = csr_array((parts.reshape(-1), columns, row_ends), shape=(rounds, records * classes))
        return cls(parts, ids, own, (own @ own.T).toarray(), noise)

    def under(self, features: Floats) -> "Posterior":
        """Return the posterior where products of `features` (N, f) are the kernel, under noise that is known."""
        assert self.noise is not None
        shared, gram = self.products(features)
        # A sliver on the diagonal keeps noise-free systems solvable.
        gram[np.diag_indices(len(gram))] += self.noise**2 + 1e-9 * gram.trace() / len(gram)
        return Posterior(self, features, shared, cho_factor(gram, lower=True))

    def products(self, features: Floats) -> tuple[Floats, Floats]:
        """Return what records with like features share in each scalar, (T, f * c), and the scalars' covariance (T, T).

        That is the covariance without noise, where products of `features` (N, f) are the kernel.
        """
        rounds, batch, classes = self.parts.shape
        coarse = self.noise is None or self.noise**2 >= COARSE * batch * np.square(self.parts).sum((1, 2)).mean()
        known = features.astype(np.float32 if coarse else np.float64, copy=False)
        shared = np.empty((rounds, known.shape[1] * classes), known.dtype)
        for row, i, v in zip(shared, self.ids, self.parts.astype(known.dtype, copy=False), strict=True):
            row[:] = (known[i].T @ v).reshape(-1)
        return shared, (SHARED * (shared @ shared.T).astype(np.float64) + (1.0 - SHARED) * self.gram) / classes

    def mean(self, features: Floats, shared: Floats, weights: Floats) -> Floats:
        """Return the posterior mean (N, c) that pools scalars by `weights` (T,); `features` and `shared` as above."""
        classes = self.parts.shape[2]
        common = features @ (weights @ shared).reshape(-1, classes)
        alone = (self.own.T @ weights).reshape(-1, classes)
        return np.asarray((SHARED * common + (1.0 - SHARED) * alone) / classes)


@dataclass(frozen=True)
class Posterior:
    """The posterior of gradients about their mean, given scalars of one `design`: a Gaussian process.

    Attributes:
        design: The gradients of which each scalar is a sum.
        features: (N, f), whose products are the kernel.
        shared: Weights in each scalar of what records with like features share, (T, f * c).
        factor: The Cholesky factor of the scalars' covariance, as scipy has it.
    """

    design: Design
    features: Floats
    shared: Floats
    factor: tuple[Floats, bool]

    def likelihood(self, scalars: Floats) -> float:
        """Return the log marginal likelihood of `scalars` (T,), up to a constant."""
        weights = cho_solve(self.factor, scalars)
        return float(-0.5 * scalars @ weights - np.log(self.factor[0].diagonal()).sum())

    def mean(self, scalars: Floats) -> Floats:
        """Return the posterior mean (N, c) given `scalars` (T,)."""
        return self.design.mean(self.features, self.shared, cho_solve(self.factor, scalars))


def planted(setting: AttackSetting) -> AttackSetting:
    """Return DPZV without noise on labels that stand in the client's own features.

    Where a system is attacked, scale and noise are fitted there too.
    """
    dataset = labels_in_own_features(setting.dataset, of_all=setting.adversary == "colluding-clients")
    # Enough rounds for the client to ask about each pair of a class and a coordinate several times.
    rounds = 6 * dataset.classes**2 * dataset.clients
    epochs = -(-rounds // max(1, setting.records // setting.config.batch_size))
    options = {"top_model": False, "calibration": "none", "client_rate": 0.0, "dtype": "float64"}
    own = {} if setting.method.capabilities.simulated else {"scale": "fitted"}
    return setting.on("dpzv", {**options, "epochs": epochs}, dataset=dataset, options=own, trials=1)


SPEC = AttackSpec(
    name="label_scalar",
    summary="labels by honest clients that pool the scalars of all their rounds with their Jacobians and features",
    adversaries=("client", "colluding-clients"),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(Positive("labels planted in the client's own features, no noise: must be 0.95 at least", planted, 0.95)),
    needs=Needs(
        requires={"top_model": False},
        requires_because="the gradient is that at logits that the server only sums",
        suggests={"epochs": 40},
        conditions=(
            needs.downlink(False, "its server sends gradients, not scalars: label_direct reads them"),
            needs.pairs,
            needs.one_batch_size,
        ),
        one_view=True,
        reads=("table", "embeddings", "scalar", "losses", "direction"),
    ),
    setup=Setup(
        options={"scalars": 2000, "scale": "known"}, choices={"scale": ("known", "fitted")}, grants=own_features
    ),
)
