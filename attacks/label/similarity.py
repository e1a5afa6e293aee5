"""Labels by similarity to few known records (Liu, Lyu, Cui and Tao, arXiv 2203.05222, "sim-LIA").

Gradients at the cut layer of records of one class point one way (cosine similarity), and embeddings of one class lie
close together (Euclidean distance); between directions of unit length the two are one measure. So a record gets the
class of the nearest known record, or clusters are grown by k-means from the known records, whose names they have.
A direction is compared with others of the same pass over the data: later ones have turned.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from mechanisms.core.channel import View

from ..core import needs
from ..core.knowledge import FewLabels, Knowledge, OwnParty
from ..core.setting import AttackSetting
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive, Setup
from .binary import mean_by_record, seen_alike
from .completion import RAW, embedded, others, untrained
from .denoised import on_sums
from .direct import cut_layer
from .learners import by_spreading
from .mount import mounted

# Steps of k-means at most: it stops where no record changes its cluster.
ITERATIONS = 30
SPREAD = "label spreading on raw features"
# The least probability of a class by label spreading, which gives some none.
LEAST = 1e-9
# As near as the origin: of a class no known record of which was seen, as Poisson batches may leave it.
UNSEEN = 0.0


@dataclass(frozen=True)
class Rows:
    """Rows (K, N, passes, width) that are compared pass by pass, and whether a pass `saw` a record, (K, N, passes)."""

    values: Tensor
    saw: Tensor

    @classmethod
    def of(cls, values: Tensor) -> "Rows":
        """Return one row for each record, of `values` (K, N, width)."""
        rows = values.double().unsqueeze(2)
        return cls(rows, rows.new_ones(rows.shape[:3]))

    def similarity(self, shares: Tensor) -> Tensor:
        """Return how near records are to the centre of each class, (K, N, classes), given `shares` (K, N, classes).

        That is, on average over passes that saw the record and some of the class, half of how much nearer the centre is
        than the origin in squared distance; `UNSEEN` where there was none.
        """
        weight = torch.einsum("knc,knp->kcp", shares, self.saw)
        centres = torch.einsum("knc,knpw->kcpw", shares, self.values) / weight.clamp(min=1e-12).unsqueeze(3)
        along = torch.einsum("knpw,kcpw->knc", self.values, centres)
        nearer = along - 0.5 * torch.einsum("knp,kcp->knc", self.saw, centres.square().sum(3))
        both = torch.einsum("knp,kcp->knc", self.saw, (weight > 0).to(weight))
        return torch.where(both > 0, nearer / both.clamp(min=1.0), UNSEEN)


def known_shares(rows: Rows, few: FewLabels, classes: int) -> Tensor:
    """Return the labels of known records as shares (K, N, classes), 0 for all others."""
    labels = one_hot(few.labels, classes).to(rows.values)
    shares = labels.new_zeros(*rows.saw.shape[:2], classes)
    return shares.scatter(1, few.ids.unsqueeze(2).expand_as(labels), labels)


def nearest(rows: Rows, few: FewLabels, classes: int) -> Tensor:
    """Return the similarity (K, N, classes) of `rows` to the mean of the known records of each class."""
    return rows.similarity(known_shares(rows, few, classes))


def clustered(rows: Rows, few: FewLabels, classes: int) -> Tensor:
    """Return the similarity (K, N, classes) of `rows` to clusters that k-means grows from known records.

    A known record stays in the cluster of its class.
    """
    known = known_shares(rows, few, classes)
    free = 1.0 - known.sum(2, keepdim=True)
    similarity = rows.similarity(known)
    for _ in range(ITERATIONS):
        named = similarity.argmax(2)
        similarity = rows.similarity(known + free * one_hot(named, classes))
        if torch.equal(similarity.argmax(2), named):
            break
    return similarity


RULES: Mapping[str, Callable[[Rows, FewLabels, int], Tensor]] = {"clusters": clustered, "nearest": nearest}


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Name records by how similar their gradients, or their embeddings, are to those of few known labels."""
    if known.options["reads"] == "embeddings" or not view.received("gradient"):
        own = known.granted(OwnParty)
        return by_rows(embedded(own, own.trained, own.features), known)
    few = known.granted(FewLabels)
    rows = directions(view, known, known.options["passes"])
    records = seen_alike(rows.saw.sum(2).scatter(1, few.ids, 0.0), known)
    return compared(RULES[known.options["rule"]](rows, few, known.classes), records)


def directions(view: View, known: Knowledge, most: int | None = None) -> Rows:
    """Return mean directions of the records' gradients in each of the first `most` passes over the data, or of all."""
    end = None if most is None else most * known.batches
    gradients, ids = (values[:end] for values in cut_layer(view, known))
    units = normalize(gradients.double(), dim=3, eps=1e-300)
    passes = zip(units.split(known.batches), ids.split(known.batches), strict=True)
    means, counts = zip(*(mean_by_record(rows, places, known) for rows, places in passes), strict=True)
    return Rows(torch.stack(means, 2), (torch.stack(counts, 2) > 0).double())


def by_rows(values: Tensor, known: Knowledge) -> LabelGuesses:
    """Name records by one row of each, `values` (K, N, width)."""
    few = known.granted(FewLabels)
    scores = RULES[known.options["rule"]](Rows.of(values), few, known.classes)
    return compared(scores, others(few.ids, known.records))


def compared(scores: Tensor, records: Tensor) -> LabelGuesses:
    """Return guesses about `records` (K, n) by `scores` (K, N, classes), each compared with those of other classes.

    Of two classes the scores of one alone are ranked.
    """
    return LabelGuesses.about(records, scores - scores.mean(2, keepdim=True))


def without_training(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Return baselines with the same labels: the same on an untrained bottom model, and on the client's raw features.

    Raw features stand there a second time by a stronger learner. None where the client's model is not known.
    """
    own = next((grant for grant in known.grants if isinstance(grant, OwnParty)), None)
    if own is None:
        return {}
    readings = {name: represent(own, own.features) for name, represent in untrained(known).items()}
    baselines = {name: by_rows(values, known) for name, values in readings.items()}
    if RAW in readings:
        few = known.granted(FewLabels)
        raw = readings[RAW]
        spread = torch.nan_to_num(by_spreading(raw, raw[:, :0], few, known)[0]).to(raw.device)
        baselines[SPREAD] = compared((spread + LEAST).log(), others(few.ids, known.records))
    return baselines


def something_to_compare(setting: AttackSetting) -> str | None:
    """Need gradients of records in batches of one size, or else a client's own model for its embeddings."""
    if setting.downlink == "gradient" and setting.options.get("reads") != "embeddings":
        return needs.one_batch_size(setting)
    return needs.own_model(setting)


SPEC = AttackSpec(
    name="label_similarity",
    summary="labels by similarity of gradients, or else of embeddings, to a known record of each class (sim-LIA)",
    adversaries=("client",),
    infer=infer,
    mounted_by=mounted,
    goal=Goal(
        Positive("label_similarity on split without a top model: must be 0.95 at least", on_sums, 0.95),
        baselines=without_training,
        unsupervised=True,
    ),
    needs=Needs(conditions=(something_to_compare,), one_view=True, reads=("gradient",)),
    setup=Setup(
        options={"labels_per_class": 1, "passes": 3, "reads": "gradients", "rule": "clusters"},
        choices={"reads": ("gradients", "embeddings"), "rule": tuple(RULES)},
        few_labels=True,
    ),
)
