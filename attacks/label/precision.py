"""One label from the low bits of noised scalars (Mironov, CCS 2012, for Laplace noise in floating point).

Who knows everything but one label can play the training again under either label that the record may have: both get
the scalars that were released, so that batches, directions, models and the server's state are those of the training
wherever the label is right. Each round then asks whether any noise leads from the sum under that label to the scalar
that was released, in the arithmetic of the channel itself. Floats have gaps, and the gaps of the noise often leave no
float that does: then the label is impossible, whatever the standard deviation.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.findings import Control
from dpzv_audit.base.seeds import Purpose, stream
from mechanisms import TrainingConfig
from mechanisms.core.channel import View, ViewRecorder
from mechanisms.core.context import Plan, RunContext, TrainedStack, TrainingData, dtype_of
from mechanisms.core.defence import label_release
from mechanisms.core.joining import joined
from mechanisms.core.scalars import NoisedScalars, scalar_config

from ..core import needs
from ..core.controls import CERTAIN, at_chance, by_fair_coins, labels_by_heart, reaches
from ..core.knowledge import AllButOne, Knowledge, granted
from ..core.metrics import Booleans, Ints, rate_interval
from ..core.run import public_knowledge
from ..core.setting import AttackSetting
from ..core.spec import AttackOutcome, AttackSpec, CoinGame, Goal, Needs, Positive, Setup
from .mount import NO_COINS


def by_floats(sums: Tensor, released: Tensor) -> Tensor:
    """Return whether adding some float to `sums` gives `released`, both (K,) and of one dtype.

    The difference rounded once is the float nearest to the exact one. If it does not lead there no float does, but for
    a power of two, below which floats lie closer than above it: there a neighbour may.
    """
    nearest = released - sums
    beside = [torch.nextafter(nearest, nearest.new_tensor(end)) for end in (-torch.inf, torch.inf)]
    return (torch.stack((nearest, *beside)) + sums == released).any(0)


def by_steps(sums: Tensor, released: Tensor, *, unit: float, channel: NoisedScalars | None) -> Tensor:
    """Return whether adding whole steps of noise to `sums` (K,) gives `released` (K,).

    A step stands for `unit` in the released mean. With a channel, `sums` count steps and its own arithmetic turns them
    into a scalar; without, `sums` are means already.
    """
    around = sums.new_tensor([[-1.0], [0.0], [1.0]])
    if channel is None:
        steps = ((released - sums) / unit).round() + around
        return (sums + steps * unit == released).any(0)
    steps = (released.to(torch.float64) / unit - sums).round() + around
    return (channel.scalars(sums + steps) == released).any(0)


@torch.no_grad()
def infer(view: View, known: Knowledge) -> Booleans:
    """Return which of the two labels can have led to all released scalars, booleans (K, 2).

    No noise is drawn and no private stream is read: batches, directions and starts are public.
    """
    released = view.scalars()
    return np.stack([_possible(released, known, which) for which in (0, 1)], 1)


def _possible(released: Tensor, known: Knowledge, which: int) -> Booleans:
    """Play trainings again under one label with the `released` scalars (T, K) in the place of their own.

    Returns which trainings can have released them, booleans (K,).
    """
    secret = known.granted(AllButOne)
    config = granted(scalar_config(known.method, known.config), "scalars of DPZV")
    context = RunContext(seed=known.seed, replicas=known.replicas, device=released.device.type)
    channel = NoisedScalars(config, known.sigma, context)
    on_grid = channel if channel.grid else None
    unit = _unit(channel, config) if on_grid else secret.unit
    possible = torch.ones_like(released[0], dtype=torch.bool)

    def compared(sums: Tensor) -> Tensor:
        """Note whether `sums` (K,) without noise can have led to this round's scalars."""
        now = released[run.round]
        if known.sigma == 0.0:
            led = sums == now
        elif unit is None:
            led = by_floats(sums, now)
        else:
            led = by_steps(sums, now, unit=unit, channel=on_grid)
        possible.logical_and_(led)
        return sums

    again = replace(context, noised=compared, released=lambda scalars: released[run.round])
    labels = labels_under(secret, which)
    data = TrainingData.of(secret.dataset, dtype=dtype_of(known.config), device=context.device, labels=labels)
    run = known.method.start(data, known.config, again)
    for played in range(1, len(released) + 1):
        run.step()
        if played % known.batches == 0:
            secret.progress(which * len(released) + played)
    return possible.cpu().numpy()


def _unit(channel: NoisedScalars, config: TrainingConfig) -> float:
    """Return what one step of whole noise stands for in the released mean."""
    return granted(channel.grid, "noise on a grid").step / config.batch_size


def replayable(setting: AttackSetting) -> str | None:
    """Need noised scalars whose bits can be read, and a training that can be played again."""
    config = scalar_config(setting.method, setting.config)
    if config is None:
        return "it releases no noised scalar, whose bits the attack reads"
    if label_release(config.defences) is not None:
        return "its labels are privatised by secret draws, so its state cannot be computed again"
    if config.server_noised and config.top_model and config.server_rate > 0:
        update = config.server_update
        return f"its server draws secret noise (server_update {update}), so its state cannot be computed again"
    return None


def float_noise(setting: AttackSetting) -> AttackSetting:
    """Return DPZV with float noise on records of noise: as its server learns, every later scalar tells the label."""
    options = {
        "noise": "float",
        "sigma": 0.2,
        "clip": 1.0,
        "batch_size": 16,
        "epochs": 24,
        "server_rate": 0.05,
    }
    dataset = labels_by_heart(setting.dataset, setting.seed)
    return setting.on("dpzv", options, dataset=dataset, trials=8)


@dataclass(frozen=True)
class _Played:
    """Trainings that were attacked: coins (K,), which labels are possible (K, 2), and coins (K,) that break ties.

    `trained` is empty where a fault is planted.
    """

    trained: list[TrainedStack]
    coins: Ints
    possible: Booleans
    ties: Ints
    at_once: int | None

    def right(self, coins: Ints) -> Booleans:
        """Return which guesses are right (K, 1) of `coins` (K,): the one label that is possible, or a tie's coin."""
        guesses = np.where(self.possible.sum(1) == 1, self.possible.argmax(1), self.ties)
        return np.asarray(guesses == coins)[:, None]


def labels_under(secret: AllButOne, which: int | Ints) -> Ints:
    """Return training labels (K, N) where each training's record has candidate `which`, one for all or (K,)."""
    rows = np.arange(len(secret.records))
    labels: Ints = np.tile(secret.dataset.train.labels, (len(rows), 1))
    labels[rows, secret.records] = secret.candidates[rows, which]
    return labels


def mount_precision(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, ask which label can have led to what was released, and do the same on coins of their own."""
    run = _play(spec, setting)
    control = _play(spec, setting.of_control(run.at_once))
    right = run.right(run.coins)
    unrelated = control.right(run.coins)
    controls = {
        "other_coins": at_chance(
            rate_interval(unrelated, setting.confidence),
            what="trained on one set of coins, scored against those of other trainings: must be at chance",
            expected=0.5,
            test=by_fair_coins(unrelated),
        )
    }
    if setting.with_positive:
        controls["positive"] = spec.positive_control(setting)
        controls["rounded_after_the_sum"] = rounded_after_the_sum(spec, setting)
    proven = run.possible.sum(1, keepdims=True) == 1
    wrong = ~np.take_along_axis(run.possible, run.coins[:, None], 1)
    scores = run.possible @ np.array([-1.0, 1.0])
    words = (
        f"one label of each of {len(scores):,} trainings, one of two by a fair coin; a score is 1 or -1 where one of "
        f"them is impossible"
    )
    game = CoinGame.of(scores, run.coins == 1, "replace-label", words)
    return AttackOutcome(
        success=rate_interval(right, setting.confidence),
        baselines={"a fair coin": 0.5},
        controls=controls,
        trained=joined(run.trained),
        plan=setting.plan(),
        metric="trainings whose label is guessed",
        chance=0.5,
        measures={
            "proven": rate_interval(proven, setting.confidence),
            "wrongly_proven": rate_interval(wrong, setting.confidence),
        },
        game=game,
        no_game="" if game else NO_COINS,
        by_trial={"success": tuple(right.mean(1)), "other_coins": tuple(unrelated.mean(1))},
        at_once=control.at_once,
    )


def rounded_after_the_sum(spec: AttackSpec, setting: AttackSetting) -> Control:
    """Return a positive control: whole steps of noise on a sum whose records were not rounded, which betrays it."""
    fitting = spec.goal.positive.setting(setting)
    config = fitting.config.model_copy(update={"dtype": "float64"})
    run = _play(spec, replace(fitting, config=config, progress=None), planted=True)
    return reaches(
        rate_interval(run.right(run.coins), setting.confidence),
        what="noise in whole steps on sums of records that are not: must be 1",
        least=CERTAIN,
    )


def _deal(setting: AttackSetting) -> tuple[AllButOne, Ints]:
    """Return a record of each training, its own label beside another, and the coin that picks one of them."""
    truth = setting.labels
    classes = setting.dataset.classes
    streams = (stream(setting.seed, Purpose.ATTACK, replica, 2) for replica in setting.replicas)
    drawn = [(g.integers(len(truth)), g.integers(1, classes), g.integers(2)) for g in streams]
    records, steps, coins = np.transpose(drawn)
    own = truth[records]
    candidates = np.stack((own, (own + steps) % classes), 1)
    return AllButOne(setting.dataset, records, candidates), coins


def _play(spec: AttackSpec, setting: AttackSetting, *, planted: bool = False) -> _Played:
    """Train and attack the replicas of a setting, in ever smaller stacks where memory runs out.

    A stack is played again as it was trained, replica by replica in the same places: matrix products of another shape
    may round otherwise.
    """
    plan = granted(setting.plan(), "scalars of DPZV")
    rounds = setting.rounds
    ties = np.array([stream(setting.seed, Purpose.ATTACK, k, 3).integers(2) for k in setting.replicas])

    def work(stack: AttackSetting, places: slice) -> tuple[Booleans, Ints, TrainedStack | None]:
        secret, coins = _deal(stack)
        recorder = ViewRecorder(stack.looks, kinds=("scalar",))
        progress = granted(stack.progress, "progress")
        data = stack.data(labels_under(secret, coins))
        trained = unit = None
        if planted:
            unit = _round_too_late(stack, data, recorder, plan)
        else:
            trained = stack.train(data, observers=(recorder,))
        secret = replace(secret, unit=unit, progress=lambda done: progress(rounds + done))
        known = replace(public_knowledge(spec, stack, plan), grants=(secret,))
        return spec.infer(recorder.view, known), coins, trained

    played, at_once = setting.in_stacks(work, 3 * rounds)
    possible, coins, trained = zip(*played, strict=True)
    return _Played(
        [stack for stack in trained if stack], np.concatenate(coins), np.concatenate(possible), ties, at_once
    )


@torch.no_grad()
def _round_too_late(setting: AttackSetting, data: TrainingData, recorder: ViewRecorder, plan: Plan) -> float:
    """Train with whole steps of noise on the mean of float differences: each round is rounded too late.

    Returns what a step stands for.
    """
    config = granted(scalar_config(setting.method, setting.config), "scalars of DPZV")
    context = setting.context(plan=plan)
    whole = NoisedScalars(config.model_copy(update={"noise": "grid"}), plan.sigma, context)
    unit = _unit(whole, config)

    def noised(means: Tensor) -> Tensor:
        return means + whole.noise.next().to(means.dtype) * unit

    watched = replace(context, observers=(recorder,), noised=noised)
    run = setting.method.start(data, setting.config, watched)
    for _ in plan.active:
        run.step()
    return unit


def rounds_with_replays(spec: AttackSpec, setting: AttackSetting) -> int:
    """Return the rounds of the attacked trainings and of the control's, each played again under either label."""
    return 2 * 3 * setting.rounds


SPEC = AttackSpec(
    name="label_precision",
    summary="one label by which of two can have led to the released scalars, bit by bit; float noise proves it",
    adversaries=("all-but-one",),
    infer=infer,
    mounted_by=mount_precision,
    goal=Goal(Positive("label_precision on float noise: must be 1", float_noise, CERTAIN)),
    needs=Needs(conditions=(needs.own_protocol, replayable)),
    setup=Setup(rounds=rounds_with_replays, trials=24),
)
