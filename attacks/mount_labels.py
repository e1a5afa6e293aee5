"""Mounts attacks on labels: trains, infers, scores against the truth, and does the same with permuted labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attacks.contract import AttackOutcome, AttackSetting, AttackSpec, Control, LabelGuesses, control
from attacks.metrics import (
    auc_interval,
    majority_baseline,
    mean_interval,
    prior_baseline,
    rate_interval,
)
from attacks.run import AttackedRun, attacked_run, permuted_labels, quiet
from dpzv_audit.evidence import Interval
from dpzv_audit.seeds import Purpose, stream

SHUFFLED = "trained on permuted labels, scored against the true ones: must be at chance"
TOP = 3
MOST_CLASSES = 20
"""No table of recalls by class is longer."""


def mount_labels(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, infer the labels, score against the truth, and do the same with labels permuted before training."""
    labels, classes = setting.dataset.train.labels, setting.dataset.classes
    run = attacked_run(spec, setting)
    guesses: LabelGuesses = spec.infer(run.view, run.known)
    control_run = attacked_run(spec, setting, labels=permuted_labels(setting), first_replica=setting.trials)
    guessed_in_control: LabelGuesses = spec.infer(control_run.view, control_run.known)
    shuffled = correctness(guessed_in_control, true_ids(guessed_in_control, control_run), labels)
    prior = prior_baseline(labels, classes)
    controls = {
        "shuffled_labels": control(
            rate_interval(shuffled, setting.confidence), what=SHUFFLED, kind="negative", expected=prior
        )
    }
    if setting.with_positive:
        controls["positive"] = positive_control(spec, setting)
    correct = correctness(guesses, true_ids(guesses, run), labels)
    less = {
        name: correctness(found, true_ids(found, run), labels)
        for name, found in spec.baselines(run.view, run.known).items()
    }
    intervals = {name: rate_interval(found, setting.confidence) for name, found in less.items()}
    return AttackOutcome(
        success=rate_interval(correct, setting.confidence),
        baselines={"majority": majority_baseline(labels, classes), "prior": prior, **intervals},
        controls=controls,
        trained=run.trained,
        plan=run.plan,
        metric="labels found",
        chance=max(majority_baseline(labels, classes), prior),
        measures=label_measures(guesses, run, setting),
        by_trial={
            name: tuple(float(rate) for rate in found.mean(1))
            for name, found in {"success": correct, "shuffled_labels": shuffled, **less}.items()
        },
    )


def mount_binary(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """The same for two classes, whose success is the area under the ROC curve of the raw scores: chance is 0.5."""
    labels = setting.dataset.train.labels
    run = attacked_run(spec, setting)
    guesses: LabelGuesses = spec.infer(run.view, run.known)
    control_run = attacked_run(spec, setting, labels=permuted_labels(setting), first_replica=setting.trials)
    found_in_control: LabelGuesses = spec.infer(control_run.view, control_run.known)
    shuffled = _auc(found_in_control, control_run, labels, setting.confidence)
    untaught: dict[str, Interval] = {}
    what = SHUFFLED
    if spec.unsupervised:
        untaught = {"features alone, trained on permuted labels": shuffled}
        # One permutation a trial: trials that shared one would share its luck.
        others = range(setting.trials, 2 * setting.trials)
        unrelated = np.stack([stream(setting.seed, Purpose.CONTROL, k).permutation(labels) for k in others])
        shuffled = _auc(found_in_control, control_run, unrelated, setting.confidence)
        what = "trained on permuted labels, scored against labels permuted once more: must be at chance"
    controls = {"shuffled_labels": control(shuffled, what=what, kind="negative", expected=0.5)}
    if setting.with_positive:
        controls["positive"] = positive_control(spec, setting)
    correct = correctness(guesses, true_ids(guesses, run), labels)
    classes = setting.dataset.classes
    return AttackOutcome(
        success=_auc(guesses, run, labels, setting.confidence),
        baselines={
            "a constant score": 0.5,
            **untaught,
            **{
                name: _auc(found, run, labels, setting.confidence)
                for name, found in spec.baselines(run.view, run.known).items()
            },
        },
        controls=controls,
        trained=run.trained,
        plan=run.plan,
        metric="area under the ROC curve",
        chance=0.5,
        measures={
            "labels found": rate_interval(correct, setting.confidence),
            "labels found by guessing the majority": rate_interval(
                np.broadcast_to(labels == np.bincount(labels, minlength=classes).argmax(), (1, len(labels))),
                setting.confidence,
            ),
        },
    )


def positive_control(spec: AttackSpec, setting: AttackSetting) -> Control:
    """The attack where it must succeed, by the same path as everything else."""
    outcome = spec.mount(quiet(spec.positive.setting(setting)))
    return control(outcome.success, what=spec.positive.what, kind="positive", expected=spec.positive.least)


def true_ids(guesses: LabelGuesses, run: AttackedRun) -> Tensor:
    """Ids (answers, K, B) of what was guessed: those that the attack names, else those of the answers that it read."""
    if guesses.ids is not None:
        return guesses.ids
    return run.log.stacked()[:: run.repeats][: len(guesses.labels)]


def correctness(guesses: LabelGuesses, ids: Tensor, labels: np.ndarray) -> np.ndarray:
    """Whether each guess is right, booleans (K, guesses): for scoring alone.

    Args:
        guesses: What an attack returned.
        ids: True ids (answers, K, B) of the places that were guessed.
        labels: True labels, (N,).
    """
    return _by_replica(guesses.labels == _truth(ids, labels))


def label_measures(guesses: LabelGuesses, run: AttackedRun, setting: AttackSetting) -> dict[str, Interval]:
    """Recall of each class, and where the attack gives scores top-3 success and success on held-out records."""
    dataset, confidence = setting.dataset, setting.confidence
    ids = true_ids(guesses, run)
    truth = _by_replica(_truth(ids, dataset.train.labels))
    right = correctness(guesses, ids, dataset.train.labels)
    found: dict[str, Interval] = {}
    if guesses.scores is not None and dataset.classes > TOP:
        among = (guesses.scores.topk(TOP, dim=3).indices == _truth(ids, dataset.train.labels).unsqueeze(3)).any(3)
        found[f"label among the {TOP} likeliest"] = rate_interval(_by_replica(among), confidence)
    if guesses.held_out is not None:
        wanted = torch.from_numpy(dataset.test.labels).to(guesses.held_out.device)
        held_out = (guesses.held_out.argmax(2) == wanted).cpu().numpy()
        found["held-out records"] = rate_interval(held_out, confidence)
    if dataset.classes <= MOST_CLASSES:
        for c in range(dataset.classes):
            places = truth == c
            if places.any():
                found[f"recall of class {c}"] = mean_interval(
                    [float(r[p].mean()) for r, p in zip(right, places, strict=True) if p.any()],
                    int(places.sum()),
                    confidence,
                )
    return found


def _auc(guesses: LabelGuesses, run: AttackedRun, labels: np.ndarray, confidence: float) -> Interval:
    if guesses.scores is None:
        raise TypeError(f"an attack on binary labels must give scores, {run.known.method.name} was attacked without")
    truth = _by_replica(_truth(true_ids(guesses, run), labels))
    return auc_interval(_by_replica(guesses.scores[..., 1]), truth == 1, confidence)


def _truth(ids: Tensor, labels: np.ndarray) -> Tensor:
    """Labels (answers, K, B) of `ids`, of `labels` (N,) or one row a replica (K, N)."""
    rows = torch.from_numpy(labels).to(ids.device)
    return rows[ids] if rows.dim() == 1 else rows.expand(len(ids), -1, -1).gather(2, ids)


def _by_replica(values: Tensor) -> np.ndarray:
    """Values (answers, K, B) as (K, answers * B)."""
    return values.transpose(0, 1).flatten(1).cpu().numpy()
