"""Labels of any number of classes from per-record gradients without one known label (after Jiang et al. 2026, LEA).

A server's gradients at a client's embeddings fall in one direction for each class, under a top model too: clusters of
them are the classes but for their names. Naming is an enumeration: of all assignments of names to clusters the one is
taken that explains best what is public. With the shares of the classes that is the likeliest, which puts clusters and
classes in the order of their sizes; with the server's start it is the one under which simulated gradients agree best
with those received (their congruence of first-round gradients), found as an assignment problem.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.vertical import Records, VerticalDataset
from mechanisms.core.channel import SERVER, View
from mechanisms.core.context import TrainingData, dtype_of
from mechanisms.core.federation import architectures_of, pretrained
from mechanisms.core.replicas import ParameterStack, loss_gradient, server_of

from ..core import needs
from ..core.knowledge import Knowledge, OwnParty, ServerStart
from ..core.metrics import Floats, Ints
from ..core.setting import AttackSetting
from ..core.spec import AttackSpec, DoesNotApply, Goal, LabelGuesses, Needs, Positive, Setup
from .binary import mean_by_record, seen_alike
from .completion import embedded
from .direct import cut_layer
from .mount import mount_labels

# Passes of which gradients are read at most: later ones turn further and tell less.
MOST_PASSES = 8
# Visits to records of a class in a window of rounds, on average.
VISITS = 60
# Rows on which a mixture is fitted at most, starts of it, and what is added to its covariance, in mean variances.
FITTED = 10_000
STARTS = 5
RIDGE = 1e-3
# Steps of expectation maximisation: in a window as centres are followed, and over all visits.
STEPS = 3
ITERATIONS = 50
# Components of raw features that are clustered, as in `attacks.label.learners`.
COMPONENTS = 50
# Bytes of clusters that are kept for other attacks.
MOST_KEPT = 2**26
RAW = "clusters of raw features, named by shares"
# Directions (n, width) and record ids (n,) of a window of rounds.
Visits = tuple[Floats, Ints]


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Cluster the directions of records' gradients, and name the clusters by what is public."""
    gradients, ids = (values[: MOST_PASSES * known.batches] for values in cut_layer(view, known))
    units = normalize(gradients, dim=3, eps=1e-300)
    _, count = mean_by_record(units[..., 0], ids, known)
    records = seen_alike(count, known)
    seen = zip(units.transpose(0, 1), ids.transpose(0, 1), known.replicas, strict=True)
    every = torch.from_numpy(np.stack([clusters(u.cpu().numpy(), i.cpu().numpy(), known, k) for u, i, k in seen]))
    logs = every.to(records.device).take_along_dim(records.unsqueeze(2), 1)
    places = logs.argmax(2)
    if known.options["names"] == "shares":
        names = by_shares(places, known)
    else:
        names = by_start(places, records, units[: known.batches], ids[: known.batches], known)
    return named(logs, names, records)


def without_gradients(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Return the baseline: clusters of the client's raw features, the same for each training, named by shares."""
    own = next((grant for grant in known.grants if isinstance(grant, OwnParty)), None)
    if own is None or not own.features.is_floating_point():
        return {}
    from sklearn.decomposition import PCA

    rows = own.features.flatten(1).double().cpu().numpy()
    if min(rows.shape) > COMPONENTS:
        rows = PCA(COMPONENTS, random_state=0).fit_transform(rows)
    of_one = torch.from_numpy(mixture(rows, known, known.replicas[0]).logs(rows)).to(own.features.device)
    logs = of_one.expand(len(known.replicas), -1, -1)
    records = torch.arange(known.records, device=logs.device).expand(len(logs), -1)
    return {RAW: named(logs, by_shares(logs.argmax(2), known), records)}


def named(logs: Tensor, names: Tensor, records: Tensor) -> LabelGuesses:
    """Return guesses about `records` (K, n) from logs (K, n, clusters) of clusters whose `names` are (K, clusters)."""
    order = names.to(logs.device).argsort(1)
    return replace(LabelGuesses.of(logs.take_along_dim(order[:, None], 2)[None], records[None]), unnamed=True)


@dataclass(frozen=True)
class Mixture:
    """A mixture of Gaussians of one covariance, one for each class (McLachlan and Peel, 2000).

    `weights` are logs of shares (classes,), `means` (classes, width), and `factor` (width, width) whitens rows x:
    x factor has unit covariance about the mean of its class.
    """

    weights: Floats
    means: Floats
    factor: Floats

    def logs(self, rows: Floats) -> Floats:
        """Return log-probabilities (n, classes) of rows (n, width), each up to a constant of its row."""
        distances = (((rows @ self.factor)[:, None] - (self.means @ self.factor)[None]) ** 2).sum(2)
        return np.asarray(self.weights - 0.5 * distances)

    @property
    def separation(self) -> float:
        """Return the variance between the classes over that within, summed over coordinates."""
        shares = np.exp(self.weights)[:, None]
        centres = self.means @ self.factor
        return float((shares * (centres - (shares * centres).sum(0)) ** 2).sum())


def mixture(rows: Floats, known: Knowledge, replica: int) -> Mixture:
    """Return the likeliest mixture for rows (n, width), of those found from several starts by k-means."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    order = stream(known.seed, Purpose.ATTACK, replica, 13).permutation(len(rows))
    some = rows[order[:FITTED]]
    least = RIDGE * max(float(some.var(0).mean()), 1e-12)
    models = []
    with warnings.catch_warnings():
        # Fewer distinct rows than classes, or noise alone.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for start in range(STARTS):
            centres = KMeans(known.classes, n_init=1, random_state=start).fit(some).cluster_centers_
            options = {"covariance_type": "tied", "means_init": centres, "reg_covar": least, "random_state": start}
            models.append(GaussianMixture(known.classes, **options).fit(some))
    best = max(models, key=lambda model: model.lower_bound_)
    return Mixture(np.log(np.maximum(best.weights_, 1e-12)), best.means_, best.precisions_cholesky_)


def rounds_of_window(batch: int, classes: int) -> int:
    """Return how many rounds with `batch` records each show `VISITS` of a class on average."""
    return max(1, -(-VISITS * classes // batch))


def windows_of(rows: Floats, ids: Ints, classes: int) -> list[Visits]:
    """Return rows (rounds, B, width) of records `ids` (rounds, B) by windows of rounds, without padding.

    Windows in which nobody was visited, as after the end of a training that stopped early, are left out.
    """
    count = max(1, len(rows) // rounds_of_window(ids.shape[1], classes))
    windows = zip(np.array_split(rows, count), np.array_split(ids, count), strict=True)
    visits = [(some[places >= 0], places[places >= 0]) for some, places in windows]
    return [window for window in visits if len(window[1])] or visits[:1]


def passes_of(windows: Sequence[Visits], known: Knowledge, batch: int) -> list[Sequence[Visits]]:
    """Return the `windows` of rounds with `batch` records each by passes over the data."""
    size = max(1, known.batches // rounds_of_window(batch, known.classes))
    return [windows[first : first + size] for first in range(0, len(windows), size)]


_FOUND: dict[tuple[object, ...], Floats] = {}
"""The latest clusters by all that decides them: attacks on the same messages share them."""


def clusters(units: Floats, ids: Ints, known: Knowledge, replica: int) -> Floats:
    """Return what `clusters_anew` does; what was found for the same directions before is taken up."""
    about = (units.shape, known.classes, known.batches, known.records, known.seed, replica)
    key = (sha256(units.tobytes() + ids.tobytes()).digest(), *about)
    if key not in _FOUND:
        found = clusters_anew(units, ids, known, replica)
        while _FOUND and sum(logs.nbytes for logs in _FOUND.values()) + found.nbytes > MOST_KEPT:
            del _FOUND[next(iter(_FOUND))]
        _FOUND[key] = found
    return _FOUND[key].copy()


def clusters_anew(units: Floats, ids: Ints, known: Knowledge, replica: int) -> Floats:
    """Return log-probabilities (N, classes) of every record's cluster.

    Directions of a class turn as training goes on, so that each window of rounds has centres of its own. Those of the
    first rounds start it: as many rounds as make clusters stand apart most, since more of them average noise out and
    blur what turns. From there centres are followed from window to window, and then fitted to all visits by
    expectation maximisation.

    Args:
        units: Directions of one training, (rounds, B, width).
        ids: Their records, (rounds, B), -1 for padding.
        known: Public parameters.
        replica: The training's number, for random starts.
    """
    windows = windows_of(units, ids, known.classes)
    candidates = []
    count = 1
    while count <= len(windows):
        rows, visited = map(np.concatenate, zip(*windows[:count], strict=True))
        records, inverse, visits = np.unique(visited, return_inverse=True, return_counts=True)
        means = np.zeros((len(records), rows.shape[1]))
        np.add.at(means, inverse, rows)
        if len(records) >= known.classes:
            candidates.append(mixture(means / visits[:, None], known, replica))
        count *= 2
    if not candidates:
        rule = f"let it train for longer: {known.classes} at least are needed, one of each class"
        raise DoesNotApply(f"the client is sent gradients of {len(records)} records; {rule}")
    start = max(candidates, key=lambda candidate: candidate.separation)
    return fitted(passes_of(windows, known, ids.shape[1]), followed(windows, start, known.records))


def followed(windows: Sequence[Visits], start: Mixture, records: int) -> Floats:
    """Return log-probabilities (N, classes) of one walk through `windows`: centres go on from one to the next."""
    logs = np.tile(start.weights, (records, 1))
    model = replace(start, weights=np.zeros_like(start.weights))
    for rows, ids in windows:
        for _ in range(STEPS):
            shares = softmax(logs[ids] + model.logs(rows), 1)
            # One visit's worth of the centre before keeps a class that nobody in the window has.
            means = (shares.T @ rows + model.means) / (shares.sum(0)[:, None] + 1.0)
            model = replace(model, means=means)
        np.add.at(logs, ids, model.logs(rows))
    return logs


def fitted(passes: Sequence[Sequence[Visits]], logs: Floats) -> Floats:
    """Return log-probabilities (N, classes) by expectation maximisation from `logs`, over all visits.

    Each window has its own centres, and each of the `passes` its own covariance: later ones tell less.
    """
    width = passes[0][0][0].shape[1]
    for _ in range(ITERATIONS):
        shares = softmax(logs, 1)
        weights = np.log(np.maximum(shares.mean(0), 1e-12))
        updated = np.tile(weights, (len(logs), 1))
        for windows in passes:
            centres = []
            within = np.zeros((width, width))
            for rows, ids in windows:
                own = shares[ids]
                size = own.sum(0)[:, None]
                centres.append(own.T @ rows / np.maximum(size, 1e-9))
                within += rows.T @ rows - (centres[-1] * size).T @ centres[-1]
            covariance = within / sum(len(ids) for _, ids in windows)
            least = RIDGE * max(float(np.trace(covariance)) / width, 1e-12)
            factor = np.linalg.cholesky(np.linalg.inv(covariance + least * np.eye(width)))
            for (rows, ids), means in zip(windows, centres, strict=True):
                np.add.at(updated, ids, Mixture(np.zeros(len(weights)), means, factor).logs(rows))
        same = (updated.argmax(1) == logs.argmax(1)).all()
        logs = updated
        if same:
            break
    return logs


def by_shares(places: Tensor, known: Knowledge) -> Tensor:
    """Return the likeliest names (K, clusters) of the clusters of records, `places` (K, n), given the classes' shares.

    Of all assignments that which puts both in the same order has the largest sum_k n_k log p_name(k) (Hardy,
    Littlewood and Polya 1934, theorem 368). Among equal shares the order is that of the clusters, which tells nothing.
    """
    sizes = one_hot(places, known.classes).sum(1)
    order = torch.tensor(known.shares, dtype=torch.float64).argsort(stable=True).to(places.device)
    return torch.empty_like(sizes).scatter_(1, sizes.argsort(dim=1, stable=True), order.expand_as(sizes))


def by_start(places: Tensor, records: Tensor, units: Tensor, ids: Tensor, known: Knowledge) -> Tensor:
    """Return names (K, clusters) under which gradients of the server's start agree best with those received.

    Args:
        places: Cluster of each of `records`, (K, n).
        records: Their ids, (K, n).
        units: Directions of the gradients of the first pass, (rounds, K, B, width).
        ids: Their records, (rounds, K, B).
        known: Holds the server's model and the own one before training.
    """
    from scipy.optimize import linear_sum_assignment

    cosines = [(simulated(batch, known) * unit.unsqueeze(2)).sum(3) for batch, unit in zip(ids, units, strict=True)]
    agreement, _ = mean_by_record(torch.stack(cosines), ids, known)
    own = agreement.take_along_dim(records.unsqueeze(2), 1)
    total = one_hot(places, known.classes).double().mT @ own
    return torch.from_numpy(np.stack([linear_sum_assignment(-table)[1] for table in total.cpu().numpy()]))


def simulated(ids: Tensor, known: Knowledge) -> Tensor:
    """Return directions (K, B, classes, width) of the gradients that the server's start gives records of each class.

    The other clients' embeddings, which it does not know, are taken as 0. `ids` are (K, B), -1 for padding.
    """
    ids = ids.clamp(min=0)
    own = known.granted(OwnParty)
    start = known.granted(ServerStart)
    if own.initial is None:
        raise AssertionError("a system with an unknown start does not come here")
    every = embedded(own, own.initial(), own.features)
    width = every.shape[2]
    rows = every.new_zeros(*ids.shape, start.clients * width)
    first = (known.client - 1) * width
    rows[:, :, first : first + width] = every.take_along_dim(ids.unsqueeze(2), 1)
    logits, pullback = start.server.vjp(start.parameters, rows)
    of_classes = []
    for c in range(known.classes):
        _, at_rows = pullback(loss_gradient(logits, torch.full_like(ids, c)), at_inputs=True)
        of_classes.append(at_rows[:, :, first : first + width].double())
    return normalize(torch.stack(of_classes, 2), dim=3, eps=1e-300)


def server_start(data: TrainingData, setting: AttackSetting) -> tuple[object, ...]:
    """Grant the server's model before training where names come from it."""
    if SPEC.own_options(setting)["names"] != "start":
        return ()
    model = architectures_of(data, setting.config)[1]
    clients = len(data.features)
    server = server_of(model, setting.config, clients=clients, stack=setting.trials, device=setting.device)
    streams = setting.context().streams(dtype_of(setting.config))
    start = ParameterStack.initial(server.layout, streams, party=SERVER, pretrained=pretrained(model))
    return (ServerStart(server, start, clients),)


def known_start(setting: AttackSetting) -> str | None:
    """Need a start that can be public, where names come from it."""
    if setting.options.get("names") == "start" and not setting.method.capabilities.simulated:
        return (
            "names start needs the server's model before training, which a system does not tell; names shares does not"
        )
    return None


def unequal_shares(setting: AttackSetting) -> AttackSetting:
    """Return split learning with a top model on 640 records of noise in classes of 10, 20, 30 and 40%."""

    def part(count: int, kind: int) -> Records:
        generator = stream(setting.seed, Purpose.CONTROL, 0, 2, kind)
        blocks = tuple(generator.standard_normal((count, 8), np.float32) for _ in range(2))
        return Records(blocks, generator.permutation(np.repeat(np.arange(4), count // 10 * np.arange(1, 5))))

    planted = VerticalDataset("unequal classes", part(640, 0), part(40, 1), 4, setting.dataset.partition, {})
    return setting.on("split", {"batch_size": 32, "epochs": 2}, dataset=planted, trials=2)


SPEC = AttackSpec(
    name="label_enumeration",
    summary="labels without a known one: clusters of per-record gradients, named by shares or the server's start (LEA)",
    adversaries=("client",),
    infer=infer,
    mounted_by=mount_labels,
    goal=Goal(
        Positive("four classes of 10 to 40% under a top model: must be 0.95 at least", unequal_shares, 0.95),
        baselines=without_gradients,
    ),
    needs=Needs(conditions=(known_start, *needs.record_gradients), one_view=True, reads=("gradient",)),
    setup=Setup(options={"names": "shares"}, choices={"names": ("shares", "start")}, grants=server_start),
)
