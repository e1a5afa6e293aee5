"""Estimation of gradients from scalar feedback, by number of queries (paper 002, section VI-B; linear regression).

A client that chose its uploads, or shares its directions with the server, received scalars s_j = <g, u_j> + error and
knows every u_j; an eavesdropper sees the scalars and must draw its own. The unknown g is the gradient of a batch's
loss at the logits. Cosine similarity and relative error against the true one are measured as a function of q, beside
what theory expects of ridge; a method with noise is trained a second time without it, with all else equal.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dpzv_audit.base.seeds import Purpose, stream
from mechanisms.core.channel import SERVER, Message, View

from ..core import needs
from ..core.controls import at_chance, by_bets
from ..core.knowledge import Knowledge
from ..core.metrics import Floats, cosine_interval, cosine_similarity, relative_error
from ..core.queries import best_ridge, first_pass, kept_of, querying_client
from ..core.run import AttackedRun, attacked_run, permuted_labels
from ..core.setting import AttackSetting
from ..core.spec import AttackOutcome, AttackSpec, Goal, Needs, Positive, Setup
from .estimates import correlation, expected_cosine, minimum_norm

# Numbers of queries at which estimates are made, as far as the answers reach.
COUNTS = (1, 3, 10, 32, 100, 320, 640, 1280)
CURVE = "gradient estimates by number of queries"
KNOWN = "ridge"
UNKNOWN = "ridge, directions unknown"
NOISELESS = "ridge, without the noise"


@dataclass(frozen=True)
class GradientEstimates:
    """Estimates (answers, K, B, c) by estimator and number of queries, of the gradients at the attacked batches."""

    by_queries: dict[tuple[str, int], Tensor]

    @property
    def best(self) -> Tensor:
        """Return the attacker's best estimate: ridge, which knows the noise, at the most queries."""
        most = max(q for name, q in self.by_queries if name == KNOWN)
        return self.by_queries[KNOWN, most]


def infer(view: View, known: Knowledge) -> GradientEstimates:
    """Estimate the gradient at every attacked batch from the first q of its answers, for each q of `COUNTS`."""
    scalars, directions, _ = first_pass(view, known)
    answers, replicas, queries = scalars.shape[:3]
    if directions is None:
        shape = (answers, replicas, queries, known.config.batch_size, known.classes)
        directions = _drawn(known, scalars.new_empty(shape), 0)
    flat_s = scalars.flatten(0, 1)
    flat_u = directions.flatten(0, 1)
    dimension = flat_u[0, 0].numel() if scalars.dim() == 3 else flat_u.shape[-1]
    by_ridge = best_ridge(known)
    estimates: dict[tuple[str, int], Tensor] = {}
    for q in sorted({*(n for n in COUNTS if n < queries), queries}):
        s = flat_s[:, :q]
        u = flat_u[:, :q]
        estimates["correlation", q] = correlation(u, s)
        estimates["minimum norm", q] = minimum_norm(u, s)
        estimates[KNOWN, q] = by_ridge(u, s)
        if q >= dimension:
            # From the dimension on the smallest fit is the ordinary least squares one.
            estimates["least squares", q] = estimates["minimum norm", q]
        estimates[UNKNOWN, q] = by_ridge(_drawn(known, u, q), s)
    return GradientEstimates({key: value.unflatten(0, (answers, replicas)) for key, value in estimates.items()})


def _drawn(known: Knowledge, like: Tensor, key: int) -> Tensor:
    """Draw directions in place of the true ones."""
    drawn = stream(known.seed, Purpose.ATTACK, 2, key).standard_normal(like.shape)
    return torch.from_numpy(drawn).to(like)


def mount_gradients(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, estimate, and measure against the true gradients, which an observer of all messages works out."""
    confidence = setting.confidence
    run = attacked_run(spec, setting, watch=GradientTruth)
    estimates: GradientEstimates = spec.infer(run.view, run.known)
    best = _cosines(estimates.best, _gradients(run, estimates))
    outcome = AttackOutcome(
        success=cosine_interval(best.T, confidence),
        baselines={"a constant": 0.0},
        controls={},
        trained=run.trained,
        plan=run.plan,
        metric="cosine of the estimated with the true gradient",
        by_trial={"success": tuple(best.mean(0).tolist())},
        at_once=run.at_once,
    )
    if setting.pilot:
        return outcome
    other = setting.of_control(run.at_once)
    again = attacked_run(spec, other, labels=permuted_labels(setting), watch=GradientTruth)
    shuffled = spec.infer(again.view, again.known).best
    labels = torch.from_numpy(setting.labels).to(setting.device)
    of_true_labels = torch.cat([truth.label_parts(labels) for truth in again.watched], 1)
    chance = _cosines(shuffled, of_true_labels[: len(shuffled)])
    control = at_chance(
        cosine_interval(chance.T, confidence),
        what="trained on permuted labels, compared with what the true ones contribute to gradients: must be 0",
        expected=0.0,
        test=by_bets(chance.mean(0), 0.0, least=-1.0),
    )
    rows = curve(estimates, run, confidence)
    # The same training without the noise, where there was any.
    if run.known.sigma > 0.0:
        config = setting.config.model_copy(update={"sigma": 0.0})
        without = replace(setting, config=config, progress=None, at_once=again.at_once)
        quiet = attacked_run(spec, without, watch=GradientTruth)
        noiseless = curve(spec.infer(quiet.view, quiet.known), quiet, confidence)
        rows += [{**row, "estimator": NOISELESS} for row in noiseless if row["estimator"] == KNOWN]
    return replace(outcome, controls={"shuffled_labels": control}, curves={CURVE: rows}, at_once=again.at_once)


Row = dict[str, float | int | str | None]


def curve(estimates: GradientEstimates, run: AttackedRun, confidence: float) -> list[Row]:
    """Return rows of estimator, queries, mean cosine with its interval over trials, theory, and relative error.

    Theory is of ridge with known directions, or of none: `attacks.gradient.estimates.expected_cosine`.
    """
    rows: list[Row] = []
    truth = _gradients(run, estimates)
    real = truth.flatten(2).cpu().numpy()
    for (name, q), estimate in estimates.by_queries.items():
        guess = estimate.flatten(2).cpu().numpy()
        cosine = cosine_interval(cosine_similarity(guess, real).T, confidence)
        rows.append(
            {
                "estimator": name,
                "queries": q,
                "cosine": cosine.value,
                "low": cosine.low,
                "high": cosine.high,
                "theory": {KNOWN: _theory(q, truth, run.known), UNKNOWN: 0.0}.get(name),
                "relative error": float(relative_error(guess, real).mean()),
            }
        )
    return rows


def _theory(queries: int, truth: Tensor, known: Knowledge) -> float | None:
    """Return the expected cosine of ridge: the unknowns are a batch's logits, or with a scalar per record one record's.

    Norms vary little from batch to batch, so that their root mean square stands for all. None where the scalars'
    error is not noise but curvature, which does not average out, or their scale is another.
    """
    if not known.differences.unit:
        return None
    records, classes = truth.shape[2:]
    norm = float(truth.flatten(2).square().sum(2).mean().sqrt())
    return expected_cosine(queries, records * classes, noise_to_signal=known.sigma * records / norm)


def _cosines(estimate: Tensor, truth: Tensor) -> Floats:
    """Return cosines (answers, K) of gradients (answers, K, B, c)."""
    return cosine_similarity(estimate.flatten(2).cpu().numpy(), truth.flatten(2).cpu().numpy())


def _gradients(run: AttackedRun, estimates: GradientEstimates) -> Tensor:
    """Return true gradients (answers, K, B, c) of all replicas at the batches of the `estimates`."""
    return torch.cat([truth.gradients() for truth in run.watched], 1)[: len(estimates.best)]


def exactly(setting: AttackSetting) -> AttackSetting:
    """Return a setting with twice as many queries as unknowns of a batch of one, without noise, by a client."""
    exact = {"calibration": "none", "client_rate": 0.0, "dtype": "float64", "smoothing": 1e-4}
    options = {"top_model": False, "batch_size": 1, "epochs": 1, **exact}
    queries = 2 * setting.dataset.classes
    return setting.on("dpzv", options, adversary="client", queries=queries, trials=1)


SPEC = AttackSpec(
    name="gradient_estimation",
    summary="gradients of batches from scalars, by number of queries: correlation, minimum norm, ridge, least squares",
    adversaries=("client", "eavesdropper"),
    infer=infer,
    mounted_by=mount_gradients,
    goal=Goal(
        Positive("twice as many queries as unknowns, no noise: must be 1", exactly, 0.999),
        least_success=-1.0,
        reveals="gradients",
    ),
    needs=Needs(
        requires={"top_model": False},
        requires_because="the gradient is that at logits that the server only sums",
        suggests={"batch_size": 8, "epochs": 16},
        conditions=(
            needs.true_gradient,
            needs.downlink(False, "its server sends the gradient itself, so there is nothing to estimate"),
            needs.one_batch_size,
        ),
    ),
    setup=Setup(queries=128, behave=querying_client),
)


class GradientTruth:
    """Gradient softmax - one-hot at the summed logits of every attacked batch, at its first query.

    An observer of all parties' uploads: it keeps each client's latest outputs, as the server's table does, and at
    an answer to the attacked client adds those of the batch up. No attack is given one.
    """

    def __init__(self, setting: AttackSetting, labels: Tensor) -> None:
        """Watch the stack of a `setting` that trains on `labels`, (N,) or (K, N)."""
        measured = setting.method.differences(setting.config)
        self._labels = labels
        self._classes = setting.dataset.classes
        self._outside = setting.adversary == "eavesdropper"
        # Of the answers about a batch the first counts.
        self._repeats = 1 if self._outside or (measured and measured.shared) else setting.queries
        self._client = setting.client
        self._central = bool(measured and measured.two_sided)
        shape = (setting.trials, setting.dataset.clients, labels.shape[-1], self._classes)
        self._latest = torch.zeros(shape, dtype=torch.float64, device=setting.device)
        self._seen = 0
        self._found: list[Tensor] = []
        self._ids: list[Tensor] = []

    def on_message(self, message: Message) -> None:
        """Follow the table, and work out the gradient at an answer that counts."""
        sent = message.payload
        ids = message.ids
        if message.kind == "table":
            self._latest[:, message.sender - 1] = sent
        elif ids is not None and message.kind == "embeddings":
            sent = kept_of(sent, two_sided=self._central)
            rows = self._latest[:, message.sender - 1]
            rows.scatter_(1, ids.unsqueeze(2).expand(sent.shape), sent.double())
        elif ids is not None and message.sender == SERVER and (self._outside or message.receiver == self._client):
            if self._seen % self._repeats == 0:
                self._keep(ids)
            self._seen += 1

    def finish(self) -> None:
        """Let go of the table of outputs, which is larger than the gradients worked out from it."""
        del self._latest

    def gradients(self) -> Tensor:
        """Return per-record gradients (answers, K, B, classes)."""
        return torch.stack(self._found)

    def label_parts(self, labels: Tensor) -> Tensor:
        """Return what `labels` (N,) contribute to gradients at the attacked batches: minus one-hot, about its mean."""
        shares = torch.bincount(labels, minlength=self._classes).double() / len(labels)
        return shares - one_hot(labels[torch.stack(self._ids)], self._classes).double()

    def _keep(self, ids: Tensor) -> None:
        probabilities = self._latest.take_along_dim(ids[:, None, :, None], 2).sum(1).softmax(2)
        labels = self._labels.expand(len(ids), -1).gather(1, ids)
        self._found.append(probabilities - one_hot(labels, self._classes))
        self._ids.append(ids)
