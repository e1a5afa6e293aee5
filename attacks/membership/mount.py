"""Mounts attacks on membership: targets, their control and the shadow models train as replicas of one run.

Records come in pairs, and a coin for each pair and replica says which of the two it trains on: the relation is
replace-record, every record is in with probability one half, and every replica trains on equally many.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attacks.core.chance import by_coins
from attacks.core.contract import AttackOutcome, AttackSetting, AttackSpec, CoinGame, Knowledge, Population
from attacks.core.controls import at_chance
from attacks.core.metrics import auc_interval, low_rates
from attacks.core.planted import labels_by_heart
from attacks.core.run import ADVERSARY_CLIENT, public_knowledge
from attacks.membership.mail import sharing_own_block
from attacks.membership.shadow_models import ShadowRun, coins_of, pool_of, rounds_on_half, train_all, trained_on
from dpzv_audit.data.vertical import VerticalDataset
from dpzv_audit.errors import check_count
from mechanisms import TrainingConfig
from mechanisms.context import Deployment, Plan
from mechanisms.views import Adversary, View


def membership_rounds(spec: AttackSpec, setting: AttackSetting) -> int:
    """Rounds that targets and shadow models, one stack, take together."""
    return rounds_on_half(setting, spec.own_options(setting)["pool"])


def mount_membership(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train targets, control targets and shadow models as one stack; score who was a member of which target."""
    check_count("trials", setting.trials)
    own = spec.own_options(setting)
    targets, shadows = setting.trials, own["shadows"]
    pool = pool_of(setting, own["pool"])
    if setting.adversary == "client":
        pool = sharing_own_block(pool, ADVERSARY_CLIENT)
    the_plan = _plan(setting.config, pool, setting)
    coins = coins_of(setting.seed, range(2 * targets + shadows), len(pool.train) // 2)
    run, at_once = train_all(pool, setting, coins, kept=targets)
    known = _knowledge(spec, setting, run, slice(0, targets), slice(2 * targets, None), the_plan)
    # What a client read of its mail stands in `known` as confidences, where a release's come from the model.
    view = View(Adversary(setting.adversary, (ADVERSARY_CLIENT,) if setting.adversary == "client" else ()))
    members = run.members[:targets]
    scores: np.ndarray = spec.infer(view, known)
    # The control targets trained on coins of their own; the attack is scored against the coins of the others.
    of_control = _knowledge(spec, setting, run, slice(targets, 2 * targets), slice(2 * targets, None), the_plan)
    in_control: np.ndarray = spec.infer(view, of_control)
    controls = {
        "other_members": at_chance(
            auc_interval(in_control, members, setting.confidence),
            what="trained on other members than the true ones: must be at chance",
            expected=0.5,
            test=by_coins(in_control, coins[:targets]),
        )
    }
    return AttackOutcome(
        success=auc_interval(scores, members, setting.confidence),
        baselines={"a constant score": 0.5},
        controls=controls,
        trained=run.trained,
        plan=the_plan,
        metric="area under the ROC curve",
        chance=0.5,
        measures=low_rates(scores, members, setting.confidence),
        curves={"receiver operating characteristic": roc(scores, members)},
        game=pair_game(scores, coins[:targets]),
        dataset=trained_on(pool, coins[0]),
        at_once=at_once,
    )


def _knowledge(
    spec: AttackSpec, setting: AttackSetting, run: ShadowRun, targets: slice, shadows: slice, the_plan: Plan | None
) -> Knowledge:
    client = ADVERSARY_CLIENT if setting.adversary == "client" else 0
    known = public_knowledge(spec, setting, the_plan, records=run.members.shape[1] // 2, client=client)
    population = Population(
        confidence=run.confidence[targets],
        outside=run.outside[targets],
        shadows=run.confidence[shadows],
        shadows_outside=run.outside[shadows],
        members=run.members[shadows],
    )
    return replace(known, population=population)


def _plan(config: TrainingConfig, pool: VerticalDataset, setting: AttackSetting) -> Plan | None:
    deployment = Deployment(records=len(pool.train) // 2, clients=pool.clients, seed=setting.seed)
    return setting.method.plan(config, deployment)


def roc(scores: np.ndarray, members: np.ndarray, points: int = 40) -> list[dict[str, float]]:
    """Rows of false and true positive rate on a grid that is fine where false positives are rare."""
    inside, outside = np.sort(scores[members]), np.sort(scores[~members])
    rates = np.concatenate(([0.0], np.logspace(-3, 0, points)))
    rows = []
    for rate in rates:
        allowed = int(rate * outside.size)
        threshold = outside[outside.size - 1 - allowed] if allowed < outside.size else -np.inf
        above = inside.size - int(np.searchsorted(inside, threshold, side="right"))
        rows.append({"false positive rate": float(rate), "true positive rate": above / inside.size})
    return rows


def pair_game(scores: np.ndarray, coins: np.ndarray) -> CoinGame | None:
    """The game of all pairs of records of all targets, from scores (targets, P) and coins (targets, pairs).

    The score of a pair is how much likelier its second record is a member than its first. Changing one coin replaces
    one record, and the trainings of all targets together are one mechanism of all their coins; theorem 5.2 of Steinke,
    Nasr and Jagielski (NeurIPS 2023) allows for dependence within a target. None where all coins fell alike.
    """
    difference, second = scores[:, 1::2] - scores[:, ::2], coins == 1
    if second.all() or not second.any():
        return None
    words = (
        f"{coins.size:,} pairs of records of {len(coins):,} trainings, of which a fair coin picked one; a score is how "
        "much likelier the second is. Nothing is assumed of how scores of one training depend on each other"
    )
    return CoinGame(difference[second], difference[~second], "replace-record", words)


def overfitted(setting: AttackSetting) -> AttackSetting:
    """Split learning far past the point where it fits labels dealt at random: no noise, and all is learnt by heart."""
    options = {"batch_size": 16, "epochs": 100, "server_rate": 0.05, "client_rate": 0.05}
    dataset, own = labels_by_heart(setting.dataset, setting.seed), {"pool": 256, "shadows": 64}
    return setting.on("split", options, dataset=dataset, trials=16, options=own)
