"""Mounts attacks on membership: targets, their control and the shadow models train as replicas of one run.

Records come in pairs, and a coin for each pair and replica says which of the two it trains on: the relation is
replace-record, every record is in with probability one half, and every replica trains on equally many.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.data.files import check_memory
from dpzv_audit.data.vertical import VerticalDataset, take
from mechanisms.core.channel import View
from mechanisms.core.config import rounds_of
from mechanisms.core.context import TrainedStack
from mechanisms.core.federation import logits_of
from mechanisms.core.joining import joined

from ..core.controls import at_chance, by_coins, labels_by_heart
from ..core.knowledge import Population
from ..core.metrics import Booleans, Floats, Ints, auc_interval, low_rates
from ..core.run import public_knowledge
from ..core.setting import AttackSetting
from ..core.spec import SECOND, AttackOutcome, AttackSpec, CoinGame, DoesNotApply
from .mail import LARGEST, MailReader, sharing_own_block

# How far copies of a record lie from it, in standard deviations of each feature over the records.
JITTER = 0.1


def membership_rounds(spec: AttackSpec, setting: AttackSetting) -> int:
    """Return the rounds that targets and shadow models, one stack, take together."""
    return rounds_of(setting.config, _pool_size(setting, spec.count(setting, "pool")) // 2)


def mount_membership(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train targets, control targets and shadow models as one stack; score who was a member of which target."""
    targets = setting.trials
    trainings = 2 * targets + spec.count(setting, "shadows")
    pool = _pool(spec, setting)
    coins = coins_of(setting.seed, range(trainings), len(pool.train) // 2)
    queries = int(spec.own_options(setting).get("queries_per_record", 1))
    run, at_once = _trained_once(pool, setting, coins, kept=targets, copies=queries - 1)
    of_half = replace(setting, dataset=half_of_pool(spec, setting))
    plan = of_half.plan()
    public = public_knowledge(spec, of_half, plan)
    confidence = setting.confidence
    members = run.members[:targets]

    def scores_of(first: int) -> Floats:
        attacked = slice(first, first + targets)
        shadows = slice(2 * targets, None)
        population = Population(
            confidence=run.confidence[attacked],
            outside=run.outside[attacked],
            shadows=run.confidence[shadows],
            shadows_outside=run.outside[shadows],
            members=run.members[shadows],
            copies=run.copies[attacked],
            shadows_copies=run.copies[shadows],
        )
        # What a client read of its mail stands in its knowledge as confidences, where a release's come from the model.
        scores: Floats = spec.infer(View(setting.looks), replace(public, grants=(population,)))
        return scores

    scores = scores_of(0)
    # The control targets trained on coins of their own; the attack is scored against the coins of the others.
    in_control = scores_of(targets)
    control = at_chance(
        auc_interval(in_control, members, confidence),
        what="trained on other members than the true ones: must be at chance",
        expected=0.5,
        test=by_coins(in_control, coins[:targets]),
    )
    return AttackOutcome(
        success=auc_interval(scores, members, confidence),
        baselines={"a constant score": 0.5},
        controls={"other_members": control},
        trained=run.trained,
        plan=plan,
        metric="area under the ROC curve",
        chance=0.5,
        measures=low_rates(scores, members, confidence),
        curves={"receiver operating characteristic": roc(scores, members)},
        game=pair_game(scores, coins[:targets]),
        at_once=at_once,
    )


def roc(scores: Floats, members: Booleans, points: int = 40) -> list[dict[str, float]]:
    """Return rows of false and true positive rate on a grid that is fine where false positives are rare."""
    inside = np.sort(scores[members])
    outside = np.sort(scores[~members])
    rates = np.concatenate(([0.0], np.logspace(-3, 0, points)))
    # Of all non-members that are allowed none is left to set a threshold.
    thresholds = np.append(outside[::-1], -np.inf)[(rates * outside.size).astype(int)]
    above = (inside.size - np.searchsorted(inside, thresholds, side="right")) / inside.size
    pairs = zip(rates.tolist(), above.tolist(), strict=True)
    return [{"false positive rate": false, "true positive rate": true} for false, true in pairs]


def pair_game(scores: Floats, coins: Ints) -> CoinGame | None:
    """Return the game of all pairs of records of all targets, from scores (targets, P) and coins (targets, pairs).

    The score of a pair is how much likelier its second record is a member than its first. Changing one coin replaces
    one record, and the trainings of all targets together are one mechanism of all their coins; theorem 5.2 of Steinke,
    Nasr and Jagielski (NeurIPS 2023) allows for dependence within a target. None where all coins fell alike.
    """
    words = f"{coins.size:,} pairs of records of {len(coins):,} trainings, of which a fair coin picked one; {SECOND}"
    likelier = scores[:, 1::2] - scores[:, ::2]
    return CoinGame.of(likelier, coins == 1, "replace-record", words)


def overfitted(setting: AttackSetting) -> AttackSetting:
    """Return split learning that goes on until labels dealt at random are learnt by heart, without noise."""
    options = {"batch_size": 16, "epochs": 100, "server_rate": 0.05, "client_rate": 0.05}
    dataset = labels_by_heart(setting.dataset, setting.seed)
    own = {"pool": 256, "shadows": 64}
    return setting.on("split", options, dataset=dataset, trials=16, options=own)


@dataclass(frozen=True)
class ShadowRun:
    """Models trained on coin flips: confidences (K, P) and outside (K, n), members (K, P), and the trained stack.

    `copies` (K, Q, P) are confidences in Q copies of each record.
    """

    confidence: Floats
    copies: Floats
    outside: Floats
    members: Booleans
    trained: TrainedStack


def pool_of(setting: AttackSetting, size: int) -> VerticalDataset:
    """Return `size` records (an even number) of the training part, drawn by the seed; the test part stays.

    Raises:
        InputError: The data have fewer, or half of them is less than a batch.
    """
    dataset = setting.dataset
    size = _pool_size(setting, size)
    order = stream(setting.seed, Purpose.DATA).permutation(setting.records)
    return replace(dataset, train=take(dataset.train, np.sort(order[:size])))


def _pool_size(setting: AttackSetting, size: int) -> int:
    half = min(size, setting.records) // 2
    batch = setting.config.batch_size
    if half < batch:
        raise DoesNotApply(
            f"option pool gives {half} records to train on; use at least the batch of {batch}: half of the pool "
            f"is trained on"
        )
    return 2 * half


def coins_of(seed: int, replicas: Sequence[int], pairs: int) -> Ints:
    """Return fair coins (K, pairs), each replica's from its own stream; `MemoryError` where they do not fit."""
    check_memory(8 * len(replicas) * pairs, f"coins of {len(replicas)} trainings")
    return np.stack([stream(seed, Purpose.CANARY, 1, k).integers(2, size=pairs) for k in replicas])


def chosen_rows(coins: Ints) -> Ints:
    """Return the rows (K, pairs) of the pool that coins (K, pairs) choose: of records 2i and 2i + 1 one."""
    return np.asarray(2 * np.arange(coins.shape[1]) + coins)


def _pool(spec: AttackSpec, setting: AttackSetting) -> VerticalDataset:
    pool = pool_of(setting, spec.count(setting, "pool"))
    return sharing_own_block(pool) if setting.adversary == "client" else pool


def half_of_pool(spec: AttackSpec, setting: AttackSetting) -> VerticalDataset:
    """Return the records that the first replica trains on, as a data set."""
    pool = _pool(spec, setting)
    coins = coins_of(setting.seed, range(1), len(pool.train) // 2)
    return replace(pool, train=take(pool.train, chosen_rows(coins)[0]))


def train_on_coins(pool: VerticalDataset, setting: AttackSetting, coins: Ints, copies: int = 0) -> ShadowRun:
    """Train one replica a row of `coins`; what is known of every record of the pool, by released model or by mail.

    Released models are also asked about so many `copies` of each record, which `nearby` makes.
    """
    rows = chosen_rows(coins)
    labels = pool.train.labels
    data = replace(setting, dataset=pool).data(labels[rows])
    selected = replace(data, selection=torch.from_numpy(rows).to(setting.device))
    mail = MailReader(setting.client, labels.reshape(-1, 2), pool.classes)
    by_mail = setting.adversary == "client"
    trained = setting.train(selected, observers=[mail] if by_mail else [])
    members = np.zeros((len(coins), len(labels)), dtype=bool)
    np.put_along_axis(members, rows, True, axis=1)
    around = np.zeros((len(coins), copies, len(labels)))
    if by_mail:
        return ShadowRun(mail.confidence(), around, np.zeros((len(coins), 0)), members, trained)
    if trained.answers:  # a system was asked where it was trained
        outside, inside = map(torch.from_numpy, trained.answers)
    else:
        ask = partial(logits_of, trained, data, setting.config, device=setting.device)
        with torch.no_grad():
            outside, inside = ask(data.test_features), ask(data.features)
            for number in range(copies):
                around[:, number] = confidences(ask(nearby(data.features, setting.seed, number)), labels)
    released = replace(trained, answers=())
    return ShadowRun(confidences(inside, labels), around, confidences(outside, pool.test.labels), members, released)


def nearby(blocks: Sequence[Tensor], seed: int, number: int) -> list[Tensor]:
    """Return copy `number` of the records in feature `blocks` (n, ...): Gaussian noise of `JITTER` of each deviation.

    The noise is the same whoever is asked about them.
    """
    generator = stream(seed, Purpose.ATTACK, number, 14)
    drawn = (torch.from_numpy(generator.standard_normal(block.shape)).to(block) for block in blocks)
    return [block + JITTER * block.std(0) * noise for block, noise in zip(blocks, drawn, strict=True)]


_OF_PILOTS: dict[tuple[object, ...], tuple[ShadowRun, int | None]] = {}
"""The latest trainings of pilots and positive controls by all that decides them: attacks on membership share them."""
_MOST_SHARED = 4


def _trained_once(
    pool: VerticalDataset, setting: AttackSetting, coins: Ints, *, kept: int, copies: int
) -> tuple[ShadowRun, int | None]:
    """Do `train_all`; what was trained for a pilot or a positive control of another attack is taken up."""
    # The trainings of a system are kept where they are made.
    if not (setting.pilot and setting.method.capabilities.simulated):
        return train_all(pool, setting, coins, kept=kept, copies=copies)
    key = (*setting.key, pool.fingerprint, coins.shape, kept, copies)
    if key not in _OF_PILOTS:
        if len(_OF_PILOTS) >= _MOST_SHARED:
            del _OF_PILOTS[next(iter(_OF_PILOTS))]
        _OF_PILOTS[key] = train_all(pool, setting, coins, kept=kept, copies=copies)
    return _OF_PILOTS[key]


def train_all(
    pool: VerticalDataset, setting: AttackSetting, coins: Ints, *, kept: int, copies: int = 0
) -> tuple[ShadowRun, int | None]:
    """Do `train_on_coins` for all of `coins`, in one stack or, where memory runs out, in ever smaller ones.

    Of what was trained the first `kept` replicas stay. Also returns how many memory sufficed for at a time, None where
    for all.
    """

    def work(stack: AttackSetting, places: slice) -> ShadowRun:
        return train_on_coins(pool, stack, coins[places], copies)

    every = replace(setting, trials=len(coins))
    runs, at_once = every.in_stacks(work, rounds_of(setting.config, coins.shape[1]))
    run = joined(runs)
    return replace(run, trained=only(run.trained, kept)), at_once


def confidences(logits: Tensor, labels: Ints) -> Floats:
    """Return log(p / (1 - p)) of the probability p of each record's label, (K, n) (LiRA, eq. 4).

    Of `logits` (K, n, classes) and `labels` (n,). Cut to +-`LARGEST` where a model has no finite answer.
    """
    logits = logits.double()
    place = torch.from_numpy(labels).to(logits.device).expand(len(logits), -1).unsqueeze(2)
    own = logits.gather(2, place).squeeze(2)
    others = logits.scatter(2, place, -torch.inf).logsumexp(2)
    odds: Floats = (own - others).nan_to_num(nan=0.0).clamp(-LARGEST, LARGEST).cpu().numpy()
    return odds


def only(trained: TrainedStack, count: int) -> TrainedStack:
    """Return the first `count` replicas of a stack."""
    stacks = (*trained.clients, trained.server)
    *clients, server = (replace(stack, flat=stack.flat[:count]) for stack in stacks)
    return replace(
        trained,
        clients=tuple(clients),
        server=server,
        correct=trained.correct[:count],
        loss=trained.loss[:count],
    )
