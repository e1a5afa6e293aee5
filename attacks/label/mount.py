"""Mounts attacks on labels: trains, infers, scores against the truth, and does the same with labels dealt at random.

These are dealt as the label game of the attack: every record's label is one of two, by a fair coin, and the attack
guesses the coin. Two random permutations of the labels give each record two candidates, which are public; a coin a
record picks the one that is trained on (one-run audits with labels for membership: Steinke, Nasr and Jagielski, NeurIPS
2023). So labels are independent of the true ones, with the same shares of the classes. Changing one coin replaces one
label, and the trainings of all trials together are one mechanism of all their coins. So theorem 5.2 of that paper
bounds the right guesses of one-run estimators however the scores of a training depend on each other. A coin is fair
whatever features say: what follows from them alone certifies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attacks.core.contract import AttackOutcome, AttackSetting, AttackSpec, CoinGame, FewLabels, LabelGuesses
from attacks.core.controls import ENOUGH_TO_BET, ChanceTest, at_chance, by_bets, by_names, by_order
from attacks.core.metrics import (
    auc_interval,
    counts_interval,
    low_rates,
    majority_baseline,
    prior_baseline,
    rate_interval,
    shared_rate,
    trial_areas,
)
from attacks.core.run import AttackedRun, attacked_run, few_labels
from dpzv_audit.findings import Interval
from dpzv_audit.seeds import Purpose, stream

SHUFFLED = "trained on labels dealt at random, scored against the true ones: must be at chance"
TOP = 3
MOST_CLASSES = 20
"""No table of recalls by class is longer."""


def mount_labels(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """Train, infer the labels, score against the truth, and do the same with labels dealt at random before training.

    Those are dealt by coins, so that the control's guesses are a game that certifies an epsilon.
    """
    labels, classes = setting.dataset.train.labels, setting.dataset.classes
    run = attacked_run(spec, setting)
    guesses: LabelGuesses = spec.infer(run.view, run.known)
    control_run, coins = _control_run(spec, setting, run.at_once)
    guessed_in_control: LabelGuesses = spec.infer(control_run.view, control_run.known)
    game, no_game = guess_coins(guessed_in_control, coins)
    ids_in_control = true_ids(guessed_in_control, control_run)
    shuffled = correctness(guessed_in_control, ids_in_control, labels)
    prior = prior_baseline(labels, classes)
    blind = blind_success(guessed_in_control, labels, classes)
    controls = {
        "shuffled_labels": at_chance(
            rate_interval(shuffled, setting.confidence),
            what=SHUFFLED,
            expected=blind,
            test=_test_of(shuffled, blind, guessed_in_control.labels, _truth(ids_in_control, labels), classes),
        )
    }
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
        game=game,
        no_game=no_game,
        by_trial={
            name: tuple(float(rate) for rate in found.mean(1))
            for name, found in {"success": correct, "shuffled_labels": shuffled, **less}.items()
        },
        at_once=control_run.at_once,
    )


def _control_run(spec: AttackSpec, setting: AttackSetting, at_once: int | None) -> tuple[AttackedRun, LabelCoins]:
    """The same attack on trainings of their own, on labels dealt by coins."""
    replicas = range(setting.trials, 2 * setting.trials)
    per_class = spec.own_options(setting)["labels_per_class"] if spec.few_labels else None
    coins = label_coins(setting, replicas=replicas, granted_per_class=per_class)
    run = attacked_run(
        spec,
        setting,
        labels=coins.labels,
        granted=coins.granted,
        first_replica=setting.trials,
        at_once=at_once,
    )
    return run, coins


def mount_binary(spec: AttackSpec, setting: AttackSetting) -> AttackOutcome:
    """The same for two classes, whose success is the area under the ROC curve of the raw scores: chance is 0.5."""
    labels = setting.dataset.train.labels
    run = attacked_run(spec, setting)
    guesses: LabelGuesses = spec.infer(run.view, run.known)
    control_run, coins = _control_run(spec, setting, run.at_once)
    found_in_control: LabelGuesses = spec.infer(control_run.view, control_run.known)
    game, no_game = guess_coins(found_in_control, coins)
    shuffled = _binary(found_in_control, control_run, labels)
    test = by_bets(trial_areas(*shuffled), 0.5)
    untaught: dict[str, Interval] = {}
    what = SHUFFLED
    if spec.unsupervised:
        untaught = {"features alone, trained on permuted labels": auc_interval(*shuffled, setting.confidence)}
        # One permutation a trial: trials that shared one would share its luck.
        others = range(setting.trials, 2 * setting.trials)
        unrelated = np.stack([stream(setting.seed, Purpose.CONTROL, k).permutation(labels) for k in others])
        shuffled = _binary(found_in_control, control_run, unrelated)
        test = by_order(*shuffled)
        what = "trained on labels dealt at random, scored against labels permuted once more: must be at chance"
    controls = {
        "shuffled_labels": at_chance(auc_interval(*shuffled, setting.confidence), what=what, expected=0.5, test=test)
    }
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
            "labels found by guessing the majority": _known(majority_baseline(labels, classes), labels, setting),
            **low_rates(*_binary(guesses, run, labels), setting.confidence),
        },
        game=game,
        no_game=no_game,
        at_once=control_run.at_once,
    )


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
        # Of equal scores the first class goes first, as it does in the guess: who is right is among the likeliest.
        likeliest = guesses.scores.argsort(dim=3, descending=True, stable=True)[..., :TOP]
        among = (likeliest == _truth(ids, dataset.train.labels).unsqueeze(3)).any(3)
        found[f"label among the {TOP} likeliest"] = rate_interval(_by_replica(among), confidence)
    if guesses.held_out is not None:
        wanted = torch.from_numpy(dataset.test.labels).to(guesses.held_out.device)
        held_out = (guesses.held_out.argmax(2) == wanted).cpu().numpy()
        found["held-out records"] = shared_rate(held_out, confidence)
    if dataset.classes <= MOST_CLASSES:
        for c in range(dataset.classes):
            places = truth == c
            if places.any():
                sizes = places.sum(1)
                found[f"recall of class {c}"] = counts_interval(
                    (right & places).sum(1)[sizes > 0], sizes[sizes > 0], confidence
                )
    return found


def _test_of(right: np.ndarray, expected: float, guessed: Tensor, truth: Tensor, classes: int) -> ChanceTest | None:
    """A test of right guesses (K, n) by bets over trainings, or of few trainings by the names of the classes."""
    if len(right) >= ENOUGH_TO_BET:
        return by_bets(right.mean(1), expected)
    return by_names(_by_replica(guessed), _by_replica(truth), classes) or by_bets(right.mean(1), expected)


def blind_success(guesses: LabelGuesses, labels: np.ndarray, classes: int) -> float:
    """What guesses find that know nothing of the labels: sum_k q_k p_k, of their own shares q and the labels' p.

    This is chance for a control, whatever its guesses favour; the prior baseline is the case q = p.
    """
    guessed = np.bincount(guesses.labels.flatten().cpu().numpy(), minlength=classes) / guesses.labels.numel()
    return float((guessed * np.bincount(labels, minlength=classes) / len(labels)).sum())


def _known(share: float, labels: np.ndarray, setting: AttackSetting) -> Interval:
    """A share of the training labels themselves, about which nothing is uncertain."""
    return Interval(value=share, low=share, high=share, n=len(labels), confidence=setting.confidence)


def _auc(guesses: LabelGuesses, run: AttackedRun, labels: np.ndarray, confidence: float) -> Interval:
    return auc_interval(*_binary(guesses, run, labels), confidence)


def _binary(guesses: LabelGuesses, run: AttackedRun, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores (K, guesses) for class 1, and which records are of it."""
    if guesses.scores is None:
        raise TypeError(f"an attack on binary labels must give scores, {run.known.method.name} was attacked without")
    truth = _by_replica(_truth(true_ids(guesses, run), labels))
    return _by_replica(guesses.scores[..., 1]), truth == 1


def _truth(ids: Tensor, labels: np.ndarray) -> Tensor:
    """Labels (answers, K, B) of `ids`, of `labels` (N,) or one row a replica (K, N)."""
    rows = torch.from_numpy(labels).to(ids.device)
    return rows[ids] if rows.dim() == 1 else rows.expand(len(ids), -1, -1).gather(2, ids)


def _by_replica(values: Tensor) -> np.ndarray:
    """Values (answers, K, B) as (K, answers * B)."""
    return values.transpose(0, 1).flatten(1).cpu().numpy()


NO_IDS = "its guesses are about places of batches, not about records that it could name: they tell no coin"
NO_COINS = "fewer than one coin on either side"
_LARGEST = 1e100


@dataclass(frozen=True)
class LabelCoins:
    """Candidate labels (K, N, 2), coins (K, N) in {0, 1}, who plays (K, N), and labels granted to the adversary.

    A record whose candidates are one label plays no game, nor does one whose label is granted: that has its first
    candidate, so that which records are granted depends on no coin.
    """

    candidates: np.ndarray
    coins: np.ndarray
    plays: np.ndarray
    granted: FewLabels | None

    @property
    def labels(self) -> np.ndarray:
        """What is trained on, (K, N)."""
        chosen: np.ndarray = np.take_along_axis(self.candidates, self.coins[:, :, None], 2)[:, :, 0]
        return chosen


def label_coins(setting: AttackSetting, *, replicas: Sequence[int], granted_per_class: int | None) -> LabelCoins:
    """Candidates and coins of `setting.trials` trainings, each from a stream of its own.

    Args:
        setting: What is attacked; its training labels are permuted.
        replicas: Numbers of the replicas, by which granted records are drawn.
        granted_per_class: Labels of each class that the adversary is granted; None for none.

    Raises:
        DoesNotApply: A class has fewer records than are granted.
    """
    true = setting.dataset.train.labels
    candidates, coins = [], []
    for trial in range(setting.trials):
        generator = stream(setting.seed, Purpose.CONTROL, trial)
        candidates.append(np.stack((generator.permutation(true), generator.permutation(true)), 1))
        coins.append(generator.integers(2, size=len(true)))
    pairs, flips = np.stack(candidates), np.stack(coins)
    plays = pairs[:, :, 0] != pairs[:, :, 1]
    granted = None
    if granted_per_class is not None:
        first = torch.from_numpy(np.ascontiguousarray(pairs[:, :, 0]))
        granted = few_labels(first, setting, granted_per_class, replicas)
        ids = granted.ids.cpu().numpy()
        np.put_along_axis(plays, ids, False, axis=1)
        np.put_along_axis(flips, ids, 0, axis=1)
    return LabelCoins(pairs, flips, plays, granted)


def guess_coins(guesses: LabelGuesses, coins: LabelCoins) -> tuple[CoinGame | None, str]:
    """The game that the guesses of an attack play, or None and why they play none.

    A record's score is how much likelier its second candidate is than its first, by the attack's own scores (or 1 and
    -1 where it names one of them), summed over all answers about it. Records that the attack never guessed have none.
    """
    if guesses.ids is None:
        return None, NO_IDS
    ids = guesses.ids.transpose(0, 1).flatten(1).cpu().numpy()
    rows = np.arange(len(ids))[:, None]
    pairs = coins.candidates[rows, ids]
    evidence = _evidence(guesses, pairs)
    places = rows * coins.coins.shape[1] + ids
    size = coins.coins.size
    total = np.bincount(places.ravel(), weights=evidence.ravel(), minlength=size)
    guessed = np.bincount(places.ravel(), minlength=size) > 0
    known = guessed & coins.plays.ravel()
    scores, second = total[known], coins.coins.ravel()[known] == 1
    if second.all() or not second.any():
        return None, NO_COINS
    words = (
        f"{len(scores):,} labels of {len(ids):,} trainings, each one of two by a fair coin; a score is how much "
        "likelier the second is. Nothing is assumed of how scores of one training depend on each other"
    )
    return CoinGame(scores[second], scores[~second], "replace-label", words), ""


def _evidence(guesses: LabelGuesses, pairs: np.ndarray) -> np.ndarray:
    """Evidence (K, guesses) for the second of `pairs` (K, guesses, 2) against the first."""
    if guesses.scores is None:
        named = guesses.labels.transpose(0, 1).flatten(1).cpu().numpy()
        votes: np.ndarray = (named == pairs[..., 1]).astype(np.float64) - (named == pairs[..., 0])
        return votes
    of = guesses.scores.transpose(0, 1).flatten(1, 2)
    both = of.gather(2, torch.from_numpy(pairs).to(of.device)).double().cpu().numpy()
    # What a model that diverged says of a record is no evidence.
    with np.errstate(invalid="ignore"):
        difference: np.ndarray = np.nan_to_num(both[..., 1] - both[..., 0], nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
    return difference
