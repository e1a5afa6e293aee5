"""One label from the low bits of noised scalars (Mironov, CCS 2012, for Laplace noise in floating point).

Who knows everything but one label can play the training again under either label that the record may have: both get
the scalars that were released, so that batches, directions, models and the server's state are those of the training
wherever the label is right. Each round then asks whether any noise leads from the sum under that label to the scalar
that was released, in the arithmetic of the channel itself. Floats have gaps, and the gaps of the noise often leave no
float that does: then the label is impossible, whatever the standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attacks.core.contract import AllButOne, AttackOutcome, AttackSetting, AttackSpec, CoinGame, Knowledge, Positive
from attacks.core.controls import CERTAIN, at_chance, by_fair_coins, labels_by_heart, reaches
from attacks.core.metrics import rate_interval
from attacks.core.run import public_knowledge
from attacks.label.mount import NO_COINS
from dpzv_audit.errors import InputError, check_count
from dpzv_audit.findings import Control
from dpzv_audit.halving import as_share, in_pieces
from dpzv_audit.seeds import Purpose, stream
from mechanisms import train
from mechanisms.core.channel import Adversary, View, ViewRecorder
from mechanisms.core.config import rounds_of
from mechanisms.core.context import Deployment, Plan, RunContext, TrainedStack, TrainingData, dtype_of
from mechanisms.methods.dpzv import ScalarChannel, scalar_config


def by_floats(sums: Tensor, released: Tensor) -> Tensor:
    """Return whether adding some float to `sums` gives `released`, both (K,) and of one dtype.

    The difference rounded once is the float nearest to the exact one. If it does not lead there no float does, but for
    a power of two, below which floats lie closer than above it: there a neighbour may.
    """
    nearest = released - sums
    beside = [torch.nextafter(nearest, torch.full_like(nearest, end)) for end in (-torch.inf, torch.inf)]
    return (torch.stack((nearest, *beside)) + sums == released).any(0)


def by_steps(sums: Tensor, released: Tensor, *, unit: float, channel: ScalarChannel | None) -> Tensor:
    """Return whether adding whole steps of noise to `sums` (K,) gives `released` (K,).

    A step stands for `unit` in the released mean. With a channel, `sums` count steps and its own arithmetic turns them
    into a scalar; without, `sums` are means already.
    """
    if channel is None:
        steps = _around(((released - sums) / unit).round())
        return (sums + steps * unit == released).any(0)
    steps = _around((released.to(torch.float64) / unit - sums).round())
    return (channel.scalars(sums + steps) == released).any(0)


def _around(steps: Tensor) -> Tensor:
    return steps + torch.tensor([[-1.0], [0.0], [1.0]], dtype=steps.dtype, device=steps.device)


class Replay:
    """Puts released scalars (T, K) in the place of a run's own, and keeps which trainings can have released them."""

    def __init__(self, released: Tensor, known: Knowledge) -> None:
        config = scalar_config(known.method, known.config)
        if config is None or known.but_one is None:
            raise TypeError("a replay needs a configuration of DPZV and everything but one label")
        self._released = released
        self._noise = known.sigma > 0.0
        self._unit = known.but_one.unit
        self._channel: ScalarChannel | None = None
        context = RunContext(seed=known.seed, replicas=known.replicas, device=_device(released))
        channel = ScalarChannel(config, known.sigma, context)
        if channel.grid is not None:
            self._channel, self._unit = channel, channel.grid.step / config.batch_size
        self._round = 0
        self.possible = torch.ones(released.shape[1], dtype=torch.bool, device=released.device)

    def noised(self, sums: Tensor) -> Tensor:
        """Ask of `sums` (K,) without noise whether they can have led to this round's scalars; see `RunContext`."""
        released = self._released[self._round]
        if not self._noise:
            self.possible &= sums == released
        elif self._unit is not None:
            self.possible &= by_steps(sums, released, unit=self._unit, channel=self._channel)
        else:
            self.possible &= by_floats(sums, released)
        return sums

    def released(self, scalars: Tensor) -> Tensor:
        """Return this round's scalars (K,) as they were released; see `RunContext`."""
        self._round += 1
        return self._released[self._round - 1]


@torch.no_grad()
def infer(view: View, known: Knowledge) -> np.ndarray:
    """Return which of the two labels can have led to all released scalars, booleans (K, 2).

    No noise is drawn and no private stream is read: batches, directions and starts are public.
    """
    released = view.scalars()
    return np.stack([_possible(released, known, which) for which in (0, 1)], 1)


def _possible(released: Tensor, known: Knowledge, which: int) -> np.ndarray:
    config, given = known.config, known.but_one
    if given is None:
        raise InputError("label_precision needs scalars of DPZV, and everything but one label")
    dataset = given.dataset
    data = TrainingData.of(dataset, dtype=dtype_of(config), device=_device(released), labels=labels_under(given, which))
    replay = Replay(released, known)
    context = RunContext(
        seed=known.seed,
        replicas=known.replicas,
        device=_device(released),
        noised=replay.noised,
        released=replay.released,
    )
    run = known.method.start(data, config, context)
    for played in range(1, len(released) + 1):
        run.step()
        if played % known.batches == 0:
            given.progress(which * len(released) + played)
    return replay.possible.cpu().numpy()


def _device(tensor: Tensor) -> str:
    return tensor.device.type


def replayable(setting: AttackSetting) -> str | None:
    """Need noised scalars whose bits can be read, and a training that can be played again."""
    config = scalar_config(setting.method, setting.config)
    if config is None:
        return "it releases no noised scalar, whose bits the attack reads"
    if config.server_update == "dp-sgd" and config.top_model and config.server_rate > 0:
        return "its server draws noise of its own (server_update dp-sgd), so that nobody can play its state again"
    return None


def float_noise(setting: AttackSetting) -> AttackSetting:
    """DPZV with float noise on records of noise: with a server trained by sgd every later scalar tells the label."""
    options = {"noise": "float", "sigma": 0.2, "clip": 1.0, "batch_size": 16, "epochs": 24, "server_rate": 0.05}
    return setting.on("dpzv", options, dataset=labels_by_heart(setting.dataset, setting.seed), trials=8)


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


SPEC = AttackSpec(
    name="label_precision",
    summary="one label by which of two can have led to the released scalars, bit by bit; float noise proves it",
    adversaries=("all-but-one",),
    infer=infer,
    mounted_by=mount_precision,
    positive=Positive("label_precision on float noise: must be 1", float_noise, CERTAIN),
    needs=(replayable,),
    rounds=precision_rounds,
    trials=24,
)
