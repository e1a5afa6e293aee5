"""Labels from norms of gradients at the cut layer, and binary labels from the spectrum of embeddings.

Norm (Li et al., ICLR 2022): where classes are imbalanced a model is sure of the commoner ones, so records of the rarer
have the larger gradients. Spectrum (Sun et al., 2022): training pulls the two classes' embeddings apart, so that their
first principal component tells them; the side with fewer records is the rarer class.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.vertical import Records, VerticalDataset
from mechanisms.core.channel import View

from ..core import needs
from ..core.controls import labels_in_own_features
from ..core.knowledge import Knowledge, OwnParty
from ..core.setting import AttackSetting
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive
from ..gradient.estimates import checked
from .completion import embedded, untrained
from .direct import cut_layer
from .mount import mount_binary, mounted


def by_norm(view: View, known: Knowledge) -> LabelGuesses:
    """Guess by the mean norm of a record's gradients, each over that of its batch: the rarer class has larger ones.

    Norms shrink as training goes on, and how early a record was seen says nothing of its label: so a norm is compared
    with the root mean square of its batch alone. (Ranks within batches, as good where batches are large, lose to it
    where the share of the rarer class varies between them.)
    """
    gradients, ids = cut_layer(view, known)
    norms = gradients.norm(dim=3)
    size = (ids >= 0).sum(2, keepdim=True).clamp(min=1)
    typical = (norms.square().sum(2, keepdim=True) / size).sqrt()
    larger, count = mean_by_record(norms / typical.clamp(min=1e-300), ids, known)
    return guesses_of(larger, count, known) if known.classes == 2 else by_rarity(larger, count, known)


def mean_by_record(values: Tensor, ids: Tensor, known: Knowledge) -> tuple[Tensor, Tensor]:
    """Return means of `values` (rounds, K, B, ...) by record, (K, N, ...), and how often each was seen, (K, N)."""
    places = ids.transpose(0, 1).flatten(1)
    # Padding, whose id is -1, counts to a record after the last.
    places = torch.where(places < 0, known.records, places)
    rows = values.transpose(0, 1).flatten(1, 2)
    alone = (1,) * (rows.dim() - 2)
    zeros = values.new_zeros(len(rows), known.records + 1)
    count = zeros.scatter_add(1, places, zeros.new_ones(places.shape))[:, :-1]
    total = zeros.view(*zeros.shape, *alone).repeat(1, 1, *rows.shape[2:])
    total = total.scatter_add(1, places.view(*places.shape, *alone).expand_as(rows), rows)[:, :-1]
    return total / count.clamp(min=1).view(*count.shape, *alone), count


def seen_alike(count: Tensor, known: Knowledge) -> Tensor:
    """Return ids (K, n) in order of records that were seen, equally many of each training, given how often (K, N)."""
    seen = count > 0
    # Which of those that were seen go too owes nothing to them: records may stand in an order that tells labels.
    lots = stream(known.seed, Purpose.ATTACK, 11).permutation(known.records)
    kept = (seen * (1 + torch.from_numpy(lots).to(count.device))).argsort(1, descending=True)
    return kept[:, : int(seen.sum(1).min())].sort(1).values


def guesses_of(rarer: Tensor, count: Tensor | None, known: Knowledge, positives: int = 0) -> LabelGuesses:
    """Return guesses by scores (K, N), larger for the rarer class, as many of which are called it as its public share.

    Nothing is guessed of records whose `count` (K, N) is 0, nor in other trainings of as many more as it takes to guess
    equally many in each. So many known `positives` are among them, and the others have a share that much smaller.
    """
    scores = rarer if known.rarer == 1 else -rarer
    ids = torch.arange(scores.shape[1], device=scores.device).expand(scores.shape)
    if count is not None and bool((count == 0).any()):
        ids = seen_alike(count, known)
        scores = scores.gather(1, ids)
    share = (known.share_of_ones * known.records - positives) / (known.records - positives)
    ones = max(1, round(share * scores.shape[1]))
    labels = scores >= scores.topk(ones).values[:, -1:]
    both = torch.stack((-scores, scores), 2)
    return LabelGuesses(labels.long()[None], ids[None], both[None])


def by_rarity(larger: Tensor, count: Tensor, known: Knowledge) -> LabelGuesses:
    """Return guesses by scores (K, N), larger for rarer classes, as many of each class as its public share.

    The score of a class is how near the rank of the record is to the middle of the ranks of the class.
    """
    records = seen_alike(count, known)
    scores = larger.gather(1, records)
    ranks = (scores.argsort(1).argsort(1) + 0.5) / scores.shape[1]
    shares = torch.tensor(known.shares, dtype=ranks.dtype, device=ranks.device)
    common = shares.argsort(descending=True, stable=True)
    ends = shares[common].cumsum(0)
    named = common[torch.searchsorted(ends, ranks).clamp(max=known.classes - 1)]
    middles = torch.empty_like(shares).scatter(0, common, ends - 0.5 * shares[common])
    near = -(ranks.unsqueeze(2) - middles).abs()
    return LabelGuesses(named[None], records[None], near[None])


def base_rate_alone(setting: AttackSetting) -> AttackSetting:
    """Return split learning on one record in ten of class 1, whose features say nothing: it learns the base rate."""

    def bare(records: Records, count: int) -> Records:
        blocks = tuple(np.zeros((count, *f.shape[1:]), np.float32) for f in records.features)
        return Records(blocks, (np.arange(count) % 10 == 0).astype(np.int64))

    data = setting.dataset
    planted = VerticalDataset("base rate alone", bare(data.train, 400), bare(data.test, 40), 2, data.partition, {})
    options = {"top_model": False, "batch_size": 20, "epochs": 20, "client_rate": 0.1}
    return setting.on("split", options, dataset=planted, trials=2)


NORM_SPEC = AttackSpec(
    name="label_norm",
    summary="labels of rarer classes from norms of per-record gradients at the cut layer (Li et al. 2022)",
    adversaries=("client",),
    infer=by_norm,
    mounted_by=mounted,
    goal=Goal(Positive("one label in ten, uninformative features, summed logits: must be 0.95", base_rate_alone, 0.95)),
    needs=Needs(conditions=needs.record_gradients, one_view=True),
)


def by_spectrum(view: View, known: Knowledge) -> LabelGuesses:
    """Guess by projections of embeddings on the first principal component, oriented by the smaller side."""
    own = known.granted(OwnParty)
    return guesses_of(projections(embedded(own, own.trained, own.features)), None, known)


def features_alone(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Return baselines: an untrained bottom model, and the client's raw features."""
    own = known.granted(OwnParty)
    return {
        name: guesses_of(projections(represent(own, own.features)), None, known)
        for name, represent in untrained(known).items()
    }


def projections(embeddings: Tensor) -> Tensor:
    """Return projections (K, N) of embeddings (K, N, width) on their first principal component.

    The sign is that which puts fewer records on the positive side of the midpoint: the rarer class. `NotFinite` for
    embeddings of a client whose training diverged.
    """
    rows = checked("embeddings", embeddings.double())
    centred = rows - rows.mean(1, keepdim=True)
    _, vectors = torch.linalg.eigh(centred.mT @ centred)
    along = (centred @ vectors[:, :, -1:]).squeeze(2)
    middle = (along.amax(1, keepdim=True) + along.amin(1, keepdim=True)) / 2.0
    fewer = (along > middle).double().mean(1, keepdim=True) <= 0.5
    return torch.where(fewer, along, -along)


def separated(setting: AttackSetting) -> AttackSetting:
    """Return split learning on labels that stand in the client's own features."""
    dataset = labels_in_own_features(setting.dataset)
    return setting.on("split", {"epochs": 10}, dataset=dataset, trials=2)


SPECTRAL_SPEC = AttackSpec(
    name="label_spectral",
    summary="binary labels from the first principal component of a client's embeddings (Sun et al. 2022)",
    adversaries=("client",),
    infer=by_spectrum,
    mounted_by=mount_binary,
    goal=Goal(
        Positive("labels planted in the client's own features: must be 0.95 at least", separated, 0.95),
        baselines=features_alone,
        unsupervised=True,
    ),
    needs=Needs(conditions=(needs.binary_labels, needs.own_model), one_view=True),
)
