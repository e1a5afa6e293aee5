"""Mounts the attack on noise's bits: a fair coin picks one label of each training, and the attack says which it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attacks.core.chance import by_fair_coins
from attacks.core.contract import AllButOne, AttackOutcome, AttackSetting, AttackSpec, CoinGame
from attacks.core.controls import CERTAIN, at_chance, reaches
from attacks.core.intervals import rate_interval
from attacks.core.run import public_knowledge
from attacks.label.coins import NO_COINS
from dpzv_audit.errors import check_count
from dpzv_audit.findings import Control
from dpzv_audit.halving import as_share, in_pieces
from dpzv_audit.seeds import Purpose, stream
from mechanisms import train
from mechanisms.context import Deployment, Plan, RunContext
from mechanisms.dpzv import ScalarChannel, scalar_config
from mechanisms.federation import rounds_of
from mechanisms.trained import TrainedStack
from mechanisms.training_data import TrainingData, dtype_of
from mechanisms.views import Adversary, View, ViewRecorder

_COIN, _TIE = 2, 3
"""Last parts of the keys of two streams: what is dealt, and what a guess falls back on."""


@dataclass(frozen=True)
class _Played:
    """Trainings that were attacked: coins (K,), which labels are possible (K, 2), and guessed coins (K,)."""

    trained: TrainedStack | None
    coins: np.ndarray
    possible: np.ndarray
    guesses: np.ndarray
    at_once: int | None

    @property
    def right(self) -> np.ndarray:
        """Which guesses are right, (K, 1)."""
        right: np.ndarray = (self.guesses == self.coins)[:, None]
        return right


def precision_rounds(spec: AttackSpec, setting: AttackSetting) -> int:
    """Rounds of the attacked trainings and of the control's, each played again under either label."""
    return 2 * 3 * rounds_of(setting.config, len(setting.dataset.train))


def labels_under(given: AllButOne, which: int | np.ndarray) -> np.ndarray:
    """Return training labels (K, N) where each training's record has candidate `which`, one for all or (K,)."""
    rows = np.arange(len(given.records))
    labels: np.ndarray = np.tile(given.dataset.train.labels, (len(rows), 1))
    labels[rows, given.records] = given.candidates[rows, which]
    return labels


def mount_precision(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, ask which label can have led to what was released, and do the same on coins of their own."""
    check_count("trials", setting.trials)
    run = _play(spec, setting, first=0)
    control = _play(spec, setting, first=setting.trials, at_once=run.at_once)
    unrelated = (control.guesses == run.coins)[:, None]
    controls = {
        "other_coins": at_chance(
            rate_interval(unrelated, setting.confidence),
            what="trained on coins of their own, scored against those of other trainings: must be at chance",
            expected=0.5,
            test=by_fair_coins(unrelated),
        )
    }
    if setting.with_positive:
        controls["positive"] = spec.positive_control(setting)
        controls["rounded_after_the_sum"] = rounded_after_the_sum(spec, setting)
    if run.trained is None:
        raise TypeError("trainings that were attacked are kept")
    one = run.possible.sum(1) == 1
    wrong = ~run.possible[np.arange(setting.trials), run.coins]
    game = _game(run)
    return AttackOutcome(
        success=rate_interval(run.right, setting.confidence),
        baselines={"a fair coin": 0.5},
        controls=controls,
        trained=run.trained,
        plan=_plan(setting),
        metric="trainings whose label is guessed",
        chance=0.5,
        measures={
            "proven": rate_interval(one[:, None], setting.confidence),
            "wrongly_proven": rate_interval(wrong[:, None], setting.confidence),
        },
        game=game,
        no_game="" if game else NO_COINS,
        by_trial={"success": tuple(run.right[:, 0].astype(float)), "other_coins": tuple(unrelated[:, 0].astype(float))},
        at_once=control.at_once,
    )


def rounded_after_the_sum(spec: AttackSpec, setting: AttackSetting) -> Control:
    """A positive control: whole steps of noise on a sum whose records were not rounded, which is what betrays it."""
    planted = replace(spec.positive.setting(setting), progress=None)
    config = planted.config.model_copy(update={"dtype": "float64"})
    found = _play(spec, replace(planted, config=config), first=0, planted=True)
    return reaches(
        rate_interval(found.right, setting.confidence),
        what="noise in whole steps on sums of records that are not: must be 1",
        least=CERTAIN,
    )


def _game(run: _Played) -> CoinGame | None:
    """The game of one coin a training; None where all fell alike. A score is which labels are possible, -1, 0 or 1."""
    scores, second = run.possible[:, 1].astype(float) - run.possible[:, 0], run.coins == 1
    if second.all() or not second.any():
        return None
    words = (
        f"one label of each of {len(scores):,} trainings, one of two by a fair coin; a score is 1 or -1 where one of "
        "them is impossible"
    )
    return CoinGame(scores[second], scores[~second], "replace-label", words)


def _plan(setting: AttackSetting) -> Plan:
    dataset = setting.dataset
    deployment = Deployment(records=len(dataset.train), clients=dataset.clients, seed=setting.seed)
    return setting.method.scalar_plan(setting.config, deployment)


def _deal(setting: AttackSetting, replicas: range) -> tuple[AllButOne, np.ndarray]:
    """A record of each training, its own label beside another, and the coin that picks one of them."""
    truth, classes = setting.dataset.train.labels, setting.dataset.classes
    records, candidates, coins = [], [], []
    for replica in replicas:
        generator = stream(setting.seed, Purpose.ATTACK, replica, _COIN)
        record = int(generator.integers(len(truth)))
        own = int(truth[record])
        records.append(record)
        candidates.append((own, (own + int(generator.integers(1, classes))) % classes))
        coins.append(int(generator.integers(2)))
    given = AllButOne(setting.dataset, np.array(records), np.array(candidates))
    return given, np.array(coins)


def _play(
    spec: AttackSpec, setting: AttackSetting, *, first: int, at_once: int | None = None, planted: bool = False
) -> _Played:
    """Train and attack `setting.trials` replicas from number `first` on, in ever smaller stacks where memory runs out.

    A stack is played again as it was trained, replica by replica in the same places: matrix products of another shape
    may round otherwise.
    """
    the_plan, rounds = _plan(setting), rounds_of(setting.config, len(setting.dataset.train))
    replicas = range(first, first + setting.trials)
    given, coins = _deal(setting, replicas)

    def part(start: int, stop: int) -> tuple[TrainedStack | None, np.ndarray]:
        share = as_share(setting.progress, (start, stop), of=setting.trials, rounds=3 * rounds)
        share(0)
        own = replace(
            given,
            records=given.records[start:stop],
            candidates=given.candidates[start:stop],
            unit=unit_of(setting, the_plan) if planted else None,
            progress=lambda done: share(rounds + done),
        )
        numbers = replicas[start:stop]
        labels = labels_under(own, coins[start:stop])
        make = _planted if planted else _trained
        view, trained = make(setting, the_plan, labels, numbers, share)
        known = public_knowledge(spec, setting, the_plan, records=len(setting.dataset.train), replicas=numbers)
        return trained, spec.infer(view, replace(known, but_one=own))

    found = list(in_pieces(part, 0, setting.trials, at_once))
    possible = np.concatenate([one[1] for one, _ in found])
    ties = np.array([int(stream(setting.seed, Purpose.ATTACK, k, _TIE).integers(2)) for k in replicas])
    return _Played(
        trained=None if planted else TrainedStack.joined([one[0] for one, _ in found if one[0] is not None]),
        coins=coins,
        possible=possible,
        guesses=np.where(possible.sum(1) == 1, possible.argmax(1), ties),
        at_once=found[-1][1],
    )


def _trained(
    setting: AttackSetting, the_plan: Plan, labels: np.ndarray, replicas: range, progress: Callable[[int], None]
) -> tuple[View, TrainedStack]:
    recorder = ViewRecorder(Adversary(setting.adversary), kinds=("scalar",))
    trained = train(
        setting.method,
        _data(setting, labels),
        setting.config,
        seed=setting.seed,
        replicas=replicas,
        observers=(recorder,),
        device=setting.device,
        progress=progress,
    )
    return recorder.view, trained


@torch.no_grad()
def _planted(
    setting: AttackSetting, the_plan: Plan, labels: np.ndarray, replicas: range, progress: Callable[[int], None]
) -> tuple[View, None]:
    """The same with whole steps of noise on the mean of float differences: each round is rounded too late."""
    recorder = ViewRecorder(Adversary(setting.adversary), kinds=("scalar",))
    noise = _whole(setting, the_plan, replicas).noise
    unit = unit_of(setting, the_plan)

    def noised(means: Tensor) -> Tensor:
        return means + noise.next().to(means.dtype) * unit

    context = RunContext(
        seed=setting.seed,
        replicas=replicas,
        observers=(recorder,),
        device=setting.device,
        plan=the_plan,
        noised=noised,
    )
    run = setting.method.start(_data(setting, labels), setting.config, context)
    for _ in the_plan.active:
        run.step()
    return recorder.view, None


def unit_of(setting: AttackSetting, the_plan: Plan) -> float:
    """What one step of whole noise stands for in the released mean."""
    grid = _whole(setting, the_plan, range(1)).grid
    if grid is None:
        raise TypeError("without noise there is no grid")
    return grid.step / setting.config.batch_size


def _whole(setting: AttackSetting, the_plan: Plan, replicas: range) -> ScalarChannel:
    """The channel with noise on the grid, whatever the setting's."""
    config = scalar_config(setting.method, setting.config)
    if config is None:
        raise TypeError(f"{setting.method.name} releases no scalars")
    on_grid = config.model_copy(update={"noise": "grid"})
    return ScalarChannel(
        on_grid, the_plan.sigma, RunContext(seed=setting.seed, replicas=replicas, device=setting.device)
    )


def _data(setting: AttackSetting, labels: np.ndarray) -> TrainingData:
    return TrainingData.of(setting.dataset, dtype=dtype_of(setting.config), device=setting.device, labels=labels)
