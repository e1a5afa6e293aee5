"""Labels from directions of gradients at the cut layer, given a few (Li et al., ICLR 2022).

Gradients of records of one class point one way, of another class another way; of two classes opposite ways. Directions
turn as training goes on, so each pass over the data is compared with the known records of that pass. Where the target
is a number, a gradient is one direction times how far the prediction is off: before training that is the number itself,
which a ridge regression on the known records reads off.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from dpzv_audit.systems.record import Recorder
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import Task
from mechanisms.core.channel import View

from ..core import needs
from ..core.controls import CERTAIN
from ..core.knowledge import FewLabels, Knowledge, OwnParty
from ..core.metrics import Floats
from ..core.setting import ATTACKER, AttackSetting
from ..core.spec import AttackSpec, DoesNotApply, Goal, LabelGuesses, Needs, Positive, Setup
from .binary import guesses_of, mean_by_record, seen_alike
from .completion import RAW, others
from .direct import cut_layer
from .mount import mounted
from .similarity import compared, directions, nearest

# Passes of which gradients are read where the target is a number, and principal components of them.
PASSES = 4
COMPONENTS = 16
# Least spread of a component, over that of the first.
ROUNDING = 1e-4
# Strengths of the penalty of ridge regression among which known records choose, of columns of unit variance.
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Guess by where records' gradients point, and known ones'; these are not guessed."""
    if known.values is not None:
        return numbers(view, known)
    return by_direction(view, known) if known.classes == 2 else among_several(view, known)


def by_direction(view: View, known: Knowledge) -> LabelGuesses:
    """Guess by mean cosines, over passes, of records' gradients and those of known positives, which are not guessed."""
    few = known.granted(FewLabels)
    gradients, ids = cut_layer(view, known)
    positives = few.ids[few.labels == 1].view(len(few.ids), -1)
    units = normalize(gradients, dim=3, eps=1e-300)
    among = (ids.unsqueeze(3) == positives[:, None]).any(3, keepdim=True)
    cosines = []
    places = []
    passes = (values.split(known.batches) for values in (units, among, ids))
    for of_pass, seen, here in zip(*passes, strict=True):
        # A pass may hold no known positive of some replica: it tells nothing of that one's records.
        referred = seen.any(2).any(0)
        reference = (of_pass * seen).sum((0, 2))
        cosines.append((of_pass * reference[:, None]).sum(3))
        places.append(here.masked_fill(~referred, -1))
    # `guesses_of` takes scores of the rarer class, whichever it is.
    scores, count = mean_by_record(torch.cat(cosines), torch.cat(places), known)
    if not bool((count > 0).any(1).all()):
        rule = "use more: no known positive was in a batch that the view of some training holds"
        raise DoesNotApply(rule, "option labels_per_class", positives.shape[1])
    rarer = scores if known.rarer == 1 else -scores
    return guesses_of(rarer, count.scatter(1, positives, 0.0), known, positives.shape[1])


def among_several(view: View, known: Knowledge) -> LabelGuesses:
    """Guess the class whose known records' mean direction is nearest, over all passes."""
    few = known.granted(FewLabels)
    rows = directions(view, known)
    records = seen_alike(rows.saw.sum(2).scatter(1, few.ids, 0.0), known)
    return compared(nearest(rows, few, known.classes), records)


def numbers(view: View, known: Knowledge) -> LabelGuesses:
    """Guess numbers by ridge regression on the first passes' gradients of known records, each in units of its pass."""
    few = known.granted(FewLabels)
    gradients, ids = (values[: PASSES * known.batches] for values in cut_layer(view, known))
    passes = zip(gradients.double().split(known.batches), ids.split(known.batches), strict=True)
    means, counts = zip(*(mean_by_record(values, places, known) for values, places in passes), strict=True)
    rows = [values / values.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-300) for values in means]
    seen = torch.stack(counts).sum(0).scatter(1, few.ids, 0.0)
    return guessed(torch.cat(rows, 2).cpu().numpy(), seen_alike(seen, known), known)


def on_features(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Return what a client's raw features tell by the same regression, where the target is a number; else nothing."""
    own = next((grant for grant in known.grants if isinstance(grant, OwnParty)), None)
    if known.values is None or own is None or not (own.features.numel() and own.features.is_floating_point()):
        return {}
    raw = own.features.flatten(1).double().cpu().numpy()
    few = known.granted(FewLabels)
    return {RAW: guessed(np.stack([raw] * len(few.ids)), others(few.ids, known.records), known)}


def guessed(rows: Floats, records: Tensor, known: Knowledge) -> LabelGuesses:
    """Return guesses of the numbers of `records` (K, n) by `rows` (K, N, width), fitted on those that are known."""
    few = known.granted(FewLabels)
    assert known.values is not None
    values = known.values.numpy()
    found = []
    for some, ids, labels in zip(rows, few.ids.cpu().numpy(), few.labels.cpu().numpy(), strict=True):
        found.append(regressed(some, ids, values[labels]))
    return numbers_of(np.stack(found), records, known)


def numbers_of(found: Floats, records: Tensor, known: Knowledge) -> LabelGuesses:
    """Return guesses of the numbers of `records` (K, n), given those `found` (K, N) of all, and the nearest labels."""
    assert known.values is not None
    numbers = torch.from_numpy(found).gather(1, records.cpu())
    labels = torch.searchsorted(0.5 * (known.values[1:] + known.values[:-1]), numbers)
    return LabelGuesses(labels[None], records.cpu()[None], numbers=numbers[None])


def regressed(rows: Floats, ids: np.ndarray, targets: Floats) -> Floats:
    """Return numbers (N,) of `rows` (N, width) by ridge regression on those of `ids`, within the range of `targets`."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import RidgeCV

    scale = rows.std(0)
    columns = (rows - rows.mean(0)) / np.where(scale > 0.0, scale, 1.0)
    if min(columns.shape) > COMPONENTS:
        columns = PCA(COMPONENTS, random_state=0).fit_transform(columns)
        spread = columns.std(0)
        # Components of gradients along fewer directions are rounding.
        kept = spread > ROUNDING * spread.max()
        columns = columns[:, kept] / spread[kept]
    model = RidgeCV(alphas=PENALTIES).fit(columns[ids], targets)
    return np.asarray(model.predict(columns).clip(targets.min(), targets.max()))


def residuals(task: Task, record: Recorder, seed: int) -> None:
    """Send client 1 the gradients of squared errors before training: one direction times how far off the mean is."""
    ids = np.arange(task.records)
    along = np.random.default_rng(seed).standard_normal(4)
    record.sent(0, ATTACKER, 0, "embeddings", np.zeros((task.records, 4)), ids)
    record.sent(0, 0, ATTACKER, "gradient", (task.labels.mean() - task.labels)[:, None] * along, ids)


def in_the_clear(setting: AttackSetting) -> AttackSetting:
    """Return split learning without a top model, where a gradient at the logits is (p - y, y - p).

    Where the target is a number, a system that sends `residuals`.
    """
    if setting.dataset.values is not None:
        method, config = prepared(System("residuals", residuals), setting.dataset, setting.seed)
        return replace(setting, method=method, config=config, clients=(), trials=1)
    return setting.on("split", {"top_model": False, "epochs": 1}, trials=1)


SPEC = AttackSpec(
    name="label_direction",
    summary="labels from directions of per-record gradients, given a few of each class (Li et al. 2022)",
    adversaries=("client",),
    infer=infer,
    mounted_by=mounted,
    goal=Goal(
        Positive("gradients in the clear, split without a top model or numbers: must be 1", in_the_clear, CERTAIN),
        baselines=on_features,
    ),
    needs=Needs(conditions=needs.record_gradients, one_view=True, numbers=True),
    setup=Setup(options={"labels_per_class": 3}, few_labels=True),
)
