"""Labels from predictions that a party is served about training records: what a model says of what it was trained on.

A model that classifies tells labels of records that it never saw; one that learnt labels by heart tells those of its
training records besides (the difference is the advantage of the membership adversary of Yeom et al., CSF 2018). So
success stands beside that on held-out records, where the system says what its model predicts of these. The game is
played on labels dealt by coins, of which features tell nothing: an epsilon means that training labels are told.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dpzv_audit.base.seeds import Purpose, stream
from dpzv_audit.systems.record import Recorder
from dpzv_audit.systems.run import prepared
from dpzv_audit.systems.system import System
from dpzv_audit.systems.task import Task
from mechanisms.core.channel import View

from ..core import needs
from ..core.controls import CERTAIN
from ..core.knowledge import Knowledge
from ..core.metrics import shared_rate
from ..core.predictions import LEAST, log_odds, log_probabilities
from ..core.queries import stacked
from ..core.setting import ATTACKER, AttackSetting
from ..core.spec import AttackOutcome, AttackSpec, DoesNotApply, Goal, LabelGuesses, Needs, Positive, Setup
from .binary import mean_by_record
from .mount import mount_labels

HELD_OUT = "what the model says of held-out records"


def infer(view: View, known: Knowledge) -> LabelGuesses:
    """Guess the likeliest class of each record by what was served of it: the mean probability, or the last.

    One who does not know ids guesses each row of the first pass over the records by itself.
    """
    mail = [m for m in view.messages if m.kind == "prediction" and m.receiver == known.client]
    served, ids = stacked(mail)
    if not mail[0].payload.is_floating_point():
        served = served.long()
    real = served.new_ones(served.shape[:-1], dtype=torch.bool) if ids is None else ids >= 0
    logs = log_probabilities(served, real, known.classes)
    if logs is None:
        raise DoesNotApply(
            f"predictions served to client {known.client} are {served.shape[-1]} numbers a record; use "
            f"{known.classes} scores, a class, or of two classes one score"
        )
    if ids is None:
        return LabelGuesses.of(log_odds(logs[: known.batches]), None)
    return by_record(logs.exp(), ids, known)


def by_record(probabilities: Tensor, ids: Tensor, known: Knowledge) -> LabelGuesses:
    """Guess records of which probabilities (T, K, B, classes) with their ids (T, K, B) were served.

    Where trainings served different numbers of records, as many are guessed of each as of the one that served fewest.
    """
    if known.options["servings"] == "last":
        # Padding, whose id is -1, counts to a record after the last.
        places = torch.where(ids < 0, known.records, ids)
        last = ids.new_zeros(ids.shape[1], known.records + 1)
        for number, rows in enumerate(places):
            last.scatter_(1, rows, number)
        ids = torch.stack([rows.where(last.gather(1, rows) == number, -1) for number, rows in enumerate(places)])
        ids = ids.where(ids < known.records, -1)
    mean, count = mean_by_record(probabilities, ids, known)
    return LabelGuesses.about(drawn(count > 0, known), log_odds(mean.clamp(min=LEAST).log()))


def drawn(served: Tensor, known: Knowledge) -> Tensor:
    """Return ids (K, n) of records that were `served`, booleans (K, N): as many of each replica, by a stream of it."""
    orders = [stream(known.seed, Purpose.ATTACK, k, 8).random(known.records) for k in known.replicas]
    order = torch.from_numpy(np.stack(orders)).to(served.device).masked_fill(~served, -1.0)
    return order.topk(int(served.sum(1).min())).indices.sort(1).values


def mount_served(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Mount an attack on labels, with what the same models say of held-out records beside, where they were asked."""
    outcome = mount_labels(spec, setting)
    correct = outcome.trained.correct
    if not correct.size:
        return outcome
    held_out = {HELD_OUT: shared_rate(correct, setting.confidence)}
    by_trial = {**outcome.by_trial, HELD_OUT: tuple(correct.mean(1).tolist())}
    return replace(outcome, baselines={**outcome.baselines, **held_out}, by_trial=by_trial)


def by_heart(task: Task, record: Recorder, seed: int) -> None:
    """Serve client 1 the logits of a model that learnt all labels by heart."""
    logits = 4.0 * np.eye(task.classes)[task.labels]
    record.sent(0, 0, ATTACKER, "prediction", logits, np.arange(task.records))


def on_labels_by_heart(setting: AttackSetting) -> AttackSetting:
    """Return the same attack on a system that serves what a model says that learnt all labels by heart."""
    method, config = prepared(System("by_heart", by_heart), setting.dataset, setting.seed)
    return replace(setting, method=method, config=config, adversary="client", queries=1, trials=1)


SPEC = AttackSpec(
    name="label_served",
    summary="labels from predictions that a party is served about training records, by one serving or many",
    adversaries=("client", "eavesdropper"),
    infer=infer,
    mounted_by=mount_served,
    goal=Goal(Positive("served by a model that learnt all labels by heart: must be 1", on_labels_by_heart, CERTAIN)),
    needs=Needs(conditions=(needs.served,), one_view=True, reads=("prediction",), answers="prediction"),
    setup=Setup(options={"servings": "mean"}, choices={"servings": ("mean", "last")}),
)
