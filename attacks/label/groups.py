"""Labels from who shares the nodes of trees with records of known labels, in federations of trees.

SecureBoost (Cheng et al., IEEE Intelligent Systems 2021) encrypts gradients, but clients are told which records are in
each node, so that they can sum over them. A node is split so that labels differ between its children: records that
often share one have like labels. How often two records share a node, each node counted by one over its size, is a
kernel (of random forests: Scornet, IEEE Transactions on Information Theory 2016), and a ridge regression on it lets
known records vote.

Sums over sets of records that reach a client in clear, as histograms or gradients of batches do, are solved for what
each record adds to them, and a ridge regression reads known labels off that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpzv_audit.systems.messages import GROUPS, OF_A_BATCH, SUMS
from dpzv_audit.systems.record import Recorder
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import Task
from mechanisms.core.channel import Message, View

from ..core.equations import solved_sums
from ..core.knowledge import FewLabels, Knowledge, OwnFeatures, granted
from ..core.metrics import Floats, Ints
from ..core.run import own_features
from ..core.setting import ATTACKER, COLLUDING, AttackSetting
from ..core.spec import AttackSpec, Goal, LabelGuesses, Needs, Positive, Setup
from .binary import seen_alike
from .completion import others
from .direction import PENALTIES, guessed, numbers_of
from .learners import by_regression, by_spreading
from .mount import mounted

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

OWN = {"regression on own features": by_regression, "label spreading on own features": by_spreading}
"""Learners that read the client's own features with the same labels, by the names of their baselines."""
SUMMED = (SUMS, OF_A_BATCH)
"""Kinds of messages that are one sum or mean over a set of records."""
POWER = 0.5
"""A node of n records counts n^-power for each of them: their kernel is 1 / n."""
RIDGE = 1.0
"""Penalty, as a share of a record's mean kernel with itself."""


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes of trees as one column each: their `members` (N, nodes), in ones, and how many each has, `sizes` (nodes,).

    A record that no message is about is in none.
    """

    members: "csr_matrix[Any]"
    sizes: Ints

    @classmethod
    def of(cls, messages: Sequence[Message], training: int, records: int) -> "Nodes":
        """Return the nodes that messages of kind `groups` tell of, in one of the trainings of their stack."""
        from scipy.sparse import csr_matrix

        rows = [np.zeros(0, np.int64)]
        columns = [np.zeros(0, np.int64)]
        sizes = [np.zeros(0, np.int64)]
        count = 0
        for message in messages:
            if message.ids is None:
                continue
            ids = message.ids[training].cpu().numpy()
            for numbers in message.payload[training].flatten(1).T.cpu().numpy():
                # FATE numbers leaves downwards from -2.
                told = (ids >= 0) & (numbers != -1)
                names, nodes, members = np.unique(numbers[told], return_inverse=True, return_counts=True)
                rows.append(ids[told])
                columns.append(count + nodes)
                sizes.append(members)
                count += len(names)
        places = np.concatenate(rows), np.concatenate(columns)
        ones = np.ones(len(places[0]))
        return cls(csr_matrix((ones, places), shape=(records, count)), np.concatenate(sizes))

    @property
    def seen(self) -> Ints:
        """Return in how many nodes each record is, (N,)."""
        return np.asarray(np.diff(self.members.indptr))

    def votes(self, known: Ints, targets: Floats, *, power: float = POWER, ridge: float = RIDGE) -> Floats:
        """Return what is expected of each record, (N, c), by the `targets` (n, c) of the `known` records (n,).

        Ridge regression on nodes, each by its size to the `power`: the mean target where nothing is told. `ridge` is
        the penalty, as a share of a record's mean kernel with itself.
        """
        from scipy.sparse import diags
        from sklearn.linear_model import Ridge

        rows = (self.members @ diags(self.sizes.astype(float) ** -power)).tocsr()
        scale = rows.multiply(rows).sum() / max(rows.shape[0], 1)
        if not scale:
            return np.tile(targets.mean(0), (rows.shape[0], 1))
        model = Ridge(alpha=ridge * scale, solver="sparse_cg", tol=1e-5).fit(rows[known], targets)
        return np.asarray(model.predict(rows)).reshape(-1, targets.shape[1])


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Let records of known labels vote on those with which they share nodes, or sums; the mean of both votes."""
    few = known.granted(FewLabels)
    told = [message for message in view.messages if message.kind == GROUPS]
    sums = [message for message in view.messages if message.kind in SUMMED and message.ids is not None]
    votes = []
    seen = []
    for place, (ids, labels) in enumerate(zip(few.ids.cpu().numpy(), few.labels.cpu().numpy(), strict=True)):
        targets = known.label_columns(labels)
        read = []
        often = np.zeros(known.records, np.int64)
        if told:
            nodes = Nodes.of(told, place, known.records)
            read.append(nodes.votes(ids, targets))
            often += nodes.seen
        if sums:
            read.append(by_sums(view, known, place, ids, targets))
            about = np.concatenate([granted(message.ids, "ids")[place].cpu().numpy() for message in sums])
            often += np.bincount(about[about >= 0], minlength=known.records)
        votes.append(np.mean(read, axis=0))
        seen.append(often)
    count = torch.from_numpy(np.stack(seen)).to(few.ids.device)
    records = seen_alike(count.scatter(1, few.ids, 0), known)
    if known.values is not None:
        return numbers_of(np.stack(votes)[:, :, 0], records, known)
    scores = torch.from_numpy(np.stack(votes)).to(few.ids.device)
    # Of two classes scores of one alone are ranked: each is compared with the other.
    return LabelGuesses.about(records, scores - scores.mean(2, keepdim=True))


def by_sums(view: View, known: Knowledge, place: int, ids: Ints, targets: Floats) -> Floats:
    """Return what is expected of each record, (N, c), by what it adds to sums in one training, and known `targets`.

    The sums are read in several ways. The one is taken that fits known records best, each left out in turn.
    """
    from sklearn.linear_model import RidgeCV

    blocks = [own.features for own in known.grants if isinstance(own, OwnFeatures)]
    own = zip(view.adversary.clients, blocks, strict=False)
    features = {m: block.flatten(1).double().cpu().numpy() for m, block in own if block.is_floating_point()}
    outputs = (1, known.classes) if known.values is None else (1,)
    fits = []
    for _, rows in solved_sums(view, known.records, outputs, features, place):
        spread = rows.std(0)
        columns = (rows - rows.mean(0)) / np.where(spread > 0.0, spread, 1.0)
        model = RidgeCV(alphas=PENALTIES).fit(columns[ids], targets)
        fits.append((float(model.best_score_), model.predict(columns).reshape(known.records, -1)))
    if not fits:
        return np.tile(targets.mean(0), (known.records, 1))
    return np.asarray(max(fits, key=itemgetter(0))[1])


def by_own_features(view: View, known: Knowledge) -> Mapping[str, LabelGuesses]:
    """Return what own features say, read with the same labels by regression and by label spreading."""
    blocks = [own.features for own in known.grants if isinstance(own, OwnFeatures) and own.features.numel()]
    # Token ids are no features to compare.
    if not blocks or not all(block.is_floating_point() for block in blocks):
        return {}
    few = known.granted(FewLabels)
    rows = torch.cat([block.flatten(1) for block in blocks], 1).expand(len(known.replicas), -1, -1)
    records = others(few.ids, known.records)
    if known.values is not None:
        return {next(iter(OWN)): guessed(rows.double().cpu().numpy(), records, known)}
    baselines = {}
    for name, learn in OWN.items():
        shares = torch.nan_to_num(learn(rows, rows[:, :0], few, known)[0]).to(few.ids.device)
        baselines[name] = LabelGuesses.about(records, shares - shares.mean(2, keepdim=True))
    return baselines


def groups_told(setting: AttackSetting) -> str | None:
    """Need a client that is told which records share nodes."""
    capabilities = setting.method.capabilities
    if capabilities.simulated:
        return "a built-in method tells no client which records share nodes of a tree; a system or a transcript may"
    if setting.adversary == COLLUDING and len(setting.parties) == 1:
        return "one client alone exchanges messages and cannot collude"
    if setting.told & {GROUPS, *SUMMED}:
        return None
    m = setting.client
    if capabilities.repeatable:
        line = f'record.sent(round, 0, {m}, "groups", nodes, ids)'
        return f"it tells client {m} no groups or sums; {line} where records are split"
    return f"the transcript holds no 'groups' to client {m}, who looks; record them"


def by_leaves(task: Task, record: Recorder, seed: int) -> None:
    """Tell client 1 the leaves of four trees, each of records of one class."""
    draws = np.random.default_rng(seed)
    for tree in range(4):
        leaves = 4 * task.labels + draws.integers(4, size=task.records)
        record.sent(tree, 0, ATTACKER, GROUPS, leaves, np.arange(task.records))


def on_pure_leaves(setting: AttackSetting) -> AttackSetting:
    """Return the same attack on trees whose leaves hold records of one class."""
    method, config = prepared(System("by_leaves", by_leaves), setting.dataset, setting.seed)
    return replace(setting, method=method, config=config, adversary="client", clients=(), trials=1)


SPEC = AttackSpec(
    name="label_groups",
    summary="labels from who shares nodes of trees, or sums over records, with records of known labels",
    adversaries=("client", COLLUDING),
    infer=infer,
    mounted_by=mounted,
    goal=Goal(
        Positive("trees whose leaves hold records of one class: must be 0.95 at least", on_pure_leaves, 0.95),
        baselines=by_own_features,
    ),
    needs=Needs(conditions=(groups_told,), one_view=True, reads=(GROUPS, *SUMMED), numbers=True),
    setup=Setup(options={"known_share": 0.1}, few_labels=True, grants=own_features),
)
